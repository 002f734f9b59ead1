"""A whole cluster of real bookie processes on this machine, under one directory.

==========================  ===================================================================
``DIR/LOCK``                held while a supervisor runs
``DIR/cluster.json``        metadata URI and each bookie's ports, so that they stay the same
``DIR/security/``           with TLS: the CA, and the certificates of bookies and of a client
``DIR/metadata/``           the embedded metadata store, unless another store was chosen
``DIR/bookie-1/``           one bookie: ``bookie.toml``, ``bookie.log`` (of all its runs),
                            ``bookie.pid`` (while it runs), ``journal/``, ``ledgers/``
==========================  ===================================================================

Each bookie is a child process that runs ``bookie serve``. The supervisor acts as the service
manager of sd_notify(3): each bookie reports when it is ready, so the supervisor never polls. If the
supervisor is killed, the kernel sends each child SIGTERM, so all bookies stop, too.
"""

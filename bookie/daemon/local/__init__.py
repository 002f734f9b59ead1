"""A whole cluster of real bookie processes on this machine, under one directory.

==========================  ===================================================================
``DIR/LOCK``                is locked while a supervisor runs
``DIR/cluster.json``        keeps the metadata URI and the bookies' ports between runs
``DIR/security/``           has the CA and the certificates, if the cluster uses TLS
``DIR/metadata/``           is the embedded metadata store, unless another store was chosen
``DIR/bookie-1/``           has the files of one bookie: ``bookie.toml``; ``bookie.log`` of all
                            runs; ``bookie.pid`` while it runs; ``journal/``; ``ledgers/``
==========================  ===================================================================

Each bookie is a child process that runs ``bookie serve``. The supervisor acts as the service
manager of sd_notify(3): each bookie reports when it is ready, so the supervisor does not poll. If
the supervisor is killed, the kernel sends SIGTERM to each bookie, so all bookies stop, too.
"""

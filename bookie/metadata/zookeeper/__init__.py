"""The metadata store on ZooKeeper 3.6 or newer, better 3.9: ``zk://HOST:2181,HOST:2181/scope``.

ZooKeeper has sessions and a tree. ZooKeeper lacks three things: parents that exist only while they
have children, versions that never repeat, and known outcomes after a lost reply. This package adds
virtual parents and unique versions as far as a client can. The package finds the outcome of a write
as soon as ZooKeeper answers again, if the session has not ended.

| module | what it holds |
|---|---|
| `backend` | `ZooKeeperStore`: reads, watches, access control; differences from the contract |
| `writer` | transactions: sent at once if the cache has the nodes, else after reads of the nodes |
| `parents` | parents: made when a create misses them, removed with their last child |
| `tree` | turns records, parents and access control into nodes, transactions into operations |
| `nodes`, `cached` | nodes read before a write, and records known from answers and events |
| `outcome` | receipts: after a lost reply they show if a write was done |
| `restrict` | gives an existing tree the access control lists of `bookie.metadata.rights` |
| `changes` | translates events about nodes into events about records |
| `session` | the connection, made again after each break; its watch is set first |
| `client`, `requests` | kazoo's asynchronous calls from the loop, in the order of the socket |
| `kazoo_parts`, `sasl` | the few inner parts of kazoo that the store needs; DIGEST-MD5 |

**A write** is one multi transaction with a receipt (`outcome`): a mark in a small ephemeral node of
the session. After a lost reply, the mark in the ephemeral node shows if the write was done.

**Parents.** ZooKeeper refuses to create a node without its parents; the store then makes the
parents and tries again. A delete also removes the parents that it leaves empty. The end of a
session does not remove empty parents. An empty parent stays in listings until a later delete below
it, or a recursive delete, removes it.

**Versions.** ZooKeeper's version of a node begins at 0 again after a deletion. So the store's
version also contains the zxid of the write that created the node. A write that expects the version
of a deleted record is refused once the store has received the event of the deletion. Before this
event arrives, such a write may change a new record of the same key.

**Below** ``/.bookie``, outside of all scopes, are the receipts (ephemeral) and the node
`tree.REMOVALS`, which every removal of a parent writes. Do not delete `REMOVALS`: the versions of a
new node would begin at 0 again, and would repeat.

**Watches.** One persistent recursive watch serves the whole store. When a connection ends,
ZooKeeper drops its watch. So after each reconnection the store sets the watch again, and delivers
`Resync`.
"""

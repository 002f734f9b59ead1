"""The metadata store in memory, for tests and for a cluster inside one process.

This backend is the model: the conformance suite checks that all other backends behave like it. Each
name has its own records, held in dictionaries. All stores that a process opens as ``memory://NAME``
share the records of that name.

| module | what it holds |
|---|---|
| `tree` | the records, the sessions and the numbered commits: the content of a server |
| `backend` | `MemoryStore`, one session on a name |

Each `MemoryStore` of a name has a session with its own ephemeral records. The end of a session
deletes its ephemeral records. Commits are numbered, and watches deliver the commits in order.
`evaluate` decides the outcome of each transaction, as in the local backend.

Records exist as long as the process. A store that is closed and opened again finds its records.
Bookies refuse a ``memory://`` URI: after a restart, the ledgers on their disks would have no
metadata.
"""

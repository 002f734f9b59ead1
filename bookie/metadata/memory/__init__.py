"""The store in memory, for tests and for a cluster inside one process.

This backend is the model of all others: the conformance suite compares them with it. Records live
in dictionaries below a name. Every store opened as ``memory://NAME`` in the process shares them.

| module | what it holds |
|---|---|
| `tree` | the records, the sessions and the numbered commits: the content of a server |
| `backend` | `MemoryStore`, one session on a name |

Each store on a name has a session with its own ephemeral records, which go when it ends. Commits
are numbered, and watches deliver them in order. `evaluate` decides the outcome of each transaction,
as it does for the local backend.

Records live as long as the process. A store may be closed and opened again and finds its records.
Bookies refuse such a URI: after a restart, the ledgers on their disks would have no metadata.
"""

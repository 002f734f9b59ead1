"""The store in memory, for tests and for a cluster inside one process.

This backend is the model of all others. The conformance suite compares them with what it does, so
it is the shortest correct answer to "what does the contract mean?". Records live in dictionaries
below a name; every store opened as ``memory://NAME`` in the process shares them.

| module | what it holds |
|---|---|
| `tree` | the records, the sessions and the numbered commits: what a server would hold |
| `backend` | `MemoryStore`, one session on a name |

Sessions are real. Several stores on one name each own their ephemeral records, and one session's
end deletes only its own. Commits are numbered, and watches deliver them in order. `evaluate`
decides the outcome of each transaction, as it does for the local backend.

Records live as long as the process. A store may be closed and opened again and finds its records.
A bookie that keeps its data on disk must keep its metadata elsewhere: after a restart, its ledgers
would have no metadata. Bookies refuse such a URI.
"""

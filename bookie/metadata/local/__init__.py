"""The metadata store in a local directory: an LMDB file, shared by processes of one machine.

This embedded store is the default; its URI is ``local:///DIRECTORY``. The local store needs no
server: every process opens the same LMDB file, which contains all records and sessions. The
directory must be on a file system of this machine; LMDB and the locks fail on a network file
system.

| module | what it holds |
|---|---|
| `tree` | the tables: records, children, sessions and the log of commits |
| `environment` | one LMDB environment and one writer thread per directory and process |
| `sessions` | sessions: a row, a locked file and a deadline for each; notifications |
| `backend` | `LocalStore`: reads in the event loop, and the end of dead sessions |

**A write** is a job for the writer thread. The thread takes all queued jobs and commits them in one
durable LMDB transaction. So thirty-two callers that write at the same time do several times as many
writes as one caller.

**A read** gets data from LMDB's memory map in the event loop, within microseconds.

**A session** is a row in the LMDB file. The process that owns the session holds a kernel lock on a
separate file. The owner also writes a deadline into this file. So a heartbeat only moves this
deadline, and needs no commit. If the lock of a session is free, the session's process is dead, and
another process ends the session. So a dead process loses its ephemeral records within a quarter of
a second. A process that hangs loses its ephemeral records after four thirds of its session timeout.

**A commit** is stored as one record of the commit log, whose records are numbered without gaps.
After a commit, the writer sends each session a datagram that says "new commits". If a datagram is
lost, a session still finds the commits, because it also polls the log.

A process that is stopped (SIGSTOP) inside a write transaction holds LMDB's lock. Writers on the
machine wait until that process continues or is killed; readers do not wait. After the session
timeout, the caller of a waiting write gets `MetadataUnavailableError`, but the write may still
happen.
"""

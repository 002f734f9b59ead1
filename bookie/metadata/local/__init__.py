"""The store in a local directory: LMDB, shared by the processes of one machine.

This is the embedded default, ``local:///DIRECTORY``. It needs no server: every process opens the
same LMDB file, and the file is the authority. The directory must be on a file system of this
machine; LMDB and the locks fail on a network file system.

| module | what it holds |
|---|---|
| `tree` | the tables: records, children, sessions and the log of commits |
| `environment` | one LMDB environment and one writer thread per directory and process |
| `sessions` | sessions: a row, a locked file and a deadline for each; notifications |
| `backend` | `LocalStore`: reads in the event loop, and the end of dead sessions |

**A write** is a job for the writer thread. The thread takes all queued jobs and commits them in
one durable LMDB transaction. So thirty-two callers get several times the rate of one.

**A read** looks into the memory map from the event loop. It takes microseconds.

**A session** is a row in the file. Its owner holds a kernel lock on a file of its own and writes a
deadline into it, so a heartbeat costs no commit. Other processes end a session whose lock is free:
a dead process loses its ephemeral records within a quarter of a second. A process that hangs loses
them after its session timeout and a third.

**A change** is one record of the commit log, numbered without gaps. After a commit, the writer
sends each session a datagram that says "new commits". If one is lost, polling finds the commits.

A process that is stopped (SIGSTOP) inside a write transaction holds LMDB's lock. Writers of the
machine wait until it continues or is killed; readers do not. Each write ends after its session
timeout, with an error that says so.
"""

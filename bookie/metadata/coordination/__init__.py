"""Coordination between processes, written once on any metadata store.

Each process has one `Participant`, which follows its session; the recipes work through it.

| module | what it is |
|---|---|
| `participant` | a process's part: its session, and work that outlives a cancelled caller |
| `line` | claims in a queue, of which each waits for one other: what the next ones are made of |
| `lock`, `locks` | locks with fencing tokens |
| `read_write_locks` | the same, shared and exclusive |
| `election` | one leader among candidates |
| `queues` | items that one consumer at a time works on |
| `membership` | who belongs to a group, and lives |
| `discovery` | services, and where their instances are |
| `counters` | numbers that no two processes get |
| `barriers` | begin together, end together |
| `cache` | typed values below a prefix, in memory |

**All of this is advisory.** A store can say who holds a lock; it cannot stop a process that was
paused, or whose packets were late, from acting as if it still did. So every effect that a lock is
to protect is itself guarded: by the lock's token, where the thing protected remembers the greatest
one it has seen; by `Lock.check` in the same transaction, where it lies in the same store; or by the
version of what is written.
"""

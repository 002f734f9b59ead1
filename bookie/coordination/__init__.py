"""Coordination between processes, on any metadata store.

Each process has one `Participant`, which follows the process's session. The recipes in these
modules work through the `Participant`.

| module | what it is |
|---|---|
| `participant` | the session of a process, and work that continues if its caller is cancelled |
| `wait_queue` | claims in a queue; each claim waits for one other claim |
| `lock`, `locks` | locks with fencing tokens, exclusive or shared by readers |
| `election` | one leader among candidates |
| `queues` | items that one consumer at a time works on |
| `membership` | the live members of a group |
| `discovery` | services and the addresses of their instances |
| `takeover` | waits until the record of an earlier run of the process has ended |
| `counters` | numbers that no two processes get |
| `barriers` | begin together, end together |
| `cache` | typed values below a prefix, in memory |

**All recipes are advisory.** A metadata store knows which process holds a lock. But a process that
was paused may still act on a lock that it has already lost. So guard every effect that a lock
protects in one of three ways:

- by the lock's token, if the receiver remembers the greatest token that it has seen;
- by `Lock.check` in the same transaction, if the effect is a write to the same store;
- by the version of the record that is written.
"""

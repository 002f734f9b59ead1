"""Coordination between processes, on any metadata store.

Each process has one `Participant`, which follows the process's session. All recipes in these
modules use the `Participant`.

| module | purpose |
|---|---|
| `participant` | follows the session, and finishes work even if the caller is cancelled |
| `wait_queue` | orders claims in a queue, in which each claim waits for one other claim |
| `lock`, `locks` | provide locks with fencing tokens, exclusive or shared by readers |
| `election` | elects one leader among candidates |
| `queues` | gives each item to one consumer at a time |
| `membership` | keeps the live members of a group |
| `discovery` | keeps the addresses of the instances of services |
| `takeover` | waits until a record of an earlier run of the process is deleted |
| `counters` | gives out unique numbers: no two processes get the same number |
| `barriers` | makes a fixed number of processes begin together and end together |
| `cache` | keeps the typed values below a prefix in memory |

**All recipes are advisory.** The metadata store knows which process holds a lock. But a process
that was paused for a time may not know that it lost its lock, and may still use it. So guard every
effect that a lock protects in one of three ways:

- by the lock's token, if the receiver refuses tokens below the greatest token that it received;
- by `Lock.check` in the same transaction, if the effect is a write to the same store;
- by a check of the version of the record that the effect replaces.
"""

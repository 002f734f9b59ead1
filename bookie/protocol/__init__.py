"""The ledger protocol as machines without I/O: ``step(event) -> [effect]``.

Nothing here knows a clock, a socket, an event loop or a source of chance. Time arrives as
`TimerFired` events that answer `StartTimer` effects, candidates and random choices arrive as
arguments, and whatever must be done to the world is returned as a list of effects which the driver
carries out *in order*. So one driver and one simulator serve every machine, and a list of events is
a bug report that replays.

| module | what it decides |
|---|---|
| `quorum` | which slots store an entry, when it is acknowledged, when silence can hide nothing |
| `placement` | which bookies make an ensemble |
| `writer` | the one writer of a ledger: order of acknowledgements, LAC, failures, close |
| `recovery` | how another client fences a ledger and finds where it ends |
| `reader` | which replica is asked for what, and what to do when it is in doubt |
| `session` | whether the session with the metadata store lives; here events bring the time along |
"""

"""The ledger protocol as machines without I/O: ``step(event) -> [effect]``.

A machine has no clock, socket, event loop or source of randomness. Time arrives as `TimerFired`
events that answer `StartTimer` effects. Candidates and random choices arrive as arguments. A step
returns a list of effects, which the driver carries out *in order*. So one driver and one simulator
serve every machine, and a list of events is a bug report that replays.

| module | what it decides |
|---|---|
| `quorum` | which slots store an entry, when it is acknowledged, what silence can hide |
| `placement` | which bookies make an ensemble, and who takes over a slot |
| `writer` | the one writer of a ledger: order of acknowledgements, LAC, failures, close |
| `recovery` | how another client fences a ledger and finds where it ends |
| `reader` | which replica is asked for which ids, and what follows from a doubtful answer |
| `session` | whether the session with the metadata store lives; here events bring the time along |
"""

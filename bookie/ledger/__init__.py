"""Ledgers as clients see them: a sequence of entries with one writer, on an ensemble of bookies.

| room | what it does |
|---|---|
| `metadata` `quorum` `striping` `exchange` | data types: metadata, write sets, events and effects |
| `write` | the only writer: order of acknowledgements, LAC, failures, close |
| `read` | ranges, read-ahead, followers, verification of answers |
| `recover` | how another client fences a ledger, and finds where it ends |
| `place` | which bookies make an ensemble, and who takes over a slot |
| `copies` | audit, plan and repair of copies; marks of under-replication |
| `catalog` | records and ids in the metadata store, proofs of deletion |
| `connection` | one connection per bookie and process; calls and their retries |

**State machines.** `write.writer`, `recover.recovery` and `read.reader` are state machines without
I/O: ``step(event) -> [effect]``. A state machine has no clock, socket, event loop or source of
randomness. A state machine measures time by `StartTimer` effects, and each timer later sends it a
`TimerFired` event. The driver chooses new bookies and random numbers, and passes them to the state
machine. A call of `step` returns a list of effects. The driver carries out these effects *in
order*. So drivers and the simulator run every state machine in the same way, and a bug can be
reproduced from a recorded list of events.

**Drivers** do the I/O of the state machines: `write.handle`, `recover.driver`, `read.handle`. The
drivers of one client run in one event loop. Drivers create their tasks in the task group of the
`BookKeeper` object.
"""

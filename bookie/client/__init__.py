"""What turns the machines of `protocol` into a client: event loop, connections, handles.

| module | what it does |
|---|---|
| `pool` | one connection per bookie and process; lanes that reconnect |
| `calls` | timers, calls and metadata operations that machines ask for |
| `verification` | verifies the digests of answers and slices the payloads out |
| `append_queue` | appends on their way into batches |
| `writer` | `WriterHandle`: append, append_many, force, close |
| `creating` | a writer on its way: awaited or entered |
| `reader` | `ReaderHandle`: read, read_batches, tail |
| `range_read` `lac` `follow` `recovery` | one read, one LAC, one follower, one recovery |

All of it lives in one event loop. Tasks are born in the task group of the `BookKeeper` object.
"""

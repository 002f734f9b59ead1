"""The API of `bookie.api` for callers without an event loop: scripts, notebooks, Spark executors.

::

    import bookie.sync

    with bookie.sync.connect("local:///var/lib/bookie/metadata") as bk:
        with bk.create_ledger() as writer:
            entry_id = writer.append(b"...")
        for entry in bk.open_ledger(writer.ledger_id).read():
            print(entry.entry_id, entry.payload)

        with bk.open_log("orders") as log:
            position = log.append(b"...", key=b"shop-1")
        for record in bk.read_log("orders"):
            print(record.offset, record.value)
        with bk.consume("orders", cursor="billing") as consumer:
            for record in consumer:
                consumer.commit()

Each process has one daemon thread with one event loop (uvloop, if it is installed). The first call
starts the thread; an import does not start the thread. Several threads may use one object, except
iterators, log readers, consumers and members.

**Waiting.** If the user presses Ctrl-C while a call waits, the call is cancelled in the loop and
raises KeyboardInterrupt. A call with ``timeout=`` (seconds) raises OperationTimeoutError when the
time is over. After Ctrl-C or a timeout, the outcome of the call is unknown. A thread with a running
event loop must not wait, so every call in such a thread raises BadRequestError. In the kernel of a
notebook, calls work although the kernel's loop runs, because each cell blocks this loop anyway.

**Forks.** Connect after the fork, as the workers of Spark do. The child process creates its own
thread and loop at the first call, and its own clients. In the child, objects of the parent raise
ClientClosedError. If the parent had opened any client before the fork, `connect` in the child
raises ConfigurationError. The reason is that gRPC would hang in a forked child. If a parent uses
clients, start its children by spawn, not by fork.

**How to add a synchronous class.** Write a subclass of `SyncHandle`, which keeps the async object
as ``self._handle``. Make each method from an async method: ``verb = forwarded(Handle.verb)``. If
the new method takes a timeout, its body is ``return self._run(self._handle.verb(...), timeout)``.
For an async generator, the body is ``return self._iterate(self._handle.verb(...), ahead=...)``. A
`Resident` enters and leaves an async context manager, such as a consumer, in one task of the loop.
Task groups and timeouts inside the manager require the same task.

| module | contents |
|---|---|
| `loop_thread` | the loop of this process, forks, `Resident` |
| `iterator` | async generators as plain iterators |
| `handles` | `SyncHandle`, writers and readers of ledgers |
| `forwarding` | synchronous methods made from async methods |
| `log_handles` | writers and publishers of logs, cursors, surveys |
| `given_records` | records of batches, one by one |
| `log_reader` | readers of logs |
| `consumers` | consumers and members of groups |
| `client` | `connect`, `shared_client`; maintenance |
"""

from __future__ import annotations

from bookie.sync.client import SyncBookKeeper, connect, shared_client
from bookie.sync.consumers import SyncGroupMember, SyncLogConsumer
from bookie.sync.handles import SyncHandle, SyncReader, SyncWriter
from bookie.sync.iterator import SyncIterator
from bookie.sync.log_handles import (
    SyncCursors,
    SyncLogPublisher,
    SyncLogSurvey,
    SyncLogWriter,
    SyncRangeWriter,
)
from bookie.sync.log_reader import SyncLogReader

__all__ = [
    "SyncBookKeeper",
    "SyncCursors",
    "SyncGroupMember",
    "SyncHandle",
    "SyncIterator",
    "SyncLogConsumer",
    "SyncLogPublisher",
    "SyncLogReader",
    "SyncLogSurvey",
    "SyncLogWriter",
    "SyncRangeWriter",
    "SyncReader",
    "SyncWriter",
    "connect",
    "shared_client",
]

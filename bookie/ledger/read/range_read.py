"""Drives one range read: sends the requests of its state machine (`reader`) to the replicas.

The driver fetches up to `AHEAD_MAX` deliveries (lists of entries) before the consumer asks for
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from bookie.entry.digest import Digester
from bookie.entry.entry import Entry
from bookie.errors import BookieError, ClientClosedError
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.exchange import CancelTimer, StartTimer, TimerFired, TimerId
from bookie.ledger.read.reader import (
    Continue,
    Deliver,
    LedgerRead,
    ReadAnswered,
    ReadDone,
    ReaderEvent,
    ReadFailed,
    SendRead,
)
from bookie.ledger.read.verification import read_command, verify_read
from bookie.wire.deadlines import Deadlines

AHEAD_MAX = 2
"""The largest number of deliveries that the driver fetches before the consumer asks for them."""

READ_ENTRIES_MAX = 4096
"""The largest number of entries in one answer, equal to a bookie's default limit. The verification
of so many entries blocks the event loop for about a millisecond."""

SPAN_BYTES = 2 * 1024 * 1024
"""The intended number of packet bytes in a span (`read_ahead`). Each answer has a fixed cost for
client and bookie: with answers of 1 MiB, both need a quarter more time."""

READ_BYTES_MAX = SPAN_BYTES + SPAN_BYTES // 4
"""The largest number of packet bytes in one answer. A planned span is smaller, so that one answer
is enough for a span although entry sizes vary."""


class RangeRead:
    """One range read under way; its calls run in the pool's task group until `close`."""

    def __init__(self, machine: LedgerRead, pool: BookiePool, digester: Digester) -> None:
        self.machine = machine
        self._pool = pool
        self._digester = digester
        self._ledger_id = machine.metadata.ledger_id
        self.entries_read = 0
        """Number of entries received so far; `bytes_read` is the size of their packets."""
        self.bytes_read = 0
        self._timers: Deadlines[TimerId] = Deadlines(self._on_timer)
        self._calls: set[asyncio.Task[None]] = set()
        self._ready: deque[Sequence[Entry]] = deque()
        self._waiting_to_continue = True
        self._ended = False
        self._error: BookieError | None = None
        self._news = asyncio.Event()
        pool.on_close(self._on_pool_closed)

    @property
    def is_complete(self) -> bool:
        """True if `next` has returned all entries of the range."""
        return not self._ready and self.machine.position > self.machine.last_entry_id

    def start(self) -> None:
        """Request the first entries before the consumer waits for them."""
        self._go_on()

    async def next(self) -> Sequence[Entry]:
        """Return the next entries, at least one; return nothing at the end of the range.

        Raises:
            NoSuchEntryError: every replica denies the next entry.
            BookieError: no replica could return the next entry; one replica failed with this error.
        """
        self._go_on()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._ended:
                return ()
            self._news.clear()
            await self._news.wait()
        entries = self._ready.popleft()
        self._go_on()
        return entries

    async def close(self) -> None:
        """Stop the read, and cancel its running calls."""
        self._ended = True
        self._pool.off_close(self._on_pool_closed)
        self._timers.abandon()
        # The task of the last answer may still be running; it is harmless to cancel this task.
        calls = [call for call in self._calls if not call.done()]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def _go_on(self) -> None:
        if self._waiting_to_continue and len(self._ready) < AHEAD_MAX and not self._ended:
            self._waiting_to_continue = False
            self._step(Continue())

    def _step(self, event: ReaderEvent) -> None:
        if self._ended:
            return
        for effect in self.machine.step(event):
            match effect:
                case SendRead():
                    name = f"read {self._ledger_id} from {effect.bookie_id}"
                    call = self._pool.spawn(self._call(effect), name=name)
                    self._calls.add(call)
                    call.add_done_callback(self._calls.discard)
                case StartTimer(timer, seconds):
                    self._timers.start(timer, seconds)
                case CancelTimer(timer):
                    self._timers.stop(timer)
                case Deliver(entries):
                    self._ready.append(entries)
                    self._waiting_to_continue = True
                    self._news.set()
                case ReadDone():
                    self._ended = True
                    self._news.set()
                case ReadFailed(error):
                    self._ended, self._error = True, error
                    self._news.set()
        self._go_on()

    def _on_pool_closed(self) -> None:
        self._ended = True
        self._error = ClientClosedError("the client was closed during a read")
        self._news.set()

    def _on_timer(self, timer: TimerId) -> None:
        self._step(TimerFired(timer))

    async def _call(self, effect: SendRead) -> None:
        command = read_command(
            self.machine.metadata,
            effect.first_entry_id,
            effect.last_entry_id,
            effect.stripe,
            max_entries=READ_ENTRIES_MAX,
            max_bytes=READ_BYTES_MAX,
        )
        try:
            channel = self._pool.connection(effect.bookie_id).channel()
            reply = await channel.read(command, timeout=self._pool.settings.read_timeout_seconds)
        except BookieError as error:
            self._step(ReadAnswered(effect.request, error.status, message=str(error)))
            return
        told = verify_read(reply, self._digester)
        if told.batch is not None:
            self.entries_read += told.batch.count
            self.bytes_read += told.batch.payload_bytes
        self._step(
            ReadAnswered(
                effect.request,
                told.status,
                told.batch,
                told.entries,
                told.next_entry_id,
                told.stopped_by,
                told.message,
                told.retry_after_ms / 1000,
            )
        )

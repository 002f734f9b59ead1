"""Writers and readers of ledgers for callers without an event loop; a base class of handles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from bookie.entry.entry import Entry
from bookie.errors import BookieError
from bookie.ledger.connection.arguments import Payload, checked_payloads
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.write.handle import WriterHandle
from bookie.sync.forwarding import Shown, shown
from bookie.sync.iterator import Batches, Pump, SyncIterator
from bookie.sync.loop_thread import Closing, LoopThread, check_timeout

T = TypeVar("T")

BATCHES_AHEAD = 2
"""The number of batches that are read in advance, beyond the read-ahead of the async reader."""

ITEMS_AHEAD = 1024
"""The number of single entries of a tail, or of ledger ids, that are read ahead."""


class SyncHandle:
    """Base class of synchronous handles, whose methods run async methods in the loop's thread."""

    def __init__(self, home: LoopThread) -> None:
        self._home = home

    def _run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` in the loop, wait for its result, and raise its error."""
        return self._home.run(work, timeout)

    def _iterate(
        self,
        source: AsyncIterator[T],
        *,
        ahead: int = ITEMS_AHEAD,
        timeout: float | None = None,
    ) -> SyncIterator[T]:
        """Return an iterator over an async generator. About `ahead` items are read in advance."""
        pump = self._pump(source, ahead, timeout)
        return SyncIterator(pump, pump.__iter__)

    def _pump(self, source: AsyncIterator[T], ahead: int, timeout: float | None) -> Pump[T]:
        check_timeout(timeout)
        self._home.require_caller()
        assert isinstance(source, AsyncGenerator)
        pump = Pump(self._home, source, ahead)
        pump.timeout = timeout
        return pump


class SyncWriter(SyncHandle, Closing):
    """`bookie.api.WriterHandle` without an event loop; made by `SyncBookKeeper.create_ledger`.

    The end of a `with` block closes the ledger. Errors are those of the async writer. If several
    threads append, the event loop decides the order of the entries.
    """

    def __init__(self, home: LoopThread, handle: WriterHandle) -> None:
        super().__init__(home)
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncWriter {self._handle!r}>"

    ledger_id: Shown[int] = shown(WriterHandle.ledger_id)
    metadata: Shown[LedgerMetadata] = shown(WriterHandle.metadata)
    last_add_confirmed: Shown[int] = shown(WriterHandle.last_add_confirmed)
    last_entry_id: Shown[int] = shown(WriterHandle.last_entry_id)
    length: Shown[int] = shown(WriterHandle.length)
    is_closed: Shown[bool] = shown(WriterHandle.is_closed)
    is_under_replicated: Shown[bool] = shown(WriterHandle.is_under_replicated)
    failure: Shown[BookieError | None] = shown(WriterHandle.failure)

    def append(self, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry and return its id; see `WriterHandle.append`.

        Each call waits until the ack quorum has its entry, so `append_many` is faster for many
        entries.
        """
        return self._run(self._handle.append(payload), timeout)

    def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> range:
        """Append many entries in order and return their ids; see `WriterHandle.append_many`."""
        # The iterable may block, so the caller's thread reads it.
        return self._run(self._handle.append_many(checked_payloads(payloads)), timeout)

    def force(self, *, timeout: float | None = None) -> None:
        """Make all returned deferred-sync appends durable; see `WriterHandle.force`."""
        self._run(self._handle.force(), timeout)

    def close(self, *, timeout: float | None = None) -> LedgerMetadata:
        """Wait for pending appends, then close the ledger; see `WriterHandle.close`."""
        return self._run(self._handle.close(), timeout)


class SyncReader(SyncHandle):
    """`bookie.api.ReaderHandle` without an event loop; made by `SyncBookKeeper.open_ledger`."""

    def __init__(self, home: LoopThread, handle: ReaderHandle) -> None:
        super().__init__(home)
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncReader {self._handle!r}>"

    ledger_id: Shown[int] = shown(ReaderHandle.ledger_id)
    metadata: Shown[LedgerMetadata] = shown(ReaderHandle.metadata)
    is_closed: Shown[bool] = shown(ReaderHandle.is_closed)
    last_add_confirmed: Shown[int] = shown(ReaderHandle.last_add_confirmed)
    last_entry_id: Shown[int] = shown(ReaderHandle.last_entry_id)

    def refresh(self, *, timeout: float | None = None) -> int:
        """Ask for newer metadata and a newer LAC; see `ReaderHandle.refresh`."""
        return self._run(self._handle.refresh(), timeout)

    def read(
        self,
        first_entry_id: int = 0,
        last_entry_id: int | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncIterator[Entry]:
        """Yield entries in order. The loop reads whole batches; see `ReaderHandle.read`."""
        source = self._handle.read_batches(first_entry_id, last_entry_id)
        pump = self._pump(source, BATCHES_AHEAD, timeout)
        return SyncIterator(pump, Batches(pump).items)

    def read_batches(
        self,
        first_entry_id: int = 0,
        last_entry_id: int | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncIterator[Sequence[Entry]]:
        """Yield batches of entries, which is faster; see `ReaderHandle.read_batches`."""
        source = self._handle.read_batches(first_entry_id, last_entry_id)
        return self._iterate(source, ahead=BATCHES_AHEAD, timeout=timeout)

    def read_acknowledged(
        self, first_entry_id: int, last_entry_id: int, *, timeout: float | None = None
    ) -> SyncIterator[Sequence[Entry]]:
        """Yield batches of acknowledged entries; see `ReaderHandle.read_acknowledged`."""
        source = self._handle.read_acknowledged(first_entry_id, last_entry_id)
        return self._iterate(source, ahead=BATCHES_AHEAD, timeout=timeout)

    def read_unconfirmed(
        self,
        first_entry_id: int = 0,
        last_entry_id: int | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncIterator[Entry]:
        """Yield stored entries, confirmed or not; see `ReaderHandle.read_unconfirmed`."""
        source = self._handle.read_unconfirmed(first_entry_id, last_entry_id)
        return self._iterate(source, timeout=timeout)

    def tail(self, start: int = 0, *, timeout: float | None = None) -> SyncIterator[Entry]:
        """Yield entries from `start` on until the ledger is closed; see `ReaderHandle.tail`.

        With a `timeout`, `next` raises OperationTimeoutError if no entry came within this time. The
        next call of `next` waits again.
        """
        return self._iterate(self._handle.tail(start), timeout=timeout)

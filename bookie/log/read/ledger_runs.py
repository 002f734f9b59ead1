"""Read runs of consecutive entries from one ledger after another, with a bounded read-ahead.

Large runs are read one by one, with a few requests in advance. Several small runs are read at once,
so the reader of a log with many small ranges does not wait for each range in turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from bookie.entry.entry import Entry
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.background import Background
from bookie.log.head.log_ranges import LedgerRun

HANDLES_KEPT = 16
"""The number of ledgers that stay open for reading."""

SMALL_RUN_BYTES = 256 * 1024
RUNS_AHEAD_MAX = 8
"""The most small runs that are read at once: 2 MiB in all, as much as one answer to a large run."""


class RunEntries(NamedTuple):
    """Consecutive entries of one ledger, and the offset of the first entry."""

    ledger_id: int
    offset: int
    entries: Sequence[Entry]


class LedgerReaders:
    """Opens readers of a log's ledgers; the `HANDLES_KEPT` readers used last stay open."""

    def __init__(self, ledgers: LedgerClient, password: bytes = b"") -> None:
        self._ledgers = ledgers
        self._password = password
        self._handles: OrderedDict[int, ReaderHandle] = OrderedDict()

    @property
    def pool(self) -> BookiePool:
        return self._ledgers.pool

    async def open(self, ledger_id: int) -> ReaderHandle:
        """Return a reader of a ledger. Call the reader's `refresh` before you use the ledger's end.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            UnauthorizedError: the password is wrong.
            MetadataError: the metadata store failed.
        """
        handle = self._handles.get(ledger_id)
        if handle is None:
            handle = await self._ledgers.open(ledger_id, self._password, asks_for_lac=False)
            self._handles[ledger_id] = handle
            if len(self._handles) > HANDLES_KEPT:
                self._handles.popitem(last=False)
        else:
            self._handles.move_to_end(ledger_id)
        return handle

    def forget(self) -> None:
        """Drop all open readers, because a ledger is missing. `open` creates new readers."""
        self._handles.clear()


async def read_runs(
    runs: Iterable[LedgerRun], readers: LedgerReaders
) -> AsyncGenerator[RunEntries, None]:
    """Yield the entries of `runs` in order.

    Each run must have an end, and all its entries must be acknowledged.

    Raises:
        NoSuchLedgerError: a ledger was deleted; the entries of all earlier runs were yielded.
        NoSuchEntryError, UnavailableError, CorruptionError: see `ReaderHandle.read`.
    """
    waiting = deque(runs)
    ahead: deque[tuple[LedgerRun, Background[list[Sequence[Entry]]]]] = deque()
    try:
        while waiting or ahead:
            while waiting and len(ahead) < RUNS_AHEAD_MAX and _is_small(waiting[0]):
                run = waiting.popleft()
                name = f"entries of ledger {run.ledger_id}"
                ahead.append((run, Background(readers.pool, _read_whole(run, readers), name)))
            if ahead:
                run, reading = ahead[0]
                batches = await reading.result()
                ahead.popleft()
                for entries in batches:
                    yield _located(run, entries)
            else:
                run = waiting.popleft()
                async with aclosing(_read(run, readers)) as found:
                    async for entries in found:
                        yield _located(run, entries)
    finally:
        for _, reading in ahead:
            await reading.close()


def _is_small(run: LedgerRun) -> bool:
    return run.size_bytes is not None and run.size_bytes <= SMALL_RUN_BYTES


def _located(run: LedgerRun, entries: Sequence[Entry]) -> RunEntries:
    offset = run.offset + entries[0].entry_id - run.first_entry_id
    return RunEntries(run.ledger_id, offset, entries)


async def _read(run: LedgerRun, readers: LedgerReaders) -> AsyncGenerator[Sequence[Entry], None]:
    assert run.last_entry_id is not None, "the run has an end"
    handle = await readers.open(run.ledger_id)
    async with aclosing(handle.read_acknowledged(run.first_entry_id, run.last_entry_id)) as batches:
        async for entries in batches:
            yield entries


async def _read_whole(run: LedgerRun, readers: LedgerReaders) -> list[Sequence[Entry]]:
    async with aclosing(_read(run, readers)) as batches:
        return [entries async for entries in batches]

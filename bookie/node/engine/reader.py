"""Reads entries: looks up their places, fetches the bytes, and checks the ids in the packets.

The look-up reads the memtables first, then the index. In the reverse order, a read could deny an
entry that a checkpoint moves from memtable to index between the two look-ups. The event loop uses
only cached pages of the index (`index/cached_pages.py`). If other index pages are needed, a thread
does the rest of the read (`entry_fetch.py`). If an entry is stored but unreadable, the reader
reports an I/O error, never a missing entry. If the bytes are the packet of another entry, the
reader reports an I/O error, too.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES, EntryBatch, sizes_of_one
from bookie.env import Buffer, Clock, Environment
from bookie.errors import CorruptionError
from bookie.ids import MAX_ID, Status
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.node.engine.entry_fetch import (
    OTHER_BYTES,
    PAGE_LOST,
    UNREADABLE,
    Choice,
    EntryFetch,
    FetchSources,
)
from bookie.node.engine.files import FileTable
from bookie.node.engine.format.arrays import IdRanges, Ids, distinct
from bookie.node.engine.format.pages import SLOTS_PER_PAGE, slot_of
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.memtable import Location, Memtable
from bookie.node.engine.prefetch import Prefetcher
from bookie.node.engine.window import Window
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

_IDS = struct.Struct(">qq")
"""The ledger id and the entry id at the start of a packet."""


STRIPED_IDS_MAX = 128 * 1024
"""The largest number of ids that a striped read examines; each examined id costs 24 bytes and
time."""


class ReadResult(NamedTuple):
    """The consecutive wanted entries that were read, and why the read ended at `next_entry_id`."""

    batch: EntryBatch | None
    next_entry_id: int
    stopped_by: Status
    message: str = ""


LEDGERS_NAMED_MAX = 100
"""The largest number of ledgers with their own log line, until a period has no failed reads."""

REPORT_SECONDS = 60.0
"""The time between two log lines with counts of failed reads."""


class UnreadableEntries:
    """Counts failed reads of entries that are stored here."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._count_error = metrics.errors_total.labels("read").inc
        self._ledgers: set[int] = set()
        """Ledgers with failed reads."""
        self._reads = 0
        """The number of failed reads without their own log line since the last log line with
        counts."""
        self._reported_at = 0.0

    def note(self, ledger_id: int, entry_id: int, reason: str) -> None:
        """Count a failed read; log the first failed read of a ledger."""
        self._count_error()
        if not self._ledgers:
            self._reported_at = self._clock.monotonic()
        if ledger_id in self._ledgers or len(self._ledgers) >= LEDGERS_NAMED_MAX:
            self._reads += 1
            return
        self._ledgers.add(ledger_id)
        _log.warning("entry_unreadable", ledger_id=ledger_id, entry_id=entry_id, reason=reason)

    def report(self) -> None:
        """Log the counts of failed reads periodically; reset the counts if no more reads fail."""
        if not self._ledgers or self._clock.monotonic() - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = self._clock.monotonic()
        if self._reads:
            _log.warning(
                "entries_unreadable",
                reads=self._reads,
                ledgers=len(self._ledgers),
                seconds=round(REPORT_SECONDS),
            )
            self._reads = 0
        else:
            _log.info("no_more_unreadable_entries", ledgers=len(self._ledgers))
            self._ledgers.clear()


class EntryReader:
    """Reads entries from the memtables, the index and the files; called in the event loop."""

    def __init__(
        self,
        environment: Environment,
        index: Index,
        memtables: Callable[[], tuple[Memtable, ...]],
        settled: Callable[[int], Awaitable[None]],
        files: FileTable,
        metrics: Metrics,
        gap: int,
        was_read: Callable[[int, int, int], None],
    ) -> None:
        """`was_read` is called with file, offset and size of each read that may reach a device.

        `settled` waits until no transaction removes entries of a ledger.
        """
        self._env = environment
        self._pages = index.cached_pages
        self._memtables = memtables
        self._settled = settled
        self._files = files
        self.unreadable = UnreadableEntries(environment.clock, metrics)
        self._from_cache = metrics.reads_total.labels("cache").inc
        self._from_file = metrics.reads_total.labels("journal_file").inc
        self._from_thread = metrics.reads_total.labels("thread").inc
        self._sources = FetchSources(index, files, Prefetcher(), gap)
        self._was_read = was_read

    async def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        entries_max: int,
        bytes_max: int,
        stripe: Stripe = EVERY_ID,
        bound: int = MAX_ID,
    ) -> ReadResult:
        """Read the stripe's entries in ``first … last``, up to a limit or the first missing entry.

        The memtables are read before the first await, in the caller's synchronous section. If the
        first entry of the stripe is stored, the result contains this entry, even if the entry
        exceeds `bytes_max`. No stored entry has an id above `bound`.
        """
        if stripe.modulus == 0:
            # Read one id above the bound, so that the result says that no more entries exist.
            last = min(last, max(first, min(bound, MAX_ID - 1) + 1))
        if first == last and stripe.contains(first):
            found = self.read_one(ledger_id, first, bound)
            return found if isinstance(found, ReadResult) else await found
        span = min(last - first + 1, _span_for(entries_max, stripe))
        return await self._read(ledger_id, first, span, entries_max, bytes_max, stripe, bound)

    def read_one(
        self, ledger_id: int, entry_id: int, bound: int = MAX_ID
    ) -> ReadResult | Coroutine[Any, Any, ReadResult]:
        """Read one entry like `read`, but without arrays, in a third of the time.

        The result is a coroutine only if a thread has to read.
        """
        if entry_id > bound:
            return _absent(entry_id)
        location = self._location(ledger_id, entry_id)
        if location is not None:
            number, offset, size, payload = location
            if payload is not None:
                self._from_cache()
                return self._lone(
                    ledger_id, entry_id, size, memoryview(payload)[offset : offset + size]
                )
            file = self._files.opened(number)
            if file is not None:
                try:
                    data = file.pread_cached(size, offset)
                except OSError:
                    return self._failed(ledger_id, entry_id, UNREADABLE)
                if data is not None and self._sources.digests.protects(ledger_id, data):
                    self._from_file()
                    return self._lone(ledger_id, entry_id, size, data)
        return self._read(ledger_id, entry_id, 1, 1, 1, EVERY_ID, bound)

    def _lone(self, ledger_id: int, entry_id: int, size: int, data: Buffer) -> ReadResult:
        """Return one entry's packet as a result, or an error result if its header has other ids."""
        if size < PACKET_HEADER_SIZE_BYTES or _IDS.unpack_from(data) != (ledger_id, entry_id):
            return self._failed(ledger_id, entry_id, OTHER_BYTES)
        view = data if isinstance(data, bytes) else memoryview(data)
        batch = EntryBatch(ledger_id, entry_id, None, sizes_of_one(size), view)
        return ReadResult(batch, entry_id + 1, Status.OK)

    async def _read(
        self,
        ledger_id: int,
        first: int,
        span: int,
        entries_max: int,
        bytes_max: int,
        stripe: Stripe,
        bound: int,
    ) -> ReadResult:
        def choose(window: Window, wanted: Ids) -> Choice:
            return _choose(window, wanted, bytes_max)

        for attempt in range(2):
            window = self._window(ledger_id, first, span)
            wanted = window.wanted(stripe.modulus, stripe.first_residue, stripe.count)
            if not len(wanted):
                return ReadResult(None, window.last + 1, Status.OK)
            fetch = EntryFetch(
                self._sources, ledger_id, window, wanted[:entries_max], choose, bound
            )
            try:
                await self._finish(fetch, ledger_id)
            except FileNotFoundError as error:
                # A compaction moved the entries and removed their file: look up the entries again.
                if attempt:
                    return self._failed(ledger_id, first, f"its file is gone: {error}")
                continue
            except CorruptionError as error:
                return self._failed(ledger_id, first, str(error))
            if not attempt and fetch.failure is not None and fetch.failure[1] == PAGE_LOST:
                # If the entry was added meanwhile, a second look-up finds the entry.
                continue
            return self._result(fetch, ledger_id)
        raise AssertionError("the second attempt returns")

    def _result(self, fetch: EntryFetch, ledger_id: int) -> ReadResult:
        batch = fetch.batch()
        if fetch.failure is not None:
            failed = self._failed(ledger_id, *fetch.failure)
            return failed if batch is None else failed._replace(batch=batch, message="")
        if batch is None:
            return _absent(fetch.following)
        return ReadResult(batch, fetch.following, fetch.stopped_by)

    async def _finish(self, fetch: EntryFetch, ledger_id: int) -> None:
        """Complete `fetch`, in a thread if necessary; raises like `EntryFetch.finish`."""
        stamp = self._pages.stamp
        try:
            if fetch.try_now(self._pages):
                self._from_file()
                return
            self._from_thread()
            # If the caller is cancelled meanwhile, it still waits until the thread has ended.
            await self._env.workers.run_through("read", fetch.finish)
        finally:
            for number, offset, size in fetch.device_reads:
                self._was_read(number, offset, size)
        if fetch.pages:
            self._pages.put(ledger_id, fetch.first_page, fetch.pages, stamp)

    async def stored(self, ledger_id: int, ids: Ids) -> tuple[npt.NDArray[np.bool_], Buffer | None]:
        """For each of `ids`, return True if the entry is stored; also return the stored packets.

        The ids must be in ascending order and close together. The packets are joined in the order
        of the ids. If a packet is unreadable, None is returned instead of the packets.
        """
        first, span = int(ids[0]), int(ids[-1]) - int(ids[0]) + 1
        for _ in range(2):
            window = self._window(ledger_id, first, span)
            fetch = EntryFetch(self._sources, ledger_id, window, ids, _choose_stored, MAX_ID)
            try:
                await self._finish(fetch, ledger_id)
            except FileNotFoundError:
                # A compaction may have moved the entries, as in `read`: look up the entries again.
                continue
            present = window.sizes[ids - window.first] > 0
            return present, None if fetch.failure is not None else fetch.payload()
        return np.ones(len(ids), np.bool_), None

    async def entry_ranges(self, ledger_id: int, first: int, last: int) -> AsyncIterator[IdRanges]:
        """Yield ascending, disjoint ranges of stored ids; a range may continue in the next item.

        Raises:
            CorruptionError: a page of the index is damaged; the listing is not complete.
        """
        await self._settled(ledger_id)
        recent = [
            runs.entry_ids()
            for memtable in self._memtables()
            if (runs := memtable.ledgers.get(ledger_id)) is not None
        ]
        ids_in_memory = distinct(np.concatenate(recent)) if recent else np.zeros(0, np.int64)
        cursor = max(first, 0)
        while cursor <= last:
            ids, following = await self._env.workers.run(
                "read", self._sources.index.entry_ids, ledger_id, cursor, last
            )
            low = np.searchsorted(ids_in_memory, cursor, "left")
            # After the last id, `following` may exceed 63 bits, so search for `following - 1`.
            high = np.searchsorted(ids_in_memory, following - 1, "right")
            ids = distinct(np.concatenate((ids, ids_in_memory[low:high])))
            ids = ids[ids <= last]
            if len(ids):
                breaks = np.flatnonzero(ids[1:] - ids[:-1] > 1)
                yield (
                    ids[np.concatenate(([0], breaks + 1))],
                    ids[np.concatenate((breaks, [len(ids) - 1]))],
                )
            cursor = following

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Drop all cached facts about these ledgers, because new ledgers may have the same ids."""
        self._pages.forget(ledger_ids)
        self._sources.digests.forget(ledger_ids)

    def _window(self, ledger_id: int, first: int, span: int) -> Window:
        """Return a window with the locations in the memtables, which are read before the index."""
        window = Window(first, span)
        for memtable in self._memtables():
            memtable.overlay(ledger_id, window)
        return window

    def _location(self, ledger_id: int, entry_id: int) -> Location | None:
        """Return the location of an entry's newest copy; None if the index must be read."""
        for memtable in reversed(self._memtables()):
            location = memtable.location(ledger_id, entry_id)
            if location is not None:
                return location
        slots = self._pages.page(ledger_id, entry_id // SLOTS_PER_PAGE)
        slot = None if slots is None else slot_of(slots, entry_id)
        return None if slot is None else Location(*slot)

    def _failed(self, ledger_id: int, entry_id: int, reason: str) -> ReadResult:
        self.unreadable.note(ledger_id, entry_id, reason)
        return ReadResult(
            None,
            entry_id,
            Status.IO_ERROR,
            f"entry {entry_id} of ledger {ledger_id} is stored here but {reason}",
        )


def _absent(entry_id: int) -> ReadResult:
    return ReadResult(None, entry_id, Status.NO_SUCH_ENTRY, "no such entry")


def _span_for(entries_max: int, stripe: Stripe) -> int:
    """Return the length of an id range that contains `entries_max` wanted ids, up to a limit."""
    if stripe.modulus == 0:
        return entries_max
    return min(-(-entries_max * stripe.modulus // stripe.count) + stripe.modulus, STRIPED_IDS_MAX)


def _choose(window: Window, wanted: Ids, bytes_max: int) -> Choice:
    """Choose the wanted ids up to the first missing entry, or up to `bytes_max`."""
    sizes = window.sizes[wanted - window.first]
    holes = np.flatnonzero(sizes == 0)
    present = int(holes[0]) if len(holes) else len(wanted)
    totals = np.cumsum(sizes[:present])
    count = min(present, max(1, int(np.searchsorted(totals, bytes_max, "right"))))
    if count < present:
        return wanted[:count], Status.OK, int(wanted[count])
    if present < len(wanted):
        return wanted[:count], Status.NO_SUCH_ENTRY, int(wanted[present])
    return wanted, Status.OK, int(wanted[-1]) + 1


def _choose_stored(window: Window, wanted: Ids) -> Choice:
    return wanted[window.sizes[wanted - window.first] > 0], Status.OK, 0

"""Reading entries: look up where they are, fetch the bytes, check that they are the right ones.

The look-up takes references to both generations first and opens the index transaction after; the
reverse order could miss an entry that a checkpoint moves between the two, and "no such entry" would
be a lie. A transaction never spans an await. An entry that the look-up found but that cannot be
read, or that turns out to be another one, is an I/O error, never a missing entry.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bookie.env import Environment, File
from bookie.errors import CorruptionError
from bookie.formats.batch import (
    PACKET_HEADER_SIZE_BYTES,
    EntryBatch,
    headers_of,
    sizes_of_one,
)
from bookie.ids import Status
from bookie.storage.files import FileTable
from bookie.storage.index import Index
from bookie.storage.prefetch import Prefetcher
from bookie.storage.window import Buffer, Extent, Window
from bookie.storage.write_cache import Generation, Place
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

_IDS = struct.Struct(">qq")
"""The ledger and entry ids that a packet begins with."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Which ids of a range a reader wants; a modulus of 0 means all."""

    modulus: int = 0
    first_residue: int = 0
    count: int = 0

    def wants(self, entry_id: int) -> bool:
        """Whether the reader wants this id."""
        modulus = self.modulus
        return modulus == 0 or (entry_id - self.first_residue) % modulus < self.count


ALL_IDS = Stripe()

STRIPED_IDS_MAX = 128 * 1024
"""Ids that a striped read looks at: 24 bytes each, and the time that the event loop waits."""


class ReadResult(NamedTuple):
    """Consecutive wanted entries, and what stopped the read at `next_entry_id`."""

    batch: EntryBatch | None
    next_entry_id: int
    stopped_by: Status
    message: str = ""


class EntryReader:
    """Reads from the generations (oldest first), the index and the files, in the event loop."""

    def __init__(
        self,
        environment: Environment,
        index: Index,
        generations: Callable[[], tuple[Generation, ...]],
        files: FileTable,
        metrics: Metrics,
        gap: int,
    ) -> None:
        self._env = environment
        self._generations = generations
        self._index = index
        self._files = files
        self._metrics = metrics
        self._from_cache = metrics.reads_total.labels("cache").inc
        self._from_file = metrics.reads_total.labels("journal_file").inc
        self._from_thread = metrics.reads_total.labels("thread").inc
        self._gap = gap
        self._prefetcher = Prefetcher()

    async def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        entries_max: int,
        bytes_max: int,
        stripe: Stripe = ALL_IDS,
    ) -> ReadResult:
        """Read wanted ids of ``first … last``, in order, up to the first hole or limit.

        The look-up happens before the first wait, in the caller's synchronous section. At least one
        entry is returned if the first wanted id is stored, however large it is.
        """
        if first == last and stripe.wants(first):
            found = self.read_one(ledger_id, first)
            return found if isinstance(found, ReadResult) else await found
        for attempt in range(2):
            try:
                return await self._read(ledger_id, first, last, entries_max, bytes_max, stripe)
            except FileNotFoundError as error:
                # A compaction moved the entries and removed their old file: look up once more.
                if attempt:
                    return self._failed(ledger_id, first, f"its file is gone: {error}")
            except CorruptionError as error:
                return self._failed(ledger_id, first, str(error))
        raise AssertionError("the second attempt returns")

    def read_one(
        self, ledger_id: int, entry_id: int, *, again: bool = False
    ) -> ReadResult | Coroutine[Any, Any, ReadResult]:
        """`read` for one entry: the same decisions in a third of the time, without arrays.

        A coroutine only where a thread has to read, so that nearly every call is a plain one.
        """
        try:
            place = self._place(ledger_id, entry_id)
            if place is None:
                return self._absent(ledger_id, entry_id)
            number, offset, size, payload = place
            if payload is not None:
                self._from_cache()
                data: Buffer = memoryview(payload)[offset : offset + size]
            else:
                file = self._files.get(number)
                cached = file.pread_cached(size, offset)
                if cached is None:
                    return self._read_one_later(ledger_id, entry_id, place, file, again=again)
                self._from_file()
                data = cached
        except FileNotFoundError as error:
            # As in `read`: moved while we looked, so look once more.
            if again:
                return self._failed(ledger_id, entry_id, f"its file is gone: {error}")
            return self.read_one(ledger_id, entry_id, again=True)
        except CorruptionError as error:
            return self._failed(ledger_id, entry_id, str(error))
        except OSError:
            return self._failed(ledger_id, entry_id, "its bytes cannot be read")
        return self._lone(ledger_id, entry_id, size, data)

    async def _read_one_later(
        self, ledger_id: int, entry_id: int, place: Place, file: File, *, again: bool
    ) -> ReadResult:
        """The rest of `read_one` where the device has to be waited for."""
        number, offset, size, _ = place
        try:
            data = await self._pread_later(number, file, size, offset)
        except FileNotFoundError as error:
            if again:
                return self._failed(ledger_id, entry_id, f"its file is gone: {error}")
            found = self.read_one(ledger_id, entry_id, again=True)
            return found if isinstance(found, ReadResult) else await found
        except OSError:
            data = b""
        return self._lone(ledger_id, entry_id, size, data)

    def _lone(self, ledger_id: int, entry_id: int, size: int, data: Buffer) -> ReadResult:
        """One packet as a result, if it is the entry that it should be."""
        if len(data) != size:
            return self._failed(ledger_id, entry_id, "its bytes cannot be read")
        if size < PACKET_HEADER_SIZE_BYTES or _IDS.unpack_from(data) != (ledger_id, entry_id):
            return self._failed(ledger_id, entry_id, "other bytes stand in its place")
        view = data if isinstance(data, bytes) else memoryview(data)
        batch = EntryBatch(ledger_id, entry_id, None, sizes_of_one(size), view)
        return ReadResult(batch, entry_id + 1, Status.OK)

    async def _read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        entries_max: int,
        bytes_max: int,
        stripe: Stripe,
    ) -> ReadResult:
        span = min(last - first + 1, _span_for(entries_max, stripe))
        window = self._locate(ledger_id, first, span)
        wanted = window.wanted(stripe.modulus, stripe.first_residue, stripe.count)[:entries_max]
        if not len(wanted):
            return ReadResult(None, window.last + 1, Status.OK)
        ids, stopped_by, following = _choose(window, wanted, bytes_max)
        if stopped_by is Status.NO_SUCH_ENTRY:
            absent = self._absent(ledger_id, following)
            if not len(ids):
                return absent
            stopped_by = absent.stopped_by
        extents = window.extents(ids)
        payload, complete = await self._fetch(window, extents)
        if complete < len(extents):
            kept = sum(extent.packets for extent in extents[:complete])
            following, stopped_by = int(ids[kept]), Status.IO_ERROR
            ids = ids[:kept]
            if not kept:
                return self._failed(ledger_id, following, "its bytes cannot be read")
        batch = _batch(ledger_id, ids, window.sizes[ids - window.first], payload)
        return self._verified(batch, following, stopped_by)

    async def stored(
        self, ledger_id: int, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.bool_], Buffer | None]:
        """Which of `ids` (ascending, close together) are stored, and their packets.

        The packets of the stored ones come one after the other, None if they cannot be read.
        """
        first, span = int(ids[0]), int(ids[-1]) - int(ids[0]) + 1
        for _ in range(2):
            window = self._locate(ledger_id, first, span)
            present = window.sizes[ids - window.first] > 0
            if not present.any():
                return present, b""
            extents = window.extents(ids[present])
            try:
                payload, complete = await self._fetch(window, extents)
            except FileNotFoundError:
                # As in `read`: moved while we looked, so look once more.
                continue
            return present, payload if complete == len(extents) else None
        return np.ones(len(ids), np.bool_), None

    def _locate(self, ledger_id: int, first: int, span: int) -> Window:
        """Where the ids are now. What is in memory is referred to before the index is opened."""
        generations = self._generations()
        window = Window(first, span)
        self._index.lay_under(ledger_id, window)
        for generation in generations:
            generation.lay_over(ledger_id, window)
        return window

    def _place(self, ledger_id: int, entry_id: int) -> Place | None:
        """Where one entry is now; in the same order as `_locate`, from the newest copy on."""
        for generation in reversed(self._generations()):
            place = generation.place(ledger_id, entry_id)
            if place is not None:
                return place
        found = self._index.place(ledger_id, entry_id)
        return None if found is None else Place(*found)

    def _verified(self, batch: EntryBatch, following: int, stopped_by: Status) -> ReadResult:
        """Cut the batch before the first packet that is not the entry it should be."""
        ledger_ids, entry_ids, _, _ = headers_of(batch)
        ids = batch.entry_ids()
        wrong = np.flatnonzero((ledger_ids != batch.ledger_id) | (entry_ids != ids))
        if not len(wrong):
            return ReadResult(batch, following, stopped_by)
        bad = int(ids[wrong[0]])
        failed = self._failed(batch.ledger_id, bad, "other bytes stand in its place")
        if wrong[0] == 0:
            return failed
        return ReadResult(batch.clip(batch.first_entry_id, bad - 1), bad, Status.IO_ERROR)

    def _absent(self, ledger_id: int, entry_id: int) -> ReadResult:
        """What is said of an entry that was found nowhere, in the section that looked for it."""
        try:
            lost = self._index.must_have(ledger_id, entry_id)
        except CorruptionError as error:
            return self._failed(ledger_id, entry_id, str(error))
        if lost:
            return self._failed(ledger_id, entry_id, "its page of the index is lost")
        return ReadResult(None, entry_id, Status.NO_SUCH_ENTRY, "no such entry")

    def _failed(self, ledger_id: int, entry_id: int, reason: str) -> ReadResult:
        self._metrics.errors_total.labels("read").inc()
        _log.warning("entry_unreadable", ledger_id=ledger_id, entry_id=entry_id, reason=reason)
        return ReadResult(
            None,
            entry_id,
            Status.IO_ERROR,
            f"entry {entry_id} of ledger {ledger_id} is stored here but {reason}",
        )

    async def _fetch(self, window: Window, extents: list[Extent]) -> tuple[Buffer, int]:
        """The bytes of `extents` one after the other, and how many extents could be read."""
        pieces: list[Buffer] = []
        done = 0
        while done < len(extents):
            group = self._group(extents, done)
            head, tail = extents[done], extents[group - 1]
            if head.file < 0:
                buffer = memoryview(window.memory[-head.file - 1])
                pieces.append(buffer[head.offset : head.offset + head.length])
                self._from_cache()
            else:
                size = tail.offset + tail.length - head.offset
                try:
                    data = await self._pread(head.file, size, head.offset)
                except FileNotFoundError:
                    raise
                except OSError:
                    break
                if len(data) != size:
                    break
                view = memoryview(data)
                for extent in extents[done:group]:
                    start = extent.offset - head.offset
                    pieces.append(view[start : start + extent.length])
            done = group
        if len(pieces) == 1:
            return pieces[0], done
        return b"".join(pieces), done

    def _group(self, extents: list[Extent], start: int) -> int:
        """End of the extents from `start` on that one read fetches: same file, small gaps."""
        stop = start + 1
        previous = extents[start]
        while stop < len(extents) and previous.file > 0:
            extent = extents[stop]
            gap = extent.offset - previous.offset - previous.length
            if extent.file != previous.file or not 0 <= gap <= self._gap:
                break
            previous = extent
            stop += 1
        return stop

    async def _pread(self, number: int, size: int, offset: int) -> Buffer:
        file = self._files.get(number)
        if not self._prefetcher.is_due(number, size, offset):
            data = file.pread_cached(size, offset)
            if data is not None:
                self._from_file()
                return data
        return await self._pread_later(number, file, size, offset)

    async def _pread_later(self, number: int, file: File, size: int, offset: int) -> Buffer:
        """Read on a thread; a caller that is cancelled while the thread reads ends with it.

        Raises:
            FileNotFoundError: the file is being removed; the caller looks the entry up once more.
        """
        self._from_thread()
        workers = self._env.workers
        start, more = self._prefetcher.missed(number, size, offset)
        if more:
            read = await workers.run_through("read", _read_on, file, size, offset, start, more)
        else:
            read = await workers.run_through("read", file.pread, size, offset)
        if len(read) != size and self._files.path(number) is None:
            raise FileNotFoundError(errno.ENOENT, f"file number {number} is being removed")
        return read


def _read_on(file: File, size: int, offset: int, start: int, more: int) -> Buffer:
    """Read, and let the device begin with what will be wanted next; runs on a thread."""
    data = file.pread(size, offset)
    file.prefetch(more, start)
    return data


def _span_for(entries_max: int, stripe: Stripe) -> int:
    """Ids to look at: `entries_max` wanted ones are among them, if that is not too many."""
    if stripe.modulus == 0:
        return entries_max
    return min(-(-entries_max * stripe.modulus // stripe.count) + stripe.modulus, STRIPED_IDS_MAX)


def _choose(
    window: Window, wanted: npt.NDArray[np.int64], bytes_max: int
) -> tuple[npt.NDArray[np.int64], Status, int]:
    """The wanted ids to return, why there are no more, and the first wanted id left out."""
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


def _batch(
    ledger_id: int, ids: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], payload: Buffer
) -> EntryBatch:
    steps = ids[1:] - ids[:-1]
    contiguous = bool(np.all(steps == 1))
    view = payload if isinstance(payload, bytes) else memoryview(payload)
    return EntryBatch(
        ledger_id=ledger_id,
        first_entry_id=int(ids[0]),
        steps=None if contiguous else steps,
        sizes=sizes,
        payload=view,
    )

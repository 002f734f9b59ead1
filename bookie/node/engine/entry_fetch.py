"""Looks up the places of some entries, then reads their bytes.

A fetch begins in the event loop, which reads only memory: memtables, cached index pages, the page
cache. If the fetch must read a device, a read thread does the rest of the fetch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bookie.entry.batch import EntryBatch, batch_of, headers_of
from bookie.env import Buffer
from bookie.ids import Status
from bookie.node.engine.block_check import BlockCheck, DigestSizes
from bookie.node.engine.files import FileTable
from bookie.node.engine.format.arrays import Ids
from bookie.node.engine.format.pages import SLOTS_PER_PAGE
from bookie.node.engine.index.cached_pages import CachedPages
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.prefetch import SEQUEL_BYTES_MIN, Prefetcher
from bookie.node.engine.window import Extent, Window

Choice = tuple[Ids, Status, int]
"""The ids to return, the reason why the result ends there, and the first id not returned."""

PAGE_LOST = "its page of the index is lost"
UNREADABLE = "its bytes cannot be read"
BAD_BLOCK = "its block fails its checksum"
OTHER_BYTES = "other bytes stand in its place"


@dataclass(frozen=True, slots=True)
class FetchSources:
    """The index, the files and other parts that a fetch uses in the event loop or in a thread."""

    index: Index
    files: FileTable
    prefetcher: Prefetcher
    gap_bytes: int
    """The largest gap between two extents that one read covers, in bytes."""
    digests: DigestSizes = field(default_factory=DigestSizes)


class EntryFetch:
    """Fetches some entries: `try_now` runs in the event loop, then `finish` in a thread if needed.

    At first `window` holds the locations of the entries in memtables. Once the window is complete,
    `choose` selects the ids to read. No stored entry has an id above `bound`.
    """

    def __init__(
        self,
        sources: FetchSources,
        ledger_id: int,
        window: Window,
        wanted: Ids,
        choose: Callable[[Window, Ids], Choice],
        bound: int,
    ) -> None:
        self._sources = sources
        self._ledger_id = ledger_id
        self.window = window
        self._wanted = wanted
        self._choose = choose
        self._bound = bound
        self.first_page = window.first // SLOTS_PER_PAGE
        self._last_page = min(window.last, max(bound, window.first)) // SLOTS_PER_PAGE
        self.pages: list[bytes] = []
        """The index pages that `finish` has read, so that the caller can cache them."""
        has_place = window.sizes[wanted - window.first] > 0
        self._is_located = bool((has_place | (wanted > bound)).all())
        self._extents: list[Extent] | None = None
        self._done = 0
        self._pieces: list[Buffer] = []
        self.ids: Ids = wanted[:0]
        self.stopped_by = Status.OK
        self.following = 0
        self.failure: tuple[int, str] | None = None
        """The id of the first entry that is stored but cannot be returned, and the reason."""
        self.device_reads: list[tuple[int, int, int]] = []
        """File number, offset and size of each read that used a device, or may have used it."""

    # --- in the event loop ---------------------------------------------------------------

    def try_now(self, cache: CachedPages) -> bool:
        """Do the part of the fetch that needs no device; True if the fetch is complete."""
        if not self._is_located:
            pages = cache.pages(self._ledger_id, self.first_page, self._last_page)
            if pages is None:
                return False
            self.window.fill(self.first_page, pages)
            self._is_located = True
        self._locate()
        if self._needs_row:
            return False
        return self._read(self._read_cached)

    # --- in a read thread ----------------------------------------------------------------

    def finish(self) -> None:
        """Do the rest of the fetch, and wait for devices.

        Raises:
            FileNotFoundError: a file is being removed; the caller must make a new fetch.
            CorruptionError: a page or row of the index that the fetch needs is damaged.
        """
        sources = self._sources
        if not self._is_located:
            self.pages = sources.index.pages(self._ledger_id, self.first_page, self._last_page)
            self.window.fill(self.first_page, self.pages)
            self._is_located = True
        if self._extents is None:
            self._locate()
        if self._needs_row and sources.index.must_have(self._ledger_id, self.following):
            self.stopped_by = Status.IO_ERROR
            self.failure = self.following, PAGE_LOST
        self._read(self._read_device, BlockCheck(sources.digests, self._ledger_id))

    # --- both ----------------------------------------------------------------------------

    @property
    def _needs_row(self) -> bool:
        """True if an entry was not found and only the ledger's row can show if its page is lost."""
        return self.stopped_by is Status.NO_SUCH_ENTRY and self.following <= self._bound

    def _locate(self) -> None:
        self.ids, self.stopped_by, self.following = self._choose(self.window, self._wanted)
        self._extents = self.window.extents(self.ids) if len(self.ids) else []

    def _read(
        self, pread: Callable[[int, int, int], Buffer | None], check: BlockCheck | None = None
    ) -> bool:
        """Read the remaining extents; True if the fetch has ended, with success or failure.

        If `pread` returns None, or if data must be checked and there is no `check`, the method
        returns False. A read thread then continues with that extent.
        """
        extents = self._extents
        assert extents is not None, "located before"
        while self._done < len(extents):
            group = self._group(extents, self._done)
            head, tail = extents[self._done], extents[group - 1]
            if head.file < 0:
                payload = memoryview(self.window.memory[-head.file - 1])
                self._pieces.append(payload[head.offset : head.offset + head.length])
            else:
                size = tail.offset + tail.length - head.offset
                data: Buffer | None
                try:
                    data = pread(head.file, size, head.offset)
                    if data is None:
                        return False
                    is_sound = len(data) != size or self._is_protected(data)
                    if not is_sound:
                        if check is None:
                            return False
                        file = self._sources.files.get(head.file)
                        is_sound = all(
                            check.is_sound(file, extent.offset, extent.length)
                            for extent in extents[self._done : group]
                        )
                        if not is_sound and self._sources.files.path(head.file) is None:
                            # The file is being removed: it may already be cut, without its last
                            # block.
                            raise _being_removed(head.file)
                except FileNotFoundError:
                    raise
                except OSError:
                    data, is_sound = b"", True
                if len(data) != size or not is_sound:
                    self._cut(UNREADABLE if is_sound else BAD_BLOCK)
                    return True
                view = memoryview(data)
                for extent in extents[self._done : group]:
                    start = extent.offset - head.offset
                    self._pieces.append(view[start : start + extent.length])
            self._done = group
        return True

    def _is_protected(self, data: Buffer) -> bool:
        """True if clients can check the entries in `data`, which begins with a requested packet."""
        digests = self._sources.digests
        size = digests.known(self._ledger_id)
        if size is not None:
            return bool(size)
        assert self._extents is not None
        read = sum(extent.packets for extent in self._extents[: self._done])
        length = int(self.window.sizes[self.ids[read] - self.window.first])
        return digests.protects(self._ledger_id, memoryview(data)[:length])

    def _cut(self, reason: str) -> None:
        """End the result before the current extent, which is unreadable."""
        assert self._extents is not None
        kept = sum(extent.packets for extent in self._extents[: self._done])
        self.following, self.stopped_by = int(self.ids[kept]), Status.IO_ERROR
        self.failure = self.following, reason
        self.ids = self.ids[:kept]

    def _group(self, extents: list[Extent], start: int) -> int:
        """Return the end index of the longest group of extents from `start` that one read covers.

        The extents of a group are in one file, with only small gaps between them.
        """
        stop = start + 1
        previous = extents[start]
        while stop < len(extents) and previous.file > 0:
            extent = extents[stop]
            gap = extent.offset - previous.offset - previous.length
            if extent.file != previous.file or not 0 <= gap <= self._sources.gap_bytes:
                break
            previous = extent
            stop += 1
        return stop

    def _read_cached(self, number: int, size: int, offset: int) -> Buffer | None:
        file = self._sources.files.opened(number)
        if file is None or self._sources.prefetcher.is_due(number, size, offset):
            return None
        data = file.pread_cached(size, offset)
        if data is not None and size >= SEQUEL_BYTES_MIN:
            # The kernel's read-ahead may have read these bytes from the device.
            self.device_reads.append((number, offset, size))
        return data

    def _read_device(self, number: int, size: int, offset: int) -> Buffer:
        sources = self._sources
        file = sources.files.get(number)
        start, more = sources.prefetcher.missed(number, size, offset)
        self.device_reads.append((number, offset, size))
        if more:
            self.device_reads.append((number, start, more))
        data = file.pread(size, offset)
        if more:
            file.prefetch(more, start)
        if len(data) != size and sources.files.path(number) is None:
            raise _being_removed(number)
        return data

    # --- the result -----------------------------------------------------------------

    def payload(self) -> Buffer:
        """Return the packets of `ids`, joined in this order."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def batch(self) -> EntryBatch | None:
        """Return the packets as a batch; the batch ends before the first header with a wrong id."""
        if not len(self.ids):
            return None
        sizes = self.window.sizes[self.ids - self.window.first]
        payload = self.payload()
        view = payload if isinstance(payload, bytes) else memoryview(payload)
        batch = batch_of(self._ledger_id, self.ids, sizes, view)
        ledger_ids, entry_ids, _, _ = headers_of(batch)
        wrong = np.flatnonzero((ledger_ids != self._ledger_id) | (entry_ids != self.ids))
        if not len(wrong):
            return batch
        bad = int(self.ids[wrong[0]])
        self.following, self.stopped_by = bad, Status.IO_ERROR
        self.failure = bad, OTHER_BYTES
        return batch.clip(batch.first_entry_id, bad - 1) if wrong[0] else None


def _being_removed(number: int) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, f"file number {number} is being removed")

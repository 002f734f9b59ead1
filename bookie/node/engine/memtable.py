"""The memtable holds the entries accepted since the last checkpoint, per ledger.

A memtable keeps a payload only until the journal has written the block with this payload. After the
write, the memtable keeps only locations, and reads use the page cache. Written runs (accepted
batches) are merged into sorted tables of 20 bytes per entry, so a million single appends need few
objects.

Runs are in the order of acceptance; if an id is in several runs, the newest run wins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bookie.entry.batch import EntryBatch
from bookie.env import Buffer
from bookie.node.engine.format.arrays import U32, Ids, distinct
from bookie.node.engine.window import Window

FOLD_RUNS = 64
"""When a ledger has this many written runs, they are merged into one table."""

PART_ENTRIES = 32 * 1024
"""The number of entries that one step of a checkpoint handles."""


class Location(NamedTuple):
    """An entry's place: `size` bytes at `offset` in `payload`, or in `file` without `payload`."""

    file: int
    offset: int
    size: int
    payload: Buffer | None = None


@dataclass(frozen=True, slots=True)
class LocationTable:
    """Locations of entries, in ascending order of entry ids; each id occurs once."""

    ids: Ids
    files: U32
    offsets: U32
    sizes: U32

    def at(self, where: slice | Ids) -> LocationTable:
        return LocationTable(
            self.ids[where], self.files[where], self.offsets[where], self.sizes[where]
        )

    def overlay(self, window: Window) -> None:
        """Write the locations into `window`, and overwrite older locations."""
        low = int(np.searchsorted(self.ids, window.first, "left"))
        high = int(np.searchsorted(self.ids, window.last, "right"))
        if low < high:
            part = self.at(slice(low, high))
            window.put(part.ids, part.files, part.offsets, part.sizes)

    def parts(self, page: int) -> Iterator[LocationTable]:
        """Cut the table into pieces of about `PART_ENTRIES` locations; an empty table has no piece.

        A piece never begins inside an index page, which is a group of `page` neighbouring ids.
        Pieces limit the memory of a checkpoint, and the time for which one array operation blocks
        other threads.
        """
        start = 0
        while start < len(self.ids):
            stop = start + PART_ENTRIES
            if stop < len(self.ids):
                stop = int(self.ids.searchsorted(self.ids[stop] // page * page))
            yield self.at(slice(start, stop))
            start = stop

    def location(self, entry_id: int) -> Location | None:
        index = int(self.ids.searchsorted(entry_id))
        if index == len(self.ids) or self.ids[index] != entry_id:
            return None
        return Location(int(self.files[index]), int(self.offsets[index]), int(self.sizes[index]))


EMPTY_TABLE = LocationTable(
    np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint32)
)


def concatenated(tables: Sequence[LocationTable]) -> LocationTable:
    """Concatenate the tables, without sorting."""
    if len(tables) == 1:
        return tables[0]
    return LocationTable(
        np.concatenate([table.ids for table in tables]),
        np.concatenate([table.files for table in tables]),
        np.concatenate([table.offsets for table in tables]),
        np.concatenate([table.sizes for table in tables]),
    )


def merge_tables(tables: list[LocationTable]) -> LocationTable:
    """Merge the tables into one; for an id in several tables, the last table wins."""
    if not tables:
        return EMPTY_TABLE
    whole = concatenated(tables)
    if bool(np.all(whole.ids[1:] > whole.ids[:-1])):
        return whole
    order = np.argsort(whole.ids, kind="stable")
    ids = whole.ids[order]
    return whole.at(order[np.append(ids[1:] != ids[:-1], True)])


def table_of_runs(runs: Sequence[Run]) -> LocationTable:
    """Make one table of written runs; for an id in several runs, the last run wins."""
    if not runs:
        return EMPTY_TABLE
    if len(runs) == 1:
        return runs[0].table()
    counts = np.array([len(run.sizes) for run in runs], np.int64)
    ends = np.cumsum(counts)
    sizes = np.concatenate([run.sizes for run in runs])
    # Compute offsets as if the runs were adjacent, then shift each run to its place in its file.
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    first_of_run = ends - counts
    bases = np.array([run.offset for run in runs], np.int64) - starts[first_of_run]
    offsets = starts + np.repeat(bases, counts)
    if all(run.batch_ids is None for run in runs):
        firsts = np.array([run.first for run in runs], np.int64) - first_of_run
        ids = np.arange(len(sizes), dtype=np.int64) + np.repeat(firsts, counts)
    else:
        ids = np.concatenate([run.ids() for run in runs])
    files = np.repeat(np.array([run.file for run in runs], np.uint32), counts)
    return merge_tables([LocationTable(ids, files, offsets.astype(np.uint32), sizes)])


def _own(sizes: Ids | U32) -> U32:
    """Return `sizes` as its own array; a view would keep a whole received message in memory."""
    if sizes.base is None and sizes.dtype == np.uint32:
        return sizes  # type: ignore[return-value]  # mypy does not see what the comparison says
    return np.array(sizes, dtype=np.uint32)


class Run:
    """One accepted batch: keeps the payload until the journal has written it, then its location."""

    __slots__ = ("_starts", "batch_ids", "file", "first", "last", "offset", "payload", "sizes")

    def __init__(self, batch: EntryBatch) -> None:
        self.first = batch.first_entry_id
        self.last = batch.last_entry_id
        self.batch_ids = None if batch.steps is None else batch.entry_ids()
        self.sizes = _own(batch.sizes)
        self._starts: Ids | None = None
        self.payload: Buffer | None = batch.payload
        self.file = 0
        self.offset = 0

    def starts(self) -> Ids:
        """Return the offset of each packet within the payload."""
        if self._starts is None:
            starts = np.zeros(len(self.sizes), np.int64)
            np.cumsum(self.sizes[:-1], out=starts[1:])
            self._starts = starts
        return self._starts

    def ids(self) -> Ids:
        if self.batch_ids is not None:
            return self.batch_ids
        return np.arange(len(self.sizes), dtype=np.int64) + self.first

    def table(self) -> LocationTable:
        """Return the locations of a written run, in a quarter of the time of `table_of_runs`.

        Most ledgers have only one run.
        """
        sizes = self.sizes
        offsets = np.cumsum(sizes, dtype=np.int64) - sizes + self.offset
        files = np.full(len(sizes), self.file, np.uint32)
        return LocationTable(self.ids(), files, offsets.astype(np.uint32), _own(sizes))

    def overlay(self, window: Window) -> None:
        if self.last < window.first or self.first > window.last:
            return
        if self.payload is None:
            file, base = self.file, self.offset
        else:
            file, base = window.remember(self.payload), 0
        if self.batch_ids is None:
            low = max(window.first - self.first, 0)
            high = min(window.last, self.last) - self.first + 1
            window.put_contiguous(
                self.first + low, file, self.starts()[low:high] + base, self.sizes[low:high]
            )
            return
        low = int(np.searchsorted(self.batch_ids, window.first, "left"))
        high = int(np.searchsorted(self.batch_ids, window.last, "right"))
        window.put(
            self.batch_ids[low:high], file, self.starts()[low:high] + base, self.sizes[low:high]
        )

    def location(self, entry_id: int) -> Location | None:
        index = entry_id - self.first
        if self.batch_ids is not None:
            index = int(self.batch_ids.searchsorted(entry_id))
            if index == len(self.batch_ids) or self.batch_ids[index] != entry_id:
                return None
        elif not 0 <= index < len(self.sizes):
            return None
        base = self.offset if self.payload is None else 0
        offset = base + int(self.starts()[index])
        return Location(self.file, offset, int(self.sizes[index]), self.payload)


class LedgerRuns:
    """The runs of one ledger in one memtable."""

    __slots__ = ("_firsts", "_ordered", "_runs", "_tables", "_written")

    def __init__(self) -> None:
        self._tables: list[LocationTable] = []
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        # True if the first id of each run is above the last id of the run before, so reads bisect.
        self._ordered = True
        self._written = 0

    def append(self, run: Run) -> None:
        """Accept `run`; its entries are readable from now on."""
        if self._runs and run.first <= self._runs[-1].last:
            self._ordered = False
        self._runs.append(run)
        self._firsts.append(run.first)

    def written(self, run: Run, file: int, offset: int) -> None:
        """Record that the payload of `run` is at `offset` of `file`; call this in run order."""
        run.file, run.offset, run.payload = file, offset, None
        self._written += 1
        if self._written >= FOLD_RUNS:
            self._fold()

    def refused(self, run: Run) -> None:
        """Remove `run`, which the journal refused; none of its entries was acknowledged."""
        index = self._runs.index(run)
        del self._runs[index], self._firsts[index]

    def overlay(self, window: Window) -> None:
        """Write all locations into `window`, oldest first, so that the newest copies win."""
        for table in self._tables:
            table.overlay(window)
        if not self._ordered:
            for run in self._runs:
                run.overlay(window)
            return
        start = max(bisect_right(self._firsts, window.first) - 1, 0)
        for index in range(start, len(self._runs)):
            run = self._runs[index]
            if run.first > window.last:
                break
            run.overlay(window)

    def location(self, entry_id: int) -> Location | None:
        """Return the location of an entry's newest copy; None if this memtable lacks the entry."""
        if self._ordered:
            # If no runs overlap, only the last run that begins at or below the id can hold it.
            index = bisect_right(self._firsts, entry_id) - 1
            location = self._runs[index].location(entry_id) if index >= 0 else None
            if location is not None:
                return location
        else:
            for run in reversed(self._runs):
                if (location := run.location(entry_id)) is not None:
                    return location
        for table in reversed(self._tables):
            if (location := table.location(entry_id)) is not None:
                return location
        return None

    def entry_ids(self) -> Ids:
        """Return the ids of all entries, written or not, ascending, each once."""
        parts = [table.ids for table in self._tables] + [run.ids() for run in self._runs]
        return distinct(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def table(self) -> LocationTable:
        """Return all locations as one table.

        Before this call, the caller must have called `written` for every run.
        """
        assert self._written == len(self._runs), "a table is made of written runs only"
        newest = table_of_runs(self._runs)
        return merge_tables([*self._tables, newest]) if self._tables else newest

    def _fold(self) -> None:
        count = self._written
        self._tables.append(table_of_runs(self._runs[:count]))
        del self._runs[:count], self._firsts[:count]
        self._written = 0
        self._ordered = all(
            later.first > earlier.last
            for earlier, later in zip(self._runs, self._runs[1:], strict=False)
        )
        # Each merge at least doubles the smaller table, so that the total cost is O(n log n).
        while len(self._tables) > 1 and len(self._tables[-2].ids) <= 2 * len(self._tables[-1].ids):
            newer = self._tables.pop()
            self._tables[-1] = merge_tables([self._tables[-1], newer])


class Memtable:
    """All entries that were accepted between two checkpoints."""

    __slots__ = ("entries", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRuns] = {}
        self.entries = 0

    def append(self, ledger_id: int, run: Run) -> LedgerRuns:
        """Accept `run`, and return all runs of its ledger.

        When the run is written to a file, the caller must call `written` of the returned object.
        """
        runs = self.ledgers.get(ledger_id)
        if runs is None:
            runs = self.ledgers[ledger_id] = LedgerRuns()
        runs.append(run)
        self.entries += len(run.sizes)
        return runs

    def table_of(self, ledger_id: int) -> LocationTable:
        """Return all locations of one ledger as a table; all of its runs must be written."""
        runs = self.ledgers.get(ledger_id)
        return EMPTY_TABLE if runs is None else runs.table()

    def overlay(self, ledger_id: int, window: Window) -> None:
        runs = self.ledgers.get(ledger_id)
        if runs is not None:
            runs.overlay(window)

    def location(self, ledger_id: int, entry_id: int) -> Location | None:
        runs = self.ledgers.get(ledger_id)
        return None if runs is None else runs.location(entry_id)

"""Compaction copies live entries of files with much garbage to a new log, and removes the files.

A round of compaction considers all sealed files before the file of the mark; files with the lowest
live share come first. A round takes a file for one of these reasons:

- the live share of the file is below the minor threshold;
- the live shares of the file and of all files together are below the major threshold;
- the file is a journal, and all journal files exceed their budget (`journal_bytes_max`);
- the file is small, and there are many small files: each start after a crash leaves a small file.

The round reads these files once (`live_scan`) and writes their live entries, sorted by ledger and
id, into a new log (`compaction_log`). Then the index is updated (`Checkpointer.relocate`), and dead
files are removed. A crash at any moment is harmless. Until the index commits, reads use the old
files; the next start removes a log that has no row in the index.

A file with an unreadable part is reported; later rounds skip the file. A round works in small steps
at a limited rate. The pause after a step is at least as long as the step, or `PAUSE_SECONDS_MAX` if
the step was longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, ParamSpec, TypeVar

from bookie.config import StorageSettings
from bookie.env import Environment, Pause
from bookie.errors import CorruptionError, DiskFullError, FormatError
from bookie.node.engine.checkpoint import Checkpointer
from bookie.node.engine.directories import Directories
from bookie.node.engine.files import FileTable
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileKind
from bookie.node.engine.format.index_rows import FileRow, FileState, LedgerIndexRow, Mark
from bookie.node.engine.index.deleted_ledgers import Limits
from bookie.node.engine.index.entry_index import Index
from bookie.node.engine.reclaim.compaction_log import CompactionLog, LiveScan, order_of
from bookie.node.engine.reclaim.live_scan import Found, LiveEntries, scan_live
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)
P = ParamSpec("P")
T = TypeVar("T")

POOL = "compaction"
LOG_OVERHEAD_BYTES = 1024 * 1024
"""An upper bound of the bytes that a log needs besides its entries."""

LOG_PAYLOAD_BYTES = 64 * 1024 * 1024
"""When this many bytes of live entries are in memory, they are sorted and written as one log."""

GARBAGE_BYTES_MIN = 64 * 1024
"""A file with less garbage is compacted only if forced, if small, or if journals exceed their
budget."""

SMALL_FILES_MIN = 16
"""If there are at least this many small files, a round merges them, whatever their live share."""

SMALL_FILES_PER_LARGE = 16
"""A file is small if this many files of its size fit into one journal file."""

PAUSE_SECONDS_MAX = 0.1
"""The longest pause after a slow step; the pause that limits the rate may be longer."""

ROLL_GARBAGE_BYTES_MIN = 4 * 1024 * 1024
"""The current journal file ends early if it has this much garbage and a low live share."""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """The functions of the engine that a compaction calls."""

    checkpoint: Callable[[], Awaitable[None]]
    roll: Callable[[], Awaitable[None]]
    failing: Callable[[], AbstractContextManager[None]]
    """Returns a context manager that handles errors for the engine."""
    is_full: Callable[[], bool]
    """Returns True if the bookie refuses new entries, because a device is full or for another
    reason."""
    next_number: Callable[[], int]
    was_read: Callable[[int, int, int], None]
    """Reports to the page cache the file, offset and size of bytes that were read or written."""


class CompactionStatus(NamedTuple):
    """The state of compaction, and the sums over all rounds since the start."""

    running: bool
    files: int
    moved_bytes: int
    kept_files: int
    """The number of damaged files that compaction skips."""


@dataclass(slots=True)
class RoundReport:
    """The result of one round."""

    files: int = 0
    moved_bytes: int = 0
    kept_files: int = 0
    full: bool = False
    """True if the round ended early because a device is full."""


@dataclass(slots=True)
class _Collected:
    """The live entries and the ledgers that the next log will hold."""

    live: list[LiveEntries] = field(default_factory=list)
    ledgers: set[int] = field(default_factory=set)
    order: int = 0
    payload_bytes: int = 0

    def take(self, found: Found, order: int) -> None:
        self.live += found.live
        self.ledgers |= found.ledgers
        self.ledgers.update(item.batch.ledger_id for item in found.live)
        self.payload_bytes += sum(len(item.batch.payload) for item in found.live)
        self.order = max(self.order, order)


class Compactor:
    """Runs rounds of compaction in the event loop, one at a time; a thread does the work."""

    def __init__(
        self,
        environment: Environment,
        settings: StorageSettings,
        metrics: Metrics,
        directories: Directories,
        index: Index,
        files: FileTable,
        checkpointer: Checkpointer,
        engine: EngineCalls,
    ) -> None:
        self._env = environment
        self._settings = settings
        self._metrics = metrics
        self._directories = directories
        self._index = index
        self._files = files
        self._checkpointer = checkpointer
        self._engine = engine
        self._interval, self._rest = Pause(), Pause()
        self._forced = False
        self._lock = asyncio.Lock()
        self.kept: set[int] = set()
        """Numbers of files that compaction skips, because a part of each file is unreadable."""
        self.files = 0
        self.moved_bytes = 0
        """The bytes moved in all rounds; `files` counts the files of all rounds."""
        self._seen: object = None
        self._not_before = 0.0
        self._beside_entries: dict[int, int] = {}
        """Maps a log to its bytes besides entries: not garbage, because a new log has such bytes,
        too."""
        self._read_whole: set[int] = set()
        self._released = False
        self.forgets_before = 0
        """Rounds may omit rows of ledgers deleted before this journal file; 0 means that none is
        omitted."""
        self.suspended = False
        """True if an operator stopped the rounds of compaction."""
        self.running = False
        """True while a round runs."""

    def status(self) -> CompactionStatus:
        return CompactionStatus(self.running, self.files, self.moved_bytes, len(self.kept))

    def wake(self, *, force: bool = False) -> None:
        """Start a round soon, unless suspended; with `force`, compact every file with garbage."""
        self._forced = self._forced or force
        self._interval.end()

    @property
    def settings(self) -> StorageSettings:
        """The settings of rounds, which may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: StorageSettings) -> None:
        self._settings = settings
        # Under the new settings, a round may find work even if no file has changed.
        self._seen = None
        self._interval.measure_again()
        self._rest.measure_again()

    async def run(self) -> NoReturn:
        """Run rounds of compaction until cancelled.

        Raises:
            StorageFailedError: a device failed.
        """
        while True:
            await self._interval.wait(lambda: self._settings.compaction_interval_seconds)
            force, self._forced = self._forced, False
            if not self.suspended:
                await self.round(force=force)

    async def round(self, *, force: bool = False) -> RoundReport:
        """Run one round. A full device ends the round early, without any loss.

        Raises:
            StorageFailedError: a device failed.
        """
        report = RoundReport()
        async with self._lock:
            self.running = True
            began = self._env.clock.monotonic()
            try:
                with self._engine.failing():
                    await self._round_or_give_up(report, force=force)
            finally:
                self.running = False
            self.files += report.files
            self.moved_bytes += report.moved_bytes
            if report.files:
                seconds = self._env.clock.monotonic() - began
                self._metrics.compaction_rounds_total.inc()
                self._metrics.compaction_seconds.observe(seconds)
                _log.info(
                    "compacted",
                    files=report.files,
                    moved_bytes=report.moved_bytes,
                    kept_files=report.kept_files,
                    seconds=round(seconds, 3),
                )
        return report

    async def _round_or_give_up(self, report: RoundReport, *, force: bool) -> None:
        try:
            await self._round(report, force=force)
        except DiskFullError as error:
            report.full = True
            self._seen = None
            _log.warning("compaction_gave_up", reason=str(error))
        await self._restore_reserve()

    async def _round(self, report: RoundReport, *, force: bool) -> None:
        while await self._env.workers.run(POOL, self._are_pages_left):
            # Remove pages of deleted ledgers first; after that, most files need no copying.
            began = self._env.clock.monotonic()
            if self._checkpointer.has_deletions:
                await self._engine.checkpoint()
            else:
                with self._engine.failing():
                    await self._checkpointer.delete_pages()
            await self._pace(0, began)
        if self._checkpointer.has_dead_files:
            # A checkpoint frees the space of dead files without any copy.
            await self._engine.checkpoint()
        rows, mark = await self._look()
        if mark is None or (self._seen == (rows, mark) and not force):
            return
        if self._should_roll(rows, mark, force=force):
            await self._engine.roll()
            await self._engine.checkpoint()
            rows, mark = await self._look()
            assert mark is not None
        collected, full = _Collected(), None
        self._read_whole.clear()
        chosen = self._choose(rows, mark, force=force)
        for number in chosen:
            if self.suspended or (self._engine.is_full() and not self._fits(rows[number])):
                continue
            await self._empty(number, collected, report)
            if self._engine.is_full():
                # On a full device, write one log for each file: the log of another file may still
                # fit.
                try:
                    await self._flush(collected, report)
                except DiskFullError as error:
                    full, collected = error, _Collected()
                    self._read_whole.discard(number)
        await self._flush(collected, report)
        await self._keep_damaged(report)
        # The next round must look at the files again: entries may have died while this round ran.
        self._seen = None if chosen else (rows, mark)
        if full is not None:
            raise full

    def _are_pages_left(self) -> bool:
        return self._checkpointer.has_deletions or self._index.is_deleting()

    async def _look(self) -> tuple[dict[int, FileRow], Mark | None]:
        return await self._env.workers.run(POOL, self._rows_and_mark)

    def _rows_and_mark(self) -> tuple[dict[int, FileRow], Mark | None]:
        return self._index.files(), self._index.mark()

    # --- the choice of files --------------------------------------------------------------------

    def _should_roll(self, rows: Mapping[int, FileRow], mark: Mark, *, force: bool) -> bool:
        """True if the current journal file should end now, because of its garbage."""
        row = rows.get(mark.file_number)
        live = 0 if row is None else row.live_bytes
        indexed = mark.offset - FILE_HEADER_SIZE_BYTES
        if force:
            return indexed > live
        return (
            indexed - live >= ROLL_GARBAGE_BYTES_MIN
            and live < indexed * self._settings.compaction_live_share_minor
        )

    def _choose(self, rows: Mapping[int, FileRow], mark: Mark, *, force: bool) -> list[int]:
        """Choose the files to compact; files with the smallest live share come first."""
        sealed = {
            number: row
            for number, row in rows.items()
            if row.state is FileState.SEALED
            and number < mark.file_number
            and self._files.path(number) is not None
        }
        usable = [number for number, row in sealed.items() if row.live_bytes]
        usable = [number for number in usable if number not in self.kept]
        self._beside_entries = {
            number: size for number, size in self._beside_entries.items() if number in rows
        }
        garbage_of = {
            number: sealed[number].size_bytes
            - sealed[number].live_bytes
            - self._beside_entries.get(number, 0)
            for number in usable
        }
        share_of = {
            number: sealed[number].live_bytes / (sealed[number].live_bytes + max(garbage, 0))
            for number, garbage in garbage_of.items()
        }
        by_share = sorted(usable, key=share_of.__getitem__)
        worth = 0 if force else GARBAGE_BYTES_MIN
        minor, major = (
            self._settings.compaction_live_share_minor,
            self._settings.compaction_live_share_major,
        )
        size = sum(row.size_bytes for row in sealed.values())
        live = sum(row.live_bytes for row in sealed.values())
        journals = mark.offset + sum(
            row.size_bytes for row in sealed.values() if row.kind == FileKind.JOURNAL
        )
        budget = self._settings.journal_bytes_max
        small = self._too_many_small({number: sealed[number] for number in usable})
        chosen = []
        for number in by_share:
            row = sealed[number]
            share, garbage = share_of[number], garbage_of[number]
            over_budget = row.kind == FileKind.JOURNAL and 0 < budget < journals
            wanted = force or share < minor or (share < major and live < size * major)
            if over_budget or number in small or (wanted and garbage > worth):
                chosen.append(number)
                size -= garbage
                if row.kind == FileKind.JOURNAL:
                    journals -= row.size_bytes
        return chosen

    def _too_many_small(self, rows: Mapping[int, FileRow]) -> set[int]:
        """Return the small files; none if there are fewer than `SMALL_FILES_MIN`."""
        limit = self._settings.journal_file_bytes_max // SMALL_FILES_PER_LARGE
        small = {number for number, row in rows.items() if row.size_bytes <= limit}
        return small if len(small) >= SMALL_FILES_MIN else set()

    def _fits(self, row: FileRow) -> bool:
        """True if a nearly full device has room for a log with the file's entries."""
        free = self._env.disk.usage(self._directories.ledgers).free_bytes
        return row.live_bytes + LOG_OVERHEAD_BYTES < free + self._settings.reserve_bytes

    # --- the work ------------------------------------------------------------------------

    async def _empty(self, number: int, collected: _Collected, report: RoundReport) -> None:
        """Collect the live entries of the file; write a log when memory has enough entries."""
        path = self._files.path(number)
        if path is None:
            return
        report.files += 1
        self._metrics.compaction_files_total.inc()
        steps, read_upto = scan_live(self._env.disk, self._index, number, path), 0
        try:
            order = await self._read(number, report, order_of, self._env.disk, number, path)
            while order is not None:
                began = self._env.clock.monotonic()
                found = await self._read(number, report, _advance, steps)
                if found is None:
                    return
                collected.take(found, order)
                await self._pace(found.bytes_read, began)
                self._engine.was_read(number, read_upto, found.bytes_read)
                read_upto += found.bytes_read
                if found.is_last:
                    self._read_whole.add(number)
                if collected.payload_bytes >= LOG_PAYLOAD_BYTES:
                    await self._flush(collected, report)
        finally:
            await self._env.workers.run(POOL, steps.close)

    async def _read(
        self,
        number: int,
        report: RoundReport,
        function: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Call `function` to read a file; if the file is unreadable, mark it and return None."""
        try:
            return await self._env.workers.run(POOL, function, *args, **kwargs)
        except (OSError, FormatError, CorruptionError) as error:
            # A file that a checkpoint has removed is not damaged.
            if self._files.path(number) is not None:
                self._keep(number, str(error), report)
            return None

    async def _flush(self, collected: _Collected, report: RoundReport) -> None:
        """Write the collected entries into a log, and point the index to the log."""
        if not collected.live:
            # Without entries, no log is needed: the old files have only records about ledgers.
            return
        ledgers = sorted(collected.ledgers)
        emptied = frozenset(self._read_whole)
        rows = await self._env.workers.run(POOL, self._rows_of, ledgers, emptied)
        scanned = LiveScan(collected.order, collected.live, rows)
        log = await self._write_or_release(scanned)
        self._engine.was_read(log.relocation.number, 0, log.relocation.size_bytes)
        self._metrics.compaction_bytes_total.inc(collected.payload_bytes)
        report.moved_bytes += collected.payload_bytes
        collected.live, collected.payload_bytes = [], 0
        collected.ledgers = set()
        moved = sum(int(item.sizes.sum()) for item in log.relocation.moved)
        self._beside_entries[log.relocation.number] = log.relocation.size_bytes - moved
        await self._checkpointer.relocate(log.relocation)

    async def _write_or_release(self, scanned: LiveScan) -> CompactionLog:
        """Write the log; on a full device, free removed files and the reserve, then try again."""
        try:
            return await self._write(scanned)
        except DiskFullError:
            await self._checkpointer.removal.finish()
            await self._env.workers.run(POOL, self._directories.release_reserve)
            self._released = True
            return await self._write(scanned)

    async def _write(self, scanned: LiveScan) -> CompactionLog:
        log = CompactionLog(
            self._env,
            self._directories.logs,
            self._engine.next_number(),
            self._settings.block_alignment_bytes,
        )
        steps = log.steps(scanned)
        try:
            while True:
                began = self._env.clock.monotonic()
                size = await self._env.workers.run(POOL, next, steps, None)
                if size is None:
                    return log
                await self._pace(size, began)
        finally:
            await self._env.workers.run(POOL, steps.close)

    def _rows_of(
        self, ledger_ids: list[int], emptied: frozenset[int]
    ) -> list[tuple[int, LedgerIndexRow]]:
        """Return the rows of these ledgers that the new log must hold.

        A row with an old deletion is omitted if only the `emptied` files may still hold entries of
        the ledger. If the log repeated the old deletion, a rebuild would apply this deletion to a
        later ledger with the same id.
        """
        files, mark = self._rows_and_mark()
        others = {number: row for number, row in files.items() if number not in emptied}
        before = 0 if mark is None else min(mark.file_number, self.forgets_before)
        limits = Limits.of(others, before)
        rows = ((ledger_id, self._index.ledger(ledger_id)) for ledger_id in ledger_ids)
        return [(one, row) for one, row in rows if row is not None and not limits.let_go(row)]

    async def _pace(self, size: int, began: float) -> None:
        """Pause after a step, so that the round keeps its rate and does not slow down requests.

        The pause is the time that the rate requires. But the pause is at least as long as the step,
        or `PAUSE_SECONDS_MAX` if the step was longer.
        """
        now = self._env.clock.monotonic()
        begin = max(self._not_before, began)

        def rest() -> float:
            self._not_before = begin + size / self._settings.compaction_bytes_per_second
            return max(self._not_before - now, min(now - began, PAUSE_SECONDS_MAX))

        await self._rest.wait(rest)

    # --- damaged files ---------------------------------------------------------

    async def _keep_damaged(self, report: RoundReport) -> None:
        """Mark files as damaged that were read to their end, but still have live bytes."""
        if self._read_whole:
            rows = await self._env.workers.run(POOL, self._rows_unless_deleting)
            for number in sorted(self._read_whole & rows.keys()):
                if rows[number].live_bytes:
                    self._keep(number, f"{rows[number].live_bytes} bytes are damaged", report)

    def _rows_unless_deleting(self) -> dict[int, FileRow]:
        # Check in this order: entries of a deleted ledger stay alive until their pages are removed.
        return {} if self._index.is_deleting() else self._index.files()

    def _keep(self, number: int, reason: str, report: RoundReport) -> None:
        if number in self.kept:
            return
        self.kept.add(number)
        report.kept_files += 1
        self._metrics.compaction_kept_files_total.inc()
        self._metrics.errors_total.labels("corruption").inc()
        _log.error("file_kept", file=number, reason=reason)

    async def _restore_reserve(self) -> None:
        if self._released and not self._engine.is_full():
            await self._env.workers.run(POOL, self._directories.make_reserve)
            self._released = False


def _advance(steps: Generator[Found, None, None]) -> Found | None:
    return next(steps, None)

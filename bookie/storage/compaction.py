"""Compaction: files that are mostly dead give their last entries to a new log, and go.

A round looks at all sealed files below the mark and takes the emptiest first:

- those with less alive than the minor threshold, always;
- those with less than the major one, while all files together have more garbage than it allows;
- journal files while they are over their budget, which a journal device of its own may have.

It reads them once (`survey`), writes what is alive sorted by ledger and id into a new log
(`compaction_log`), and has the index follow (`Checkpointer.relocate`). A file without a live byte
is then unlinked by the rule for all dead files. The order makes a kill at any moment harmless: a
log that the index does not know is removed at the next boot, and until the commit the old files
count.

A file that cannot be read whole keeps what could not be moved; it is reported and left alone. Work
goes in small steps at a fixed rate beside the event loop, and pauses at least as long as it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NoReturn, ParamSpec, TypeVar

from bookie.config import StorageSettings
from bookie.env import Environment, Pause
from bookie.errors import CorruptionError, DiskFullError, FormatError, StorageFailedError
from bookie.formats.blocks import FILE_HEADER_SIZE_BYTES, FileKind
from bookie.formats.index_rows import FileRow, FileState, LedgerIndexRow, Mark
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.compaction_log import CompactionLog, Harvest, order_of
from bookie.storage.directories import Directories
from bookie.storage.files import FileTable
from bookie.storage.index import Index
from bookie.storage.survey import Found, LiveEntries, survey
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)
P = ParamSpec("P")
T = TypeVar("T")

POOL = "compaction"
LOG_OVERHEAD_BYTES = 1024 * 1024
"""More than a log has beside its entries, where room is short."""

LOG_PAYLOAD_BYTES = 64 * 1024 * 1024
"""What is collected in memory, sorted, and becomes one log."""

GARBAGE_BYTES_MIN = 64 * 1024
"""Less than this in a file is not worth a round of its own."""

PAUSE_SECONDS_MAX = 0.1
"""A step that a slow device held up is no reason to wait as long once more."""

ROLL_GARBAGE_BYTES_MIN = 4 * 1024 * 1024
"""The open journal is ended early for at least so much."""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """What a compaction needs of the engine around it."""

    checkpoint: Callable[[], Awaitable[None]]
    roll: Callable[[], Awaitable[None]]
    failing: Callable[[], AbstractContextManager[None]]
    """Says what an error means for the engine."""
    is_full: Callable[[], bool]
    """Whether a device has no room for new entries."""
    next_number: Callable[[], int]


@dataclass(slots=True)
class RoundReport:
    """What a round did."""

    files: int = 0
    moved_bytes: int = 0
    kept_files: int = 0
    full: bool = False
    """Whether it gave up because a device is full."""


@dataclass(slots=True)
class _Collected:
    """What goes into the next log."""

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
    """Makes rounds, one at a time, in the event loop; the work itself is a worker's."""

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
        """Files that are left alone because not all of them is readable."""
        self.files = 0
        self.moved_bytes = 0
        """What all rounds did together."""
        self._seen: object = None
        self._not_before = 0.0
        self._beside_entries: dict[int, int] = {}
        """Bytes of each log made here that are no entries: another log would have them again."""
        self._read_whole: set[int] = set()
        self._released = False
        self.suspended = False
        """Whether an operator asked for no rounds."""
        self.running = False
        """Whether a round is under way."""

    def wake(self, *, force: bool = False) -> None:
        """Make a round soon; a forced one takes every file that holds anything dead."""
        self._forced = self._forced or force
        self._interval.end()

    @property
    def settings(self) -> StorageSettings:
        """What rounds go by; may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: StorageSettings) -> None:
        self._settings = settings
        # What was not worth a round may be worth one now.
        self._seen = None
        self._interval.measure_again()
        self._rest.measure_again()

    async def run(self) -> NoReturn:
        """Make rounds until cancelled.

        Raises:
            StorageFailedError: a device failed.
        """
        while True:
            await self._interval.wait(lambda: self._settings.compaction_interval_seconds)
            force, self._forced = self._forced, False
            if not self.suspended:
                await self.round(force=force)

    async def round(self, *, force: bool = False) -> RoundReport:
        """One round, to its end. A full device ends it early; nothing is lost by that.

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
            # Pages of deleted ledgers go first: most files need nothing but that.
            began = self._env.clock.monotonic()
            if self._checkpointer.has_deletions:
                await self._engine.checkpoint()
            else:
                with self._engine.failing():
                    await self._checkpointer.delete_pages()
            await self._pace(0, began)
        if self._checkpointer.has_dead_files:
            # Nothing has to be moved for the space of these.
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
                # Where room is short, it is gained file by file; another one may be smaller.
                try:
                    await self._flush(collected, report)
                except DiskFullError as error:
                    full, collected = error, _Collected()
                    self._read_whole.discard(number)
        await self._flush(collected, report)
        await self._judge(report)
        # What died while a round was at work has not been looked at.
        self._seen = None if chosen else (rows, mark)
        if full is not None:
            raise full

    def _are_pages_left(self) -> bool:
        return self._checkpointer.has_deletions or self._index.is_deleting()

    async def _look(self) -> tuple[dict[int, FileRow], Mark | None]:
        return await self._env.workers.run(POOL, self._rows_and_mark)

    def _rows_and_mark(self) -> tuple[dict[int, FileRow], Mark | None]:
        return self._index.files(), self._index.mark()

    # --- what to take --------------------------------------------------------------------

    def _should_roll(self, rows: Mapping[int, FileRow], mark: Mark, *, force: bool) -> bool:
        """Whether the open journal has so much dead that it should end now."""
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
        """The files to empty, the emptiest first."""
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
        chosen = []
        for number in by_share:
            row = sealed[number]
            share, garbage = share_of[number], garbage_of[number]
            over_budget = row.kind == FileKind.JOURNAL and 0 < budget < journals
            wanted = force or share < minor or (share < major and live < size * major)
            if over_budget or (wanted and garbage > worth):
                chosen.append(number)
                size -= garbage
                if row.kind == FileKind.JOURNAL:
                    journals -= row.size_bytes
        return chosen

    def _fits(self, row: FileRow) -> bool:
        """Whether a log for the file's entries finds room on a device that is all but full."""
        free = self._env.disk.usage(self._directories.ledgers).free_bytes
        return row.live_bytes + LOG_OVERHEAD_BYTES < free + self._settings.reserve_bytes

    # --- the work ------------------------------------------------------------------------

    async def _empty(self, number: int, collected: _Collected, report: RoundReport) -> None:
        """Collect what is alive in the file, writing logs as they fill."""
        path = self._files.path(number)
        if path is None:
            return
        report.files += 1
        self._metrics.compaction_files_total.inc()
        steps = survey(self._env.disk, self._index, number, path)
        try:
            order = await self._read(number, report, order_of, self._env.disk, number, path)
            while order is not None:
                began = self._env.clock.monotonic()
                found = await self._read(number, report, _advance, steps)
                if found is None:
                    return
                collected.take(found, order)
                await self._pace(found.bytes_read, began)
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
        """What reading a file gave; None, and the file is left alone, if it cannot be read."""
        try:
            return await self._env.workers.run(POOL, function, *args, **kwargs)
        except (OSError, FormatError, CorruptionError) as error:
            # What a checkpoint has removed meanwhile is gone, not damaged.
            if self._files.path(number) is not None:
                self._keep(number, str(error), report)
            return None

    async def _flush(self, collected: _Collected, report: RoundReport) -> None:
        """Make a log of what was collected, and have the index follow."""
        if not collected.live:
            # What is only said about ledgers goes with the files, as it does with dead ones.
            return
        ledgers = sorted(collected.ledgers)
        rows = await self._env.workers.run(POOL, self._rows_of, ledgers)
        harvest = Harvest(collected.order, collected.live, rows)
        log = await self._write_or_release(harvest)
        self._metrics.compaction_bytes_total.inc(collected.payload_bytes)
        report.moved_bytes += collected.payload_bytes
        collected.live, collected.payload_bytes = [], 0
        collected.ledgers = set()
        moved = sum(int(item.sizes.sum()) for item in log.relocation.moved)
        self._beside_entries[log.relocation.number] = log.relocation.size_bytes - moved
        await self._checkpointer.relocate(log.relocation)

    async def _write_or_release(self, harvest: Harvest) -> CompactionLog:
        """The written log; on a full device what is on its way out and the reserve make room."""
        try:
            return await self._write(harvest)
        except DiskFullError:
            await self._checkpointer.removal.finish()
            await self._env.workers.run(POOL, self._directories.release_reserve)
            self._released = True
            return await self._write(harvest)

    async def _write(self, harvest: Harvest) -> CompactionLog:
        log = CompactionLog(
            self._env,
            self._directories.logs,
            self._engine.next_number(),
            self._settings.block_alignment_bytes,
        )
        steps = log.steps(harvest)
        try:
            while True:
                began = self._env.clock.monotonic()
                try:
                    size = await self._env.workers.run(POOL, next, steps, None)
                except OSError as error:
                    raise StorageFailedError(f"a log could not be written: {error}") from error
                if size is None:
                    return log
                await self._pace(size, began)
        finally:
            await self._env.workers.run(POOL, steps.close)

    def _rows_of(self, ledger_ids: list[int]) -> list[tuple[int, LedgerIndexRow]]:
        rows = ((ledger_id, self._index.ledger(ledger_id)) for ledger_id in ledger_ids)
        return [(ledger_id, row) for ledger_id, row in rows if row is not None]

    async def _pace(self, size: int, began: float) -> None:
        """Keep to the rate; and after each step let others have the interpreter as long."""
        now = self._env.clock.monotonic()
        begin = max(self._not_before, began)

        def rest() -> float:
            self._not_before = begin + size / self._settings.compaction_bytes_per_second
            return max(self._not_before - now, min(now - began, PAUSE_SECONDS_MAX))

        await self._rest.wait(rest)

    # --- what could not be moved ---------------------------------------------------------

    async def _judge(self, report: RoundReport) -> None:
        """Whatever is still alive in a file that was read whole stands in a damaged place."""
        if self._read_whole:
            rows = await self._env.workers.run(POOL, self._rows_unless_deleting)
            for number in sorted(self._read_whole & rows.keys()):
                if rows[number].live_bytes:
                    self._keep(number, f"{rows[number].live_bytes} bytes are damaged", report)

    def _rows_unless_deleting(self) -> dict[int, FileRow]:
        # In this order: entries of a ledger that is being deleted are alive until their pages go.
        return {} if self._index.is_deleting() else self._index.files()

    def _keep(self, number: int, reason: str, report: RoundReport) -> None:
        """Leave the file alone from now on."""
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

"""The storage engine of one bookie: journal, memtable, index and files.

`Engine` is the interface of all parts: except for the scrubber, the node uses no part directly. The
methods run in one event loop. Blocking work runs in worker threads: the journal thread (group
commit), the index thread (checkpoints), read threads and others. A failed write or sync ends the
engine: `open_engine` raises `StorageFailedError`, and the process must exit.

For a request, the node first gets the ledger's state from `known` or `load`. Then one synchronous
section of the node calls `refusal`, and then `add`, `fence` or another change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn

from bookie.config import StorageSettings
from bookie.env import Environment, beside
from bookie.errors import BookieError, CorruptionError, DiskFullError, StorageFailedError
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.node.engine.admission import Admission, Waiter
from bookie.node.engine.boot.start import Boot, Booted, BootReport, Identity
from bookie.node.engine.checkpoint import Checkpointer
from bookie.node.engine.directories import Directories
from bookie.node.engine.duplicates import DuplicateAdds
from bookie.node.engine.durable_values import DurableValues
from bookie.node.engine.file_removal import Removal
from bookie.node.engine.format.arrays import IdRanges
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.hung_devices import DeviceWatch
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND, META_CLEAN
from bookie.node.engine.integrity import Integrity
from bookie.node.engine.journal.group_commit import BlockDone, JournalRequest, RequestKind
from bookie.node.engine.journal.queue import JournalQueue
from bookie.node.engine.ledger_state import LedgerStates, LocalLedger, StoredLedger
from bookie.node.engine.memtable import Memtable
from bookie.node.engine.page_cache import PageCache
from bookie.node.engine.reader import EntryReader, ReadResult
from bookie.node.engine.reclaim.compaction import Compactor, EngineCalls
from bookie.node.engine.reclaim.copy_removal import CopyRemoval
from bookie.node.engine.scrub import Scrubber
from bookie.telemetry import Metrics, event_log
from bookie.wire.commands import LacReply

_log = event_log(__name__)

DEVICE_FULL = "device full"
"""The name of the read-only reason that the engine itself sets."""


class Engine:
    """An open engine; made by `open_engine`.

    Tests also use the parts `admission`, `compactor`, `scrubber`, `integrity` and `page_cache`.
    """

    def __init__(
        self,
        environment: Environment,
        settings: StorageSettings,
        metrics: Metrics,
        directories: Directories,
        booted: Booted,
    ) -> None:
        self._env, self.clock = environment, environment.clock
        self._settings, self._metrics = settings, metrics
        self._directories, self._booted = directories, booted
        self._index = booted.index
        self.integrity = Integrity(environment, booted.index, metrics)
        self.scrubber = Scrubber(environment, settings, metrics, booted.files, self.integrity)
        self._files = booted.files
        self.report: BootReport = booted.report
        self._queue = queue = JournalQueue(environment.clock)
        self.failure: BookieError | None = None
        """The error that ended the engine and ends the process; None while the engine works."""
        self._wake = asyncio.Event()
        self._held_back = self._journaled_bytes = 0
        metrics.journal_queue_bytes.set_function(lambda: queue.size_bytes)
        self._last_block_at, self._has_marker = environment.clock.monotonic(), True
        self.admission = admission = Admission(
            queue.submit, queue.submit_with_next, environment.failpoints, Memtable()
        )
        self.page_cache = PageCache(environment, booted.files, settings.page_cache_bytes)
        self._removal = Removal(environment, metrics, self._is_full)
        self._checkpointer = Checkpointer(
            environment,
            metrics,
            admission,
            booted.index,
            booted.files,
            booted.dead_files,
            self._removal,
            directories.release_reserve,
            settings.checkpoint_entries,
        )
        self._states = LedgerStates(self._load_row, self._checkpointer.is_dirty)
        self._reader = reader = EntryReader(
            environment,
            booted.index,
            self._checkpointer.memtables,
            self._checkpointer.settled,
            booted.files,
            metrics,
            settings.read_coalesce_gap_bytes,
            self.page_cache.read,
        )
        self.compactor = Compactor(
            environment,
            settings,
            metrics,
            directories,
            booted.index,
            booted.files,
            self._checkpointer,
            self._calls_of_compaction(),
        )
        self._bind_parts(reader)

    def _bind_parts(self, reader: EntryReader) -> None:
        """Bind methods of the parts to the engine as attributes: this saves three calls per add."""
        admission = self.admission
        self.known = self._states.get
        """Return the state of a ledger if it is in memory; see `LedgerStates.get`."""
        self.refusal = admission.refusal
        """Return the reply that refuses an add, None if allowed; see `Admission.refusal`."""
        self.add = admission.add
        """Accept a batch; the caller has seen that `refusal` is None; see `Admission.add`."""
        self.add_over_stored = DuplicateAdds(admission, reader, self._metrics).add
        """Add entries whose ids may be stored already; see `DuplicateAdds.add`."""
        self.publish_lac = admission.publish_lac
        """Store an explicit LAC in memory now, and in the next journal block, without a sync."""
        self.force = admission.force
        """Return a waiter that gets OK once all requests accepted so far are durable."""
        self.delete = admission.delete
        """Delete the ledger's entries; the waiter gets OK once the deletion is durable."""
        self.set_limbo = admission.set_limbo
        """Put a ledger in limbo, or take it out of limbo; see `Admission.set_limbo`."""
        self.remove_copies = CopyRemoval(
            self.clock, self.load, self.checkpoint, self._checkpointer, self._failing
        ).run
        """Remove the entries of a ledger, but not the ledger; see `CopyRemoval.run`."""
        self.compaction_status = self.compactor.status
        self.read_only_reasons = admission.read_only_reasons
        """Reasons to refuse new entries, empty if there are none; the node adds its own reasons."""

    def _calls_of_compaction(self) -> EngineCalls:
        return EngineCalls(
            self.checkpoint,
            self.roll,
            self._failing,
            self._is_full,
            self._booted.next_number,
            self.page_cache.read,
        )

    # --- changes -------------------------------------------------------------------------

    def fence(self, state: LocalLedger, key: bytes) -> Waiter:
        """Fence a ledger, even an unknown one; the waiter gets OK once the fence is durable."""
        return self.admission.fence(state, key)

    # --- ledgers -------------------------------------------------------------------------

    async def load(self, ledger_id: int) -> LocalLedger:
        """Return the state of a ledger, loaded if necessary; an unknown ledger gets a new state.

        Raises:
            CorruptionError: the ledger's row in the index is damaged.
        """
        return self.known(ledger_id) or await self._states.load(ledger_id)

    async def ledgers(self, after: int, count_max: int) -> tuple[list[StoredLedger], int]:
        """Return ledgers with ids above `after`, ascending, and the next call's value of `after`.

        The next `after` is `MAX_ID` at the end. Reads up to `count_max` rows, omits deleted
        ledgers, and adds ledgers that are only in memory. Counts are those of the last checkpoint.
        """
        # Read memory before the index: a checkpoint may move a ledger between the two reads.
        dirty = self._checkpointer.dirty_states()
        rows = await self._env.workers.run("read", self._index.ledgers, after, count_max)
        limit = rows[-1][0] if len(rows) == count_max else MAX_ID
        merged = dict(rows)
        for state in dirty:
            if after < state.ledger_id <= limit and state.exists:
                merged[state.ledger_id] = state.row()
        page = [
            StoredLedger(ledger_id, row)
            for ledger_id, row in sorted(merged.items())
            if row.deleted_at_ms is None
        ]
        return page, limit

    async def ledger_count(self) -> int:
        """Count the ledgers in the index, including deleted ledgers that still have a row."""
        return await self._env.workers.run("states", self._index.ledger_count)

    @property
    def deletion_retention_seconds(self) -> float:
        return self._settings.deleted_ledger_retention_seconds

    async def find_forgettable(
        self, after: int, count_max: int, before_file: int
    ) -> tuple[list[int], int]:
        """Return ledgers deleted before file `before_file` began, and the next call's `after`.

        From now on, a compaction omits the DELETED record of a ledger if no other file needs it.
        """
        self.compactor.forgets_before = before_file
        find = self._index.find_forgettable
        return await self._env.workers.run("read", find, after, count_max, before_file)

    async def forget_deleted(self, ledger_ids: Sequence[int], before_file: int) -> int:
        """Remove the rows of these deleted ledgers, durably; return the number of removed rows.

        Raises:
            DiskFullError: there is no room for the change.
            StorageFailedError: the index failed; the process must end.
        """
        with self._failing():
            forget = self._index.forget_deleted
            gone = await self._env.workers.run("index", forget, ledger_ids, before_file)
        # If the index keeps the row of a ledger, the next request loads the ledger again.
        self._reader.forget(ledger_ids)
        self._states.forget(ledger_ids)
        return gone

    def entry_ranges(self, state: LocalLedger, first: int, last: int) -> AsyncIterator[IdRanges]:
        """Yield ranges of stored ids in ``first … last``: arrays of first and last ids, ascending.

        The ranges of one item are disjoint and not adjacent. A range may continue in the next item.

        Raises:
            CorruptionError: a page of the index is damaged; the listing is not complete.
            StorageFailedError: the engine failed.
        """
        if self.failure is not None:
            raise self.failure
        last = min(last, state.last_entry_id)
        return self._reader.entry_ranges(state.ledger_id, first, last)

    @property
    def newest_journal(self) -> int:
        return self.admission.journal_file

    @property
    def ledgers_in_limbo(self) -> int:
        """The number of ledgers in limbo that `count_limbo` has found, without deleted ledgers."""
        return self.admission.limbo.ledgers

    async def count_limbo(self) -> None:
        """Count the ledgers in limbo once; `ledgers_in_limbo` is complete when this call returns.

        Raises:
            CorruptionError: a row is damaged; the next call continues after the rows read so far.
        """
        await self.admission.limbo.count(self.ledgers)

    # --- back-pressure -------------------------------------------------------------------

    @property
    def holds_adds_back(self) -> bool:
        """True if adds have to wait for a checkpoint, so that the memtables stay small.

        On a full device, adds do not wait: new entries are refused, recovery adds are accepted.
        """
        is_hopeless = DEVICE_FULL in self.read_only_reasons or self.failure is not None
        return self._checkpointer.is_full and not is_hopeless

    async def room_for_adds(self) -> None:
        """Wait until `holds_adds_back` is False, so that adds need not wait for a checkpoint."""
        if not self.holds_adds_back:
            return
        began = self.clock.monotonic()
        if not self._held_back:
            _log.warning("adds_held_back", reason="the memtable is full and a checkpoint is late")
        self._held_back += 1
        try:
            while self.holds_adds_back:
                self._checkpointer.moved.clear()
                await self._checkpointer.moved.wait()
        finally:
            self._held_back -= 1
            if not self._held_back:
                _log.info("adds_go_on", seconds=round(self.clock.monotonic() - began, 1))

    # --- reads ---------------------------------------------------------------------------

    async def read(
        self,
        state: LocalLedger,
        first: int,
        last: int,
        *,
        entries_max: int,
        bytes_max: int,
        stripe: Stripe = EVERY_ID,
    ) -> ReadResult:
        """Read stored entries; see `EntryReader.read`."""
        if self.failure is not None:
            # Entries of unanswered adds have left the memtable, but their bytes may be on disk.
            return ReadResult(None, first, Status.IO_ERROR, str(self.failure))
        return await self._reader.read(
            state.ledger_id,
            first,
            last,
            entries_max=entries_max,
            bytes_max=bytes_max,
            stripe=stripe,
            bound=state.last_entry_id,
        )

    def read_one(
        self, state: LocalLedger, entry_id: int
    ) -> ReadResult | Coroutine[Any, Any, ReadResult]:
        """Read one stored entry; the result is a coroutine only if a thread has to read."""
        if self.failure is not None:
            return ReadResult(None, entry_id, Status.IO_ERROR, str(self.failure))
        return self._reader.read_one(state.ledger_id, entry_id, state.last_entry_id)

    async def read_last(self, state: LocalLedger) -> ReadResult | None:
        """Return the stored entry with the highest id, or its read error; None if there is none.

        The state's `last_entry_id` may be higher than the id of the last stored entry. The journal
        may have refused an add, or a crash may have lost entries that an index row counted.

        Raises:
            CorruptionError, StorageFailedError: as in `entry_ranges`.
        """
        last = state.last_entry_id
        if last == NO_ENTRY:
            return None
        result = await self._read_one(state, last)
        if result.batch is not None or result.stopped_by is not Status.NO_SUCH_ENTRY:
            return result
        last = await self._find_last(state)
        _log.warning("last_entry_not_stored", ledger_id=state.ledger_id, stored=last)
        return None if last == NO_ENTRY else await self._read_one(state, last)

    async def _read_one(self, state: LocalLedger, entry_id: int) -> ReadResult:
        found = self.read_one(state, entry_id)
        return found if isinstance(found, ReadResult) else await found

    async def _find_last(self, state: LocalLedger) -> int:
        """List the stored ids and return the highest id; also set the state's `last_entry_id`."""
        before = state.last_entry_id, state.comparisons
        highest = NO_ENTRY
        async for _, lasts in self.entry_ranges(state, 0, MAX_ID):
            highest = int(lasts[-1])
        # An entry that was added meanwhile must stay within the bounds of the state.
        if before == (state.last_entry_id, state.comparisons):
            state.last_entry_id = highest
        return highest

    async def read_lac(self, state: LocalLedger) -> LacReply:
        """Return stored facts about the ledger's end: last entry, explicit LAC, highest LAC seen.

        For a ledger in limbo, these facts do not prove its end. Raises like `read_last`.
        """
        if state.deleted or not state.exists:
            return _no_lac(state, Status.NO_SUCH_LEDGER, "no such ledger")
        last_entry = b""
        result = await self.read_last(state)
        if result is not None:
            if result.batch is None:
                message = result.message or "the last entry cannot be read"
                return _no_lac(state, Status.IO_ERROR, message)
            last_entry = bytes(result.batch.payload)
        return LacReply(Status.OK, "", last_entry, state.lac_packet, state.max_lac, state.fenced)

    # --- life ----------------------------------------------------------------------------

    @property
    def verdict(self) -> bytes:
        """The stored verdict about the integrity of the data: an ``INTEGRITY_`` value."""
        return self.integrity.value

    async def set_verdict(self, value: bytes) -> None:
        """Change the integrity verdict; durable when this returns; raises like `Integrity.set`."""
        await self.integrity.set(value)

    @property
    def needs_integrity_check(self) -> bool:
        """True if entries may be lost, and no integrity check has found the data complete yet."""
        return self.verdict != INTEGRITY_SOUND

    @property
    def damage(self) -> frozenset[tuple[int, int, int]]:
        return self.scrubber.damage

    def durable_values(self, prefix: bytes) -> DurableValues:
        """Return the durable values of one part of the bookie; no other part uses `prefix`."""
        return DurableValues(self.integrity, prefix)

    def apply(self, settings: StorageSettings) -> None:
        """Apply new settings; only dynamic settings take effect."""
        for part in (self.scrubber, self.compactor):
            if part.settings != settings:
                part.settings = settings

    async def scrub(self) -> NoReturn:
        """Read all stored data repeatedly to find damage, until cancelled.

        Raises:
            StorageFailedError: the index could not be written; the process must end.
        """
        await self.scrubber.run()

    def compact(self, *, force: bool = False) -> None:
        """Start a compaction round soon; with `force`, it compacts every file with garbage."""
        self.compactor.wake(force=force)

    def suspend_compaction(self, *, suspended: bool) -> None:
        """Stop compaction rounds if `suspended`; otherwise allow rounds, and start a round soon."""
        self.compactor.suspended = suspended
        if not suspended:
            self.compactor.wake()

    def index_is_damaged(self, error: CorruptionError) -> StorageFailedError:
        """End the engine: the index is damaged; the next start checks and rebuilds the index."""
        self._failed(error)
        return StorageFailedError(f"the index is damaged: {error}")

    async def checkpoint(self) -> None:
        """Make a checkpoint now; raises DiskFullError, or StorageFailedError for other errors."""
        with self._failing():
            await self._checkpointer.run()

    async def roll(self) -> None:
        """Continue in a new journal file, if there is room; a checkpoint seals the old file.

        Raises:
            StorageFailedError: the engine failed.
        """
        rolled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete(request: JournalRequest) -> None:
            if not rolled.done():
                rolled.set_result(None)

        request = JournalRequest(RequestKind.ROLL, complete)
        self._queue.submit(request)
        await rolled
        if request.error is not None:
            raise request.error

    def start(self) -> None:
        self._metrics.adds_held_back.set_function(lambda: self.holds_adds_back)
        for state in self._booted.states.values():
            self._states.put(state)
        self._states.begin(self._booted.indexed_max)
        self.admission.journal_file = self._booted.writer.current.header.number
        self._queue.worker = self._env.workers.batch_worker(
            "bookie-journal", self._booted.writer.handle, self._block_done, self._failed
        )

    async def watch_devices(self) -> None:
        """Watch the devices until cancelled; end the engine if a device does not answer.

        This task runs beside `housekeep`, whose checkpoints wait for the watched devices.

        Raises:
            StorageFailedError: the engine failed.
        """
        watch = DeviceWatch(
            self._env.clock,
            self._settings,
            self._metrics,
            self._index.store,
            self._queue,
            self._removal,
            self._failed,
        )
        while self.failure is None:
            await asyncio.sleep(watch.interval_seconds)
            watch.look()
            self._reader.unreadable.report()
        raise self.failure

    async def housekeep(self) -> None:
        """Make checkpoints, and write a marker block while the journal is idle, until cancelled.

        Raises:
            StorageFailedError: the engine failed.
        """
        last_checkpoint = self._env.clock.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._settings.idle_marker_seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._mark_if_idle()
            self._wake.clear()
            if self.failure is not None:
                raise self.failure
            now = self._env.clock.monotonic()
            self._metrics.ledger_states.set(len(self._states))
            waited = now - last_checkpoint >= self._settings.checkpoint_interval_seconds
            if self._is_checkpoint_due() or (waited and self._checkpointer.has_changes):
                await self._checkpoint_or_read_only()
                last_checkpoint = now

    async def remove_dead_files(self) -> NoReturn:
        """Free the space of files without live bytes, until cancelled; raises like `housekeep`."""
        with self._failing():
            await self._removal.run()

    async def close(self) -> None:
        """Make a checkpoint, stop the journal, close the files; no request may be in flight."""
        in_order = False
        try:
            if self.failure is None:
                self._write_marker()
                with self._failing():
                    await self._checkpointer.run_last({META_CLEAN: b"1"})
                    in_order = True
                    await self._removal.finish()
        except DiskFullError as error:
            _log.warning("last_checkpoint_skipped", reason=str(error))
        finally:
            worker = self._queue.worker
            assert worker is not None
            if self.failure is None:
                worker.close()
                with suppress(StorageFailedError), self._failing():
                    self._booted.writer.close(in_order=in_order)
            else:
                worker.abandon()  # The thread may hang in the device; the device's file stays open.
            # A cancelled read may still run in its thread: close the index only after the read.
            workers = self._env.workers
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.failure is None else 1.0):
                    await workers.drained()
            self._files.close()
            if workers.is_idle and not self._index.store.is_committing:
                self._index.close()
                if in_order and self.failure is None:
                    # Ignore errors: without `STOPPED`, the next start just reads the whole index.
                    with suppress(OSError):
                        self._directories.mark_stopped()

    async def _checkpoint_or_read_only(self) -> None:
        self._journaled_bytes = 0
        with suppress(DiskFullError):
            await self.checkpoint()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """On a full device, refuse new entries; on another disk or index error, end the engine."""
        try:
            yield
        except DiskFullError as error:
            self._turn_read_only(str(error))
            raise
        except StorageFailedError as error:
            self._failed(error)
            raise
        except OSError as error:
            self._failed(error)
            assert self.failure is not None
            raise self.failure from error
        except CorruptionError as error:
            # A page of the index is damaged: the next start checks and rebuilds the index.
            self._failed(error)
            raise StorageFailedError(f"the index is damaged: {error}") from error

    def _is_full(self) -> bool:
        return bool(self.read_only_reasons)

    def _turn_read_only(self, reason: str) -> None:
        if DEVICE_FULL not in self.read_only_reasons:
            self.read_only_reasons.add(DEVICE_FULL)
            _log.warning("read_only", reason=reason)
            self._checkpointer.moved.set()

    async def device_has_room(self) -> None:
        """Allow new entries again, now that the devices have room; create a missing reserve."""
        await self._env.workers.run("room", self._directories.make_reserve)
        if DEVICE_FULL in self.read_only_reasons:
            self.read_only_reasons.discard(DEVICE_FULL)
            _log.info("writable", reason="the devices have room again")

    def _is_checkpoint_due(self) -> bool:
        return (
            self._journaled_bytes >= self._settings.checkpoint_journal_bytes
            or self.admission.memtable.entries >= self._settings.checkpoint_entries
        )

    def _mark_if_idle(self) -> None:
        idle = self._env.clock.monotonic() - self._last_block_at
        if not self._queue.pending and idle >= self._settings.idle_marker_seconds:
            self._write_marker()

    def _write_marker(self) -> None:
        """Write postponed requests, and an idle marker unless the last block is a marker."""
        if self._queue.postponed or not self._has_marker:
            self._queue.submit(JournalRequest(RequestKind.MARKER, lambda request: None))
            self._has_marker = True

    async def _load_row(self, ledger_id: int) -> LedgerIndexRow | None:
        # Loads of states have their own thread, because reads may wait for a slow device.
        return (await self._env.workers.run("states", self._index.rows_of, [ledger_id]))[0]

    def _block_done(self, block: BlockDone) -> None:
        if self.failure is not None:
            return
        now = self.clock.monotonic()
        for number, path in block.created:
            self._files.add(number, path)
            self.admission.journal_file = number
        self.page_cache.wrote(block.file_number, block.durable_upto)
        for rolled in block.rolled:
            self._checkpointer.sealed(rolled)
        written = 0
        self._queue.reported(block.requests)
        try:
            for request in block.requests:
                written += request.size_bytes if request.error is None else 0
                if isinstance(request.error, DiskFullError):
                    self._turn_read_only(str(request.error))
                request.complete(request)
        except Exception as error:  # noqa: BLE001  (the other requests of the block get no answer)
            self._failed(error)
            return
        self._journaled_bytes += written
        self._last_block_at = now
        self._has_marker = self._has_marker and not written
        if self._is_checkpoint_due():
            self._wake.set()
        # Update the metrics only after this turn of the event loop, which delivers the answers.
        handback = now - block.finished_at
        asyncio.get_running_loop().call_soon(block.figures.note, self._metrics, handback)

    def _failed(self, error: BaseException) -> None:
        """End the engine after its journal or index failed; the process must end, too."""
        if self.failure is not None:
            return
        self.failure = StorageFailedError(f"storage failed: {error}")
        self.failure.__cause__ = error
        self._metrics.errors_total.labels("storage_failed").inc()
        _log.error("storage_failed", reason=str(error))
        # On a hanging device, creating the file `FAILED` would block the event loop.
        if not isinstance(error, TimeoutError):
            self._directories.mark_failed()
        self._queue.fail(self.failure)
        self._wake.set()
        self._checkpointer.moved.set()


def _no_lac(state: LocalLedger, status: Status, message: str) -> LacReply:
    return LacReply(status, message, max_lac=state.max_lac, fenced=state.fenced)


@asynccontextmanager
async def open_engine(
    environment: Environment,
    settings: StorageSettings,
    metrics: Metrics,
    directories: Directories,
    identity: Identity,
) -> AsyncIterator[Engine]:
    """Start an engine for the ``with`` block; stop it in an orderly way at the block's end.

    Raises:
        StorageFailedError: (alone or in a group) a disk failed; the process must exit with code 74.
        FormatError, CookieError, ConfigurationError: as in `Boot.run`.
    """
    boot = Boot(environment, settings, directories, identity)
    booted = await environment.workers.run("index", boot.run)
    engine = Engine(environment, settings, metrics, directories, booted)
    engine.start()
    _log.info(
        "engine_started",
        clean=booted.report.clean,
        rebuilt=booted.report.rebuilt,
        replayed_blocks=booted.report.blocks,
        replayed_entries=booted.report.entries,
        seconds=round(booted.report.seconds, 3),
        corrupt=len(booted.report.corrupt),
    )
    for damage in booted.report.corrupt:
        # Durable data is lost: report this to the operator in the log and in a metric.
        metrics.errors_total.labels("corruption").inc()
        _log.error("corruption", found=damage)
    try:
        work = [
            engine.housekeep(),
            engine.watch_devices(),
            engine.compactor.run(),
            engine.remove_dead_files(),
            engine.page_cache.run(),
        ]
        async with beside(work):
            yield engine
    finally:
        await engine.close()
    if engine.failure is not None:
        raise engine.failure  # The ``with`` block ended before a task raised this error.

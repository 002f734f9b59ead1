"""Garbage collection: a bookie deletes its ledgers that were deleted in the metadata store.

Deleting a ledger that is still needed loses data, so a round deletes a ledger only after these
steps:

1. List the ledgers stored here *first*; the round ignores ledgers that are created later.
2. Check that the metadata store belongs to the bookie's cluster, and did not go back in time: no
   counter may be lower than before (`StoreMemory`). If the store went back in time, the bookie
   deletes nothing until an operator confirms the store, even after a restart.
3. List all ledgers of the cluster; if the listing is incomplete, end the round.
4. For each ledger that the listing lacks, read the metadata directly; the read must find no
   metadata.
5. If the deletion of a ledger is proven (`deletion_proofs`), delete the ledger at once.
6. A ledger without a proof of deletion only counts as absent. An absent ledger must stay absent for
   a whole grace period, in every listing (`Absences`). If too large a share of the ledgers stored
   here is absent, no absent ledger is deleted until an operator forces the deletion.
7. Check the store again as in step 2, right before a deletion.

Any error of the metadata store ends the round. A deletion is durable before the round counts it.
Later adds to a deleted ledger are refused as if the ledger were fenced. At its end, a round removes
old deletion proofs, and rows of ledgers deleted long ago (`deletion_expiry`).

Source: BookKeeper's ScanAndCompareGarbageCollector, with `verifyMetadataOnGC` and two listings.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from bookie.config import GarbageSettings
from bookie.env import Clock, Pause, gather
from bookie.errors import (
    BadRequestError,
    BookieError,
    DiskFullError,
    NoSuchLedgerError,
    StorageFailedError,
    WrongClusterError,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.node.deletion_expiry import DeletionExpiry
from bookie.node.engine.engine import Engine
from bookie.node.garbage_memory import Absence, Absences, StoreMemory
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

LOCAL_PAGE = 1000
READS_AT_ONCE = 64
DELETIONS_AT_ONCE = 256
LISTING_REST = 20.0
"""The pause after a listing is at least this many times as long as the listing."""

FORCED_PAUSE_SECONDS = 3.0
"""The longest pause between the two forced rounds, except after a slow listing."""

ABSENT_ALWAYS_MAX = 1
"""Up to this many absent ledgers never stop deletions, even if few ledgers are stored here."""

PROOFS_SWEPT_MAX = 1000
"""The largest number of old deletion proofs that one round removes."""


def _nothing() -> None:
    """Do nothing, until another callback is set."""


class RoundOutcome(enum.StrEnum):
    """The outcome of a round: done, aborted or stopped."""

    DONE = "done"
    ABORTED = "aborted"
    """The metadata store gave no complete answer."""
    STOPPED = "stopped"
    """Deletions are stopped until an operator decides."""


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """The result of one round."""

    outcome: RoundOutcome
    local: int = 0
    missing: int = 0
    """The number of ledgers that are stored here, but missing from the metadata store's listing."""
    deleted: int = 0
    absent: int = 0
    """The number of missing ledgers without a proof of deletion that are not deleted yet."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GarbageStatus:
    """The state of garbage collection and compaction since the start, in flat fields."""

    garbage_suspended: bool
    garbage_stopped: str
    """The reason why deletions are stopped; empty if deletions run."""
    garbage_outcome: str
    """The outcome of the last round; empty before the first round."""
    garbage_missing_ledgers: int
    """The number of ledgers stored here that were missing from the metadata store's last
    listing."""
    garbage_waiting_ledgers: int
    """The number of missing ledgers without a proof of deletion that are in their grace period."""
    garbage_waiting_since_ms: int | None
    """The start of the first waiting ledger's grace period, in milliseconds since 1970."""
    garbage_first_deletion_at_ms: int | None
    """The approximate time of the next deletion, in milliseconds since 1970; None if none is
    planned."""
    garbage_deleted_ledgers: int
    compacting: bool
    compacted_files: int
    moved_bytes: int
    kept_files: int
    """The number of damaged files that compaction skips."""


class _StoreDoubtedError(Exception):
    """Ends a round because the metadata store went back in time, or may have gone back."""


class GarbageCollector:
    """Runs rounds of garbage collection, one at a time, in the event loop."""

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        ledgers: LedgerManager,
        instance_id: str,
        settings: GarbageSettings,
        metrics: Metrics,
        bookie_id: str,
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._ledgers = ledgers
        self._instance_id = instance_id
        self._bookie_id = bookie_id
        self._settings = settings
        self._metrics = metrics
        self._interval = Pause()
        self._forced_rounds = 0
        self._memory = StoreMemory(engine.durable_values(b"garbage/"))
        self._absences = Absences(engine.durable_values(b"absent/"))
        self._expiry = DeletionExpiry(engine, engine.durable_values(b"forget/"))
        self._is_loaded = False
        self._loading = asyncio.Lock()
        self._complete_at: float | None = None
        """The start time of the last round; None if that round was incomplete."""
        self._listing_seconds = 0.0
        self._lock = asyncio.Lock()
        self._deleted = 0
        self._told = (False, False)
        self._sweep_failed = False
        self.suspended = False
        """True if an operator stopped the rounds."""
        self.last: GarbageReport | None = None
        self.on_deletions: Callable[[], None] = _nothing
        """Called after ledgers were deleted here."""
        self.on_store_doubt: Callable[[], None] = _nothing
        """Called when `store_doubt` may have changed."""

    @property
    def stopped(self) -> str:
        """The reason why an operator has to decide about deletions; empty if deletions may run."""
        return self._memory.now.store_doubt or self._memory.now.absent_stop

    @property
    def store_doubt(self) -> str:
        """The reason to doubt the metadata store; empty if the store is trusted."""
        return self._memory.now.store_doubt

    @property
    def settings(self) -> GarbageSettings:
        """The settings of rounds, which may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: GarbageSettings) -> None:
        self._settings = settings
        self._interval.measure_again()

    def suspend(self, *, suspended: bool) -> None:
        """Stop rounds of garbage collection and of compaction, or resume them."""
        if self.suspended != suspended:
            self.suspended = suspended
            self._engine.suspend_compaction(suspended=suspended)
            _log.info("reclaiming_changed", suspended=suspended)
            if not suspended:
                self.wake()

    def status(self) -> GarbageStatus:
        last, compaction = self.last, self._engine.compaction_status()
        first = self._absences.first()
        will_go = first is not None and not self.stopped and not self.suspended
        at_ms = self._clock.now_ms() + int(1000 * self._seconds_to_first()) if will_go else None
        return GarbageStatus(
            garbage_suspended=self.suspended,
            garbage_stopped=self.stopped,
            garbage_outcome="" if last is None else last.outcome.value,
            garbage_missing_ledgers=0 if last is None else last.missing,
            garbage_waiting_ledgers=len(self._absences),
            garbage_waiting_since_ms=None if first is None else first.since_ms,
            garbage_first_deletion_at_ms=at_ms,
            garbage_deleted_ledgers=self._deleted,
            compacting=compaction.running,
            compacted_files=compaction.files,
            moved_bytes=compaction.moved_bytes,
            kept_files=compaction.kept_files,
        )

    def compact(self) -> None:
        """Compact every file with garbage soon."""
        self._engine.compact(force=True)

    def wake(self, *, force: bool = False) -> None:
        """Start the next round now; with `force`, delete all absent ledgers without a grace period.

        Raises:
            BadRequestError: the store is in doubt; `force` does not override the doubt.
        """
        if force:
            if self._memory.now.store_doubt:
                raise BadRequestError(
                    f"nothing is deleted by force while the store is in doubt: {self.stopped}"
                )
            # The second round deletes ledgers that the first round finds missing.
            self._forced_rounds = 2
        self._interval.end()

    async def confirm_store(self) -> None:
        """Trust the metadata store in its present state; this is durable when the method returns.

        From now on, ledgers that the metadata store lacks count as absent. Nothing is deleted now.

        Raises:
            BadRequestError: the store is not in doubt.
            WrongClusterError: the store belongs to another cluster, or has no cluster.
            MetadataUnavailableError: the store does not answer; the doubt stays.
            DiskFullError: there is no room to record the confirmation; the doubt returns after a
                restart.
        """
        async with self._lock:
            await self._load()
            doubt = self._memory.now.store_doubt
            if not doubt:
                raise BadRequestError("the metadata store is not in doubt: nothing to confirm")
            marks = await self._ledgers.read_marks(self._bookie_id)
            if marks.instance_id != self._instance_id:
                raise WrongClusterError("the metadata store does not hold this bookie's cluster")
            self._memory.accept(marks)
            self._complete_at = None
            await self._memory.save()
            self._show()
            self.on_store_doubt()
            _log.warning("metadata_store_confirmed", doubt=doubt)
        self.wake()

    async def doubt_store(self, reason: str) -> None:
        """Durably record `reason` to doubt the store: delete nothing until an operator confirms it.

        Raises:
            DiskFullError: there is no room to record the doubt.
        """
        await self._load()
        self._memory.doubt(reason)
        await self._memory.save()
        self._show()
        self.on_store_doubt()

    async def find_objection(self) -> str:
        """Return the reason why no data may be removed here now; empty if a removal is allowed.

        The method first checks the metadata store, as a round does before a deletion.

        Raises:
            MetadataError, WrongClusterError: the store does not answer, or belongs to another
            cluster.
        """
        if self.suspended:
            return "an operator has suspended garbage collection"
        async with self._lock:
            await self._load()
            with suppress(_StoreDoubtedError):
                await self._look_at_store()
            self._show()
        return self.stopped

    async def keep(self, ledger_ids: Iterable[int] = ()) -> int:
        """Restart the grace period of absent ledgers; return the number of these ledgers.

        If `ledger_ids` is empty, the grace periods of all absent ledgers restart.

        The change is durable when this returns.

        Raises:
            BadRequestError: one of the ledgers is not absent, or no ledger is absent.
            DiskFullError: there is no room to record the change; a restart forgets the change.
        """
        await self._load()
        wanted = list(ledger_ids) or list(self._absences)
        if not wanted:
            raise BadRequestError("no ledger waits to be deleted")
        for ledger_id in wanted:
            if ledger_id not in self._absences:
                raise BadRequestError(f"ledger {ledger_id} does not wait to be deleted")
        observed = self._memory.now.observed_seconds + self._step(self._clock.monotonic())
        self._absences.put(wanted, Absence(observed, self._clock.now_ms()))
        await self._memory.save()
        await self._absences.save()
        _log.info("garbage_undeleted", ledgers=len(wanted))
        self._interval.measure_again()
        return len(wanted)

    async def run(self) -> NoReturn:
        """Run rounds until cancelled.

        Raises:
            StorageFailedError: the engine failed.
        """
        await self._load()
        while True:
            await self._interval.wait(self._pause)
            if not self.suspended:
                force = self._forced_rounds > 0
                self._forced_rounds -= force
                await self.round(force=force)

    async def _load(self) -> None:
        async with self._loading:
            if self._is_loaded:
                return
            await self._memory.load()
            await self._absences.load()
            await self._expiry.load()
            self._is_loaded = True
            self._show()

    def _pause(self) -> float:
        """Return the seconds to the next round: fewer if a round is forced or a deletion is due."""
        wanted = self._settings.interval_seconds
        if self._forced_rounds:
            wanted = min(wanted, FORCED_PAUSE_SECONDS)
        if self._absences and not self.stopped and (left := self._seconds_to_first()):
            # If a ledger was due but not deleted, the next round comes after the usual interval.
            wanted = min(wanted, max(left, 1.0))
        return max(wanted, LISTING_REST * self._listing_seconds)

    def _seconds_to_first(self) -> float:
        """Return the observed seconds until the first absent ledger's grace period ends."""
        first = self._absences.first()
        assert first is not None, "nothing waits"
        waited = self._memory.now.observed_seconds - first.since_seconds
        return max(self._settings.grace_seconds - waited, 0.0)

    def _step(self, now: float) -> float:
        """Return the part of the time since the last round that counts for grace periods.

        A process that was stopped for hours observed nothing in that time, so the hours do not
        count.
        """
        if self._complete_at is None:
            return 0.0
        return min(now - self._complete_at, 2 * self._longest_pause())

    def _longest_pause(self) -> float:
        return max(self._settings.interval_seconds, LISTING_REST * self._listing_seconds)

    async def round(self, *, force: bool = False) -> GarbageReport:
        """Run one round, and return its report.

        Raises:
            StorageFailedError: the engine failed.
        """
        async with self._lock:
            with self._metrics.garbage_seconds.time():
                try:
                    report = await self._round(force=force)
                except StorageFailedError:
                    raise
                except _StoreDoubtedError:
                    report = GarbageReport(RoundOutcome.STOPPED, reason=self.stopped)
                except BookieError as error:
                    report = GarbageReport(RoundOutcome.ABORTED, reason=str(error))
            self._metrics.garbage_rounds_total.labels(report.outcome).inc()
            self._show()
            self._tell(report)
            self.last = report
        return report

    async def _round(self, *, force: bool) -> GarbageReport:
        await self._load()
        began = self._clock.monotonic()
        step, self._complete_at = self._step(began), None
        local = await self._local_ids()
        await self._look_at_store()
        old = await self._expiry.find_due(self._memory.now.observed_seconds)
        missing, is_empty = set[int](), False
        if local or old:
            missing, is_empty = await self._not_listed([*local, *old])
        forgettable = missing.intersection(old)
        missing -= forgettable
        self._listing_seconds = self._clock.monotonic() - began
        self._memory.observe(step)
        waiting = self._absences
        waiting.drop([ledger_id for ledger_id in waiting if ledger_id not in missing])
        is_empty = is_empty and self._memory.now.has_listed
        before = list(waiting)
        if before and is_empty:
            await self._stop_at_empty_store()
        deleted = await self._sort_out(sorted(missing.difference(before)), is_empty=is_empty)
        reason = self._stop_absent(len(local) - deleted)
        if before and (force or not reason):
            deleted += await self._delete_absent(before, force=force)
            reason = self._stop_absent(len(local) - deleted)
        await self._save()
        self._complete_at = began
        if not reason and not is_empty:
            await self._expiry.forget(forgettable, self._memory.now.observed_seconds)
        await self._sweep()
        outcome = RoundOutcome.STOPPED if reason else RoundOutcome.DONE
        return GarbageReport(outcome, len(local), len(missing), deleted, len(waiting), reason)

    async def _look_at_store(self) -> None:
        """Check that the store belongs to the bookie's cluster and did not go back in time.

        Raises:
            WrongClusterError: the store belongs to another cluster.
            _StoreDoubtedError: the store went back in time, now or earlier.
        """
        if self._memory.now.store_doubt:
            raise _StoreDoubtedError
        marks = await self._ledgers.read_marks(self._bookie_id)
        if marks.instance_id not in ("", self._instance_id):
            raise WrongClusterError("the metadata store belongs to another cluster now")
        if self._memory.compare(marks):
            await self._save()
            raise _StoreDoubtedError
        if not marks.instance_id:
            raise WrongClusterError("the metadata store holds no cluster")

    async def _stop_at_empty_store(self) -> NoReturn:
        self._memory.doubt("the metadata store lists no ledger at all, and once had some")
        await self._save()
        raise _StoreDoubtedError

    def _stop_absent(self, local: int) -> str:
        """Return the reason to keep all absent ledgers; empty if deletions are allowed."""
        share = self._settings.stop_share
        return self._memory.stop_absent(len(self._absences), local, share, ABSENT_ALWAYS_MAX)

    async def _local_ids(self) -> list[int]:
        """Return the ids of all ledgers stored here, ascending, before any listing of the store."""
        found: list[int] = []
        after = NO_ENTRY
        while after < MAX_ID:
            page, after = await self._engine.ledgers(after, LOCAL_PAGE)
            found += [stored.ledger_id for stored in page]
        return found

    async def _not_listed(self, local: Iterable[int]) -> tuple[set[int], bool]:
        """Compare `local` with a complete listing of the metadata store.

        Returns:
            the ids of `local` that the listing lacks, and True if the listing is empty.
        """
        missing, is_empty = set(local), True
        async for ledger_id in self._ledgers.list_ids():
            is_empty = False
            missing.discard(ledger_id)
        if not is_empty:
            self._memory.listed()
        return missing, is_empty

    async def _sort_out(self, missing: list[int], *, is_empty: bool) -> int:
        """Delete ledgers with a proof of deletion, and record the other ledgers as absent.

        Ledgers are looked up and deleted in chunks; after an error, the next round continues.

        Returns:
            the number of deleted ledgers.
        """
        deleted = 0
        for start in range(0, len(missing), DELETIONS_AT_ONCE):
            proven: list[int] = []
            absent: list[int] = []
            for first in range(start, min(start + DELETIONS_AT_ONCE, len(missing)), READS_AT_ONCE):
                end = min(first + READS_AT_ONCE, start + DELETIONS_AT_ONCE)
                some = await self._without_metadata(missing[first:end])
                found = await self._ledgers.find_deleted(some) if some else set()
                proven += [ledger_id for ledger_id in some if ledger_id in found]
                absent += [ledger_id for ledger_id in some if ledger_id not in found]
            if absent and is_empty:
                await self._stop_at_empty_store()
            if absent:
                since = self._memory.now.observed_seconds
                self._absences.put(absent, Absence(since, self._clock.now_ms()))
            if proven:
                deleted += await self._delete(proven, lambda _: True)
        return deleted

    async def _delete_absent(self, before: list[int], *, force: bool) -> int:
        """Delete the ledgers in `before` whose grace period has ended; with `force`, delete all.

        The metadata of all these ledgers is read before the first deletion. So if a read fails, no
        ledger is deleted.
        """
        waiting = self._absences
        latest = self._memory.now.observed_seconds - self._settings.grace_seconds
        due = {
            ledger_id: absence
            for ledger_id in before
            if (absence := waiting.get(ledger_id)) is not None
            and (force or absence.since_seconds <= latest)
        }
        ids = sorted(due)
        gone: list[int] = []
        for start in range(0, len(ids), READS_AT_ONCE):
            gone += await self._without_metadata(ids[start : start + READS_AT_ONCE])
        # If an operator calls `keep` for a ledger meanwhile, it gets a new absence and is not
        # deleted.
        return await self._delete(gone, lambda one: waiting.get(one) is due[one]) if gone else 0

    async def _delete(self, gone: list[int], may_go: Callable[[int], bool]) -> int:
        """Delete durably each ledger for which `may_go` returns True; return the deletion count.

        Raises:
            WrongClusterError, _StoreDoubtedError: as in `_look_at_store`; nothing was deleted.
            DiskFullError: a deletion could not be recorded.
        """
        deleted = 0
        await self._look_at_store()
        for start in range(0, len(gone), DELETIONS_AT_ONCE):
            waiters = []
            for ledger_id in gone[start : start + DELETIONS_AT_ONCE]:
                state = await self._engine.load(ledger_id)
                if not state.deleted and may_go(ledger_id):
                    waiters.append(self._engine.delete(state, self._clock.now_ms()))
                    self._absences.drop([ledger_id])
            for waiter in waiters:
                reply = await waiter
                if reply.status is not Status.OK:
                    raise DiskFullError(f"a deletion could not be recorded: {reply.message}")
                deleted += 1
                self._deleted += 1
                self._metrics.garbage_ledgers_total.inc()
        # Free the pages and files of deleted ledgers now, before the next checkpoint.
        self._engine.compact()
        self.on_deletions()
        return deleted

    async def _without_metadata(self, ledger_ids: list[int]) -> list[int]:
        """Return the ledgers for which a direct read finds no metadata."""
        found = await gather(map(self._exists, ledger_ids))
        return [one for one, exists in zip(ledger_ids, found, strict=True) if not exists]

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._ledgers.read(ledger_id)
        except NoSuchLedgerError:
            return False
        _log.error("listing_not_complete", ledger_id=ledger_id)
        return True

    async def _save(self) -> None:
        """Save changes for the next start; if the device is full, a later round saves them."""
        with suppress(DiskFullError):
            if self._memory.is_due or self._absences.has_changes:
                # Save the observed time first, because absences refer to this time.
                await self._memory.save()
                await self._absences.save()

    async def _sweep(self) -> None:
        """Remove some old deletion proofs; after a failure, the next round tries again."""
        try:
            await self._ledgers.sweep_deletions(self._settings.proof_seconds, PROOFS_SWEPT_MAX)
        except BookieError as error:
            if not self._sweep_failed:
                _log.warning("proofs_not_swept", reason=str(error))
            self._sweep_failed = True
        else:
            self._sweep_failed = False

    def _show(self) -> None:
        """Update the metrics; if deletions stop until an operator decides, log the reason once."""
        self._metrics.garbage_stopped.set(bool(self.stopped))
        self._metrics.garbage_waiting_ledgers.set(len(self._absences))
        stops = bool(self._memory.now.store_doubt), bool(self._memory.now.absent_stop)
        if stops > self._told:
            _log.error("garbage_collection_stopped", reason=self.stopped)
        self._told = stops

    def _tell(self, report: GarbageReport) -> None:
        """Log a round that deleted ledgers, and the first aborted round of a sequence."""
        if report.deleted:
            _log.info("garbage_deleted", ledgers=report.deleted, of=report.local)
        known = self.last is not None and self.last.outcome is report.outcome
        if report.outcome is RoundOutcome.ABORTED and not known:
            _log.warning("garbage_collection_aborted", reason=report.reason)

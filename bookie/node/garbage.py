"""Garbage collection: ledgers that were deleted in the metadata store are deleted here.

Deleting what somebody still needs is the worst that a bookie can do, so everything has to agree:

1. the ledgers stored here are listed *first*: whatever is created later is not looked at;
2. then the ledgers of the cluster, completely, or the round is over;
3. a ledger that is missing is only remembered; it has to be missing from a second listing, made
   some time after the first;
4. the store still belongs to the bookie's own cluster;
5. a direct read of the ledger says that there is none;
6. not too many go at once: more than a share *and* a number of them stop the collection until an
   operator forces it.

Any error of the metadata store ends the round, and nothing of it is deleted. A deletion is durable
before it counts; adds of a writer that goes on are refused as if the ledger were fenced.

Source: BookKeeper's ScanAndCompareGarbageCollector, with `verifyMetadataOnGC` and two listings.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from bookie.cluster.ledgers import LedgerManager
from bookie.config import GarbageSettings
from bookie.env import Clock, Pause, together
from bookie.errors import (
    BookieError,
    DiskFullError,
    NoSuchLedgerError,
    StorageFailedError,
    WrongClusterError,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.storage.engine import Engine
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

LOCAL_PAGE = 1000
READS_AT_ONCE = 64
DELETIONS_AT_ONCE = 256
LISTING_REST = 20.0
"""The store rests for so many times the time that a listing took."""


class Outcome(enum.StrEnum):
    """How a round ended."""

    DONE = "done"
    ABORTED = "aborted"
    """The metadata store did not answer, or not completely."""
    STOPPED = "stopped"
    """Too many ledgers would have gone at once."""


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What one round found and did."""

    outcome: Outcome
    local: int = 0
    missing: int = 0
    """Ledgers stored here that the listing did not have."""
    deleted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GarbageStatus:
    """How reclaiming stands, since the start; for operators, flat."""

    garbage_suspended: bool
    garbage_stopped: str
    """Why nothing is deleted without force; empty when nothing is wrong."""
    garbage_outcome: str
    """How the last round ended; empty before the first."""
    garbage_missing_ledgers: int
    """Ledgers stored here that the last listing did not have."""
    garbage_deleted_ledgers: int
    compacting: bool
    compacted_files: int
    moved_bytes: int
    kept_files: int
    """Files that compaction leaves alone because they are damaged."""


class GarbageCollector:
    """Makes rounds, one at a time, in the event loop."""

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        ledgers: LedgerManager,
        instance_id: str,
        settings: GarbageSettings,
        metrics: Metrics,
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._ledgers = ledgers
        self._instance_id = instance_id
        self._settings = settings
        self._metrics = metrics
        self._interval = Pause()
        self._forced_rounds = 0
        self._missing: dict[int, float] = {}
        """What the last complete listing did not have, and when that was first so."""
        self._listing_seconds = 0.0
        self._lock = asyncio.Lock()
        self._deleted = 0
        self.suspended = False
        """Whether an operator asked for no rounds."""
        self.last: GarbageReport | None = None
        """What the last round did."""

    @property
    def stopped(self) -> str:
        """Why nothing is deleted until an operator forces it; empty when nothing is wrong."""
        stopped = self.last is not None and self.last.outcome is Outcome.STOPPED
        return self.last.reason if stopped and self.last is not None else ""

    @property
    def settings(self) -> GarbageSettings:
        """What rounds go by; may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: GarbageSettings) -> None:
        self._settings = settings
        self._interval.measure_again()

    def suspend(self, *, suspended: bool) -> None:
        """Make no rounds, and no compactions, until this is taken back."""
        if self.suspended != suspended:
            self.suspended = self._engine.compactor.suspended = suspended
            _log.info("reclaiming_changed", suspended=suspended)
            if not suspended:
                self._engine.compactor.wake()
                self.wake()

    def status(self) -> GarbageStatus:
        """What an operator is told."""
        last, compactor = self.last, self._engine.compactor
        return GarbageStatus(
            garbage_suspended=self.suspended,
            garbage_stopped=self.stopped,
            garbage_outcome="" if last is None else last.outcome.value,
            garbage_missing_ledgers=0 if last is None else last.missing,
            garbage_deleted_ledgers=self._deleted,
            compacting=compactor.running,
            compacted_files=compactor.files,
            moved_bytes=compactor.moved_bytes,
            kept_files=len(compactor.kept),
        )

    def compact(self) -> None:
        """Have every file that holds anything dead compacted, soon."""
        self._engine.compactor.wake(force=True)

    def wake(self, *, force: bool = False) -> None:
        """Make the next round now; a forced one deletes however many ledgers are gone."""
        if force:
            # What is found missing only now is deleted by the second round.
            self._forced_rounds = 2
        self._interval.end()

    async def run(self) -> NoReturn:
        """Make rounds until cancelled.

        Raises:
            StorageFailedError: the engine failed.
        """
        while True:
            await self._interval.wait(self._pause)
            if not self.suspended:
                force = self._forced_rounds > 0
                self._forced_rounds -= force
                await self.round(force=force)

    def _pause(self) -> float:
        """Seconds to the next round: soon, if something waits for its second listing."""
        settings = self._settings
        wanted = settings.interval_seconds
        if self._missing and not self.stopped:
            wanted = min(wanted, settings.grace_seconds)
        return max(wanted, LISTING_REST * self._listing_seconds)

    async def round(self, *, force: bool = False) -> GarbageReport:
        """One round, to its end.

        Raises:
            StorageFailedError: the engine failed.
        """
        async with self._lock:
            with self._metrics.garbage_seconds.time():
                try:
                    report = await self._round(force=force)
                except StorageFailedError:
                    raise
                except BookieError as error:
                    report = GarbageReport(Outcome.ABORTED, reason=str(error))
            self._metrics.garbage_rounds_total.labels(report.outcome).inc()
            self._metrics.garbage_stopped.set(report.outcome is Outcome.STOPPED)
            self._tell(report)
            self.last = report
        return report

    async def _round(self, *, force: bool) -> GarbageReport:
        local = await self._local_ids()
        if not local:
            self._missing = {}
            return GarbageReport(Outcome.DONE)
        began = self._clock.monotonic()
        before, self._missing = self._missing, {}
        missing = await self._not_listed(local)
        ended = self._clock.monotonic()
        self._listing_seconds = ended - began
        self._missing = {ledger_id: before.get(ledger_id, ended) for ledger_id in missing}
        latest = began - self._settings.grace_seconds
        gone = sorted(ledger_id for ledger_id in missing if before.get(ledger_id, ended) <= latest)
        if not gone:
            return GarbageReport(Outcome.DONE, len(local), len(missing))
        if self._is_too_much(len(gone), len(local)) and not force:
            reason = f"{len(gone)} of {len(local)} ledgers would be deleted at once"
            return GarbageReport(Outcome.STOPPED, len(local), len(missing), reason=reason)
        deleted = await self._delete(gone)
        return GarbageReport(Outcome.DONE, len(local), len(missing), deleted)

    def _is_too_much(self, gone: int, local: int) -> bool:
        return gone > self._settings.stop_ledgers and gone > local * self._settings.stop_share

    async def _local_ids(self) -> list[int]:
        """The ids of all ledgers stored here, ascending; a snapshot from before any listing."""
        found: list[int] = []
        after = NO_ENTRY
        while after < MAX_ID:
            page, after = await self._engine.ledgers(after, LOCAL_PAGE)
            found += [stored.ledger_id for stored in page]
        return found

    async def _not_listed(self, local: Iterable[int]) -> set[int]:
        """The ids of `local` that a complete listing of the cluster does not have."""
        missing = set(local)
        async for ledger_id in self._ledgers.list_ids():
            missing.discard(ledger_id)
        return missing

    async def _delete(self, gone: list[int]) -> int:
        """Delete what a direct read does not find, either; returns how many ledgers went.

        All of them are read before the first is deleted: an error means that nothing is.
        """
        if await self._ledgers.instance_id() != self._instance_id:
            raise WrongClusterError("the metadata store belongs to another cluster now")
        confirmed: list[int] = []
        for start in range(0, len(gone), READS_AT_ONCE):
            confirmed += await self._without_metadata(gone[start : start + READS_AT_ONCE])
        deleted = 0
        for start in range(0, len(confirmed), DELETIONS_AT_ONCE):
            waiters = []
            for ledger_id in confirmed[start : start + DELETIONS_AT_ONCE]:
                state = await self._engine.load(ledger_id)
                if not state.deleted:
                    waiters.append(self._engine.admission.delete(state, self._clock.now_ms()))
            for waiter in waiters:
                reply = await waiter
                if reply.status is not Status.OK:
                    raise DiskFullError(f"a deletion could not be recorded: {reply.message}")
                deleted += 1
                self._deleted += 1
                self._metrics.garbage_ledgers_total.inc()
        for ledger_id in confirmed:
            del self._missing[ledger_id]
        # The pages of the ledgers and the files that held them go now, not at the next checkpoint.
        self._engine.compactor.wake()
        return deleted

    async def _without_metadata(self, ledger_ids: list[int]) -> list[int]:
        """Those that a direct read does not find."""
        found = await together(map(self._exists, ledger_ids))
        return [one for one, exists in zip(ledger_ids, found, strict=True) if not exists]

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._ledgers.read(ledger_id)
        except NoSuchLedgerError:
            return False
        _log.error("listing_not_complete", ledger_id=ledger_id)
        return True

    def _tell(self, report: GarbageReport) -> None:
        """One line for a round that did something, or that went wrong in a new way."""
        if report.deleted:
            _log.info("garbage_deleted", ledgers=report.deleted, of=report.local)
        known = self.last is not None and self.last.outcome is report.outcome
        if report.outcome is Outcome.STOPPED and not known:
            _log.error("garbage_collection_stopped", reason=report.reason)
        if report.outcome is Outcome.ABORTED and not known:
            _log.warning("garbage_collection_aborted", reason=report.reason)

"""The replicator of one bookie: it locks marked ledgers, and restores their copies.

For each bookie that a mark names:

============================ =====================================================================
the bookie                   what happens
============================ =====================================================================
is lost, leaving or vacant   `ReplicaMove` replaces the bookie in all fragments whose entries no
                             longer change
is registered                `ReplicaFill` copies missing and damaged entries to the bookie
is away                      nothing, until the bookie comes back or is declared lost
============================ =====================================================================

When all bookies of the mark are repaired, the replicator removes the mark. If a repair fails, the
replicator records the reason (`RepairFailures`), and tries the ledger again after a pause. The
pause doubles with each failure, so a ledger that cannot be repaired does not delay other ledgers.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from bookie.cluster import keys
from bookie.env import Backoff, beside, jitter
from bookie.env.pace import Pace
from bookie.errors import (
    BadRequestError,
    BookieError,
    MetadataClosedError,
    MetadataError,
    NoSuchLedgerError,
)
from bookie.ids import is_vacant
from bookie.ledger.copies.departures import Departures, RepairFailures
from bookie.ledger.copies.marks import RepairLock
from bookie.ledger.copies.repair_history import FAILED, RepairHistory
from bookie.ledger.copies.replica_fill import LOCK_LOST, FillWatch, ReplicaFill
from bookie.ledger.copies.replica_move import LEFT_OPEN, OPEN, ReplicaMove
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.underreplicated import UnderreplicatedLedger
from bookie.metadata.model import Change
from bookie.repair.worker import RepairWorker
from bookie.telemetry import event_log

IDLE_SECONDS = 30.0
"""The time, in seconds, between two listings of the marks if no mark or lock changes."""
PAUSE_SECONDS = 0.2
"""The time, in seconds, between two listings while marks or other workers' locks change."""

LEDGERS_OF_A_ROUND = 256
RETRY_SECONDS_MIN = 1.0
RETRY_SECONDS_EACH = 0.2
"""Each failure delays all retries by this number of seconds, so at most 5 retries per second
fail."""
GIVE_BACK_SECONDS = 5.0
"""The time, in seconds, between two attempts to release locks that were not released in time."""
FORGET_SECONDS = 3600.0
"""A failed ledger that is not tried for this number of seconds is forgotten, because another worker
has repaired it."""
IDLE_SHARE = 20.0
"""After a listing of all marks, the pause is at least this many times as long as the listing."""

AWAY = "away"
"""The outcome for a bookie that is not registered and not lost yet."""

MARKED_AGAIN = "marked-again"
STAYS_MARKED = "the ledger was marked again, or its lock was lost, at the end of the repair"
"""The outcome, and its detail, of a repair after which the mark stays; a later round repeats the
repair."""

_log = event_log(__name__)


@dataclass(slots=True)
class _Trouble:
    """A ledger whose last repair failed."""

    pauses: Backoff
    not_before: float = 0.0


class Replicator:
    """Repairs marked ledgers, several at a time."""

    def __init__(self, worker: RepairWorker, history: RepairHistory | None = None) -> None:
        self._worker = worker
        store, clock = worker.store, worker.clock
        self._history = history or RepairHistory(store, worker.worker_id, clock)
        self._failures = RepairFailures(store, clock)
        self._departures = [
            Departures(store, keys.LOST_BOOKIES, clock),
            Departures(store, keys.LEAVING_BOOKIES, clock),
        ]
        pace = Pace(lambda: worker.settings().bytes_per_second_max)
        self._move = ReplicaMove(worker.client, pace)
        self._fill = ReplicaFill(worker.client, pace)
        self._troubles: dict[int, _Trouble] = {}
        self._retry_at = -math.inf
        """The earliest time at which a ledger that failed is tried again."""
        self._present: set[tuple[str, bool, int]] = set()
        self._gone_then: set[str] = set()
        """The registrations, and the bookies that were gone, at the last listing of marks."""
        self._running: set[int] = set()
        self._ended = asyncio.Event()
        """`_running` contains the ledgers that this process is repairing; the end of each repair
        sets `_ended`."""
        self._woken = asyncio.Event()
        self._looked_at, self._look_seconds = clock.monotonic(), 0.0
        """The time when the last round began, and the duration of its listing in seconds; 0 if the
        listing did not read all marks."""
        self._after = -1
        """The ledger id after which the next listing of marks begins; -1 lists all marks."""

    async def run(self) -> NoReturn:
        """Repair marked ledgers until cancelled.

        Raises:
            MetadataClosedError: the store was closed.
        """
        async with (
            self._worker.store.watch(keys.MARKED_LEDGERS) as changes,
            self._worker.store.watch(keys.REPAIR_DISABLED) as switched,
            beside([self._wake(changes), self._wake(switched), self._give_back_locks()]),
            asyncio.TaskGroup() as tasks,
        ):
            pauses = Backoff(1.0, IDLE_SECONDS, jitter)
            while True:
                self._woken.clear()
                try:
                    begun = await self.round(tasks)
                    pauses.reset()
                except MetadataClosedError:
                    raise
                except BookieError as error:
                    _log.warning("repair_interrupted", reason=str(error))
                    await asyncio.sleep(pauses.next())
                    continue
                if not begun:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._idle_seconds()):
                            await self._woken.wait()
                await asyncio.sleep(self._rest_seconds())

    async def _wake(self, changes: AsyncIterator[Change]) -> None:
        async for _ in changes:
            self._woken.set()

    async def _give_back_locks(self) -> NoReturn:
        """Release, until cancelled, the locks that this worker could not release in time."""
        while True:
            await asyncio.sleep(GIVE_BACK_SECONDS)
            try:
                await self._worker.marks.give_back_doubtful()
            except MetadataClosedError:
                raise
            except BookieError as error:
                _log.warning("locks_not_given_back", reason=str(error))

    def _idle_seconds(self) -> float:
        """Return the time until the next retry of a failed ledger, at most `IDLE_SECONDS`.

        Retries that were due before the last round do not count, because their ledgers were locked
        or had no mark.
        """
        now = self._worker.clock.monotonic()
        times = [max(one.not_before, self._retry_at) for one in self._troubles.values()]
        waits = [time - now for time in times if time > self._looked_at]
        return max(0.0, min([IDLE_SECONDS, *waits]))

    def _rest_seconds(self) -> float:
        """Return the pause after a round, in seconds; a slow listing of marks makes it longer."""
        return max(PAUSE_SECONDS * (0.5 + jitter()), IDLE_SHARE * self._look_seconds)

    async def round(self, tasks: asyncio.TaskGroup) -> int:
        """Begin repairs of marked ledgers that are not locked; return the number of repairs.

        The method returns when the last repair has begun, without waiting for its end. So a long
        repair does not delay the next round.

        Raises:
            MetadataError: the metadata store failed.
        """
        self._looked_at, self._look_seconds = self._worker.clock.monotonic(), 0.0
        if not await self._worker.marks.is_enabled():
            return 0
        due = await self._due()
        if len(due) < LEDGERS_OF_A_ROUND:
            self._look_seconds = self._worker.clock.monotonic() - self._looked_at
        for begun, mark in enumerate(due):
            while len(self._running) >= self._worker.settings().ledgers_at_once:
                self._ended.clear()
                await self._ended.wait()
            if not await self._worker.marks.is_enabled():
                return begun
            self._running.add(mark.ledger_id)
            tasks.create_task(self._work(mark.ledger_id))
        return len(due)

    async def _work(self, ledger_id: int) -> None:
        try:
            await self._repair(ledger_id)
        finally:
            self._running.discard(ledger_id)
            self._ended.set()
            self._woken.set()  # the ledger may be due soon

    async def repair_now(self, ledger_id: int) -> list[RepairOutcome]:
        """Repair all copies of one ledger under its lock; return the outcomes of its bookies.

        The last fragment of an open ledger may name a lost or leaving bookie, or a vacant slot. The
        outcome for such a bookie is ``open``, because only the ledger's writer can replace it.

        Raises:
            BadRequestError: repair is disabled, or another worker repairs the ledger.
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed.
        """
        if not await self._worker.marks.is_enabled():
            raise BadRequestError("repair is disabled in this cluster; enable it first")
        metadata = (await self._worker.client.ledgers.read_latest(ledger_id)).value
        names = {name for one, _ in settled_fragments(metadata) for name in one.bookies}
        if not names:
            return await self._left_open(ledger_id)
        await self._worker.marks.mark(ledger_id, names)
        if not await self._worker.marks.acquire(ledger_id):
            raise BadRequestError(f"another worker repairs ledger {ledger_id} right now")
        try:
            outcomes = await self._finish(ledger_id, self._worker.marks.lock_of(ledger_id))
        finally:
            await self._worker.marks.close()
        told = {
            name for one in outcomes if one.outcome == OPEN for name in one.bookie_id.split(",")
        }
        left = await self._left_open(ledger_id)
        return [*outcomes, *(one for one in left if one.bookie_id not in told)]

    async def _left_open(self, ledger_id: int) -> list[RepairOutcome]:
        """Return an outcome for each bookie that only the writer of an open ledger can replace."""
        try:
            metadata = (await self._worker.client.ledgers.read_latest(ledger_id)).value
        except NoSuchLedgerError:
            return []
        if metadata.is_closed:
            return []
        gone = await self._gone()
        return [
            RepairOutcome(ledger_id, name, OPEN, detail=LEFT_OPEN)
            for name in metadata.last_fragment.bookies
            if name in gone or is_vacant(name)
        ]

    async def _gone(self) -> set[str]:
        return {name for kind in self._departures for name in await kind.names()}

    async def _due(self) -> list[UnderreplicatedLedger]:
        """Return some marked ledgers that are not locked and need not wait, in random order.

        A call finds at most `LEDGERS_OF_A_ROUND` marks. The next call continues after the last mark
        of this call. At the end of the marks, a call continues with the first mark.
        """
        now = self._worker.clock.monotonic()
        self._troubles = {
            one: how for one, how in self._troubles.items() if now < how.not_before + FORGET_SECONDS
        }
        self._notice(await self._gone(), now)
        ready = self._ready(now)
        locked = await self._worker.marks.locked() | self._running
        unseen = set(self._troubles)
        free: list[UnderreplicatedLedger] = []
        after, self._after = self._after, -1
        for first in (after, -1) if after >= 0 else (-1,):
            async for mark in self._worker.marks.marked(after=first):
                ledger_id = mark.ledger_id
                if first < 0 <= after < ledger_id:
                    break  # the first listing has already found this mark
                unseen.discard(ledger_id)
                is_waiting = ledger_id in self._troubles and ledger_id not in ready
                if ledger_id not in locked and not is_waiting:
                    free.append(mark)
                if len(free) == LEDGERS_OF_A_ROUND:
                    self._after = ledger_id
                    break
            if len(free) == LEDGERS_OF_A_ROUND:
                break
        else:
            for ledger_id in unseen:
                self._troubles.pop(ledger_id, None)  # the ledger has no mark now
        # The random order avoids that workers compete for the same ledgers.
        return sorted(free, key=lambda _: jitter())

    def _notice(self, gone: set[str], now: float) -> None:
        """End all pauses after failures if a repair may succeed now.

        A repair may succeed if a bookie was registered or became writable, or if the set of lost
        and leaving bookies changed.
        """
        directory = self._worker.client.directory
        writable, arrivals = directory.bookies(), directory.arrivals
        present = {(name, name in writable, arrivals(name)) for name in directory.all()}
        if present - self._present or gone != self._gone_then:
            self._retry_at = now
            for trouble in self._troubles.values():
                trouble.not_before = min(trouble.not_before, now)
        self._present, self._gone_then = present, gone

    def _ready(self, now: float) -> set[int]:
        """Return the failed ledgers whose pauses have ended, at most `LEDGERS_OF_A_ROUND`.

        Ledgers whose pauses ended first are preferred.
        """
        if now < self._retry_at:
            return set()
        ended = [
            (how.not_before, one) for one, how in self._troubles.items() if how.not_before <= now
        ]
        return {one for _, one in heapq.nsmallest(LEDGERS_OF_A_ROUND, ended)}

    async def _repair(self, ledger_id: int) -> None:
        """Repair one ledger under its lock; do nothing if another worker has the lock."""
        began = self._worker.clock.monotonic()
        try:
            if not await self._worker.marks.acquire(ledger_id):
                return
            async with self._worker.marks.holding(ledger_id) as lock:
                outcomes = await self._finish(ledger_id, lock)
                self._history.note(ledger_id, outcomes, self._worker.clock.monotonic() - began)
        except MetadataClosedError:
            raise
        except Exception as error:  # noqa: BLE001  (one ledger's error must not stop all repair)
            seconds = self._worker.clock.monotonic() - began
            await self._note_error(ledger_id, error, seconds)

    async def _note_error(self, ledger_id: int, error: Exception, seconds: float) -> None:
        """Begin the ledger's pause after an error; record the failure, unless the store failed."""
        self._wait(ledger_id)
        reason = self._worker.reason_of(error, ledger_id=ledger_id)
        self._history.note_error(ledger_id, reason, seconds)
        _log.warning("repair_failed", ledger_id=ledger_id, reason=reason)
        if isinstance(error, MetadataError):
            return
        try:
            await self._failures.add(ledger_id, FAILED, reason)
        except MetadataClosedError:
            raise
        except BookieError as lost:
            _log.warning("failure_not_recorded", ledger_id=ledger_id, reason=str(lost))

    async def _finish(self, ledger_id: int, lock: RepairLock) -> list[RepairOutcome]:
        """Repair a locked ledger; then remove its mark, if the ledger has all its copies."""
        outcomes = await self._passes(ledger_id, lock)
        failed = [one for one in outcomes if not one.is_whole]
        for one in outcomes:
            self._count(one)
        if any(one.outcome == "locked" for one in failed):
            self._wait(ledger_id)  # the worker that now has the lock records the outcome
        elif failed:
            await self._note_failure(failed)
        else:
            await self._failures.remove(ledger_id)
            self._troubles.pop(ledger_id, None)
            if not await self._worker.marks.mark_replicated(ledger_id, lock) and outcomes:
                outcomes.append(RepairOutcome(ledger_id, "", MARKED_AGAIN, detail=STAYS_MARKED))
        return outcomes

    async def _passes(self, ledger_id: int, lock: RepairLock) -> list[RepairOutcome]:
        """Repair a locked ledger in passes; return the outcomes of all passes.

        If an audit marks the ledger again during a pass, another pass follows. The next pass reads
        only those windows (ranges) of entries that the repair last read before the ledger was
        marked again.
        """
        marks = self._worker.marks
        watch = FillWatch(lambda: marks.follow_mark(ledger_id, lock), -1)
        outcomes: list[RepairOutcome] = []
        version = await watch.mark_version()
        while version is not None:
            watch.wanted = version
            gone = await self._gone()
            mark = await marks.find(ledger_id)
            found = [] if mark is None else await self._outcomes(mark, gone, lock, watch)
            is_first = not outcomes
            outcomes += [one for one in found if is_first or one.outcome != "was-fine"]
            if not all(one.is_whole for one in found):
                return outcomes
            version = await watch.mark_version()
            if version == watch.wanted:
                return outcomes
        return [*outcomes, RepairOutcome(ledger_id, "", "locked", detail=LOCK_LOST)]

    async def _outcomes(
        self,
        mark: UnderreplicatedLedger,
        gone: Collection[str],
        lock: RepairLock,
        watch: FillWatch,
    ) -> list[RepairOutcome]:
        ledger_id = mark.ledger_id
        try:
            metadata = (await self._worker.client.ledgers.read_latest(ledger_id)).value
        except NoSuchLedgerError:
            return []
        named = {name for one, _ in settled_fragments(metadata) for name in one.bookies}
        departed = [name for name in mark.replicas if name in gone or is_vacant(name)]
        outcomes = []
        if departed:
            outcomes.append(await self._move.run(ledger_id, departed, lock))
        for bookie_id in mark.replicas:
            if bookie_id in departed or bookie_id not in named:
                continue
            if bookie_id in self._worker.client.directory.all():
                outcomes.append(await self._fill.run(ledger_id, bookie_id, watch))
            else:
                outcomes.append(
                    RepairOutcome(ledger_id, bookie_id, AWAY, detail=f"{bookie_id} is away")
                )
        return outcomes

    async def _note_failure(self, failed: Collection[RepairOutcome]) -> None:
        first, *_ = failed
        self._wait(first.ledger_id)
        reasons = "; ".join(f"{one.outcome}: {one.detail}" for one in failed)
        failure = await self._failures.add(first.ledger_id, first.outcome, reasons)
        _log.warning(
            "ledger_not_repaired",
            ledger_id=first.ledger_id,
            reason=reasons,
            attempts=failure.attempts,
        )

    def _wait(self, ledger_id: int) -> None:
        longest = self._worker.settings().retry_seconds_max
        trouble = self._troubles.setdefault(
            ledger_id, _Trouble(Backoff(RETRY_SECONDS_MIN, longest, jitter))
        )
        now = self._worker.clock.monotonic()
        trouble.not_before = now + trouble.pauses.next()
        # A great number of failing ledgers must not use all the time of the workers.
        self._retry_at = min(max(now, self._retry_at) + RETRY_SECONDS_EACH, now + longest)

    def _count(self, outcome: RepairOutcome) -> None:
        self._worker.metrics.repair_copied_entries_total.inc(outcome.entries)
        self._worker.metrics.repair_copied_bytes_total.inc(outcome.packet_bytes)
        self._worker.metrics.repair_outcomes_total.labels(outcome.outcome).inc()

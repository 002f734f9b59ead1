"""Recovers open ledgers whose writer is gone, but never while the writer has a session.

A client that writes ledgers has an ephemeral record (`writer_record`), and its ledgers name the
client. If the record is missing for a grace period, the auditor recovers the open ledgers that name
the client. The auditor recovers a ledger in the same way as a client does.

During the grace period, a writer that lost its session can create its record again. Safety does not
depend on the grace period:

- A recovery begins with a compare-and-set from OPEN to IN_RECOVERY. The auditor's transaction also
  requires that the writer's record does not exist. So no session of the writer is alive at the
  moment of this change.
- A writer that continues without a session is fenced: its next append raises LedgerFencedError. The
  closed ledger has all entries that were acknowledged.

The auditor does not recover ledgers of older clients, which name no writer, or unclaimed ledgers,
which have no writer yet. The auditor recovers no ledger while too many bookies are away, or while a
registered bookie reports that the metadata store may be an older copy. A ledger stays open if a
bookie outside its last ensemble has later entries (`find_unnamed_entries`).

The auditor's surveys are rare and may take long. So this module lists the ledgers itself.

The auditor reads the writers' records, lists ledgers and recovers ledgers concurrently, so none of
these tasks delays another task. Ledgers whose last recovery failed come after all other ledgers.
These failed ledgers use at most half of the places for concurrent recoveries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from bookie.cluster import keys
from bookie.env import Backoff, jitter
from bookie.errors import (
    BadVersionError,
    BookieError,
    LedgerRecoveryError,
    MetadataClosedError,
    NoSuchLedgerError,
)
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.ledger_client import UNCLAIMED
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover.driver import recover_ledger
from bookie.ledger.recover.unnamed_entries import find_unnamed_entries
from bookie.ledger.underreplicated import NOT_RECOVERED
from bookie.metadata.model import NOT_EXISTS, Check
from bookie.metadata.versioned import Versioned
from bookie.repair.absence import WriterAbsence
from bookie.repair.worker import RepairWorker
from bookie.telemetry import event_log

RECOVERED = "recovered"
"""The outcome of a successful recovery in metrics; the other outcome is `NOT_RECOVERED`."""

LOOK_SECONDS_MAX = 10.0
"""The longest pause, in seconds, between two listings of the writers' records; only after a slow
listing, the pause may be longer (`REST`)."""
LOOKS_OF_A_GRACE = 10
LISTINGS_OF_A_GRACE = 4
"""The number of listings of the ledgers during one grace period."""
REST = 20.0
"""A pause is at least this number of times as long as the listing before the pause."""
UNSEEN_SECONDS_MAX = 60.0
"""Of a pause between two `look` calls, at most this number of seconds counts for a grace period."""
RETRY_SECONDS_MIN, RETRY_SECONDS_EACH = 1.0, 0.5
"""After a failed recovery, a ledger waits at least the first number of seconds, and at least the
second number times the count of failed ledgers. It waits at most `repair.retry_seconds_max`."""

_log = event_log(__name__)


@dataclass(slots=True)
class _OpenLedger:
    """A ledger that a listing found not closed, and whose writer had no record at that time."""

    writer_id: str
    is_taken: bool = False
    """True once this auditor may have set the ledger IN_RECOVERY; then the auditor finishes the
    recovery even if the writer returns."""
    pauses: Backoff | None = field(default=None, repr=False)
    """The pauses between attempts to recover the ledger; None before the first failure."""
    not_before: float = -math.inf
    tried_at: float = -math.inf
    """The time at which the last attempt to recover the ledger ended."""


class OpenLedgers:
    """The open ledgers with missing writers that one auditor found since it began to lead.

    Args:
        is_split: returns True while too many bookies are away, so that nothing may be recovered.
    """

    def __init__(self, worker: RepairWorker, is_split: Callable[[], bool]) -> None:
        self._worker = worker
        self._is_split = is_split
        self._failures = RepairFailures(worker.store, worker.clock)
        self._found: dict[int, _OpenLedger] = {}
        self._absence = WriterAbsence(UNSEEN_SECONDS_MAX)
        self._look_at = self._list_at = -math.inf
        self._running: dict[int, _OpenLedger] = {}
        self._ended = asyncio.Event()
        """`_running` contains the ledgers that this process is recovering; the end of each recovery
        sets `_ended`."""

    async def look(self) -> None:
        """If a listing of the writers' records is due, note the writers without a record.

        Raises:
            MetadataError: the metadata store failed.
        """
        now = self._worker.clock.monotonic()
        if now < self._look_at:
            return
        present = await self._worker.store.get_children(keys.WRITERS)
        took = self._worker.clock.monotonic() - now
        self._absence.look(now, {one.writer_id for one in self._found.values()}, present)
        missing = self._absence.missing
        self._worker.metrics.repair_abandoned_ledgers.set(
            sum(one.is_taken or one.writer_id in missing for one in self._found.values())
        )
        seconds = min(self._grace / LOOKS_OF_A_GRACE, LOOK_SECONDS_MAX)
        self._look_at = now + took + max(seconds, REST * took)

    async def find(self) -> None:
        """If a listing is due, list the ledgers; remember ledgers that may need a recovery.

        Raises:
            MetadataError: the metadata store failed; the result of the last listing stays.
        """
        began = self._worker.clock.monotonic()
        if began < self._list_at or not await self._worker.marks.is_enabled():
            return
        try:
            await self._list(began)
        finally:
            took = self._worker.clock.monotonic() - began
            self._list_at = began + took + max(self._grace / LISTINGS_OF_A_GRACE, REST * took)

    async def work(self, tasks: asyncio.TaskGroup) -> None:
        """Start recoveries of the ledgers whose writer is gone, each as a task of `tasks`.

        The method waits for free places. The method returns when all recoveries have begun, when
        repair is disabled, or when a ledger whose last recovery failed finds no free place.

        Raises:
            MetadataError: the metadata store failed.
        """
        due = [
            (ledger_id, one)
            for ledger_id, one in self._found.items()
            if ledger_id not in self._running and self._is_due(one)
        ]
        due.sort(key=lambda pair: (pair[1].pauses is not None, pair[1].not_before))
        for ledger_id, one in due:
            if one.pauses is not None and not self._has_room(one):
                return
            while not self._has_room(one):
                self._ended.clear()
                await self._ended.wait()
            if not await self._worker.marks.is_enabled():
                return
            if self._is_due(one):
                self._running[ledger_id] = one
                tasks.create_task(self._work(ledger_id, one))

    def _has_room(self, one: _OpenLedger) -> bool:
        places = self._worker.settings().ledgers_at_once
        if len(self._running) >= places:
            return False
        failing = sum(other.pauses is not None for other in self._running.values())
        return one.pauses is None or failing < max(1, places // 2)

    @property
    def _grace(self) -> float:
        return self._worker.settings().open_ledger_grace_seconds

    def _is_due(self, one: _OpenLedger) -> bool:
        if self._is_held_back() or self._worker.clock.monotonic() < one.not_before:
            return False
        return one.is_taken or self._absence.is_gone(one.writer_id, self._grace)

    def _is_held_back(self) -> bool:
        # If the store is an older copy, its metadata may not name the bookies that store the last
        # entries.
        registrations = self._worker.client.directory.all().values()
        return self._is_split() or any(one.store_doubt for one in registrations)

    # ---- the listing

    async def _list(self, began: float) -> None:
        present = set(await self._worker.store.get_children(keys.WRITERS))
        found: dict[int, _OpenLedger] = {}
        async for versioned in self._worker.client.ledgers.list_readable(lambda _: None):
            metadata = versioned.value
            if not _has_writer(metadata):
                continue
            ledger_id = metadata.ledger_id
            known = self._found.get(ledger_id)
            if known is not None and known.writer_id == metadata.writer_id:
                if known.is_taken or metadata.writer_id not in present:
                    found[ledger_id] = known
            elif metadata.writer_id not in present:
                found[ledger_id] = _OpenLedger(metadata.writer_id)
        # Keep ledgers whose recovery ran during the listing: the listing may have read an older
        # state.
        self._found = found | {
            ledger_id: one
            for ledger_id, one in self._found.items()
            if ledger_id in self._running or one.tried_at >= began
        }
        async for failure in self._failures.all():
            if failure.outcome == NOT_RECOVERED and failure.ledger_id not in self._found:
                await self._failures.remove(failure.ledger_id)  # closed, or the writer is back

    # ---- recovery

    async def _work(self, ledger_id: int, one: _OpenLedger) -> None:
        try:
            await self._try(ledger_id, one)
        except MetadataClosedError:
            raise
        except BookieError as error:
            _log.warning("failure_not_recorded", ledger_id=ledger_id, reason=str(error))
        finally:
            one.tried_at = self._worker.clock.monotonic()
            del self._running[ledger_id]
            self._ended.set()

    async def _try(self, ledger_id: int, one: _OpenLedger) -> None:
        try:
            if not await self._worker.marks.acquire(ledger_id, needs_mark=False):
                return  # another worker repairs the ledger; a next round tries again
            async with self._worker.marks.holding(ledger_id):
                is_over = await self._recover(ledger_id, one)
        except MetadataClosedError:
            raise
        except Exception as error:  # noqa: BLE001  (one ledger's error must not stop all repair)
            await self._note_failure(ledger_id, one, error)
            return
        if is_over:
            self._found.pop(ledger_id, None)
            if one.pauses is not None:
                await self._failures.remove(ledger_id)

    async def _recover(self, ledger_id: int, one: _OpenLedger) -> bool:
        """Recover a locked ledger; return True if this process need not recover the ledger again.

        The result is False if the ledger changed during the call, or if its writer has a record
        again. A result of False means that the writer's grace period begins again.

        Raises:
            LedgerRecoveryError: the ledger's last entry cannot be determined.
        """
        client = self._worker.client
        try:
            found = await client.ledgers.read_latest(ledger_id)
            if not _has_writer(found.value) or found.value.writer_id != one.writer_id:
                return True
            registered = client.directory.all()
            if reason := await find_unnamed_entries(client.pool, registered, found.value):
                raise LedgerRecoveryError(reason)
            one.is_taken = True  # the write may take effect even if its answer is lost
            if found.value.state is LedgerState.OPEN:
                try:
                    found = await self._take(found)
                except BadVersionError:
                    one.is_taken = False
                    self._absence.forget(one.writer_id)
                    return False
            closed = await recover_ledger(found, client.pool, client.ledgers, client.ensembles)
        except NoSuchLedgerError:
            return True
        self._worker.metrics.repair_outcomes_total.labels(RECOVERED).inc()
        _log.info(
            "abandoned_ledger_recovered",
            ledger_id=ledger_id,
            writer=one.writer_id,
            last_entry_id=closed.value.last_entry_id,
        )
        return True

    async def _take(self, found: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        """Change a ledger to IN_RECOVERY, in a transaction that requires that its writer is gone.

        Raises:
            BadVersionError: the writer has a record, or the ledger has changed.
        """
        taken = found.value.with_state(LedgerState.IN_RECOVERY)
        absent = Check(keys.writer(found.value.writer_id), NOT_EXISTS)
        return await self._worker.client.ledgers.write(taken, found.version, [absent])

    async def _note_failure(self, ledger_id: int, one: _OpenLedger, error: Exception) -> None:
        longest = self._worker.settings().retry_seconds_max
        if one.pauses is None:
            one.pauses = Backoff(RETRY_SECONDS_MIN, longest, jitter)
        failing = sum(other.pauses is not None for other in self._found.values())
        seconds = min(longest, max(one.pauses.next(), RETRY_SECONDS_EACH * failing))
        one.not_before = self._worker.clock.monotonic() + seconds
        self._worker.metrics.repair_outcomes_total.labels(NOT_RECOVERED).inc()
        reason = self._worker.reason_of(error, ledger_id=ledger_id)
        failure = await self._failures.add(ledger_id, NOT_RECOVERED, f"{NOT_RECOVERED}: {reason}")
        _log.warning(
            "abandoned_ledger_not_recovered",
            ledger_id=ledger_id,
            reason=reason,
            attempts=failure.attempts,
        )


def _has_writer(metadata: LedgerMetadata) -> bool:
    """True if the ledger is not closed, is not unclaimed, and names its writer."""
    return bool(
        metadata.writer_id and not metadata.is_closed and UNCLAIMED not in metadata.custom_metadata
    )

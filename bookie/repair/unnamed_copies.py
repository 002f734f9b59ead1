"""Removes a bookie's copies of ledgers whose metadata no longer names the bookie.

*Unnamed* copies remain after a move, after a rebalance, and on a bookie that returns after its
copies moved. Removing copies that are needed loses data. So the bookie removes its copies of a
ledger only if all these conditions hold:

1. In every round of a whole grace period, the bookie's process has read metadata of the ledger that
   does not name the bookie. A restart begins the grace period anew. Time in which the process was
   suspended does not count.
2. Repair is enabled. Garbage collection does not suspect that the metadata store is an older copy
   (`GarbageCollector.find_objection`).
3. No copy of the ledger is marked as missing, and this bookie holds the ledger's repair lock. So
   no repair, rebalance or change of the ledger's write quorum is under way. A worker that lost the
   lock can no longer change the ledger's bookies (`RepairLock.condition`).
4. The metadata, read after conditions 1 to 3 were met, says CLOSED and does not name the bookie. No
   writer and no recovery changes the ensembles of a closed ledger.
5. `find_lack` proves that the ledger is closed, and that every member of every write set lists each
   of its entries. Without this proof, the new bookie of a move could remove the only copy, if the
   metadata is restored to a state before the move.
6. This bookie knows no stored or confirmed entry after the ledger's last entry. A later entry may
   mean that a recovery closed the ledger too early, for example after a restore of an old backup.
   An entry that was never acknowledged also prevents the removal, because the bookie cannot
   distinguish it from an acknowledged entry.
7. For each entry, a member returns a copy with the right digest (`find_unreadable`). A listing does
   not show damage, and this bookie's copy may be the last intact copy. If no member has an intact
   copy of an entry, the grace period begins anew, because reading all entries is costly.
8. When each step of the removal begins (`CopyRemoval`), this process certainly holds the lock: its
   session is alive, and no task has released the lock. No other task of the event loop runs between
   the check and the begin of the step.

A later move may bring removed copies back: the engine keeps the ledger's key and fence, and accepts
recovery adds (`index/reclaimed_entries.py`).

Source: BookKeeper's GarbageCollectorThread with `verifyMetadataOnGC`, which trusts the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from bookie.coordination.participant import Participant
from bookie.env import Backoff, gather, jitter
from bookie.env.pace import Pace
from bookie.errors import (
    BookieError,
    FormatError,
    MetadataClosedError,
    MetadataError,
    NoSuchLedgerError,
)
from bookie.ledger.copies.marks import RepairLock
from bookie.ledger.copies.whole_copies import find_lack, find_unreadable
from bookie.ledger.metadata import LedgerMetadata
from bookie.node.own_copies import OwnCopies
from bookie.repair.worker import RepairWorker
from bookie.telemetry import event_log

READS_AT_ONCE = 16
ROUND_SECONDS_MIN, ROUND_SECONDS_MAX = 1.0, 600.0
ROUNDS_PER_GRACE = 10.0
"""The pause after a round is the grace period divided by this number, but at least
`ROUND_SECONDS_MIN` and at most `ROUND_SECONDS_MAX`."""
REST, REST_SECONDS_MAX = 20.0, 3600.0
"""A pause is at least `REST` times as long as the last round, up to `REST_SECONDS_MAX`."""

_log = event_log(__name__)


class Reclaimer:
    """Removes unnamed copies of one bookie, one ledger at a time.

    Args:
        worker: the repair worker, whose name is the bookie's id.
        copies: the copies on the bookie.
    """

    def __init__(self, worker: RepairWorker, copies: OwnCopies) -> None:
        self._worker = worker
        self._copies = copies
        self._since: dict[int, float] = {}
        """Ledger with unnamed copies → the value of `_observed_seconds` when they were first
        found."""
        self._observed_seconds = 0.0
        """The sum of the times between complete listings of the copies; suspensions do not
        count."""
        self._looked_at: float | None = None
        """The time when the last listing began; None before the first listing and after a failed
        one."""
        self._round_seconds = 0.0
        """The time that the last round took, including removals that failed."""
        self._pace = Pace(lambda: worker.settings().bytes_per_second_max)
        self._silent: set[str] = set()
        """Members of ensembles that did not answer in this round. A ledger that names such a member
        waits for the next round, without a lock."""
        self._told = ""
        self._longer: set[int] = set()
        """Ledgers about which the log already says that this bookie has later entries."""

    async def run(self) -> NoReturn:
        """Make rounds until cancelled.

        Raises:
            MetadataClosedError: the store was closed.
        """
        pauses = Backoff(ROUND_SECONDS_MIN, ROUND_SECONDS_MAX, jitter)
        async with Participant(self._worker.store) as participant:
            while True:
                seconds = 0.0
                try:
                    await self.round(participant)
                    pauses.reset()
                except MetadataClosedError:
                    raise
                except Exception as error:  # noqa: BLE001  (an error here must not end all repair)
                    reason = self._worker.reason_of(error)
                    _log.warning("reclaim_interrupted", reason=reason)
                    seconds = pauses.next()
                await asyncio.sleep(max(self._pause_seconds(), seconds))

    def _pause_seconds(self) -> float:
        usual = self._worker.settings().unnamed_copies_grace_seconds / ROUNDS_PER_GRACE
        usual = min(max(usual, ROUND_SECONDS_MIN), ROUND_SECONDS_MAX)
        return max(usual, min(REST * self._round_seconds, REST_SECONDS_MAX))

    async def round(self, participant: Participant) -> int:
        """Check all ledgers on this bookie; return the number of ledgers whose copies were removed.

        Raises:
            MetadataError: the metadata store failed.
        """
        began = self._worker.clock.monotonic()
        try:
            return await self._round(participant)
        finally:
            self._round_seconds = self._worker.clock.monotonic() - began

    async def _round(self, participant: Participant) -> int:
        self._silent.clear()
        began = self._worker.clock.monotonic()
        step, self._looked_at = self._step(began), None
        seen: set[int] = set()
        async for page in self._copies.pages():
            for start in range(0, len(page), READS_AT_ONCE):
                some = page[start : start + READS_AT_ONCE]
                found = await gather(map(self._read, some))
                seen.update(
                    ledger_id
                    for ledger_id, metadata in zip(some, found, strict=True)
                    if metadata is not None and not self._is_named(metadata)
                )
        self._looked_at = began
        self._observed_seconds += step
        now = self._observed_seconds
        self._since = {ledger_id: self._since.get(ledger_id, now) for ledger_id in seen}
        self._longer &= seen
        latest = now - self._worker.settings().unnamed_copies_grace_seconds
        due = sorted(ledger_id for ledger_id, since in self._since.items() if since <= latest)
        reclaimed = 0
        try:
            for ledger_id in due:
                if not await self._may_remove():
                    break
                reclaimed += await self._reclaim(ledger_id, participant)
        finally:
            self._worker.metrics.repair_unnamed_ledgers.set(len(self._since))
        return reclaimed

    def _step(self, now: float) -> float:
        """Return the seconds since the last listing that count for grace periods.

        Time in which the process was suspended does not count.
        """
        if self._looked_at is None:
            return 0.0
        longest = self._round_seconds + 2 * self._pause_seconds()
        return min(now - self._looked_at, longest)

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        """Read the metadata of a ledger; return None if the metadata is missing or damaged."""
        with suppress(NoSuchLedgerError, FormatError):
            return (await self._worker.client.ledgers.read(ledger_id)).value
        return None

    def _is_named(self, metadata: LedgerMetadata) -> bool:
        return any(self._worker.worker_id in fragment.bookies for fragment in metadata.fragments)

    async def _may_remove(self) -> bool:
        """True if repair is enabled, and garbage collection does not doubt the metadata store."""
        if not await self._worker.marks.is_enabled():
            return False
        reason = await self._copies.find_objection()
        if reason and reason != self._told:
            _log.warning("unnamed_copies_kept", reason=reason)
        self._told = reason
        return not reason

    async def _reclaim(self, ledger_id: int, participant: Participant) -> bool:
        """Remove the copies of one ledger under its lock, if all conditions hold."""
        epoch = participant.session_epoch
        try:
            if not await self._may_end(ledger_id):
                return False
            if not await self._worker.marks.acquire_unmarked(ledger_id):
                return False
            async with self._worker.marks.holding(ledger_id) as lock:

                def is_certain() -> bool:
                    is_same = participant.is_certain and participant.session_epoch == epoch
                    return is_same and self._worker.marks.has(ledger_id, lock)

                return await self._remove(ledger_id, lock, is_certain)
        except NoSuchLedgerError:
            return False  # garbage collection deletes the copies
        except MetadataError:
            raise
        except Exception as error:  # noqa: BLE001  (one ledger's error must not stop all repair)
            reason = self._worker.reason_of(error, ledger_id=ledger_id)
            _log.warning("copies_not_reclaimed", ledger_id=ledger_id, reason=reason)
            return False

    async def _may_end(self, ledger_id: int) -> bool:
        """Return False if the ledger is not closed, or a member did not answer in this round.

        The method needs no lock and asks no bookie.
        """
        metadata = await self._read(ledger_id)
        return metadata is not None and metadata.is_closed and not self._is_silent(metadata)

    def _is_silent(self, metadata: LedgerMetadata) -> bool:
        return any(self._silent.intersection(one.bookies) for one in metadata.fragments)

    async def _remove(
        self, ledger_id: int, lock: RepairLock, is_certain: Callable[[], bool]
    ) -> bool:
        metadata = (await self._worker.client.ledgers.read_latest(ledger_id)).value
        if self._is_named(metadata):
            del self._since[ledger_id]
            return False
        if await self._find_lack(metadata):
            return False
        if not await self._ends_here(metadata):
            return False
        if reason := await find_unreadable(self._worker.client, metadata, self._pace):
            _log.warning("copies_not_reclaimed", ledger_id=ledger_id, reason=reason)
            del self._since[ledger_id]
            return False
        # Check again, because the listings and the reading may have taken long.
        if not (await self._may_remove() and await lock.is_held()):
            return False
        removed = await self._copies.remove(ledger_id, metadata.password_key, is_certain)
        self._worker.metrics.repair_reclaimed_bytes_total.inc(removed.size_bytes)
        if not removed.is_whole:
            return False
        self._worker.metrics.repair_reclaimed_ledgers_total.inc()
        del self._since[ledger_id]
        _log.info(
            "copies_reclaimed",
            ledger_id=ledger_id,
            entries=removed.entries,
            size_bytes=removed.size_bytes,
        )
        return True

    async def _ends_here(self, metadata: LedgerMetadata) -> bool:
        """True if this bookie knows no entry after the ledger's last entry.

        When the result for a ledger is False for the first time, the method logs a line.
        """
        ledger_id, last = metadata.ledger_id, metadata.last_entry_id
        known = await self._copies.known_end(ledger_id, last)
        if known > last and ledger_id not in self._longer:
            _log.warning(
                "copies_behind_the_end_kept", ledger_id=ledger_id, last_entry_id=last, known=known
            )
            self._longer.add(ledger_id)
        return known <= last

    async def _find_lack(self, metadata: LedgerMetadata) -> str:
        try:
            return await find_lack(self._worker.client, metadata, self._silent)
        except MetadataError:
            raise
        except BookieError as error:
            return str(error)  # a member that does not answer proves nothing

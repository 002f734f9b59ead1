"""What a bookie remembers of the metadata store, to notice that it went back in time.

A store that was restored from an older copy lacks newer ledgers, and its listing does not show
that. But its counters are lower than the bookie saw them. Then the bookie doubts the store,
durably, until an operator confirms it.
"""

from __future__ import annotations

from dataclasses import replace

from bookie.errors import FormatError
from bookie.ledger.catalog.store_marks import StoreMarks
from bookie.node.engine.durable_values import DurableValues
from bookie.node.garbage_notes import GarbageMemory, decode_memory, encode_memory

_NAME = b"memory"

OBSERVED_SECONDS_UNSAVED_MAX = 60.0
"""A restart forgets at most this much waiting time of absent ledgers."""


class StoreMemory:
    """The memory, and the note that stores it."""

    def __init__(self, notes: DurableValues) -> None:
        self._notes = notes
        self._saved = self.now = GarbageMemory()

    async def load(self) -> None:
        """Load the note; a damaged one is a reason to doubt the store."""
        notes = await self._notes.read()
        if _NAME not in notes:
            return
        try:
            self._saved = self.now = decode_memory(notes[_NAME] or b"")
        except FormatError:
            self.doubt("what the bookie remembers of the metadata store is damaged")

    @property
    def is_due(self) -> bool:
        """Whether something changed that a restart must not forget."""
        observed = self._saved.observed_seconds
        return (
            self.now != replace(self._saved, observed_seconds=self.now.observed_seconds)
            or self.now.observed_seconds - observed >= OBSERVED_SECONDS_UNSAVED_MAX
        )

    async def save(self) -> None:
        """Note the memory; durable when it returns.

        Raises:
            DiskFullError: there is no room for the note.
            StorageFailedError: the index failed; the process must end.
        """
        now = self.now
        await self._notes.write({_NAME: encode_memory(now)})
        self._saved = now

    def observe(self, seconds: float) -> None:
        """Add the time between two complete rounds."""
        self.now = replace(self.now, observed_seconds=self.now.observed_seconds + seconds)

    def listed(self) -> None:
        """Note that a listing had a ledger."""
        self.now = replace(self.now, has_listed=True)

    def compare(self, marks: StoreMarks) -> str:
        """Why the store went back in time; if it did not, empty, and its marks are remembered."""
        reason = self._difference(marks)
        if reason:
            self.doubt(reason)
            return reason
        counters = self.now.counters | marks.counters
        number = marks.cookie_number
        self.now = replace(self.now, counters=counters, cookie_number=number)
        return ""

    def _difference(self, marks: StoreMarks) -> str:
        known = self.now
        remembers = known.counters or known.cookie_number is not None or known.has_listed
        if not marks.instance_id:
            return "the metadata store holds no cluster any more" if remembers else ""
        for bucket, highest in sorted(known.counters.items()):
            found = marks.counters.get(bucket, 0)
            if found < highest:
                return (
                    f"the metadata store went back in time: its counter {bucket} of ledger ids is "
                    f"{found}, and was {highest}"
                )
        if known.cookie_number is not None and marks.cookie_number is None:
            return "the metadata store has no cookie of this bookie any more"
        if (known.cookie_number or 0) > (marks.cookie_number or 0):
            return (
                "the metadata store went back in time: this bookie's cookie there has the state "
                f"number {marks.cookie_number}, and had {known.cookie_number}"
            )
        return ""

    def doubt(self, reason: str) -> None:
        """Distrust the store until an operator confirms it."""
        self.now = replace(self.now, store_doubt=reason)

    def accept(self, marks: StoreMarks) -> None:
        """Trust the store as it is now, and replace the memory of it."""
        self.now = replace(
            self.now,
            counters=dict(marks.counters),
            cookie_number=marks.cookie_number,
            has_listed=False,
            store_doubt="",
        )

    def stop_absent(self, absent: int, local: int, share: float, always: int) -> str:
        """Why absent ledgers are too many to delete one; empty if they are not.

        The share is computed with the fewest ledgers that were stored here since the stop began. So
        newly created ledgers cannot end the stop.
        """
        known = self.now
        local = min(local, known.absent_stop_local) if known.absent_stop else local
        if absent <= max(always, share * local):
            self.now = replace(known, absent_stop="", absent_stop_local=0)
            return ""
        reason = (
            f"{absent} of {local} ledgers are absent from the metadata store, "
            "and nothing says that they were deleted"
        )
        self.now = replace(known, absent_stop=reason, absent_stop_local=local)
        return reason

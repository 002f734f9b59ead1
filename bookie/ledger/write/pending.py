"""Tracks batches that are not confirmed or not yet on all bookies; defines a writer's limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bookie.ids import NO_ENTRY
from bookie.ledger.quorum import Quorum

BATCH_ENTRIES_MAX = 4096
"""The largest number of entries in a batch. Entries of 100 bytes cost a fifth less time in batches
of this size than in batches of 1024 entries. Larger batches would block the event loop too long."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of one writer."""

    add_timeout_seconds: float = 5.0
    """The time after which a bookie that has not answered a batch counts as failed."""
    in_flight_bytes_max: int = 64 * 1024 * 1024
    """The number of payload bytes in retained batches at which the writer accepts no further
    batch."""
    in_flight_batches_max: int = 1024
    """The number of retained batches at which the writer accepts no further batch."""
    unforced_batches_max: int = 4096
    """With deferred sync: the number of confirmed, unsynced batches at which the writer starts a
    force."""
    eager_batches_max: int = 4
    """While this number of batches is pending, a batch that is not full waits for more entries. So
    batches become larger when the load increases."""
    retry_seconds: float = 1.0
    """The time after which a dead slot with an open stream is probed."""
    resend_seconds: float = 0.1
    """The shortest pause before a batch is sent again to a bookie that answered
    TOO_MANY_REQUESTS."""
    rate_patience_seconds: float = 60.0
    """The longest time for which appends wait for a bookie that only answers TOO_MANY_REQUESTS."""
    reread_seconds: float = 0.05
    """The first pause after a failed compare-and-set; each further pause is twice as long."""
    reread_seconds_max: float = 1.0
    replace_after_seconds: float = 3.0
    """The time in which a broken stream may reconnect before its bookie is replaced."""
    urgent_seconds: float = 0.1
    """The time to reconnect, instead of `replace_after_seconds`, if an ack quorum needs the
    slot."""
    spare_seconds: float = 1.0
    """The pause before the next search for newcomers, after a search found no newcomer."""
    changes_per_minute_max: int = 20
    """The limit of ensemble changes per minute; 0 never replaces a bookie. Each change counts for a
    minute after its proposal. If this limit delays a change, an append without an ack quorum waits
    for the change, but not longer than its add timeout."""


@dataclass(slots=True)
class PendingBatch:
    """The state of one batch, without its payload, from its append until its release.

    With deferred sync, the state is also kept until the batch is synced.
    """

    number: int
    last_entry_id: int
    length_after: int
    """The payload bytes of the ledger from its first entry to the end of this batch."""
    payload_bytes: int
    classes: Iterable[int]
    slots: int
    """The slots that store any entry of the batch."""
    acked: int = 0
    """The slots that acknowledged every entry of the batch that they must store."""
    confirmed: bool = False
    checksum_failed: int = 0
    """The slots that reported once that the bytes of the batch arrived damaged, and got the batch
    again."""
    overdue: bool = False
    """True if the batch's add timeout has passed while bookies were being replaced."""


class BatchWindow:
    """The batches of one ledger from their append to their release, and the confirmed end."""

    def __init__(self, quorum: Quorum, limits: WriterLimits) -> None:
        self._quorum = quorum
        self._limits = limits
        self.next_entry_id = 0
        self.length = 0
        """The payload bytes of the ledger from its first entry to the last assigned id."""
        self.last_add_confirmed = NO_ENTRY
        self.length_confirmed = 0
        """The payload bytes of the ledger up to the LAC, which is its length if it is closed
        now."""
        self.pending: deque[PendingBatch] = deque()
        """Batches that are not confirmed, in id order; always a subset of `retained`."""
        self.retained: dict[int, PendingBatch] = {}
        """Batches that are not released, by batch number, in id order."""
        self.retained_bytes = 0
        self._made = 0

    @property
    def has_room(self) -> bool:
        limits = self._limits
        return (
            self.retained_bytes < limits.in_flight_bytes_max
            and len(self.retained) < limits.in_flight_batches_max
        )

    def take(self, count: int, payload_bytes: int) -> PendingBatch:
        """Assign the next `count` ids to a new batch."""
        assert 1 <= count <= BATCH_ENTRIES_MAX
        classes = self._quorum.classes_in(self.next_entry_id, count)
        slots = self._quorum.slots_for(classes)
        self.next_entry_id += count
        self.length += payload_bytes
        last = self.next_entry_id - 1
        batch = PendingBatch(self._made, last, self.length, payload_bytes, classes, slots)
        self._made += 1
        self.pending.append(batch)
        self.retained[batch.number] = batch
        self.retained_bytes += payload_bytes
        return batch

    def advance(self, batch: PendingBatch) -> None:
        """Move the LAC to the end of `batch`."""
        assert batch.last_entry_id > self.last_add_confirmed
        self.last_add_confirmed = batch.last_entry_id
        self.length_confirmed = batch.length_after

    def release(self, batch: PendingBatch) -> None:
        del self.retained[batch.number]
        self.retained_bytes -= batch.payload_bytes

    def clear(self) -> None:
        self.pending.clear()
        self.retained.clear()
        self.retained_bytes = 0

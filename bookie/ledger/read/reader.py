"""Plans reads: chooses a replica for each range of ids, and another replica after a failure.

A read covers ids ``first … last``. Except in `ReaderHandle.read_unconfirmed`, all of these ids are
confirmed: the caller has limited `last` to the LAC, or to the last entry of a closed ledger. The
read handles one fragment after the other, and within a fragment one window of ids after the other.
The entries of a window are delivered in id order. The event `Continue` fetches the next window.

The ids of a window that have the same write set form a **part**. Without striping, a window has one
part; otherwise, it has one part for each class. One replica serves a part as long as it returns
entries. If the replica fails for the next id (no such entry, unreadable, wrong digest, no answer),
the next replica of the write set serves the part. If a replica does not answer soon, a second
replica is asked as well, and the first answer with entries is used. If only replicas that answered
TOO_MANY_REQUESTS can serve the id, the read waits for the shortest pause that one of them asked
for. The read waits at most `rate_patience_seconds` for one id. The read fails only if all replicas
failed for the same id. If all replicas deny the entry, the read ends with `NoSuchEntryError`. If
any replica failed for another reason, the read asks all replicas again. After `attempts_max`
rounds, the read ends with the error of one of these replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import Entry
from bookie.errors import BookieError, NoSuchEntryError, error_for_status
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import CancelTimer, StartTimer, TimerFired, TimerId
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum, Stripe
from bookie.ledger.striping import is_run

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Continue:
    """Begin the read, or continue after a delivery."""


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """A bookie answered, or the call failed; `entries` are the verified entries of `batch`.

    If an entry's digest fails, `batch` and `entries` end before this entry, `next_entry_id` is its
    id, and `stopped_by` is `Status.BAD_CHECKSUM`.
    """

    request: int
    status: Status
    batch: EntryBatch | None = None
    entries: Sequence[Entry] = ()
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK
    message: str = ""
    retry_after_seconds: float = 0.0
    """With TOO_MANY_REQUESTS: the pause that the bookie asks for; 0 if it asks for none."""


ReaderEvent = Continue | ReadAnswered | TimerFired


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask a bookie for the ids ``first_entry_id … last_entry_id`` (inclusive) of `stripe`."""

    request: int
    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    stripe: Stripe


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver the next entries to the caller, at least one, in id order and without a gap."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class ReadDone:
    """All entries of the range were delivered."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """No replica could return the next entry; the entries delivered earlier are correct."""

    error: BookieError


ReaderEffect = SendRead | Deliver | ReadDone | ReadFailed | StartTimer | CancelTimer


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of one read."""

    speculative_read_seconds: float = 2.0
    """Seconds of silence after which a second replica is also asked."""
    attempts_max: int = 2
    """The number of rounds over all replicas before an id counts as unreadable."""
    retry_seconds: float = 0.5
    """The pause before the next round over all replicas."""
    rate_patience_seconds: float = 60.0
    """The longest time that one id may wait for bookies that answer TOO_MANY_REQUESTS."""
    striped_window_entries: int = 4096
    """The largest number of ids in a window of a striped ledger; the reader must sort a window's
    entries."""


@dataclass(slots=True)
class _Part:
    """The ids of one class in the current window, and the state of their read."""

    stripe: Stripe
    position: int
    """The next id to read; above `last` when the part is complete."""
    last: int
    entries: Sequence[Entry] = ()
    replica: int = 0
    """The position in the write set of the replica that serves this part."""
    failures: dict[int, tuple[Status, str]] = field(default_factory=dict)
    """Maps a slot to the reason why it failed to serve `position` in this round."""
    attempts: int = 0
    retries_after: dict[int, float] = field(default_factory=dict)
    """Maps a slot to the pause, in seconds, that its bookie asked for in this round."""
    waited_seconds: float = 0.0
    """The seconds that `position` has waited for bookies that answered TOO_MANY_REQUESTS."""
    requests: dict[int, int] = field(default_factory=dict)
    """Maps the number of each unanswered request to its slot."""


class LedgerRead:
    """One read of a range of entries. Other code must not change the fields."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first_entry_id: int,
        last_entry_id: int,
        *,
        replica: int = 0,
        suspects: int = 0,
        limits: ReaderLimits | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        """Pass `quorum` if it was already built for `metadata`, because building it is costly."""
        assert 0 <= first_entry_id <= last_entry_id
        self.metadata = metadata
        self.limits = limits or ReaderLimits()
        self.quorum = quorum or Quorum.of(metadata)
        self.position = first_entry_id
        """The first id that is not delivered yet."""
        self.last_entry_id = last_entry_id
        self.replica = replica % metadata.write_quorum_size
        """The position in the write set that is asked first; several readers should use different
        positions."""
        self.bookies: Sequence[str] = ()
        self.parts: list[_Part] = []
        self.suspects = suspects
        """Slots that recently failed or were silent, as a bit mask; these slots are asked last."""
        self.ended = False
        self._requests_made = 0

    def step(self, event: ReaderEvent) -> list[ReaderEffect]:
        """Handle one event; return the effects, which must be carried out in order."""
        if self.ended:
            return []
        match event:
            case Continue():
                return self._next_window() if not self.parts else []
            case ReadAnswered():
                return self._on_answer(event)
            case TimerFired(timer):
                return self._on_timer(timer)
            case _:
                assert_never(event)

    # -- windows -----------------------------------------------------------------------------------

    def _next_window(self) -> list[ReaderEffect]:
        if self.position > self.last_entry_id:
            self.ended = True
            return [ReadDone()]
        first, last = self.position, self.last_entry_id
        fragments = self.metadata.fragments
        fragment = self.metadata.fragment_of(first)
        for later in fragments:
            if later.first_entry_id > first:
                last = min(last, later.first_entry_id - 1)
                break
        if self.quorum.is_striped:
            last = min(last, first + self.limits.striped_window_entries - 1)
        self.bookies = fragment.bookies
        self.parts = []
        for index in self.quorum.classes_in(first, last - first + 1):
            stripe = self.quorum.stripe_of_class(index)
            self.parts.append(_Part(stripe, stripe.next_id(first), last, replica=self.replica))
        return [effect for part in self.parts for effect in self._ask(part)]

    def _deliver(self) -> list[ReaderEffect]:
        """Deliver the entries read so far; a window with several parts must be complete first."""
        parts = self.parts
        if len(parts) > 1 and any(part.position <= part.last for part in parts):
            return []
        entries = parts[0].entries
        if len(parts) > 1:
            # Entries are tuples that begin with a unique id, so they are sorted by id.
            entries = sorted(entry for part in parts for entry in part.entries)
        self.position = entries[-1].entry_id + 1
        self.replica = parts[0].replica
        self.parts = []
        return [Deliver(entries)]

    # -- parts -------------------------------------------------------------------------------------

    def _ask(self, part: _Part) -> list[ReaderEffect]:
        """Ask the next replica that has not failed in this round and has no unanswered request."""
        members = self.quorum.write_set(part.position)
        members = members[part.replica :] + members[: part.replica]
        busy = part.requests.values()
        for slot in sorted(members, key=lambda slot: self.suspects >> slot & 1):
            if slot in part.failures or slot in busy:
                continue
            request = self._requests_made
            self._requests_made += 1
            part.requests[request] = slot
            timer = ("speculate", request)
            return [
                SendRead(request, self.bookies[slot], part.position, part.last, part.stripe),
                StartTimer(timer, self.limits.speculative_read_seconds),
            ]
        return []

    def _on_answer(self, answer: ReadAnswered) -> list[ReaderEffect]:
        part = next((p for p in self.parts if answer.request in p.requests), None)
        if part is None:
            return []
        slot = part.requests.pop(answer.request)
        effects: list[ReaderEffect] = [CancelTimer(("speculate", answer.request))]
        status, message = answer.status, answer.message
        batch = answer.batch
        if status is Status.OK:
            status = answer.stopped_by
            if batch is not None and batch.count and is_run(batch, part.stripe, part.position):
                return effects + self._on_progress(part, slot, answer)
            if status is Status.OK:
                status, message = Status.IO_ERROR, "the answer does not hold what was asked for"
        part.failures[slot] = (status, message)
        if status is Status.TOO_MANY_REQUESTS and answer.retry_after_seconds:
            part.retries_after[slot] = answer.retry_after_seconds
        elif not status.is_definite_negative:
            self.suspects |= 1 << slot
        if part.requests:
            return effects
        return effects + (self._ask(part) or self._all_failed(part))

    def _on_progress(self, part: _Part, slot: int, answer: ReadAnswered) -> list[ReaderEffect]:
        effects: list[ReaderEffect] = [CancelTimer(("speculate", other)) for other in part.requests]
        part.requests.clear()
        self.suspects &= ~(1 << slot)
        part.entries = [*part.entries, *answer.entries] if part.entries else answer.entries
        part.position = part.stripe.next_id(part.entries[-1].entry_id + 1)
        part.failures.clear()
        part.retries_after.clear()
        part.attempts, part.waited_seconds = 0, 0.0
        members = self.quorum.write_set(part.position)
        if slot in members:
            part.replica = members.index(slot)
        if answer.stopped_by is not Status.OK and part.position <= part.last:
            # The replica said why it cannot serve the next id, so another replica takes over.
            part.failures[slot] = (answer.stopped_by, answer.message)
            part.replica = (part.replica + 1) % len(members)
        delivered = self._deliver()
        if delivered or part.position > part.last:
            return effects + delivered
        return effects + (self._ask(part) or self._all_failed(part))

    def _all_failed(self, part: _Part) -> list[ReaderEffect]:
        """Start another round or fail, because no replica is left for `part.position`."""
        undenied = [f for f in part.failures.values() if not f[0].is_definite_negative]
        soonest = min(part.retries_after.values(), default=0.0)
        if soonest and part.waited_seconds + soonest <= self.limits.rate_patience_seconds:
            part.waited_seconds += soonest
            return [StartTimer(("retry", self.parts.index(part)), soonest)]
        part.attempts += 1
        if undenied and not soonest and part.attempts < self.limits.attempts_max:
            return [StartTimer(("retry", self.parts.index(part)), self.limits.retry_seconds)]
        self.ended = True
        where = f"entry {part.position} of ledger {self.metadata.ledger_id}"
        if undenied:
            status, message = undenied[0]
            text = f"{where} could not be read: {message or status.name}"
            error = error_for_status(status, text, soonest)
        else:
            error = NoSuchEntryError(f"{where} does not exist on any bookie that should store it")
        timers = [request for p in self.parts for request in p.requests]
        return [*(CancelTimer(("speculate", r)) for r in timers), ReadFailed(error)]

    def _on_timer(self, timer: TimerId) -> list[ReaderEffect]:
        kind, number = timer
        if kind == "retry":
            part = self.parts[number]
            part.failures.clear()
            part.retries_after.clear()
            return self._ask(part)
        assert kind == "speculate"
        asked = next((p for p in self.parts if number in p.requests), None)
        if asked is None:
            return []
        self.suspects |= 1 << asked.requests[number]
        return self._ask(asked)

"""C16: what each bookie may say after what it said, over all of its lives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.ledger_history.ledger_events import BookieEvent, BookieEventKind, LedgerHistory
from tests.ledger_history.ledger_view import Findings

_ACKS = {
    BookieEventKind.ADD_ACK,
    BookieEventKind.DEFERRED_ADD_ACK,
    BookieEventKind.RECOVERY_ADD_ACK,
}
_DENIALS = {BookieEventKind.NO_SUCH_ENTRY, BookieEventKind.NO_SUCH_ENTRY_FENCING}
_PROMISES = {
    *_ACKS,
    BookieEventKind.FENCE_ACK,
    BookieEventKind.SYNC_END,
}


def check_bookies(history: LedgerHistory, findings: Findings) -> None:
    """C16: promises of a bookie hold for all of its lives.

    After a fence was answered, only entries accepted before are acknowledged to plain adds. An
    entry that a fencing read was denied is never acknowledged to a plain add. An acknowledged entry
    was accepted and then synced; it is never denied, and never has another payload. A plain read
    may deny what was acknowledged after it began. After a failed sync this life promises nothing.
    Destroyed data, and a deleted ledger, excuse a denial, also of entries that were accepted before
    the deletion and acknowledged after it.

    With deferred sync an acknowledged entry is not denied in the same life. Once a force was
    answered that began later, it was synced, and no later life denies it.
    """
    bookies: dict[str, _BookieRules] = {}
    for event in sorted(history.bookie_events, key=lambda one: one.index):
        rules = bookies.get(event.bookie_id)
        if rules is None:
            rules = bookies[event.bookie_id] = _BookieRules(findings)
        rules.see(event)


@dataclass(slots=True)
class _LedgerAtBookie:
    """What one bookie said about one ledger."""

    fenced: BookieEvent | None = None
    deleted: BookieEvent | None = None
    accepted: dict[int, BookieEvent] = field(default_factory=dict)
    """The first accept of each entry in its latest life, since the data was destroyed."""
    acknowledged: dict[int, BookieEvent] = field(default_factory=dict)
    """Entries that no life may deny."""
    written: dict[int, BookieEvent] = field(default_factory=dict)
    """Entries that were acknowledged with deferred sync, which the same life may not deny."""
    denied: dict[int, BookieEvent] = field(default_factory=dict)
    """Entries that fencing reads were denied."""


def _is_of_deleted(ack: BookieEvent, ledger: _LedgerAtBookie, accepted: BookieEvent | None) -> bool:
    """Whether the ledger was deleted between the accept and the ack, which promises nothing then.

    Another life acknowledges only if the deletion was lost.
    """
    deleted = ledger.deleted
    if deleted is None or accepted is None or deleted.epoch != ack.epoch:
        return False
    return accepted.index < deleted.index


class _BookieRules:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._ledgers: defaultdict[int, _LedgerAtBookie] = defaultdict(_LedgerAtBookie)
        self._sync_began: BookieEvent | None = None
        self._synced_until = -1
        """Everything that this life accepted before this index is durable."""
        self._sync_error: BookieEvent | None = None
        self._unforced: list[tuple[BookieEvent, _LedgerAtBookie]] = []
        """What this life acknowledged with deferred sync and no force covers."""
        self._was_destroyed = False
        """It may hold entries from before that were never accepted as far as is known."""
        self._epoch = -1

    def see(self, event: BookieEvent) -> None:
        """The next event of this bookie."""
        if event.epoch != self._epoch:
            if event.epoch < self._epoch:
                self._add(event, f"an event of life {event.epoch} after life {self._epoch} began")
            self._epoch = event.epoch
            self._sync_began, self._synced_until, self._sync_error = None, -1, None
            self._unforced.clear()
        if self._sync_error is not None and event.kind in _PROMISES:
            self._add(event, f"{event.kind.value} after a failed sync", self._sync_error)
        self._see_sync(event)
        if event.kind is BookieEventKind.DISK_DESTROYED:
            self._ledgers.clear()
            self._was_destroyed = True
        elif event.kind is BookieEventKind.FORCE_ACK:
            self._see_force(event)
        if event.ledger_id is None:
            return
        if event.kind is BookieEventKind.LEDGER_DELETED:
            # What it accepted and fenced stays known: a crash may bring the ledger back.
            self._ledgers[event.ledger_id].deleted = event
            self._ledgers[event.ledger_id].acknowledged.clear()
            self._ledgers[event.ledger_id].written.clear()
            return
        ledger = self._ledgers[event.ledger_id]
        if event.kind is BookieEventKind.FENCE_ACK:
            ledger.fenced = ledger.fenced or event
        if event.entry_id is None:
            return
        if event.kind is BookieEventKind.ACCEPT:
            self._see_accept(event, ledger, event.entry_id)
        elif event.kind in _ACKS:
            self._see_ack(event, ledger, event.entry_id)
        elif event.kind in _DENIALS:
            self._see_denial(event, ledger, event.entry_id)

    def _see_sync(self, event: BookieEvent) -> None:
        if event.kind is BookieEventKind.SYNC_BEGIN:
            self._sync_began = event
        elif event.kind is BookieEventKind.SYNC_END:
            began = event if self._sync_began is None else self._sync_began
            self._synced_until = max(self._synced_until, began.index)
            self._sync_began = None
        elif event.kind is BookieEventKind.SYNC_ERROR:
            self._sync_error = event

    def _see_accept(self, event: BookieEvent, ledger: _LedgerAtBookie, entry_id: int) -> None:
        before = ledger.accepted.get(entry_id)
        if before is None or before.epoch != event.epoch:
            ledger.accepted[entry_id] = event

    def _see_ack(self, event: BookieEvent, ledger: _LedgerAtBookie, entry_id: int) -> None:
        accepted = ledger.accepted.get(entry_id)
        is_deferred = event.kind is BookieEventKind.DEFERRED_ADD_ACK
        if accepted is None:
            if not self._was_destroyed:
                self._add(event, "an ack of an entry that it never accepted")
        elif not is_deferred and self._is_unsynced(event, accepted):
            self._add(event, "an ack before the sync", accepted)
        if event.kind is not BookieEventKind.RECOVERY_ADD_ACK:
            self._see_plain_ack(event, ledger, entry_id)
        if _is_of_deleted(event, ledger, accepted):
            return
        if is_deferred:
            ledger.written[entry_id] = event
            self._unforced.append((event, ledger))
            return
        before = ledger.acknowledged.setdefault(entry_id, event)
        if None not in (before.digest, event.digest) and before.digest != event.digest:
            self._add(event, "an ack of two payloads for one entry", before)

    def _is_unsynced(self, event: BookieEvent, accepted: BookieEvent) -> bool:
        return accepted.epoch == event.epoch and accepted.index > self._synced_until

    def _see_force(self, event: BookieEvent) -> None:
        """What was acknowledged before the force began is durable."""
        left = []
        for ack, ledger in self._unforced:
            if ack.index > event.began:
                left.append((ack, ledger))
                continue
            entry_id = ack.entry_id
            assert entry_id is not None
            if entry_id not in ledger.written:
                continue  # the ledger was deleted
            accepted = ledger.accepted.get(entry_id)
            if accepted is not None and self._is_unsynced(event, accepted):
                self._add(event, "a force was answered before the sync", accepted, ack)
            ledger.acknowledged.setdefault(entry_id, ack)
        self._unforced = left

    def _see_plain_ack(self, event: BookieEvent, ledger: _LedgerAtBookie, entry_id: int) -> None:
        accepted, fence = ledger.accepted.get(entry_id), ledger.fenced
        if fence is not None:
            was_first = accepted is not None and accepted.index < fence.index
            if not was_first or event.epoch != fence.epoch:
                self._add(event, "an ack to a plain add after the fence", fence)
        if entry_id in ledger.denied:
            message = "an ack to a plain add of an entry that it denied to a fencing read"
            self._add(event, message, ledger.denied[entry_id])

    def _see_denial(self, event: BookieEvent, ledger: _LedgerAtBookie, entry_id: int) -> None:
        acknowledged = ledger.acknowledged.get(entry_id)
        written = ledger.written.get(entry_id)
        if acknowledged is None and written is not None and written.epoch == event.epoch:
            acknowledged = written
        # A plain read may have looked before the entry came. A fencing one keeps it out then.
        is_fencing = event.kind is BookieEventKind.NO_SUCH_ENTRY_FENCING
        if acknowledged is not None and (is_fencing or not 0 <= event.began < acknowledged.index):
            self._add(event, "it denies an entry that it acknowledged", acknowledged)
        if event.kind is BookieEventKind.NO_SUCH_ENTRY_FENCING:
            ledger.denied.setdefault(entry_id, event)

    def _add(self, event: BookieEvent, message: str, *before: BookieEvent) -> None:
        ledger_id = -1 if event.ledger_id is None else event.ledger_id
        what = "" if event.entry_id is None else f", entry {event.entry_id}"
        message = f"{event.bookie_id}{what}: {message}"
        self._findings.add("C16", ledger_id, message, *before, event)

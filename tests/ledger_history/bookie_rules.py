"""C16: what each bookie may say after what it said, over all of its lives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.ledger_history.ledger_events import BookieEvent, BookieEventKind, LedgerHistory
from tests.ledger_history.ledger_view import Findings

_ACKS = {BookieEventKind.ADD_ACK, BookieEventKind.RECOVERY_ADD_ACK}
_DENIALS = {BookieEventKind.NO_SUCH_ENTRY, BookieEventKind.NO_SUCH_ENTRY_FENCING}
_PROMISES = {*_ACKS, BookieEventKind.FENCE_ACK, BookieEventKind.SYNC_END}


def check_bookies(history: LedgerHistory, findings: Findings) -> None:
    """C16: promises of a bookie hold for all of its lives.

    After a fence was answered, only entries accepted before are acknowledged to plain adds. An
    entry that a fencing read was denied is never acknowledged to a plain add. An acknowledged entry
    was accepted and then synced; it is never denied, and never has another payload. After a failed
    sync this life promises nothing. Destroyed data, and a deleted ledger, excuse a denial.
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
    accepted: dict[int, BookieEvent] = field(default_factory=dict)
    """The first accept of each entry in its latest life, since the data was destroyed."""
    acknowledged: dict[int, BookieEvent] = field(default_factory=dict)
    denied: dict[int, BookieEvent] = field(default_factory=dict)
    """Entries that fencing reads were denied."""


class _BookieRules:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._ledgers: defaultdict[int, _LedgerAtBookie] = defaultdict(_LedgerAtBookie)
        self._sync_began: BookieEvent | None = None
        self._synced_until = -1
        """Everything that this life accepted before this index is durable."""
        self._sync_error: BookieEvent | None = None
        self._epoch = -1

    def see(self, event: BookieEvent) -> None:
        """The next event of this bookie."""
        if event.epoch != self._epoch:
            if event.epoch < self._epoch:
                self._add(event, f"an event of life {event.epoch} after life {self._epoch} began")
            self._epoch = event.epoch
            self._sync_began, self._synced_until, self._sync_error = None, -1, None
        if self._sync_error is not None and event.kind in _PROMISES:
            self._add(event, f"{event.kind.value} after a failed sync", self._sync_error)
        self._see_sync(event)
        if event.kind is BookieEventKind.DISK_DESTROYED:
            self._ledgers.clear()
        if event.ledger_id is None:
            return
        if event.kind is BookieEventKind.LEDGER_DELETED:
            self._ledgers.pop(event.ledger_id, None)
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
        if accepted is None:
            self._add(event, "an ack of an entry that it never accepted")
        elif accepted.epoch == event.epoch and accepted.index > self._synced_until:
            self._add(event, "an ack before the sync", accepted)
        if event.kind is BookieEventKind.ADD_ACK:
            self._see_plain_ack(event, ledger, entry_id)
        before = ledger.acknowledged.setdefault(entry_id, event)
        if None not in (before.digest, event.digest) and before.digest != event.digest:
            self._add(event, "an ack of two payloads for one entry", before)

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
        if acknowledged is not None:
            self._add(event, "it denies an entry that it acknowledged", acknowledged)
        if event.kind is BookieEventKind.NO_SUCH_ENTRY_FENCING:
            ledger.denied.setdefault(entry_id, event)

    def _add(self, event: BookieEvent, message: str, *before: BookieEvent) -> None:
        ledger_id = -1 if event.ledger_id is None else event.ledger_id
        what = "" if event.entry_id is None else f", entry {event.entry_id}"
        message = f"{event.bookie_id}{what}: {message}"
        self._findings.add("C16", ledger_id, message, *before, event)

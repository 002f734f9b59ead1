"""C5 to C7 and C14: no phantom, no ack after the end, one end for all, and deletion is final."""

from __future__ import annotations

from tests.ledger_history.ledger_events import (
    AppendEvent,
    DeleteEvent,
    FinalLedgerState,
    LedgerEvent,
    OpenEvent,
)
from tests.ledger_history.ledger_view import Findings, LedgerView


def check_phantoms(view: LedgerView, findings: Findings) -> None:
    """C5: no confirmed read and no tail ever returned an entry beyond the end."""
    last = view.last_entry_id
    if last is None:
        return
    for event, copy in view.confirmed_copies():
        if copy.entry_id > last:
            message = f"entry {copy.entry_id} was read, and the ledger ends at {last}"
            findings.add("C5", view.ledger_id, message, event)


def check_fencing(view: LedgerView, findings: Findings) -> None:
    """C6: after a close or recovery returned, no append that is called later is acknowledged.

    No append at all is acknowledged beyond the end, except one with deferred sync before its force.
    """
    first = min(view.endings, key=lambda ending: ending.event.ended, default=None)
    last = view.last_entry_id
    for append in view.appends:
        if not append.is_ok:
            continue
        if first is not None and append.index > first.event.ended:
            message = f"an append was acknowledged after the ledger ended: {append.entry_ids}"
            findings.add("C6", view.ledger_id, message, first.event, append)
        is_beyond = last is not None and any(entry_id > last for entry_id in append.entry_ids)
        if is_beyond and view.is_durable(append):
            message = f"{append.entry_ids} were acknowledged, and the ledger ends at {last}"
            ending = () if first is None else (first.event,)
            findings.add("C6", view.ledger_id, message, *ending, append)


def check_endings(view: LedgerView, findings: Findings) -> None:
    """C7: everybody is told the same last entry and length, and they are true."""
    for one, other in zip(view.endings, view.endings[1:], strict=False):
        if (one.last_entry_id, one.length) != (other.last_entry_id, other.length):
            message = (
                f"it ends at {one.last_entry_id} with {one.length} bytes,"
                f" and at {other.last_entry_id} with {other.length}"
            )
            findings.add("C7", view.ledger_id, message, one.event, other.event)
    final = view.closed
    if final is None:
        if view.endings and view.final is not None and not view.deletions:
            message = f"it was closed, and is {view.final.state.value} at the end"
            findings.add("C7", view.ledger_id, message, view.endings[0].event, view.final)
        return
    for ending in view.endings:
        if (ending.last_entry_id, ending.length) != (final.last_entry_id, final.length):
            message = (
                f"the metadata says that it ends at {final.last_entry_id} with {final.length}"
                f" bytes, not at {ending.last_entry_id} with {ending.length}"
            )
            findings.add("C7", view.ledger_id, message, ending.event, final)
            break
    if final.entries is not None and len(final.entries) == final.last_entry_id + 1:
        length = sum(copy.digest.size for copy in final.entries)
        if length != final.length:
            message = f"its entries have {length} bytes, and its metadata says {final.length}"
            findings.add("C7", view.ledger_id, message, final)


def check_deletion(view: LedgerView, findings: Findings) -> None:
    """C14: after a deletion returned, no open and no append that is called later succeeds.

    A history may give bookies some seconds in which appends do. At the end the metadata does not
    know the ledger. After repair no bookie has data of it.
    """
    deleted = [event for event in view.deletions if event.is_ok]
    first = min(deleted, key=lambda event: event.ended, default=None)
    final = view.final
    if first is not None:
        for event in view.events:
            if not isinstance(event, AppendEvent | OpenEvent) or not event.is_ok:
                continue
            if event.index > first.ended and not _is_in_grace(view, first, event):
                message = f"{_name(event)} succeeded after the deletion"
                findings.add("C14", view.ledger_id, message, first, event)
        if final is not None and final.state is not FinalLedgerState.DELETED:
            message = f"it was deleted, and is {final.state.value} at the end"
            findings.add("C14", view.ledger_id, message, first, final)
    if final is None or final.state is not FinalLedgerState.DELETED:
        return
    if not view.deletions:
        findings.add("C14", view.ledger_id, "it is gone, and nobody deleted it", final)
    left = sorted(bookie for bookie, copies in (final.copies or {}).items() if copies)
    if left and view.state.is_repaired:
        message = f"it was deleted, and {', '.join(left)} still have data of it"
        findings.add("C14", view.ledger_id, message, final)


def _is_in_grace(view: LedgerView, deletion: DeleteEvent, event: LedgerEvent) -> bool:
    seconds = view.history.deletion_grace_seconds
    until = (deletion.returned or 0.0) + seconds
    return seconds > 0 and isinstance(event, AppendEvent) and event.invoked < until


def _name(event: LedgerEvent) -> str:
    return "an append" if isinstance(event, AppendEvent) else "an open"

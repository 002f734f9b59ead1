"""C1 to C4: what is read was appended, everywhere the same, under dense ids, and none is lost."""

from __future__ import annotations

from itertools import pairwise

from tests.ledger_history.ledger_events import (
    AppendEvent,
    EntryCopy,
    EventOutcome,
    LedgerEvent,
    PayloadDigest,
)
from tests.ledger_history.ledger_view import Findings, LedgerView, Witness


def check_integrity(view: LedgerView, findings: Findings) -> None:
    """C1: each entry that anybody ever got was appended, under this id.

    The id of an append whose outcome is unknown shows when somebody reads one of its entries. It
    has to fit to the writer's other appends (C3).
    """
    learned: dict[int, int] = {}
    for event, copy in view.client_copies():
        _check_copy(view, findings, copy, "a reader", learned, event)
    for holder, copy in view.final_copies():
        _check_copy(view, findings, copy, holder, learned, None)
    _check_learned_ids(view, findings, learned)


def _check_copy(
    view: LedgerView,
    findings: Findings,
    copy: EntryCopy,
    holder: str,
    learned: dict[int, int],
    event: LedgerEvent | None,
) -> None:
    entry_id, digest = copy
    seen: tuple[Witness, ...] = () if event is None else (event,)
    attempt = view.attempts.get(digest)
    found = f"{holder} got entry {entry_id} with a payload"
    if attempt is None:
        other = view.acknowledged.get(entry_id)
        acknowledged = () if other is None else (other[1],)
        message = f"{found} that nobody appended: {digest}"
        findings.add("C1", view.ledger_id, message, *seen, *acknowledged)
        return
    append, position = attempt
    if append.outcome is EventOutcome.FAIL:
        message = f"{found} whose append failed without an effect"
        findings.add("C1", view.ledger_id, message, *seen, append)
    elif event is not None and event.ended < append.index:
        message = f"{found} that was appended later"
        findings.add("C1", view.ledger_id, message, *seen, append)
    elif append.is_ok:
        if append.entry_ids[position : position + 1] != (entry_id,):
            message = f"{found} that has another id: {append.entry_ids[position : position + 1]}"
            findings.add("C1", view.ledger_id, message, *seen, append)
    elif learned.setdefault(append.index, entry_id - position) != entry_id - position:
        message = f"{found} that stands under another id, too"
        findings.add("C1", view.ledger_id, message, *seen, append)


def _check_learned_ids(view: LedgerView, findings: Findings, learned: dict[int, int]) -> None:
    """The ids of one writer's appends rise in the order of their calls."""
    for appends in view.writers.values():
        before: tuple[AppendEvent, int] | None = None
        for append in appends:
            first = append.entry_ids[0] if append.is_ok and append.entry_ids else None
            first = learned.get(append.index) if first is None else first
            if first is None:
                continue
            if first < 0 or (before is not None and first < before[1]):
                message = f"the append of entry {first} was called after one with a higher id"
                witness = (append,) if before is None else (before[0], append)
                findings.add("C3", view.ledger_id, message, *witness)
            before = append, first + len(append.digests)


def check_agreement(view: LedgerView, findings: Findings) -> None:
    """C2: an id has one payload, for all readers and on all bookies up to the end."""
    first_seen: dict[int, tuple[PayloadDigest, str, tuple[Witness, ...]]] = {}
    last = view.last_entry_id

    def compare(copy: EntryCopy, holder: str, *witness: Witness) -> None:
        digest, other, seen = first_seen.setdefault(copy.entry_id, (copy.digest, holder, witness))
        if digest != copy.digest:
            message = f"entry {copy.entry_id}: {other} got {digest}, {holder} got {copy.digest}"
            findings.add("C2", view.ledger_id, message, *seen, *witness)

    for event, copy in view.client_copies():
        compare(copy, event.process, event)
    for holder, copy in view.final_copies():
        if last is None or copy.entry_id <= last:
            compare(copy, holder)


def check_ids(view: LedgerView, findings: Findings) -> None:
    """C3: a writer's ids are dense, and acknowledged in order.

    Only an append whose outcome is unknown may have taken the ids of a gap.
    """
    owners: dict[int, AppendEvent] = {}
    for appends in view.writers.values():
        _check_writer(view, findings, appends)
        for append in appends:
            for entry_id in append.entry_ids if append.is_ok else ():
                if owners.setdefault(entry_id, append) is not append:
                    message = f"entry {entry_id} was acknowledged twice"
                    findings.add("C3", view.ledger_id, message, owners[entry_id], append)


def _check_writer(view: LedgerView, findings: Findings, appends: list[AppendEvent]) -> None:
    following, unknown = 0, 0
    before: tuple[AppendEvent, ...] = ()
    for append in appends:
        if not append.is_ok:
            unknown += len(append.digests)
            continue
        ids = append.entry_ids
        if len(ids) != len(append.digests) or any(b != a + 1 for a, b in pairwise(ids)):
            message = f"{len(append.digests)} payloads were acknowledged as {ids}"
            findings.add("C3", view.ledger_id, message, append)
        if not ids:
            continue
        if not following <= ids[0] <= following + unknown:
            message = f"entry {ids[0]} was acknowledged where {following} was due"
            findings.add("C3", view.ledger_id, message, *before, append)
        following, unknown, before = ids[-1] + 1, 0, (append,)
    acknowledged = sorted((one for one in appends if one.entry_ids), key=lambda one: one.entry_ids)
    for one, other in pairwise(acknowledged):
        if one.is_ok and other.is_ok and one.ended > other.ended:
            message = f"entry {other.entry_ids[0]} was acknowledged before {one.entry_ids[0]}"
            findings.add("C3", view.ledger_id, message, one, other)


def check_losses(view: LedgerView, findings: Findings) -> None:
    """C4: a closed ledger has each acknowledged entry, and each up to its end can be read.

    An entry may be missing if an ack quorum of its bookies lost data. One with deferred sync may be
    missing if no force covers it.
    """
    final = view.closed
    if final is None:
        return
    for entry_id, (_, append) in sorted(view.acknowledged.items()):
        is_owed = view.is_durable(append) and not view.may_be_lost(entry_id)
        if entry_id > final.last_entry_id and is_owed:
            message = f"it ends at {final.last_entry_id}, and {entry_id} was acknowledged"
            findings.add("C4", view.ledger_id, message, append, final)
    if final.entries is None:
        findings.troubles.append(f"ledger {view.ledger_id} was not read at the end")
        return
    held = dict(final.entries)
    if [copy.entry_id for copy in final.entries] != sorted(held):
        findings.add("C4", view.ledger_id, "the last read was out of order", final)
    for entry_id in range(final.last_entry_id + 1):
        wanted = view.acknowledged.get(entry_id)
        witness = () if wanted is None else (wanted[1],)
        if entry_id not in held:
            if not view.may_be_lost(entry_id):
                message = f"entry {entry_id} of 0 to {final.last_entry_id} cannot be read"
                findings.add("C4", view.ledger_id, message, *witness, final)
        elif wanted is not None and held[entry_id] != wanted[0]:
            message = f"entry {entry_id} is {held[entry_id]}, and {wanted[0]} was acknowledged"
            findings.add("C4", view.ledger_id, message, *witness, final)

"""L1 to L4: records are what was appended, in one place, once, and none is lost."""

from __future__ import annotations

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_view import LogFindings, PartitionView


def check_contents(view: PartitionView, findings: LogFindings) -> None:
    """L1: what was read was appended to this partition, with this key.

    What publishers write is judged by L8.
    """
    if view.final.is_transactional:
        return
    appended: dict[str, str | None] = {}
    for append in view.appends:
        if append.outcome is not EventOutcome.FAIL:
            keys = append.keys or (None,) * len(append.values)
            appended.update(zip(append.values, keys, strict=True))
    for reader, one in view.seen:
        if one.value not in appended:
            findings.add("L1", view.name, f"{reader} read {one}, which nobody appended")
        elif appended[one.value] != one.key:
            findings.add("L1", view.name, f"{reader} read {one} with another key")


def check_one_order(view: PartitionView, findings: LogFindings) -> None:
    """L2: an offset has one record, and a record has one place, for all who read or were told.

    A compaction copies records to other ledgers. Then only their offsets are compared.
    """
    places: dict[int, tuple[str, int, int]] = {}
    ledgers: dict[tuple[int, int], int] = {}
    for reader, one in view.seen:
        place = (one.value, one.ledger_id, one.entry_id)
        first = places.setdefault(one.offset, place)
        if first != place and not (view.final.is_compacted and first[0] == one.value):
            findings.add("L2", view.name, f"{reader} read {place} at {one.offset}, not {first}")
        _, ledger_id, entry_id = place
        other = ledgers.setdefault((ledger_id, entry_id), one.offset)
        if other != one.offset:
            message = f"entry {entry_id} of ledger {ledger_id} has the offsets {other} and "
            findings.add("L2", view.name, f"{message}{one.offset}")


def check_no_loss(view: PartitionView, findings: LogFindings) -> None:
    """L3: what was acknowledged, or read, is there at the end, at the same offset.

    What a truncation removed may be missing, and no truncation removes more than it was told to.
    """
    final = view.final
    there = {one.offset: one.value for one in final.records}
    for append in view.appends:
        if not append.is_ok:
            continue
        if len(append.offsets) != len(append.values):
            findings.add("L3", view.name, f"{append.handle} was told {len(append.offsets)} offsets")
        for offset, value in zip(append.offsets, append.values, strict=False):
            if offset >= final.start_offset and there.get(offset) != value:
                message = f"{value} was acknowledged at {offset}, where {there.get(offset)} is"
                findings.add("L3", view.name, message)
    for reader, one in view.seen:
        if one.offset >= final.start_offset and one.offset not in there:
            findings.add("L3", view.name, f"{reader} read {one}, and it is gone")
    if final.start_offset > view.truncated_before:
        message = f"it begins at {final.start_offset}; truncated before {view.truncated_before}"
        findings.add("L3", view.name, message)


def check_no_repeat(view: PartitionView, findings: LogFindings) -> None:
    """L4: a value is there once, and a producer is told the same place each time.

    That holds also for records that a truncation removed.
    """
    offsets: dict[str, set[int]] = {}
    for _, one in view.seen:
        offsets.setdefault(one.value, set()).add(one.offset)
    for value, found in offsets.items():
        if len(found) > 1:
            findings.add("L4", view.name, f"{value} is at {sorted(found)}")
    told: dict[str, int] = {}
    for append in view.appends:
        if append.is_ok and append.producer:
            for offset, value in zip(append.offsets, append.values, strict=False):
                first = told.setdefault(value, offset)
                if first != offset:
                    message = f"the producer of {value} was told {first} and {offset}"
                    findings.add("L4", view.name, message)

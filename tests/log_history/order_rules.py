"""L5, L6 and L9: the order of writers, producers and keys; readings without gaps; former owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    LogTruncated,
    ReadingBegan,
    ReadingEnded,
    RecordsAppended,
    RecordsRead,
)
from tests.log_history.log_view import LogFindings, PartitionView


def check_writers(view: PartitionView, findings: LogFindings) -> None:
    """L5: the order of one writer's calls, and of one producer's numbers, is that of the records.

    A record of unknown outcome that was sent again may stand where either call was.
    """
    tries: defaultdict[str, list[RecordsAppended]] = defaultdict(list)
    by_producer: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for append in view.appends:
        if append.outcome is EventOutcome.FAIL:
            continue
        for number, value in enumerate(append.values, append.sequence):
            tries[value].append(append)
            if append.producer:
                known = by_producer[append.producer].setdefault(number, value)
                if known != value:
                    message = f"number {number} of {append.producer} is {known} and {value}"
                    findings.add("L5", view.name, message)
    by_writer: defaultdict[str, list[str]] = defaultdict(list)
    for value, found in tries.items():
        if len(found) == 1 or found[0].is_ok:
            by_writer[found[0].handle].append(value)
    for writer, values in by_writer.items():
        _check_rises(view, f"writer {writer}", values, findings)
    for producer, numbered in by_producer.items():
        values = [numbered[number] for number in sorted(numbered)]
        _check_rises(view, f"producer {producer}", values, findings)


def _check_rises(
    view: PartitionView, who: str, values: Iterable[str], findings: LogFindings
) -> None:
    offsets = view.final_offsets
    found = [(value, offsets[value]) for value in values if value in offsets]
    for (value, offset), (after, later) in pairwise(found):
        if later <= offset:
            findings.add("L5", view.name, f"{who}: {after} at {later}, {value} at {offset}")


def check_keys(views: Iterable[PartitionView], findings: LogFindings) -> None:
    """L5: records of one key, whose partition the log chose, are in one partition of it."""
    homes: dict[tuple[str, str], str] = {}
    for view in views:
        log = view.name.rpartition("#")[0]
        spread = {value for one in view.appends if one.is_spread for value in one.values}
        for one in view.final.records:
            if one.value in spread and one.key is not None:
                home = homes.setdefault((log, one.key), view.name)
                if home != view.name:
                    findings.add("L5", view.name, f"key {one.key} is in {home} as well")


def check_readings(view: PartitionView, findings: LogFindings) -> None:
    """L6: offsets rise, and only control records and truncated ones are left out.

    The end itself has no holes: each offset has a record or a control record.
    """
    final = view.final
    there = {one.offset for one in final.records} | final.controls
    wanted = range(final.start_offset, final.end_offset)
    for offset in wanted:
        if offset not in there:
            findings.add("L6", view.name, f"there is nothing at {offset}")
    for one in final.records:
        if one.offset not in wanted:
            findings.add("L6", view.name, f"{one} is outside of {wanted}")
        if one.offset in final.controls:
            findings.add("L6", view.name, f"{one} is a control record")
    _check_order([one.offset for one in final.records], "the end", view, findings)
    readings: defaultdict[str, list[ReadingBegan | RecordsRead | ReadingEnded]] = defaultdict(list)
    for event in view.events:
        if isinstance(event, ReadingBegan | RecordsRead | ReadingEnded):
            readings[event.handle].append(event)
    for handle, events in readings.items():
        _check_reading(handle, events, view, findings)


def _check_order(
    offsets: list[int], reader: str, view: PartitionView, findings: LogFindings
) -> None:
    for before, after in pairwise(offsets):
        if after <= before:
            findings.add("L6", view.name, f"{reader} read {after} behind {before}")


def _check_reading(
    handle: str,
    events: list[ReadingBegan | RecordsRead | ReadingEnded],
    view: PartitionView,
    findings: LogFindings,
) -> None:
    begun = events[0]
    if not isinstance(begun, ReadingBegan):
        findings.add("L6", view.name, f"{handle} has read without a beginning")
        return
    expected = begun.offset
    for event in events[1:]:
        if isinstance(event, RecordsRead):
            for one in event.records:
                if one.offset < expected:
                    findings.add("L6", view.name, f"{handle} read {one}, and {expected} was next")
                _check_gap(handle, expected, one.offset, event.returned, view, findings)
                expected = one.offset + 1
        elif isinstance(event, ReadingEnded):
            _check_gap(handle, expected, event.next_offset, event.returned, view, findings)


def _check_gap(
    handle: str, start: int, stop: int, until: int, view: PartitionView, findings: LogFindings
) -> None:
    """What is between may be left out only if it was truncated by then."""
    missed = [offset for offset in range(start, stop) if offset in view.known]
    if not missed:
        return
    gone = max((one.before for one in view.of(LogTruncated) if one.called < until), default=0)
    if missed[-1] >= gone:
        last = f"{missed[-1]} ({view.known[missed[-1]]})"
        findings.add("L6", view.name, f"{handle} left out {len(missed)} records, up to {last}")


def check_owners(view: PartitionView, findings: LogFindings) -> None:
    """L9: owners follow each other: what a later one appended stands behind all of an earlier one.

    As soon as an owner has an acknowledgement, no append of a former one that is called afterwards
    is acknowledged. Answers to repeats are no new records, so producers' appends are left out.
    """
    appends = [one for one in view.appends if one.is_ok and not one.producer and one.offsets]
    by_epoch: defaultdict[int, list[RecordsAppended]] = defaultdict(list)
    for one in appends:
        by_epoch[one.epoch].append(one)
    for epoch, found in by_epoch.items():
        handles = {one.handle for one in found}
        if len(handles) > 1:
            findings.add("L9", view.name, f"epoch {epoch} has the owners {sorted(handles)}")
    epochs = sorted(by_epoch)
    for before, after in pairwise(epochs):
        last = max(one.offsets[-1] for one in by_epoch[before])
        first = min(one.offsets[0] for one in by_epoch[after])
        if first <= last:
            message = f"epoch {after} appended at {first}, and epoch {before} at {last}"
            findings.add("L9", view.name, message)
    earliest = float("inf")
    for epoch in reversed(epochs):
        for one in by_epoch[epoch]:
            if one.called > earliest:
                message = f"{one.values} of epoch {epoch} was acknowledged after a takeover"
                findings.add("L9", view.name, message)
        earliest = min(earliest, *(one.returned for one in by_epoch[epoch]))

"""The ranges of a partition in the order in which a reader reads them.

The metadata of a ledger may be newer than the head: the ledger may be CLOSED while its range is
still open in the head. So `completed` fills in the end and the base offset of open ranges:

* If the ledger of the oldest open range is CLOSED, the range ends with the ledger's last entry. An
  empty range is left out.
* If the end of the range before an open range is known, this end is the open range's base offset.

At most one ledger of a partition has unconfirmed entries. So after the last entry of a CLOSED
ledger, a reader continues with the next range. In the head, the range of the CLOSED ledger may
still be open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bookie.log.catalog.log_metadata import LogRange


def completed(ranges: Sequence[LogRange], ends: Mapping[int, int]) -> tuple[LogRange, ...]:
    """Return a head's `ranges`, completed by `ends`: the last entry id of each CLOSED ledger."""
    found: list[LogRange] = []
    end: int | None = None
    for one in ranges:
        if not one.is_open:
            found.append(one)
            end = one.end_offset
            continue
        base = end if one.base_offset is None else one.base_offset
        last = None if base is None else ends.get(one.ledger_id)
        known = replace(one, base_offset=base, last_entry_id=last)
        end = known.end_offset
        if known.count != 0:
            found.append(known)
        else:
            end = base
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """Consecutive entries of one ledger, which a reader reads by one call."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    """The last entry, inclusive; None while entries may still be appended."""
    offset: int
    size_bytes: int | None
    """An upper bound of the payload bytes; None if it is unknown."""


def runs_from(
    ranges: Iterable[LogRange], offset: int, before: int | None = None
) -> list[LedgerRun]:
    """Return the runs of entries of `ranges` from `offset` up to, but not including, `before`.

    Neighbouring ranges that continue the same ledger become one run. The list ends before the first
    range whose offset is unknown.
    """
    runs: list[LedgerRun] = []
    for one in ranges:
        if one.base_offset is None or (before is not None and one.base_offset >= before):
            break
        if one.end_offset is not None and one.end_offset <= offset:
            continue
        run = _clipped(one, one.base_offset, offset, before)
        if runs and _continues(runs[-1], run):
            run = _joined(runs.pop(), run)
        runs.append(run)
    return runs


def _clipped(one: LogRange, base: int, offset: int, before: int | None) -> LedgerRun:
    skipped = max(0, offset - base)
    last = one.last_entry_id
    if last is not None and before is not None:
        last = min(last, one.first_entry_id + before - base - 1)
    return LedgerRun(
        one.ledger_id, one.first_entry_id + skipped, last, base + skipped, one.size_bytes
    )


def _continues(run: LedgerRun, next_run: LedgerRun) -> bool:
    return (
        run.ledger_id == next_run.ledger_id
        and run.last_entry_id is not None
        and run.last_entry_id + 1 == next_run.first_entry_id
    )


def _joined(run: LedgerRun, next_run: LedgerRun) -> LedgerRun:
    sizes = (run.size_bytes, next_run.size_bytes)
    size = None if None in sizes else sum(one or 0 for one in sizes)
    return replace(run, last_entry_id=next_run.last_entry_id, size_bytes=size)

"""Offsets in one textual form: ``{"orders": {"0": 17, "1": 4}}``, of the next record to read.

Spark compares offsets as text. So the same offsets always have the same order: logs by name,
partitions by number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bookie.errors import BadRequestError

LogOffsets = dict[tuple[str, int], int]
"""(log, partition) → the offset of the next record."""

EARLIEST, LATEST = -2, -1
"""As Kafka writes them."""


def as_json(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """The form that Spark keeps."""
    found: dict[str, dict[str, int]] = {}
    for (log, partition), offset in sorted(offsets.items()):
        found.setdefault(log, {})[str(partition)] = offset
    return found


def from_json(given: Any) -> LogOffsets:
    """Offsets in Spark's form.

    Raises:
        BadRequestError: they are none.
    """
    wrong = BadRequestError(
        f'offsets are JSON such as {{"orders": {{"0": 17}}}}, not {json.dumps(given)[:200]}'
    )
    if not isinstance(given, dict):
        raise wrong
    found: LogOffsets = {}
    for log, partitions in given.items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, offset in partitions.items():
            if not partition.isdigit() or type(offset) is not int or offset < EARLIEST:
                raise wrong
            found[log, int(partition)] = offset
    return found


def parse_offsets(option: str, text: str) -> LogOffsets:
    """Offsets that a user wrote.

    Raises:
        BadRequestError: they are none.
    """
    try:
        return from_json(json.loads(text))
    except ValueError:
        raise BadRequestError(
            f'the option {option} is earliest, latest or JSON such as {{"orders": {{"0": 17}}}}'
        ) from None


def limited(
    start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], rows: int
) -> LogOffsets:
    """Offsets with about `rows` records before them, shared in proportion to what waits.

    Each partition with records advances by one at least, so a long backlog elsewhere starves none.
    So there are at most `rows` records, or one for each such partition if those are more.

    Shares are in proportion, so partitions come to their ends together. Equal shares would read a
    short partition far ahead of a long one, and the watermark of a query would drop the long one's.
    """
    waiting = {key: max(0, last - start.get(key, 0)) for key, last in end.items()}
    busy = sum(1 for count in waiting.values() if count)
    shared, spare = sum(waiting.values()) - busy, max(0, rows - busy)
    if shared <= spare:
        return dict(end)
    return {
        key: last - count + 1 + (count - 1) * spare // shared if (count := waiting[key]) else last
        for key, last in end.items()
    }


def rows_between(start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int]) -> int:
    """How many records lie between two offsets; a partition that `start` leaves out begins at 0."""
    return sum(max(0, last - start.get(key, 0)) for key, last in end.items())

"""Offsets in one textual form: ``{"orders": {"0": 17, "1": 4}}``, of the next record to read.

Spark compares offsets as text. So the same offsets always have the same order: logs by name,
partitions by number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
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
    start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], share: Fraction
) -> LogOffsets:
    """Offsets such that about `share` of each partition's records lie before them.

    At least one record does, if there is one. The order of partitions decides which gets it.
    """
    found: LogOffsets = {}
    for key, last in end.items():
        first = min(start.get(key, 0), last)
        found[key] = first + int((last - first) * share)
    if all(found[key] <= start.get(key, 0) for key in found):
        for key, last in sorted(end.items()):
            if start.get(key, 0) < last:
                found[key] = start.get(key, 0) + 1
                break
    return found

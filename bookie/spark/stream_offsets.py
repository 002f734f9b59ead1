"""The JSON form of a stream's offsets: ``{"orders": {"0": 17, "1": 4, "id": "…"}}``.

For each log, here ``orders``, the form has the offset of the next record of each partition, and the
log's id. A later log with the same name has another id. Spark compares offsets by their JSON texts,
so equal offsets must give equal texts. For this reason, logs are sorted by name, and partitions by
number. The id of a log comes after the log's partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bookie.errors import BadRequestError
from bookie.ids import DIGITS_MAX
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.log.catalog.logs import LogName

K = TypeVar("K")
V = TypeVar("V")

LogOffsets = dict[tuple[str, int], int]
"""(log, partition) → the offset of the next record."""

EARLIEST, LATEST = -2, -1
"""The numbers that mean the earliest and the latest offset, as in Kafka."""


ID = "id"
"""The key of a log's id in the JSON form; the other keys of a log are partition numbers."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a stream in its logs."""

    offsets: LogOffsets
    log_ids: Mapping[str, str] = field(default_factory=dict)
    """The `LogDefinition.log_id` of each log, by name; older versions of bookie wrote no ids."""

    def logs(self) -> list[str]:
        return sorted({log for log, _ in self.offsets})

    def is_other(self, log: str, definition: LogDefinition) -> bool:
        """True if `definition` belongs to another log with the same name.

        A log never loses a partition. So offsets without an id belong to another log if they name a
        partition that `definition` lacks.
        """
        known = self.log_ids.get(log)
        if known is not None:
            return known != definition.log_id
        return any(name == log and at >= definition.partitions for name, at in self.offsets)


def as_json(at: StreamOffset) -> dict[str, dict[str, int | str]]:
    """Return the offsets and ids in the JSON form that Spark keeps."""
    found: dict[str, dict[str, int | str]] = {}
    for (log, partition), offset in sorted(at.offsets.items()):
        found.setdefault(log, {})[str(partition)] = offset
    for log, given in found.items():
        if log in at.log_ids:
            given[ID] = at.log_ids[log]
    return found


def from_json(given: Any) -> StreamOffset:
    """Parse offsets in the JSON form that Spark keeps; logs are named as `plain_name` says.

    Raises:
        BadRequestError: `given` is not in that form, or has two values for one partition.
    """
    wrong = BadRequestError(
        f'offsets are JSON such as {{"orders": {{"0": 17}}}}, not {json.dumps(given)[:200]}'
    )
    if not isinstance(given, dict):
        raise wrong
    log_ids: dict[str, str] = {}
    found = StreamOffset({}, log_ids)
    for text, partitions in given.items():
        if not isinstance(partitions, dict):
            raise wrong
        log = plain_name(text)
        for partition, offset in partitions.items():
            if partition == ID and isinstance(offset, str):
                set_once(log_ids, log, offset, f"the id of {log}")
            elif is_partition(partition) and type(offset) is int and offset >= EARLIEST:
                key = (log, int(partition))
                set_once(found.offsets, key, offset, f"partition {key[1]} of {log}")
            else:
                raise wrong
    return found


def plain_name(log: str) -> str:
    """Return a log's name without the default namespace: `orders` for `default/orders`.

    Raises:
        BadRequestError: `log` is not a valid log name.
    """
    return str(LogName.parse(log))


def set_once(found: dict[K, V], key: K, value: V, what: str) -> None:
    """Set `found[key]`; the same value may be given again, by another spelling of a log's name.

    Raises:
        BadRequestError: `found[key]` has another value; the message calls the key `what`.
    """
    if found.setdefault(key, value) != value:
        raise BadRequestError(f"{what} is given twice, as {found[key]} and as {value}")


def is_partition(text: str) -> bool:
    """True if `text` is a number that a partition may have."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def parse_offsets(option: str, text: str) -> StreamOffset:
    """Parse offsets that a user gave as an option.

    Raises:
        BadRequestError: the text is not JSON with offsets, or has two offsets for one partition.
    """
    try:
        return from_json(json.loads(text))
    except BadRequestError as error:
        raise BadRequestError(f"the option {option}: {error}") from None
    except (ValueError, RecursionError):
        raise BadRequestError(
            f'the option {option} is earliest, latest or JSON such as {{"orders": {{"0": 17}}}}'
        ) from None


def begins_of(start: StreamOffset, end: StreamOffset) -> LogOffsets:
    """Return the offsets in `start` at which a batch from `start` to `end` begins.

    The result omits partitions that the batch must read from their earliest record. A partition is
    omitted if `start` lacks it, or if its log was deleted and created again before `end`.

    Older versions wrote no ids. If only `end` has the id of a log, the log counts as created again
    if `end` lacks a partition of `start`, or has a lower offset.
    """
    return {
        key: offset
        for key, offset in start.offsets.items()
        if key in end.offsets and not _is_anew(key[0], start, end)
    }


def _is_anew(log: str, start: StreamOffset, end: StreamOffset) -> bool:
    former, later = start.log_ids.get(log), end.log_ids.get(log)
    if former is not None or later is None:
        return later is not None and former != later
    return any(
        end.offsets.get(key, -1) < offset for key, offset in start.offsets.items() if key[0] == log
    )


def limited(
    start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int], rows: int
) -> LogOffsets:
    """Return the end offsets of a batch of about `rows` of the records between `start` and `end`.

    Each partition with records gets at least one record, so no partition waits for the backlog of
    another partition. If there are more partitions with records than `rows`, the batch has one
    record of each partition.

    The other records are divided in proportion to each partition's number of records, so all
    partitions reach their ends in the same batch. With equal shares, a query would finish a short
    partition long before a long partition. The query's watermark would then drop records of the
    long partition.
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
    """Count the records between two offsets; a partition without a start begins at 0."""
    return sum(max(0, last - start.get(key, 0)) for key, last in end.items())

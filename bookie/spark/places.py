"""Where reading begins and ends, as options say it, and as offsets.

======================= ================================ ===========================================
option                  values                           meaning
======================= ================================ ===========================================
``startingOffsets``     ``earliest``, ``latest``, JSON   JSON: by log and partition; -2 is earliest,
                                                         -1 latest
``startingTimestamp``   ms since 1970, or ISO 8601       the first record of this time or later
``endingOffsets``       ``latest``, JSON                 batch only; the record at the offset is not
                                                         read
``endingTimestamp``     as above                         batch only; records of this time or later
                                                         are not read, up to the first of them
======================= ================================ ===========================================
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.env import Moment
from bookie.env.clock import parse_moment
from bookie.errors import BadRequestError
from bookie.spark.options import SparkOptions
from bookie.spark.selection import Surveys
from bookie.spark.stream_offsets import EARLIEST, LATEST, LogOffsets, StreamOffset, parse_offsets


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A place in every partition. One of the fields is set."""

    option: str
    everywhere: int | None = None
    """`EARLIEST` or `LATEST`."""
    offsets: StreamOffset | None = None
    time: Moment | None = None


def take_start(options: SparkOptions, default: int) -> ReadPlace:
    """Where reading begins.

    Raises:
        BadRequestError: that is no place.
    """
    return _take(options, "startingOffsets", "startingTimestamp", default)


def take_end(options: SparkOptions) -> ReadPlace:
    """Where a batch ends.

    Raises:
        BadRequestError: that is no place, or a batch cannot end there.
    """
    end = _take(options, "endingOffsets", "endingTimestamp", LATEST)
    offsets = {} if end.offsets is None else end.offsets.offsets
    if end.everywhere == EARLIEST or EARLIEST in offsets.values():
        raise BadRequestError(
            "reading cannot end at the earliest record; give another endingOffsets"
        )
    return end


def refuse_end(options: SparkOptions) -> None:
    """A stream has no end.

    Raises:
        BadRequestError: one is given.
    """
    if options.take("endingOffsets") is not None or options.take("endingTimestamp") is not None:
        raise BadRequestError(
            "a stream has no end; leave endingOffsets out, or read a batch with spark.read"
        )


def _take(options: SparkOptions, by_offset: str, by_time: str, default: int) -> ReadPlace:
    options.take_one((by_offset, by_time))
    text, time = options.take(by_offset), options.take(by_time)
    if time is not None:
        return ReadPlace(by_time, time=int(time) if time.strip().isdigit() else parse_moment(time))
    if text is None:
        return ReadPlace(by_offset, default)
    match text.strip().lower():
        case "earliest":
            return ReadPlace(by_offset, EARLIEST)
        case "latest":
            return ReadPlace(by_offset, LATEST)
        case _:
            return ReadPlace(by_offset, offsets=parse_offsets(by_offset, text))


def resolve(place: ReadPlace, surveys: Surveys) -> LogOffsets:
    """The offset of a place in every selected partition.

    Raises:
        BadRequestError: the offsets leave a partition out, or name one that is not read. Or they
            are those of another log of the name.
        LogTruncatedError: an offset was truncated.
    """
    found: LogOffsets = {}
    stated = place.offsets or StreamOffset({})
    for log, one in surveys.by_log.items():
        if stated.log_ids.get(log, one.definition.log_id) != one.definition.log_id:
            raise BadRequestError(
                f"the option {place.option} has offsets of another log {log}, which was deleted "
                f"and made anew; give earliest, or offsets of the new log"
            )
    given = dict(stated.offsets)
    for (log, partition), (earliest, end) in surveys.bounds().items():
        if place.time is not None:
            found[log, partition] = surveys.by_log[log].locate(partition, time=place.time)
            continue
        wanted = place.everywhere
        if wanted is None:
            wanted = given.pop((log, partition), None)
        if wanted is None:
            raise BadRequestError(
                f"the option {place.option} says nothing of partition {partition} of {log}"
            )
        if wanted > end:
            raise BadRequestError(
                f"the option {place.option} has {wanted} for partition {partition} of {log}, "
                f"which ends at {end}"
            )
        found[log, partition] = {EARLIEST: earliest, LATEST: end}.get(wanted, wanted)
    if given:
        (log, partition), *_ = sorted(given)
        raise BadRequestError(
            f"the option {place.option} names partition {partition} of {log}, which is not read"
        )
    return found

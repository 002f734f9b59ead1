"""The options for the start and the end of a read, and the offsets that these options mean.

======================= ================================ ===========================================
option                  values                           meaning
======================= ================================ ===========================================
``startingOffsets``     ``earliest``, ``latest``, JSON   JSON: by log and partition; -2 is earliest,
                                                         -1 latest
``startingTimestamp``   ms since 1970, ISO 8601, JSON    the first record of this time or later;
                                                         JSON: by log and partition
``endingOffsets``       ``latest``, JSON                 batch only; the read ends before the record
                                                         at the offset
``endingTimestamp``     ms since 1970, ISO 8601, JSON    batch only; the read ends before the first
                                                         record of this time or later
======================= ================================ ===========================================

``startingOffsetsByTimestamp`` and ``endingOffsetsByTimestamp`` are Kafka's names of the options for
times as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from bookie.env import Moment
from bookie.env.clock import parse_moment
from bookie.errors import BadRequestError
from bookie.spark.options import SparkOptions
from bookie.spark.selection import Surveys
from bookie.spark.stream_offsets import (
    EARLIEST,
    LATEST,
    LogOffsets,
    StreamOffset,
    is_partition,
    parse_offsets,
    plain_name,
    set_once,
)

STARTING_BY_TIME = "startingOffsetsByTimestamp"
ENDING_BY_TIME = "endingOffsetsByTimestamp"


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """The start or end of a read in every partition; exactly one field after `option` is set."""

    option: str
    everywhere: int | None = None
    """Either `EARLIEST` or `LATEST`."""
    offsets: StreamOffset | None = None
    time: Moment | None = None
    times: Mapping[tuple[str, int], Moment] | None = None


def take_start(options: SparkOptions, default: int) -> ReadPlace:
    """Parse the options that say where a read begins.

    Raises:
        BadRequestError: the value of an option is invalid.
    """
    by_time = ("startingTimestamp", STARTING_BY_TIME)
    return _take(options, "startingOffsets", by_time, default)


def take_end(options: SparkOptions) -> ReadPlace:
    """Parse the options that say where a batch read ends.

    Raises:
        BadRequestError: the value of an option is invalid, or means the earliest record.
    """
    end = _take(options, "endingOffsets", ("endingTimestamp", ENDING_BY_TIME), LATEST)
    offsets = {} if end.offsets is None else end.offsets.offsets
    if end.everywhere == EARLIEST or EARLIEST in offsets.values():
        raise BadRequestError(
            "reading cannot end at the earliest record; give another endingOffsets"
        )
    return end


def refuse_end(options: SparkOptions) -> None:
    """Refuse options for an end, because a stream has no end.

    Raises:
        BadRequestError: an option for an end is given.
    """
    given = [options.take("endingOffsets"), options.take("endingTimestamp", ENDING_BY_TIME)]
    if any(one is not None for one in given):
        raise BadRequestError(
            "a stream has no end; leave endingOffsets out, or read a batch with spark.read"
        )


def _take(
    options: SparkOptions, by_offset: str, by_time: tuple[str, str], default: int
) -> ReadPlace:
    given = options.take_one((by_offset, *by_time))
    text, time = options.take(by_offset), options.take(*by_time)
    if time is not None:
        return _parse_time(str(given), time.strip())
    if text is None:
        return ReadPlace(by_offset, default)
    match text.strip().lower():
        case "earliest":
            return ReadPlace(by_offset, EARLIEST)
        case "latest":
            return ReadPlace(by_offset, LATEST)
        case _:
            return ReadPlace(by_offset, offsets=parse_offsets(by_offset, text))


def _parse_time(option: str, text: str) -> ReadPlace:
    if text.startswith("{"):
        return ReadPlace(option, times=_parse_times(option, text))
    return ReadPlace(option, time=_moment(option, text))


def _moment(option: str, text: str) -> Moment:
    try:
        return parse_moment(text)
    except BadRequestError as error:
        raise BadRequestError(f"the option {option}: {error}") from None


def _parse_times(option: str, text: str) -> dict[tuple[str, int], Moment]:
    """Parse times by log and partition, each in ms since 1970 or in ISO 8601."""
    wrong = BadRequestError(
        f'the option {option} is a time or JSON such as {{"orders": {{"0": 1700000000000}}}}'
    )
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    found: dict[tuple[str, int], Moment] = {}
    for name, partitions in given.items():
        if not isinstance(partitions, dict):
            raise wrong
        log = plain_name(name)
        for partition, time in partitions.items():
            if not is_partition(partition) or type(time) not in (int, str):
                raise wrong
            key = (log, int(partition))
            moment = _moment(option, str(time))
            set_once(found, key, moment, f"the option {option}: partition {key[1]} of {log}")
    return found


def resolve(place: ReadPlace, surveys: Surveys) -> LogOffsets:
    """Return the offset that `place` means in each selected partition.

    Raises:
        BadRequestError: the option omits a selected partition, or names a partition that is not
            selected. Also raised for an offset beyond the partition's end, or for offsets of a
            deleted log that had the same name.
        BookieError: the sizes and bounds of a log cannot be read.
    """
    _require_all(place, surveys)
    found: LogOffsets = {}
    stated = place.offsets or StreamOffset({})
    for log, one in surveys.by_log.items():
        if stated.log_ids.get(log, one.definition.log_id) != one.definition.log_id:
            raise BadRequestError(
                f"the option {place.option} has offsets of another log {log}, which was deleted "
                f"and made anew; give earliest, or offsets of the new log"
            )
    for (log, partition), (earliest, end) in surveys.bounds().items():
        key = (log, partition)
        time = place.time if place.times is None else place.times[key]
        if time is not None:
            found[key] = surveys.by_log[log].locate(partition, time=time)
            continue
        wanted = place.everywhere if place.offsets is None else stated.offsets[key]
        assert wanted is not None, "one of the fields is set"
        if wanted > end:
            raise BadRequestError(
                f"the option {place.option} has {wanted} for partition {partition} of {log}, "
                f"which ends at {end}"
            )
        found[key] = {EARLIEST: earliest, LATEST: end}.get(wanted, wanted)
    return found


def _require_all(place: ReadPlace, surveys: Surveys) -> None:
    """Refuse offsets or times unless they name exactly the partitions that are read.

    Raises:
        BadRequestError: a partition is missing, or a named partition is not read.
    """
    if place.times is not None:
        given = set(place.times)
    elif place.offsets is not None:
        given = set(place.offsets.offsets)
    else:
        return
    for log, partition in sorted(surveys.bounds().keys() - given):
        raise BadRequestError(
            f"the option {place.option} says nothing of partition {partition} of {log}"
        )
    for log, partition in sorted(given - surveys.bounds().keys()):
        raise BadRequestError(
            f"the option {place.option} names partition {partition} of {log}, which is not read"
        )

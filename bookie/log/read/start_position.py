"""The place at which a reader starts: a caller gives the place, and a search finds its offset.

Each record contains the greatest timestamp of all records up to itself. The metadata of each closed
range contains the greatest timestamp of all records up to the range's end. These greatest
timestamps never decrease along the log. So for a time t, a binary search over chunks, ranges and
entries finds the first record whose greatest timestamp is t or later. This record is also the first
record whose own timestamp is t or later.

In two cases, the search may find an entry before the wanted record, but never a later entry. First,
the found entry may be a control record, which also has a timestamp. Second, in a transactional log,
the greatest timestamp of a record may come from an entry that was not published. So after the
search, a reader skips the few older records before the wanted record.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bookie.env import Moment, moment_ms
from bookie.errors import BadRequestError, NoSuchLedgerError
from bookie.ids import MAX_ID
from bookie.ledger.connection.arguments import checked_entry_id
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.record.log_record import LogPosition, greatest_timestamp_ms


@dataclass(frozen=True, slots=True)
class AtTime:
    """The place of the first record with this or a later timestamp."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtEntry:
    """The place of an entry in one of the log's ledgers; the entry's offset is not yet known."""

    ledger_id: int
    entry_id: int


Place: TypeAlias = Literal["earliest", "latest"] | int | AtEntry | AtTime
"""A place that was checked. An integer is an offset."""

LogStart: TypeAlias = Literal["earliest", "latest"] | int | LogPosition | tuple[int, int] | None
"""A place as a caller gives it: an offset, a record's position, or (ledger id, entry id).

``earliest`` or None is the first record that was not truncated. ``latest`` is the end of the log.
"""


def checked_place(start: object = None, time: Moment | None = None) -> Place:
    """Return the place that `start` or `time` names; if both are None, return ``earliest``.

    Raises:
        BadRequestError: `start` or `time` is not valid, or both are given.
    """
    if time is not None:
        if start is not None:
            raise BadRequestError("a place in a log is named by a time or otherwise, not by both")
        return AtTime(moment_ms(time))
    match start:
        case None | "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case LogPosition(offset=offset) if offset >= 0:
            # A compaction may have copied the ledger of the position, but offsets stay.
            return _checked_offset(offset)
        case int() if not isinstance(start, bool):
            return _checked_offset(start)
        case (ledger_id, entry_id, *_):
            return _checked_entry(ledger_id, entry_id)
        case _:
            pass
    raise BadRequestError(
        f"{start!r} is no place in a log: name 'earliest', 'latest', an offset, a position, or a "
        "ledger id and an entry id"
    )


def checked_end(end: object) -> int | AtEntry | None:
    """Return the place before which a reader stops; None for the end of the log.

    Raises:
        BadRequestError: `end` is neither an offset nor a position.
    """
    if end is None:
        return None
    place = checked_place(end)
    if isinstance(place, int | AtEntry):
        return place
    raise BadRequestError(f"a reader ends before an offset or a position, not at {end!r}")


def addressed_partition(place: object, partition: int | None) -> int | None:
    """Return the number of the partition that a caller names; None if no partition is named.

    A `LogPosition` names its partition. For all other places, the result is `partition`, which may
    be None.

    Raises:
        BadRequestError: `place` is a position in another partition than `partition`.
    """
    if not isinstance(place, LogPosition):
        return partition
    if partition not in (None, place.partition):
        raise BadRequestError(
            f"{place} is in partition {place.partition}, not in partition {partition}"
        )
    return place.partition


def _checked_offset(offset: int) -> int:
    if not 0 <= offset <= MAX_ID:
        raise BadRequestError(f"{offset} is not an offset in a log")
    return offset


def _checked_entry(ledger_id: object, entry_id: object) -> AtEntry:
    ledger = checked_entry_id(ledger_id, "the ledger id of a position")
    entry = checked_entry_id(entry_id, "the entry id of a position")
    if ledger < 0 or entry < 0:
        raise BadRequestError(f"({ledger_id}, {entry_id}) is not the position of a record")
    return AtEntry(ledger, entry)


# -- offsets of places -----------------------------------------------------------------------------


async def find_end(ranges: LogRanges, readers: LedgerReaders) -> int:
    """Return the offset after the last confirmed entry.

    Raises:
        NoSuchLedgerError: the ledger of an open range does not exist, although the head still names
            it.
        NotEnoughBookiesError: too few bookies answered, so the end of an open range is unknown.
        MetadataError: the metadata store failed.
    """
    while True:
        if not ranges.ranges:
            return ranges.head.start_offset
        last = next(one for one in reversed(ranges.ranges) if one.base_offset is not None)
        if last.end_offset is not None:
            return last.end_offset
        try:
            entry_id = await confirmed_end(last, ranges, readers)
        except NoSuchLedgerError:
            await after_vanished(last.ledger_id, ranges, readers)
            continue
        if entry_id is not None:
            assert last.base_offset is not None
            return last.base_offset + entry_id + 1 - last.first_entry_id


async def confirmed_end(one: LogRange, ranges: LogRanges, readers: LedgerReaders) -> int | None:
    """Return the id of an open range's last confirmed entry, or None if its ledger is CLOSED.

    If the ledger is CLOSED, this call notes the ledger's end in `ranges`.

    Raises:
        NoSuchLedgerError, NotEnoughBookiesError, MetadataError: see `find_end`.
    """
    handle = await readers.open(one.ledger_id)
    last = await handle.refresh()
    if not handle.is_closed:
        return last
    ranges.note_end(one.ledger_id, last)
    return None


async def find_entry(
    ranges: LogRanges, readers: LedgerReaders, ledger_id: int, entry_id: int
) -> LogRange:
    """Return the range of an entry.

    For the entry id right after a ledger's end, the result is the ledger's last range.

    Raises:
        LogTruncatedError: no range contains the entry: the entry was truncated, or a compaction
            copied it.
        NoSuchLedgerError, NotEnoughBookiesError, MetadataError: see `find_end`.
    """
    found = await ranges.of_entry(ledger_id, entry_id)
    if found.last_entry_id is not None and entry_id > found.last_entry_id:
        # A compaction may have copied a later range of the ledger, but not the range `found`.
        handle = await readers.open(ledger_id)
        if (handle.last_entry_id if handle.is_closed else await handle.refresh()) >= entry_id:
            raise ranges.unnamed_error(ledger_id, entry_id)
    return found


async def after_vanished(ledger_id: int, ranges: LogRanges, readers: LedgerReaders) -> None:
    """Read the head again, because a ledger that it names is missing.

    Raises:
        NoSuchLedgerError: the head has not changed, so it still names the missing ledger.
        NoSuchLogError: the log was deleted.
        MetadataError: the metadata store failed.
    """
    readers.forget()
    if not await ranges.refresh():
        await ranges.require_log()
        raise NoSuchLedgerError(
            f"ledger {ledger_id} of {ranges.partition} does not exist, but the log names it"
        )


async def find_time(ranges: LogRanges, readers: LedgerReaders, timestamp_ms: int) -> int:
    """Return the offset of the first record with a timestamp of `timestamp_ms` or later.

    The result may be a smaller offset in two cases, which the module's docstring describes. If all
    records have earlier timestamps, the result is the end of the log.

    Raises:
        NoSuchLedgerError, NoSuchEntryError, UnavailableError, CorruptionError: a read failed.
    """
    while True:
        offset, vanished = await _find_time(ranges, readers, timestamp_ms)
        if vanished is not None:
            await after_vanished(vanished, ranges, readers)
        elif offset is not None:
            return max(offset, ranges.head.start_offset)


async def _find_time(
    ranges: LogRanges, readers: LedgerReaders, timestamp_ms: int
) -> tuple[int | None, int | None]:
    """Return (offset, None); if a ledger is missing, return (None, the id of this ledger).

    If the known ranges have changed, return (None, None): the caller must search again.
    """
    end = None
    for one in await ranges.from_time(timestamp_ms):
        if one.base_offset is None:
            break
        try:
            last = one.last_entry_id
            if last is None:
                last = await confirmed_end(one, ranges, readers)
                if last is None:
                    return None, None
            handle = await readers.open(one.ledger_id)
            entry_id = await _first_of_time(handle, one.first_entry_id, last, timestamp_ms)
        except NoSuchLedgerError:
            return None, one.ledger_id
        offset = one.base_offset + entry_id - one.first_entry_id
        if entry_id <= last:
            return offset, None
        end = offset
    return (await find_end(ranges, readers) if end is None else end), None


async def _first_of_time(handle: ReaderHandle, first: int, last: int, timestamp_ms: int) -> int:
    """Return the first entry whose greatest timestamp is `timestamp_ms` or later; else last + 1."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        if await _greatest_ms(handle, middle) < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return low


async def _greatest_ms(handle: ReaderHandle, entry_id: int) -> int:
    async with aclosing(handle.read_acknowledged(entry_id, entry_id)) as batches:
        async for entries in batches:
            return greatest_timestamp_ms(entries[0].payload)
    raise AssertionError("a read returns its entry or raises")

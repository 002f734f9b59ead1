"""Places in a log, as callers name them: where a reader starts, or goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bookie.env import Moment, moment_ms
from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.ledger.connection.arguments import checked_entry_id
from bookie.log.record.log_record import LogPosition


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp or a later one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtEntry:
    """An entry of a ledger of the log, whose offset has to be found."""

    ledger_id: int
    entry_id: int


Place: TypeAlias = Literal["earliest", "latest"] | int | AtEntry | AtTime
"""A place that was checked; an integer is an offset."""

LogStart: TypeAlias = Literal["earliest", "latest"] | int | LogPosition | tuple[int, int] | None
"""How callers name a place: an offset, a record's position, or (ledger id, entry id).

``earliest`` is the first record that was not truncated, ``latest`` the end of the log. None is
``earliest``.
"""


def checked_place(start: object = None, time: Moment | None = None) -> Place:
    """The place that a caller names, by `LogStart` or by a time.

    Raises:
        BadRequestError: it is none, or both are given.
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
            # Its ledger may have been compacted. Offsets stay.
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
    """Where a reader ends; None if it goes on to the end of the log.

    Raises:
        BadRequestError: it is no offset and no position.
    """
    if end is None:
        return None
    place = checked_place(end)
    if isinstance(place, int | AtEntry):
        return place
    raise BadRequestError(f"a reader ends before an offset or a position, not at {end!r}")


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

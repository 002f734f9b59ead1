"""The records of a log in the metadata store: its definition, and the ranges of each partition.

A log has one or more **partitions**. Each partition is an ordered list of **ranges** of ledger
entries. The newest ranges are in the partition's **head**, a record that changes by compare-and-set
only. When a head has many ranges, the oldest ranges move to a **chunk**, a separate record that
never changes. Chunks are numbered. The head contains the numbers of the partition's chunks.

Each entry of a partition has an **offset**: the first entry has offset 0, and each next entry has
an offset that is one greater. The offset of a range's first entry follows from the ranges before
that range. The offset of a range is unknown only while the range before it is open.

===================== ===============================================================
rule                  why
===================== ===============================================================
offsets continue      a range begins at the base offset + count of the range before
times never decrease  the end time of a closed range is the greatest timestamp so far
open ranges come last a roll adds a new ledger while the old ledger is still open;
(at most two)         until the old one is closed, the new base offset is null
chunks: all closed    a chunk never changes
===================== ===============================================================

Each record is canonical JSON (:mod:`bookie.metadata.json_record`), version 1. The formats are
``bookie-log``, ``bookie-log-head`` and ``bookie-log-chunk``. In JSON, a range is ``[ledger, first
entry, last entry or null, base offset or null, end time or null, bytes or null]``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bookie.errors import BadRequestError, FormatError
from bookie.ids import MAX_ID
from bookie.metadata import json_record
from bookie.metadata.json_record import JsonFields

_LOG_FORMAT = "bookie-log"
_HEAD_FORMAT = "bookie-log-head"
_CHUNK_FORMAT = "bookie-log-chunk"
_VERSION = 1
_OPEN_RANGES_MAX = 2

PARTITIONS_MAX = 1024

NO_TIME_MS = -(2**63)
"""The value that stands for the greatest timestamp while a partition has no records."""


class LogMode(enum.Enum):
    """The way in which records are written to a log. It is fixed when the log is created."""

    WRITER = "writer"
    """Each partition has one exclusive owner, which appends to the ledger of the last range."""
    TRANSACTIONAL = "transactional"
    """Many publishers write ranges. One transaction publishes all ranges of a batch."""


@dataclass(frozen=True, slots=True)
class LogDefinition:
    """The definition of a log. Only the field `is_deleted` ever changes."""

    log_id: str
    """A random id, so that a later log of the same name has another id."""
    mode: LogMode = LogMode.WRITER
    partitions: int = 1
    created_ms: int = 0
    is_deleted: bool = False
    """True while the log is being deleted; nobody may open such a log."""

    def validate(self) -> None:
        """Check the fields.

        Raises:
            BadRequestError: a field is out of range; the message names the first such field.
        """
        _check(0 < len(self.log_id) <= 64, "the log's id is empty or too long")
        _check(
            1 <= self.partitions <= PARTITIONS_MAX,
            f"a log has 1 to {PARTITIONS_MAX} partitions, not {self.partitions}",
        )


@dataclass(frozen=True, slots=True)
class LogRange:
    """Consecutive entries of one ledger that are also consecutive entries of a partition."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    """The id of the last entry; `first_entry_id` - 1 in an empty range; None while it is open."""
    base_offset: int | None
    """Offset of the range's first entry; None while the range before it is open."""
    end_ms: int | None = None
    """The greatest timestamp of this and all earlier ranges; None while this range is open."""
    size_bytes: int | None = None
    """Payload bytes of the range's entries; None while the range is open."""

    @property
    def is_open(self) -> bool:
        """True while an owner may append entries to the range."""
        return self.last_entry_id is None

    @property
    def count(self) -> int | None:
        """The number of entries; None while the range is open."""
        if self.last_entry_id is None:
            return None
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def end_offset(self) -> int | None:
        """The offset after the range's last entry; None while that offset is unknown."""
        if self.last_entry_id is None or self.base_offset is None:
            return None
        return self.base_offset + self.last_entry_id - self.first_entry_id + 1


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The owner of a partition, as stored in the partition's head."""

    name: str
    """Host and process, or a name that the owner chose. Several owners may share a name."""
    since_ms: int
    claim: str = ""
    """A random text; it distinguishes two owners with the same `name` and the same `since_ms`."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """All state of a partition that changes, such as owner, newest ranges and start offset."""

    log_id: str
    """The id of the log."""
    epoch: int = 0
    """The partition's fencing token, which rises by one with each new owner."""
    owner: LogOwner | None = None
    """The owner that began `epoch`; None after this owner has left, and in transactional logs."""
    ranges: tuple[LogRange, ...] = ()
    first_chunk: int = 0
    """The number of the partition's oldest existing chunk."""
    next_chunk: int = 0
    """The number that the next new chunk gets; without chunks it equals `first_chunk`."""
    chunk_bytes: int = 0
    """Payload bytes of the ranges in all existing chunks."""
    start_offset: int = 0
    """The first offset that was not truncated: all entries before it were truncated."""
    has_producers: bool = False
    """True if the newest closed range has a snapshot of producers. A truncation keeps that range,
    even if all of its entries are before `start_offset`."""

    @property
    def open_ranges(self) -> tuple[LogRange, ...]:
        """The ranges that are still open: no range, the last range, or the last two ranges."""
        return tuple(one for one in self.ranges[-_OPEN_RANGES_MAX:] if one.is_open)

    @property
    def end_ms(self) -> int:
        """The greatest timestamp of the head's closed ranges; `NO_TIME_MS` if there is none."""
        closed = [one.end_ms for one in self.ranges if one.end_ms is not None]
        return closed[-1] if closed else NO_TIME_MS

    def validate(self) -> None:
        """Check that the fields follow the rules of the format.

        Raises:
            BadRequestError: a rule is broken; the message names the first broken rule.
        """
        _check_ranges(self.ranges, open_max=_OPEN_RANGES_MAX)
        _check(0 <= self.epoch <= MAX_ID, "the epoch is out of range")
        _check(0 <= self.first_chunk <= self.next_chunk <= MAX_ID, "chunk numbers do not ascend")
        _check(0 <= self.chunk_bytes <= MAX_ID, "the size of the chunks is out of range")
        _check(0 <= self.start_offset <= MAX_ID, "the start offset is out of range")


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Older ranges of a partition; all of them are closed. A chunk never changes."""

    number: int
    ranges: tuple[LogRange, ...]

    def validate(self) -> None:
        """Check that the fields follow the rules of the format.

        Raises:
            BadRequestError: a rule is broken; the message names the first broken rule.
        """
        _check(0 <= self.number <= MAX_ID, "the chunk's number is out of range")
        _check(bool(self.ranges), "a chunk has at least one range")
        _check_ranges(self.ranges, open_max=0)


def encode_log_definition(definition: LogDefinition) -> bytes:
    """Encode a definition as bytes.

    Raises:
        BadRequestError: a field is out of range.
    """
    definition.validate()
    fields = {
        "log_id": definition.log_id,
        "mode": definition.mode.value,
        "partitions": definition.partitions,
        "created_ms": definition.created_ms,
        "is_deleted": definition.is_deleted,
    }
    return json_record.encode(_LOG_FORMAT, _VERSION, fields)


def decode_log_definition(data: bytes) -> LogDefinition:
    """Decode the definition in `data`.

    Raises:
        FormatError: `data` is not a definition, is damaged, or has a newer version.
    """
    fields = json_record.decode(_LOG_FORMAT, _VERSION, data)
    try:
        definition = LogDefinition(
            log_id=fields.text("log_id"),
            mode=LogMode(fields.text("mode")),
            partitions=fields.integer("partitions"),
            created_ms=fields.integer("created_ms"),
            is_deleted=fields.boolean("is_deleted"),
        )
        definition.validate()
    except (ValueError, BadRequestError) as error:
        raise FormatError(f"{_LOG_FORMAT}: {error}") from error
    return definition


def encode_log_head(head: LogHead) -> bytes:
    """Encode a head as bytes.

    Raises:
        BadRequestError: the head breaks a rule.
    """
    head.validate()
    owner = head.owner
    fields = {
        "log_id": head.log_id,
        "epoch": head.epoch,
        "owner": None if owner is None else _owner_fields(owner),
        "ranges": _range_rows(head.ranges),
        "first_chunk": head.first_chunk,
        "next_chunk": head.next_chunk,
        "chunk_bytes": head.chunk_bytes,
        "start_offset": head.start_offset,
        **({"has_producers": True} if head.has_producers else {}),
    }
    return json_record.encode(_HEAD_FORMAT, _VERSION, fields)


def _owner_fields(owner: LogOwner) -> dict[str, object]:
    claim = {"claim": owner.claim} if owner.claim else {}
    return {**claim, "name": owner.name, "since_ms": owner.since_ms}


def decode_log_head(data: bytes) -> LogHead:
    """Decode the head in `data`.

    Raises:
        FormatError: `data` is not a head, is damaged, has a newer version, or breaks a rule.
    """
    fields = json_record.decode(_HEAD_FORMAT, _VERSION, data)
    owner = None
    if fields.values.get("owner") is not None:
        found = fields.inner("owner")
        claim = found.text("claim") if "claim" in found.values else ""
        owner = LogOwner(found.text("name"), found.integer("since_ms"), claim)
    head = LogHead(
        log_id=fields.text("log_id"),
        epoch=fields.integer("epoch"),
        owner=owner,
        ranges=_decode_ranges(fields),
        first_chunk=fields.integer("first_chunk"),
        next_chunk=fields.integer("next_chunk"),
        chunk_bytes=fields.integer("chunk_bytes"),
        start_offset=fields.integer("start_offset"),
        has_producers="has_producers" in fields.values and fields.boolean("has_producers"),
    )
    try:
        head.validate()
    except BadRequestError as error:
        raise FormatError(f"{_HEAD_FORMAT}: {error}") from error
    return head


def encode_log_chunk(chunk: LogChunk) -> bytes:
    """Encode a chunk as bytes.

    Raises:
        BadRequestError: the chunk breaks a rule.
    """
    chunk.validate()
    fields = {"number": chunk.number, "ranges": _range_rows(chunk.ranges)}
    return json_record.encode(_CHUNK_FORMAT, _VERSION, fields)


def decode_log_chunk(data: bytes) -> LogChunk:
    """Decode the chunk in `data`.

    Raises:
        FormatError: `data` is not a chunk, is damaged, has a newer version, or breaks a rule.
    """
    fields = json_record.decode(_CHUNK_FORMAT, _VERSION, data)
    chunk = LogChunk(number=fields.integer("number"), ranges=_decode_ranges(fields))
    try:
        chunk.validate()
    except BadRequestError as error:
        raise FormatError(f"{_CHUNK_FORMAT}: {error}") from error
    return chunk


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise BadRequestError(rule)


def _check_ranges(ranges: Sequence[LogRange], *, open_max: int) -> None:
    open_ranges = 0
    known_end = None
    end_ms = NO_TIME_MS
    for index, one in enumerate(ranges):
        first, last, base = one.first_entry_id, one.last_entry_id, one.base_offset
        where = f"range {index} (ledger {one.ledger_id})"
        _check(0 <= one.ledger_id <= MAX_ID and 0 <= first <= MAX_ID, f"{where}: ids out of range")
        _check(last is None or first - 1 <= last <= MAX_ID, f"{where}: ends before it starts")
        _check(not (open_ranges and last is not None), f"{where}: is closed after an open one")
        _check((base is None) == bool(open_ranges), f"{where}: wrongly has or lacks a base offset")
        _check(base is None or 0 <= base <= MAX_ID, f"{where}: base offset out of range")
        _check(known_end is None or base == known_end, f"{where}: starts at another offset")
        lacks_time, lacks_size = one.end_ms is None, one.size_bytes is None
        is_whole = lacks_time == lacks_size == one.is_open
        _check(is_whole, f"{where}: wrongly has or lacks end time or size")
        if one.end_ms is not None:
            _check(end_ms <= one.end_ms <= MAX_ID, f"{where}: its end time goes back")
            end_ms = one.end_ms
        _check(0 <= (one.size_bytes or 0) <= MAX_ID, f"{where}: its size is out of range")
        known_end = one.end_offset
        open_ranges += one.is_open
    _check(open_ranges <= open_max, f"{open_ranges} ranges are open, {open_max} may be")


def _range_rows(ranges: Iterable[LogRange]) -> list[list[int | None]]:
    return [
        [
            one.ledger_id,
            one.first_entry_id,
            one.last_entry_id,
            one.base_offset,
            one.end_ms,
            one.size_bytes,
        ]
        for one in ranges
    ]


def _decode_ranges(fields: JsonFields) -> tuple[LogRange, ...]:
    ranges = []
    for row in fields.rows("ranges", width=6):
        ledger_id, first_entry_id, last_entry_id, base_offset, end_ms, size_bytes = row
        if ledger_id is None or first_entry_id is None:
            raise FormatError(f"{fields.where}: a range has no ledger or no first entry")
        ranges.append(
            LogRange(ledger_id, first_entry_id, last_entry_id, base_offset, end_ms, size_bytes)
        )
    return tuple(ranges)

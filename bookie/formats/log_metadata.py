"""What the metadata store holds about a log: one head under compare-and-set, and sealed chunks.

A log is an ordered list of **ranges** of ledgers. The newest ranges are in the head. When there are
many, the oldest ones move to a **chunk**, a separate record that never changes again. Chunks are
numbered; the head says which numbers are the log's.

Each record of a log has an **offset**: 0 for the first ever appended, rising by one. The
offset of a range's first record follows from the ranges before it. It is unknown only while the
range before it is still open.

===================== ===============================================================
rule                  why
===================== ===============================================================
offsets continue      base + count of a closed range is the base of the next one
open ranges come last a roll appends the new ledger before the old one is closed, so
(at most two)         there may be two; the second one's base is null until then
transactional: none   publishers append whole, closed ranges only
chunks: all closed    a chunk never changes
===================== ===============================================================

Canonical JSON (:mod:`bookie.formats.json_record`): formats ``bookie-log-head`` and
``bookie-log-chunk``, version 1. A range is ``[ledger, first, last or null, base or null]``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bookie.errors import BadRequestError, FormatError
from bookie.formats import json_record
from bookie.formats.digest import DigestType
from bookie.formats.json_record import JsonFields
from bookie.ids import MAX_ID

_HEAD_FORMAT = "bookie-log-head"
_CHUNK_FORMAT = "bookie-log-chunk"
_VERSION = 1
_OPEN_RANGES_MAX = 2


class LogMode(enum.Enum):
    """Who appends to a log; fixed when it is created."""

    WRITER = "writer"
    """One exclusive owner, whose ledger is the open last range."""
    TRANSACTIONAL = "transactional"
    """Many publishers of closed ranges, each by one compare-and-set."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Consecutive entries of one ledger, which are consecutive records of the log."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    """Inclusive; `first_entry_id` - 1 if the range is empty; None while it is open."""
    base_offset: int | None
    """Offset of the first record; None while the range before it is open."""

    @property
    def is_open(self) -> bool:
        """Whether records are still appended to it."""
        return self.last_entry_id is None

    @property
    def count(self) -> int | None:
        """The number of records; None while it is open."""
        if self.last_entry_id is None:
            return None
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def end_offset(self) -> int | None:
        """The offset after the last record; None while that is not known."""
        if self.last_entry_id is None or self.base_offset is None:
            return None
        return self.base_offset + self.last_entry_id - self.first_entry_id + 1


@dataclass(frozen=True, slots=True)
class LogPolicies:
    """How a log's ledgers are made, and when its records go. None means no limit."""

    ensemble_size: int = 3
    write_quorum_size: int = 3
    ack_quorum_size: int = 2
    digest_type: DigestType = DigestType.CRC32C
    roll_bytes_max: int | None = 1024 * 1024 * 1024
    roll_seconds_max: int | None = None
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    quota_bytes: int | None = None
    """Appends fail when the log is larger."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """The newest ranges of a log and everything about it that changes."""

    mode: LogMode
    policies: LogPolicies = field(default_factory=LogPolicies)
    ranges: tuple[LogRange, ...] = ()
    first_chunk: int = 0
    """Number of the oldest chunk that still exists."""
    next_chunk: int = 0
    """Number of the chunk that will be sealed next; equal to `first_chunk` if there are none."""
    start_offset: int = 0
    """Records before this offset have been truncated."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Application id → number of the last batch it has published."""

    def validate(self) -> None:
        """Check the rules above.

        Raises:
            BadRequestError: naming the first rule that is broken.
        """
        _check_ranges(self.ranges, open_max=_OPEN_RANGES_MAX)
        if self.mode is LogMode.TRANSACTIONAL and any(r.is_open for r in self.ranges):
            raise BadRequestError("a transactional log has no open ranges")
        _check(0 <= self.first_chunk <= self.next_chunk <= MAX_ID, "chunk numbers do not ascend")
        _check(0 <= self.start_offset <= MAX_ID, "the start offset is out of range")
        _check(
            all(0 <= batch <= MAX_ID for batch in self.transactions.values()),
            "the batch number of a transaction is out of range",
        )
        _check_policies(self.policies)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Older ranges of a log, all closed; never changes."""

    number: int
    ranges: tuple[LogRange, ...]

    def validate(self) -> None:
        """Check the rules above.

        Raises:
            BadRequestError: naming the first rule that is broken.
        """
        _check(0 <= self.number <= MAX_ID, "the chunk's number is out of range")
        _check(bool(self.ranges), "a chunk has at least one range")
        _check_ranges(self.ranges, open_max=0)


def encode_log_head(head: LogHead) -> bytes:
    """The bytes of a head.

    Raises:
        BadRequestError: the head breaks a rule.
    """
    head.validate()
    policies = head.policies
    fields = {
        "mode": head.mode.value,
        "policies": {
            "ensemble_size": policies.ensemble_size,
            "write_quorum_size": policies.write_quorum_size,
            "ack_quorum_size": policies.ack_quorum_size,
            "digest_type": policies.digest_type.name,
            "roll_bytes_max": policies.roll_bytes_max,
            "roll_seconds_max": policies.roll_seconds_max,
            "retention_seconds": policies.retention_seconds,
            "retention_bytes": policies.retention_bytes,
            "quota_bytes": policies.quota_bytes,
        },
        "ranges": _range_rows(head.ranges),
        "first_chunk": head.first_chunk,
        "next_chunk": head.next_chunk,
        "start_offset": head.start_offset,
        "transactions": dict(head.transactions),
    }
    return json_record.encode(_HEAD_FORMAT, _VERSION, fields)


def decode_log_head(data: bytes) -> LogHead:
    """The head in `data`.

    Raises:
        FormatError: not a head, damaged, of a newer version, or against the rules.
    """
    fields = json_record.decode(_HEAD_FORMAT, _VERSION, data)
    transactions = fields.inner("transactions")
    try:
        head = LogHead(
            mode=LogMode(fields.text("mode")),
            policies=_decode_policies(fields.inner("policies")),
            ranges=_decode_ranges(fields),
            first_chunk=fields.integer("first_chunk"),
            next_chunk=fields.integer("next_chunk"),
            start_offset=fields.integer("start_offset"),
            transactions={name: transactions.integer(name) for name in transactions.names()},
        )
        head.validate()
    except (ValueError, KeyError, BadRequestError) as error:
        raise FormatError(f"{_HEAD_FORMAT}: {error}") from error
    return head


def encode_log_chunk(chunk: LogChunk) -> bytes:
    """The bytes of a chunk.

    Raises:
        BadRequestError: the chunk breaks a rule.
    """
    chunk.validate()
    fields = {"number": chunk.number, "ranges": _range_rows(chunk.ranges)}
    return json_record.encode(_CHUNK_FORMAT, _VERSION, fields)


def decode_log_chunk(data: bytes) -> LogChunk:
    """The chunk in `data`.

    Raises:
        FormatError: not a chunk, damaged, of a newer version, or against the rules.
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
    for index, one in enumerate(ranges):
        first, last, base = one.first_entry_id, one.last_entry_id, one.base_offset
        where = f"range {index} (ledger {one.ledger_id})"
        _check(0 <= one.ledger_id <= MAX_ID and 0 <= first <= MAX_ID, f"{where}: ids out of range")
        _check(last is None or first - 1 <= last <= MAX_ID, f"{where}: ends before it starts")
        _check(not (open_ranges and last is not None), f"{where}: is closed after an open one")
        _check((base is None) == bool(open_ranges), f"{where}: wrongly has or lacks a base offset")
        _check(base is None or 0 <= base <= MAX_ID, f"{where}: base offset out of range")
        _check(known_end is None or base == known_end, f"{where}: starts at another offset")
        known_end = one.end_offset
        open_ranges += one.is_open
    _check(open_ranges <= open_max, f"{open_ranges} ranges are open, {open_max} may be")


def _check_policies(policies: LogPolicies) -> None:
    sizes = (policies.ack_quorum_size, policies.write_quorum_size, policies.ensemble_size)
    _check(
        0 <= sizes[0] <= sizes[1] <= sizes[2] and sizes[1] >= 1 and sizes[2] <= MAX_ID,
        f"ack quorum {sizes[0]}, write quorum {sizes[1]} and ensemble {sizes[2]} do not ascend",
    )
    limits = (
        policies.roll_bytes_max,
        policies.roll_seconds_max,
        policies.retention_seconds,
        policies.retention_bytes,
        policies.quota_bytes,
    )
    _check(
        all(limit is None or 1 <= limit <= MAX_ID for limit in limits),
        "a limit is not in 1 … 2^63-1",
    )


def _range_rows(ranges: Iterable[LogRange]) -> list[list[int | None]]:
    return [[r.ledger_id, r.first_entry_id, r.last_entry_id, r.base_offset] for r in ranges]


def _decode_ranges(fields: JsonFields) -> tuple[LogRange, ...]:
    ranges = []
    for row in fields.rows("ranges", width=4):
        ledger_id, first_entry_id, last_entry_id, base_offset = row
        if ledger_id is None or first_entry_id is None:
            raise FormatError(f"{fields.where}: a range has no ledger or no first entry")
        ranges.append(LogRange(ledger_id, first_entry_id, last_entry_id, base_offset))
    return tuple(ranges)


def _decode_policies(fields: JsonFields) -> LogPolicies:
    return LogPolicies(
        ensemble_size=fields.integer("ensemble_size"),
        write_quorum_size=fields.integer("write_quorum_size"),
        ack_quorum_size=fields.integer("ack_quorum_size"),
        digest_type=DigestType[fields.text("digest_type")],
        roll_bytes_max=fields.optional_integer("roll_bytes_max"),
        roll_seconds_max=fields.optional_integer("roll_seconds_max"),
        retention_seconds=fields.optional_integer("retention_seconds"),
        retention_bytes=fields.optional_integer("retention_bytes"),
        quota_bytes=fields.optional_integer("quota_bytes"),
    )

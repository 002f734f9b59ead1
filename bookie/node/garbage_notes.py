"""What garbage collection remembers after a restart: the store's marks and absent ledgers.

The memory is JSON::

    {"absent_stop":"","absent_stop_local":0,"cookie_number":7,"counters":[[0,91]],
     "format":"bookie-garbage","has_listed":true,"observed_seconds":…,"store_doubt":"","version":1}

An absent ledger is 16 bytes, little endian: since when it is absent (a double, in the seconds that
the bookie observed), and when that was by the wall clock (milliseconds since 1970).
"""

from __future__ import annotations

import math
import struct
from dataclasses import asdict, dataclass, field

from bookie.errors import FormatError
from bookie.metadata import json_record

_FORMAT = "bookie-garbage"
_VERSION = 1
_ABSENCE = struct.Struct("<dq")


@dataclass(frozen=True, slots=True)
class GarbageMemory:
    """What a bookie remembers of the metadata store, and why it stopped deleting, if it did."""

    counters: dict[int, int] = field(default_factory=dict)
    """The highest counters of ledger ids that it saw, by bucket."""
    cookie_number: int | None = None
    """The highest state number of its own cookie in the store; None if it never saw one."""
    has_listed: bool = False
    """Whether a listing had any ledger."""
    observed_seconds: float = 0.0
    """How long it has watched which ledgers are absent, in all its lives."""
    store_doubt: str = ""
    """Why it distrusts the store; empty while it trusts it."""
    absent_stop: str = ""
    """Why it deletes no absent ledger; empty while it does."""
    absent_stop_local: int = 0
    """The fewest ledgers stored here since that stop began."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Since when a ledger that is stored here is absent from the metadata store."""

    since_seconds: float
    """In observed seconds."""
    since_ms: int
    """By the wall clock, for people."""


def encode_memory(memory: GarbageMemory) -> bytes:
    """The bytes of a memory."""
    fields = asdict(memory) | {"counters": sorted(memory.counters.items())}
    return json_record.encode(_FORMAT, _VERSION, fields)


def decode_memory(data: bytes) -> GarbageMemory:
    """The memory in `data`.

    Raises:
        FormatError: it is damaged, or written by a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    counters = {}
    for bucket, counter in fields.rows("counters", width=2):
        if bucket is None or counter is None:
            raise FormatError(f"{_FORMAT}: a counter is missing")
        counters[bucket] = counter
    observed = fields.number("observed_seconds")
    if not (math.isfinite(observed) and observed >= 0):
        raise FormatError(f"{_FORMAT}: observed_seconds is {observed}")
    return GarbageMemory(
        counters,
        fields.optional_integer("cookie_number", minimum=0),
        fields.boolean("has_listed"),
        observed,
        fields.text("store_doubt"),
        fields.text("absent_stop"),
        fields.integer("absent_stop_local", minimum=0),
    )


def encode_absence(absence: Absence) -> bytes:
    """The bytes of an absence."""
    return _ABSENCE.pack(absence.since_seconds, absence.since_ms)


def decode_absence(data: bytes) -> Absence:
    """The absence in `data`.

    Raises:
        FormatError: it is damaged.
    """
    if len(data) != _ABSENCE.size:
        raise FormatError("the note of an absent ledger has a wrong length")
    absence = Absence(*_ABSENCE.unpack(data))
    if not math.isfinite(absence.since_seconds):
        raise FormatError("the note of an absent ledger has no time")
    return absence

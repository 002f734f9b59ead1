"""The first parts of many log records at once, by NumPy (:mod:`bookie.log.record.log_record`).

Written: what follows a first part is the caller's to join: key, headers and value. Read: the parts
of records that have neither headers nor a producer, which are most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookie.entry.digest import BytesLike
from bookie.log.record.log_record import FOLLOWS_CONTROL, HAS_KEY, IS_LATE, LOG_RECORD_VERSION

_FIXED = np.dtype(
    [
        ("version", "<u1"),
        ("flags", "<u1"),
        ("header_count", "<u2"),
        ("key_length", "<u4"),
        ("timestamp_ms", "<i8"),
    ]
)

FIXED_SIZE_BYTES = _FIXED.itemsize
LATE_SIZE_BYTES = 8


class RecordStarts(NamedTuple):
    """How records without a producer begin."""

    fixed: bytes
    """`FIXED_SIZE_BYTES` of each record."""
    late: bytes
    """`LATE_SIZE_BYTES` of each record; they belong to those that are late only."""
    is_late: NDArray[np.bool_]
    greatest_ms: int
    """The greatest timestamp up to the last record."""


def record_starts(
    timestamps_ms: NDArray[np.int64],
    greatest_ms: int,
    has_key: NDArray[np.bool_],
    key_lengths: NDArray[np.int64],
    header_counts: NDArray[np.int64],
) -> RecordStarts:
    """The first parts of at least one record; `greatest_ms` is the greatest timestamp before them.

    All arrays have one element for each record. A record without a key has the key length 0. The
    numbers fit into their fields: 16 bits for the number of headers, 32 for the length of a key.
    """
    greatest = np.maximum(np.maximum.accumulate(timestamps_ms), greatest_ms)
    is_late = greatest > timestamps_ms
    fixed = np.zeros(len(timestamps_ms), _FIXED)
    fixed["version"] = LOG_RECORD_VERSION
    fixed["flags"] = has_key * HAS_KEY + is_late * IS_LATE
    fixed["header_count"] = header_counts
    fixed["key_length"] = key_lengths
    fixed["timestamp_ms"] = timestamps_ms
    late = greatest.astype("<i8").tobytes()
    return RecordStarts(fixed.tobytes(), late, is_late, int(greatest[-1]))


class RecordColumns(NamedTuple):
    """Consecutive records without headers and producer, as they lie in one piece of memory.

    Each array has one element for each record. A key ends where the value begins.
    """

    data: BytesLike
    timestamps_ms: NDArray[np.int64]
    has_key: NDArray[np.bool_]
    starts: NDArray[np.int64]
    """Where the records begin in `data`."""
    keys_at: NDArray[np.int64]
    values_at: NDArray[np.int64]
    ends: NDArray[np.int64]

    def part(self, begin: int, end: int) -> RecordColumns:
        """The records at these places; `end` is behind the last one."""
        return RecordColumns._make((self.data, *(column[begin:end] for column in self[1:])))


def record_columns(
    data: BytesLike, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> RecordColumns | None:
    """Where the parts of these records are; None if one of them is damaged or of another kind.

    Other kinds are control records, and those with headers or a producer.
    """
    if not len(starts) or int((ends - starts).min()) < FIXED_SIZE_BYTES:
        return None
    # Overlapping rows, one for each byte; indexing copies those at the records' starts.
    row = np.dtype((np.void, FIXED_SIZE_BYTES))
    count = len(data) - FIXED_SIZE_BYTES + 1
    fixed = np.ndarray(count, row, buffer=data, strides=(1,))[starts].view(_FIXED)
    words = fixed.view("<u8").reshape(-1, 2)[:, 0]  # all but the time
    # Mostly all records are alike but for their times and values: then one of them speaks for all.
    kinds = fixed[:1] if (words == words[0]).all() else fixed
    flags = kinds["flags"]
    has_key = (flags & HAS_KEY) != 0
    key_lengths = kinds["key_length"].astype(np.int64)
    keys_at = starts + (FIXED_SIZE_BYTES + ((flags & IS_LATE) != 0) * LATE_SIZE_BYTES)
    values_at = keys_at + key_lengths
    is_other = (
        (kinds["version"] != LOG_RECORD_VERSION)
        | ((flags & ~np.uint8(HAS_KEY | IS_LATE | FOLLOWS_CONTROL)) != 0)
        | (~has_key & (key_lengths != 0))
        | (kinds["header_count"] != 0)
        | (values_at > ends)
    )
    if is_other.any():
        return None
    timestamps_ms = fixed["timestamp_ms"].astype(np.int64)
    has_key = np.broadcast_to(has_key, len(starts))
    return RecordColumns(data, timestamps_ms, has_key, starts, keys_at, values_at, ends)

"""The records of a body as arrays: a boot reads millions of them, and makes no object of any.

What `bookie.formats.records` says about every record holds here, too: the checks are the same, made
on whole columns. Where a column does not pass, the records are parsed one by one, which finds the
words for what is wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bookie.errors import FormatError
from bookie.formats.batch import PACKET_HEADER_SIZE_BYTES
from bookie.formats.records import (
    RECORD_HEADER_SIZE_BYTES,
    EntriesRecord,
    Record,
    RecordType,
    parse_record_at,
    parse_records,
)
from bookie.ids import ENTRY_SIZE_BYTES_MAX

_CONTIGUOUS = 1
_KNOWN_FLAGS = 3
_LENGTH_AT = 4
_LENGTH = struct.Struct("<4xI")
_ENTRY_ID_AT = 8
_LAC_AT = 16

_HEAD = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("length", "<u4"),
        ("ledger_id", "<i8"),
        ("first", "<i8"),
        ("count", "<u4"),
        ("crc", "<u4"),
        ("payload_length", "<u4"),
        ("reserved_too", "<u4"),
    ]
)
"""An ENTRIES record up to its sizes."""

_STEP_RECORDS = 100
"""A step through all blocks takes as long as a walk over so many records."""

_FIXED_BYTES = _HEAD.itemsize - RECORD_HEADER_SIZE_BYTES

_U32: np.dtype[np.uint32] = np.dtype("<u4")
_I64: np.dtype[np.int64] = np.dtype("<i8")
_I64_BIG: np.dtype[np.int64] = np.dtype(">i8")

Ids = npt.NDArray[np.int64]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class RecordArrays:
    """All records of one body."""

    offsets: Ids
    """Where each record starts in the body."""
    ledger_ids: Ids
    """This and what follows: one value for each entry, in the order of the body."""
    entry_ids: Ids
    sizes: Ids
    packets: Ids
    """Where the packet starts in the body."""
    lacs: Ids
    """The LAC in the packet's header."""
    header_ledger_ids: Ids
    header_entry_ids: Ids
    """What the packet's header says itself."""
    payloads: Ids
    """This and what follows: one value for each ENTRIES record. Where its payload starts."""
    payload_sizes: Ids
    payload_crcs: npt.NDArray[np.uint32]
    """The checksum that came with the request."""
    others: tuple[Record, ...]
    """The records that hold no entries, in order."""


def parse_arrays(
    body: memoryview, count: int, blocks: tuple[Ids, Ids] | None = None
) -> RecordArrays:
    """The `count` records of a body whose CRC is right.

    If the body is that of several `blocks`: where the records of each begin, and how many it has,
    at least one. It helps to find the records; where it is wrong, the records are right.

    Raises:
        FormatError: as `parse_records` does.
    """
    offsets = _record_offsets(body, count, blocks)
    if offsets is None:
        return _one_by_one(body, count)
    kinds = np.frombuffer(body, np.uint8)[offsets]
    holds_entries = kinds == RecordType.ENTRIES
    at = offsets[holds_entries]
    try:
        others = tuple(parse_record_at(body, where) for where in offsets[~holds_entries].tolist())
    except FormatError:
        # It may not be the first that is wrong.
        return _one_by_one(body, count)
    if not len(at):
        return _without_entries(offsets, others)
    parsed = _entries(body, offsets, at, others)
    return parsed if parsed is not None else _one_by_one(body, count)


def _record_offsets(body: memoryview, count: int, blocks: tuple[Ids, Ids] | None) -> Ids | None:
    """Where the records start; None if they do not fill the body exactly."""
    size = len(body)
    if count and size % count == 0 and size // count >= RECORD_HEADER_SIZE_BYTES:
        # Lone appends of one size: as many records as fit, each as long as the first.
        stride = size // count
        rows = np.ndarray((count, 2), np.dtype("<u4"), buffer=body, strides=(stride, 4))
        if bool((rows[:, 1] == stride - RECORD_HEADER_SIZE_BYTES).all()):
            return np.arange(0, size, stride, dtype=np.int64)
    if count > size // RECORD_HEADER_SIZE_BYTES:
        return None
    if blocks is not None and int(blocks[1].max(initial=0)) * _STEP_RECORDS < count:
        offsets = _walk_together(body, count, *blocks)
        if offsets is not None:
            return offsets
    return _walk(body, count)


def _walk(body: memoryview, count: int) -> Ids | None:
    """From record to record."""
    offsets = []
    at = 0
    length_at = _LENGTH.unpack_from
    try:
        for _ in range(count):
            offsets.append(at)
            at += RECORD_HEADER_SIZE_BYTES + length_at(body, at)[0]
    except struct.error:
        return None
    return np.array(offsets, np.int64) if at == len(body) else None


def _walk_together(body: memoryview, count: int, starts: Ids, counts: Ids) -> Ids | None:
    """From the first records of all blocks to the second ones, and so on.

    None if the records of a block do not end where those of the next begin.
    """
    if int(starts[0]) or int(counts.sum()) != count:
        return None
    offsets = np.zeros(count, np.int64)
    first = np.cumsum(counts) - counts
    at = starts.copy()
    ends = np.append(starts[1:], len(body))
    left = np.arange(len(starts))
    step = 0
    while len(left):
        here = at[left]
        if bool((here > ends[left] - RECORD_HEADER_SIZE_BYTES).any()):
            return None
        offsets[first[left] + step] = here
        lengths = _gather(body, here + _LENGTH_AT, _U32)
        at[left] = here + RECORD_HEADER_SIZE_BYTES + lengths
        step += 1
        left = left[counts[left] > step]
    return offsets if np.array_equal(at, ends) else None


def _entries(
    body: memoryview, offsets: Ids, at: Ids, others: tuple[Record, ...]
) -> RecordArrays | None:
    """The entries of the records at `at`; None if something is wrong with one of them."""
    if len(body) < _HEAD.itemsize or int(at[-1]) > len(body) - _HEAD.itemsize:
        return None
    heads = _gather(body, at, _HEAD)
    counts = heads["count"].astype(np.int64)
    contiguous = (heads["flags"] & _CONTIGUOUS) > 0
    step_counts = np.where(contiguous, 0, np.maximum(counts - 1, 0))
    sizes_at = at + _HEAD.itemsize
    payload_at = sizes_at + 4 * counts + 8 * step_counts
    payload_lengths = heads["payload_length"].astype(np.int64)
    ends = at + RECORD_HEADER_SIZE_BYTES + heads["length"]
    if not (
        bool((payload_at + payload_lengths == ends).all())
        and not bool((heads["flags"] & ~np.uint8(_KNOWN_FLAGS)).any())
        and not bool(heads["reserved"].any())
        and not bool(heads["reserved_too"].any())
        and bool((counts > 0).all())
        and bool((heads["ledger_id"] >= 0).all())
        and bool((heads["first"] >= 0).all())
    ):
        return None
    # Position of each entry within its record.
    lone = bool((counts == 1).all())
    first_of_record = np.cumsum(counts) - counts
    within: Ids | int = (
        0 if lone else np.arange(int(counts.sum())) - np.repeat(first_of_record, counts)
    )
    sizes = _gather(body, _each(sizes_at, counts, lone) + 4 * within, _U32).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    totals = np.add.reduceat(sizes, first_of_record)
    if not (
        int(sizes.min()) >= PACKET_HEADER_SIZE_BYTES
        and int(sizes.max()) <= ENTRY_SIZE_BYTES_MAX
        and bool((totals == payload_lengths).all())
    ):
        return None
    packets = starts + _each(payload_at - starts[first_of_record], counts, lone)
    ids = _each(heads["first"].astype(np.int64), counts, lone) + within
    if step_counts.any():
        steps_at = sizes_at + 4 * counts
        stepped = _with_steps(body, ids, first_of_record, counts, step_counts, steps_at)
        if stepped is None:
            return None
        ids = stepped
    # Beyond the last id a sum wraps, first to a negative number.
    if bool((ids < 0).any()):
        return None
    return RecordArrays(
        offsets=offsets,
        ledger_ids=_each(heads["ledger_id"].astype(np.int64), counts, lone),
        entry_ids=ids,
        sizes=sizes,
        packets=packets,
        lacs=_gather(body, packets + _LAC_AT, _I64_BIG).astype(np.int64),
        header_ledger_ids=_gather(body, packets, _I64_BIG).astype(np.int64),
        header_entry_ids=_gather(body, packets + _ENTRY_ID_AT, _I64_BIG).astype(np.int64),
        payloads=payload_at,
        payload_sizes=payload_lengths,
        payload_crcs=heads["crc"],
        others=others,
    )


def _with_steps(
    body: memoryview,
    ids: Ids,
    first_of_record: Ids,
    counts: Ids,
    step_counts: Ids,
    steps_at: Ids,
) -> Ids | None:
    """`ids`, those of records that have steps corrected; None if a step is none."""
    stepped = step_counts > 0
    kept = step_counts[stepped]
    within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
    steps = _gather(body, np.repeat(steps_at[stepped], kept) + 8 * within, _I64)
    if int(steps.min()) < 1:
        return None
    differences = np.ones(len(ids), np.int64)
    differences[first_of_record] = 0
    differences[np.repeat(first_of_record[stepped], kept) + within + 1] = steps
    totals = np.cumsum(differences)
    return np.repeat(ids[first_of_record] - totals[first_of_record], counts) + totals


def _each(values: Ids, counts: Ids, lone: bool) -> Ids:
    """The value of its record for each entry."""
    return values if lone else np.repeat(values, counts)


def _gather(body: memoryview, at: Ids, dtype: np.dtype[T]) -> npt.NDArray[T]:
    """The values at any bytes of the body; each of them lies in it."""
    rows = np.ndarray(
        len(body) - dtype.itemsize + 1,
        np.dtype((np.void, dtype.itemsize)),
        buffer=body,
        strides=(1,),
    )
    gathered: npt.NDArray[T] = rows[at].view(dtype)
    return gathered


def _one_by_one(body: memoryview, count: int) -> RecordArrays:
    """The same from objects; raises what is wrong with a record."""
    pairs = list(parse_records(body, count))
    found = [(at, record) for at, record in pairs if isinstance(record, EntriesRecord)]
    if found:
        raise FormatError(f"{len(found)} records of entries do not add up")
    offsets = np.array([at for at, _ in pairs], np.int64)
    return _without_entries(offsets, tuple(record for _, record in pairs))


def _without_entries(offsets: Ids, others: tuple[Record, ...]) -> RecordArrays:
    empty = np.zeros(0, np.int64)
    no_crcs = np.zeros(0, np.uint32)
    return RecordArrays(
        *(offsets, empty, empty, empty, empty, empty),
        *(empty, empty, empty, empty, no_crcs, others),
    )

"""Parses the records of a block into arrays, because a start reads millions of records.

The checks are the same as in the module `records`, but each check covers a whole column. If a
column fails a check, `parse_records` is called to raise the error of the first wrong record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES
from bookie.errors import FormatError
from bookie.ids import ENTRY_SIZE_BYTES_MAX
from bookie.node.engine.format.arrays import U32, Ids
from bookie.node.engine.format.records import (
    RECORD_HEADER_SIZE_BYTES,
    Record,
    RecordType,
    parse_record_at,
    parse_records,
)

_CONTIGUOUS = 1
_KNOWN_FLAGS = 3
_LENGTH_AT = 4
_LENGTH = struct.Struct("<4xI")

_U32: np.dtype[np.uint32] = np.dtype("<u4")
_I64: np.dtype[np.int64] = np.dtype("<i8")

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
"""The fields of an ENTRIES record that precede the entry sizes."""

_PACKET = np.dtype([("ledger_id", ">i8"), ("entry_id", ">i8"), ("lac", ">i8")])
"""The checked fields of a packet's header."""

_LONE = np.dtype([("head", _HEAD), ("size", "<u4"), ("packet", _PACKET)])
"""The start of an ENTRIES record with one entry, up to and including the header of the packet."""

_LONE_FIXED_BYTES = _HEAD.itemsize + _U32.itemsize - RECORD_HEADER_SIZE_BYTES
"""The length field of an ENTRIES record with one entry is this constant plus the packet's size."""

_STEP_RECORDS = 25
"""A step of `walk_together` over all blocks takes as long as reading 25 records one by one."""

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class RecordArrays:
    """All records of the body of one block, as arrays."""

    offsets: Ids
    ledger_ids: Ids
    """The ledger id of each entry; this array and the next six have one value for each entry."""
    entry_ids: Ids
    sizes: Ids
    packets: Ids
    """The offset of each entry's packet in the body."""
    lacs: Ids
    """The LAC in the header of each entry's packet."""
    header_ledger_ids: Ids
    header_entry_ids: Ids
    """The entry id in the header of each entry's packet."""
    payloads: Ids
    """The offset of each payload; this array and the next two have one value per ENTRIES record."""
    payload_sizes: Ids
    payload_crcs: U32
    """The checksum of each payload, as the add request contained it."""
    others: tuple[Record, ...]
    """The records that hold no entries, in order."""


def parse_arrays(body: memoryview, count: int, offsets: Ids | None = None) -> RecordArrays:
    """Parse the `count` records of a body whose CRC was checked.

    `offsets` are the starts of the records, if `walk_together` has found them.

    Raises:
        FormatError: like `parse_records`.
    """
    if offsets is None:
        offsets = _record_offsets(body, count)
    if offsets is None:
        _refuse(body, count)
    kinds = np.frombuffer(body, np.uint8)[offsets]
    holds_entries = kinds == RecordType.ENTRIES
    at = offsets[holds_entries]
    try:
        others = tuple(parse_record_at(body, where) for where in offsets[~holds_entries].tolist())
    except FormatError:
        # Report the first wrong record, which may be an earlier ENTRIES record.
        _refuse(body, count)
    if not len(at):
        return _without_entries(offsets, others)
    return _entries(body, offsets, at, others) or _refuse(body, count)


def walk_together(data: memoryview, starts: Ids, ends: Ids, counts: Ids) -> Ids | None:
    """Return the offsets of the records of many blocks in `data`, block by block.

    Block *i* has ``counts[i]`` records between ``starts[i]`` and ``ends[i]``. Each step handles one
    record of every block: step 1 handles the first record of each block, step 2 the second record,
    and so on. If there are too few blocks, these steps would be slow; then the result is None. The
    result is also None if the records of a block do not fill it exactly.
    """
    total, steps = int(counts.sum()), int(counts.max(initial=0))
    if steps * _STEP_RECORDS >= total or total > len(data) // RECORD_HEADER_SIZE_BYTES:
        return None
    # Sort the blocks with the most records first, so that unfinished blocks are always in front.
    order = np.argsort(-counts, kind="stable")
    lasting = np.searchsorted(-counts[order], -np.arange(steps), "left")
    at = starts[order]
    first = (np.cumsum(counts) - counts)[order]
    # If a record begins at i, lengths[i] is the length field of this record.
    lengths = np.ndarray(
        len(data) - RECORD_HEADER_SIZE_BYTES + 1, _U32, data, _LENGTH_AT, strides=(1,)
    )
    offsets = np.empty(total, np.int64)
    try:
        for step, count in enumerate(lasting.tolist()):
            here = at[:count]
            offsets[first[:count] + step] = here
            here += lengths[here]
            here += RECORD_HEADER_SIZE_BYTES
    except IndexError:
        return None
    # Positions only increase. So if the last position is the end of the block, all positions were
    # inside the block.
    filled = (at == ends[order]) | (counts[order] == 0)
    return offsets if bool(filled.all()) else None


def _record_offsets(body: memoryview, count: int) -> Ids | None:
    """Return the offsets of the records; None unless the records fill the body exactly."""
    size = len(body)
    if count and size % count == 0 and size // count >= RECORD_HEADER_SIZE_BYTES:
        # If all records have the same length, as after single appends of one size, no loop is
        # needed.
        stride = size // count
        rows = np.ndarray((count, 2), np.dtype("<u4"), buffer=body, strides=(stride, 4))
        if bool((rows[:, 1] == stride - RECORD_HEADER_SIZE_BYTES).all()):
            return np.arange(0, size, stride, dtype=np.int64)
    if count > size // RECORD_HEADER_SIZE_BYTES:
        return None
    return _walk(body, count)


def _walk(body: memoryview, count: int) -> Ids | None:
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


def _entries(
    body: memoryview, offsets: Ids, at: Ids, others: tuple[Record, ...]
) -> RecordArrays | None:
    """Parse the ENTRIES records at the offsets `at`; None if one of the records is invalid."""
    if len(body) < _HEAD.itemsize or int(at[-1]) > len(body) - _HEAD.itemsize:
        return None
    if int(at[-1]) <= len(body) - _LONE.itemsize:
        lone_records = _gather(body, at, _LONE)
        if bool((lone_records["head"]["count"] == 1).all()):
            return _lone_entries(lone_records, offsets, at, others)
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
        and _are_sound(heads)
        and bool((counts > 0).all())
    ):
        return None
    # The position of each entry within its record.
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
    # A sum that exceeds the largest id wraps to a negative number.
    if bool((ids < 0).any()):
        return None
    headers = _gather(body, packets, _PACKET)
    return RecordArrays(
        offsets=offsets,
        ledger_ids=_each(heads["ledger_id"].astype(np.int64), counts, lone),
        entry_ids=ids,
        sizes=sizes,
        packets=packets,
        lacs=headers["lac"].astype(np.int64),
        header_ledger_ids=headers["ledger_id"],
        header_entry_ids=headers["entry_id"],
        payloads=payload_at,
        payload_sizes=payload_lengths,
        payload_crcs=heads["crc"],
        others=others,
    )


def _lone_entries(
    records: npt.NDArray[np.void], offsets: Ids, at: Ids, others: tuple[Record, ...]
) -> RecordArrays | None:
    heads, headers = records["head"], records["packet"]
    sizes = records["size"].astype(np.int64)
    packets = at + _HEAD.itemsize + _U32.itemsize
    if not (
        bool((heads["payload_length"] == sizes).all())
        # A record of one entry has no id differences (steps), with or without the flag CONTIGUOUS.
        and bool((heads["length"] == sizes + _LONE_FIXED_BYTES).all())
        and _are_sound(heads)
        and int(sizes.min()) >= PACKET_HEADER_SIZE_BYTES
        and int(sizes.max()) <= ENTRY_SIZE_BYTES_MAX
    ):
        return None
    return RecordArrays(
        offsets=offsets,
        ledger_ids=heads["ledger_id"].astype(np.int64),
        entry_ids=heads["first"].astype(np.int64),
        sizes=sizes,
        packets=packets,
        lacs=headers["lac"].astype(np.int64),
        header_ledger_ids=headers["ledger_id"],
        header_entry_ids=headers["entry_id"],
        payloads=packets,
        payload_sizes=sizes,
        payload_crcs=heads["crc"],
        others=others,
    )


def _are_sound(heads: npt.NDArray[np.void]) -> bool:
    return (
        int(np.bitwise_or.reduce(heads["flags"])) & ~_KNOWN_FLAGS == 0
        and int(heads["reserved"].max()) == 0
        and int(heads["reserved_too"].max()) == 0
        and int(heads["ledger_id"].min()) >= 0
        and int(heads["first"].min()) >= 0
    )


def _with_steps(
    body: memoryview, ids: Ids, first_of_record: Ids, counts: Ids, step_counts: Ids, steps_at: Ids
) -> Ids | None:
    """Compute entry ids from the id differences in `body`; None if a difference is invalid."""
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
    return values if lone else np.repeat(values, counts)


def _gather(body: memoryview, at: Ids, dtype: np.dtype[T]) -> npt.NDArray[T]:
    """Read the values of type `dtype` at the offsets `at`; all offsets are inside the body."""
    rows = np.ndarray(
        len(body) - dtype.itemsize + 1,
        np.dtype((np.void, dtype.itemsize)),
        buffer=body,
        strides=(1,),
    )
    gathered: npt.NDArray[T] = rows[at].view(dtype)
    return gathered


def _refuse(body: memoryview, count: int) -> NoReturn:
    for _ in parse_records(body, count):
        pass
    raise FormatError(f"the entries of {count} records do not add up")


def _without_entries(offsets: Ids, others: tuple[Record, ...]) -> RecordArrays:
    empty = np.zeros(0, np.int64)
    no_crcs = np.zeros(0, np.uint32)
    return RecordArrays(
        *(offsets, empty, empty, empty, empty, empty),
        *(empty, empty, empty, empty, no_crcs, others),
    )

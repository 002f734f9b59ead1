"""Batches: bounds that cannot wrap, cutting, joining, and the check of packet headers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from bookie.entry.batch import EntryBatch, check_headers, headers_of
from bookie.errors import BadRequestError
from bookie.ids import ENTRY_SIZE_BYTES_MAX, MAX_ID
from tests.entry_batches import merged


def batch_of(
    ids: Sequence[int], sizes: Sequence[int] | None = None, ledger_id: int = 7, lac: int = -1
) -> EntryBatch:
    """A batch with true headers; packet i is filled with the byte i."""
    sizes = [40] * len(ids) if sizes is None else sizes
    packets = [
        struct.pack(">qqqq", ledger_id, entry_id, lac, 1).ljust(size, bytes([i % 256]))
        for i, (entry_id, size) in enumerate(zip(ids, sizes, strict=True))
    ]
    steps = [b - a for a, b in pairwise(ids)]
    return EntryBatch(
        ledger_id,
        ids[0],
        None if all(step == 1 for step in steps) else np.array(steps, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        b"".join(packets),
    )


def ids_and_packets(batch: EntryBatch) -> list[tuple[int, bytes]]:
    """The content of a batch, entry by entry."""
    packets = [bytes(packet) for packet in batch.packets()]
    return list(zip(batch.entry_ids().tolist(), packets, strict=True))


def test_contiguous_batch_knows_its_ids_and_offsets() -> None:
    """Ids and offsets follow from first id and sizes alone."""
    batch = batch_of([5, 6, 7], [32, 40, 33])
    assert batch.is_contiguous
    assert (batch.count, batch.last_entry_id, batch.payload_bytes) == (3, 7, 105)
    assert batch.entry_ids().tolist() == [5, 6, 7]
    assert batch.offsets().tolist() == [0, 32, 72, 105]


def test_steps_give_the_ids() -> None:
    """A batch with gaps has its ids from the steps."""
    batch = batch_of([5, 9, 10])
    assert not batch.is_contiguous
    assert batch.entry_ids().tolist() == [5, 9, 10]
    assert batch.last_entry_id == 10
    batch.check_bounds()


def test_split_cuts_by_count_and_bytes() -> None:
    """Pieces keep order, obey both limits, and lose nothing."""
    batch = batch_of([1, 2, 3, 10, 11, 12], [40, 50, 60, 40, 40, 100])
    pieces = list(batch.split(entries_max=2, bytes_max=100))
    assert [piece.entry_ids().tolist() for piece in pieces] == [[1, 2], [3, 10], [11], [12]]
    assert [entry for piece in pieces for entry in ids_and_packets(piece)] == ids_and_packets(batch)


def test_split_lets_an_oversize_entry_travel_alone() -> None:
    """An entry above the byte limit is a batch of its own."""
    batch = batch_of([1, 2, 3], [40, 500, 40])
    assert [piece.count for piece in batch.split(10, 100)] == [1, 1, 1]


def test_split_of_a_small_batch_is_the_batch() -> None:
    """A batch that fits stays whole, and an empty one has no pieces."""
    batch = batch_of([1, 2, 3])
    assert list(batch.split(3, 120)) == [batch]
    assert list(batch.clip(9, 9).split(3, 120)) == []


@pytest.mark.parametrize(
    ("first", "last", "ids"),
    [
        (0, 100, [3, 4, 8, 9]),
        (4, 8, [4, 8]),
        (5, 7, []),
        (8, 9, [8, 9]),
        (-1, 3, [3]),
        (10, MAX_ID + 5, []),
        (9, MAX_ID + 5, [9]),
    ],
)
def test_clip_keeps_what_lies_inside(first: int, last: int, ids: list[int]) -> None:
    """Clipping is by id, inclusive on both ends, also where there are gaps."""
    batch = batch_of([3, 4, 8, 9], [32, 33, 34, 35])
    clipped = batch.clip(first, last)
    assert clipped.entry_ids().tolist() == ids
    assert ids_and_packets(clipped) == [e for e in ids_and_packets(batch) if e[0] in ids]


def test_clip_of_a_contiguous_batch() -> None:
    """Contiguous ids are clipped by arithmetic; what is left of a gap becomes contiguous."""
    assert batch_of([3, 4, 5]).clip(4, 9).entry_ids().tolist() == [4, 5]
    assert batch_of([3, 4, 5]).clip(6, 9).count == 0
    assert batch_of([3, 4, 9]).clip(3, 4).is_contiguous


def test_empty_clip_ends_before_it_starts() -> None:
    """An empty batch has last = first - 1, and does not pass as a request."""
    empty = batch_of([3, 4]).clip(10, 12)
    assert (empty.count, empty.first_entry_id, empty.last_entry_id) == (0, 10, 9)
    assert empty.entry_ids().tolist() == []
    with pytest.raises(BadRequestError, match="at least one"):
        empty.check_bounds()


def test_bounds_accept_the_largest_ids() -> None:
    """MAX_ID itself is an id, contiguous or reached by steps."""
    batch_of([MAX_ID - 1, MAX_ID], ledger_id=MAX_ID).check_bounds()
    batch = batch_of([0, MAX_ID])
    batch.check_bounds()
    assert batch.last_entry_id == MAX_ID
    assert batch.entry_ids().tolist() == [0, MAX_ID]
    assert batch_of([MAX_ID - 1, MAX_ID]).entry_ids().tolist() == [MAX_ID - 1, MAX_ID]


def _raw(
    first: int = 0,
    steps: Sequence[int] | None = None,
    sizes: Sequence[int] = (32, 32, 32),
    payload: int = 96,
    ledger_id: int = 7,
) -> EntryBatch:
    steps_array = None if steps is None else np.array(steps, dtype=np.uint64).view(np.int64)
    sizes_array = np.array(sizes, dtype=np.int64)
    return EntryBatch(ledger_id, first, steps_array, sizes_array, bytes(payload))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_raw(first=-1), "not in 0"),
        (_raw(first=MAX_ID - 1), "not in 0"),
        (_raw(first=2**64), "not in 0"),
        (_raw(ledger_id=-1), "ledger id -1"),
        (_raw(ledger_id=2**63), "ledger id"),
        (_raw(steps=[1]), "need 2 steps"),
        (_raw(steps=[1, 1, 1]), "need 2 steps"),
        (_raw(steps=[1, 0]), "ascend"),
        (_raw(steps=[1, 2**64 - 1]), "ascend"),
        (_raw(steps=[2**63 - 1, 2**63 - 1]), "not in 0"),
        (_raw(steps=[2**63 - 1] * 3, sizes=[32] * 4, payload=128), "not in 0"),
        (_raw(sizes=[32, 31, 33]), "smaller than its header"),
        (_raw(sizes=[-(2**63), 2**63 - 1, 97]), "smaller than its header"),
        (_raw(sizes=[2**62] * 4, payload=0), "larger than"),
        (_raw(sizes=[ENTRY_SIZE_BYTES_MAX + 1], payload=1), "larger than"),
        (_raw(payload=95), "add up"),
        (_raw(payload=97), "add up"),
    ],
)
def test_bounds_refuse_what_does_not_add_up(batch: EntryBatch, message: str) -> None:
    """Every rule is checked on exact numbers: nothing wraps."""
    with pytest.raises(BadRequestError, match=message):
        batch.check_bounds()


@pytest.mark.parametrize("sizes", [[40, 40, 40, 40], [32, 45, 33, 99]])
def test_headers_are_gathered(sizes: list[int]) -> None:
    """Headers of uniform and of mixed packets come out as four columns."""
    batch = batch_of([3, 4, 8, MAX_ID], sizes, lac=2)
    ledger_ids, entry_ids, lacs, lengths = headers_of(batch)
    assert ledger_ids.tolist() == [7] * 4
    assert entry_ids.tolist() == [3, 4, 8, MAX_ID]
    assert lacs.tolist() == [2] * 4
    assert lengths.tolist() == [1] * 4
    view = EntryBatch(7, 3, batch.steps, batch.sizes.astype(np.uint32), memoryview(batch.payload))
    assert headers_of(view)[1].tolist() == [3, 4, 8, MAX_ID]


def test_check_headers_returns_the_highest_lac() -> None:
    """A good batch gives a bookie a LAC hint."""
    batch = merged([batch_of([3], lac=2), batch_of([4], lac=1)])
    assert check_headers(batch) == 2
    assert check_headers(batch_of([0])) == -1


def test_check_headers_refuses_foreign_packets() -> None:
    """A packet of another ledger, another id, or with an impossible LAC is refused."""
    good = batch_of([3, 4])
    with pytest.raises(BadRequestError, match="a packet of ledger 7 came in a batch of ledger 8"):
        check_headers(EntryBatch(8, 3, None, good.sizes, good.payload))
    with pytest.raises(BadRequestError, match="the packet of entry 4 came as entry 5"):
        check_headers(EntryBatch(7, 3, np.array([2], dtype=np.int64), good.sizes, good.payload))
    with pytest.raises(BadRequestError, match="entry 3 carries the last add confirmed 3"):
        check_headers(batch_of([3], lac=3))
    with pytest.raises(BadRequestError, match="entry 4 carries the last add confirmed -2"):
        check_headers(merged([batch_of([3]), batch_of([4], lac=-2)]))


def test_check_headers_refuses_a_foreign_lone_packet() -> None:
    """A batch of one is checked by another path, to the same answers."""
    lone = batch_of([3])
    with pytest.raises(BadRequestError, match="a packet of ledger 7 came in a batch of ledger 8"):
        check_headers(EntryBatch(8, 3, None, lone.sizes, lone.payload))
    with pytest.raises(BadRequestError, match="the packet of entry 3 came as entry 4"):
        check_headers(EntryBatch(7, 4, None, lone.sizes, lone.payload))

"""Records as arrays are the records as objects, for any body, whole or damaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.entry.batch import EntryBatch, headers_of
from bookie.errors import FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.format.record_arrays import RecordArrays, parse_arrays, walk_together
from bookie.node.engine.format.records import (
    EntriesRecord,
    Record,
    encode_entries_head,
    parse_records,
)
from tests.property.node.engine.format.test_storage_properties import RECORDS, entries_records


def check_same(parsed: RecordArrays, pairs: list[tuple[int, Record]]) -> None:
    """The arrays say what the objects say."""
    assert parsed.offsets.tolist() == [at for at, _ in pairs]
    found = [record for _, record in pairs if isinstance(record, EntriesRecord)]
    rows = [
        (
            record.batch.ledger_id,
            entry_id,
            size,
            record.payload_offset + start,
            lac,
        )
        for record in found
        for entry_id, size, start, lac in zip(
            record.batch.entry_ids().tolist(),
            record.batch.sizes.tolist(),
            record.batch.offsets().tolist(),
            headers_of(record.batch)[2].tolist(),
            strict=False,
        )
    ]
    columns = (parsed.ledger_ids, parsed.entry_ids, parsed.sizes, parsed.packets, parsed.lacs)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
    assert all(column.dtype == np.int64 for column in columns)
    assert list(parsed.others) == [r for _, r in pairs if not isinstance(r, EntriesRecord)]


@given(st.lists(RECORDS, max_size=8))
def test_arrays_hold_what_the_objects_hold(records: list[bytes]) -> None:
    """Every value of every record."""
    body = memoryview(b"".join(records))
    pairs = list(parse_records(body, len(records)))
    check_same(parse_arrays(body, len(records)), pairs)


@given(entries_records(), st.integers(1, 5))
def test_records_of_one_shape_are_found_without_a_walk(record: bytes, count: int) -> None:
    """Lone appends of one size follow each other at one distance."""
    body = memoryview(record * count)
    check_same(parse_arrays(body, count), list(parse_records(body, count)))


@given(
    st.lists(st.lists(entries_records(), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 400), st.integers(-9, 9), st.integers(-2, 2)), max_size=2),
)
def test_records_of_many_blocks_are_found_block_by_block(
    blocks: list[list[bytes]], wrong: list[tuple[int, int, int]]
) -> None:
    """None if what is said of one of the blocks is wrong."""
    # Enough of them, so that it pays.
    blocks *= 400 // len(blocks)
    bodies = [b"".join(block) for block in blocks]
    body = memoryview(b"".join(bodies))
    sizes = np.array(list(map(len, bodies)), np.int64)
    starts = np.cumsum(sizes) - sizes
    counts = np.array(list(map(len, blocks)), np.int64)
    ends = starts + sizes
    offsets = walk_together(body, starts, ends, counts)
    assert offsets is not None
    pairs = list(parse_records(body, sum(map(len, blocks))))
    check_same(parse_arrays(body, len(pairs), offsets), pairs)
    for block, shift, more in wrong:
        if block < len(blocks):
            starts[block] = max(0, starts[block] + shift)
            counts[block] = max(0, counts[block] + more)
    offsets = walk_together(body, starts, ends, counts)
    claimed = zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    assert (None if offsets is None else offsets.tolist()) == walked(body, list(claimed))


def test_more_records_than_fit_are_not_looked_for() -> None:
    """Nor is memory taken for them."""
    places = np.zeros(400, np.int64)
    counts = np.full(400, 2**32 - 1)
    assert walk_together(memoryview(bytes(400)), places, places, counts) is None


def walked(body: memoryview, blocks: list[tuple[int, int, int]]) -> list[int] | None:
    """The begins of the records of each block, one after the other; None if they leave a rest."""
    offsets = []
    for start, end, count in blocks:
        at = start
        for _ in range(count):
            offsets.append(at)
            if at + 8 > len(body):
                return None
            at += 8 + int.from_bytes(body[at + 4 : at + 8], "little")
        if count and at != end:
            return None
    return offsets


@given(st.lists(RECORDS, max_size=4), st.data())
def test_damaged_bodies_are_refused_alike(records: list[bytes], data: st.DataObject) -> None:
    """Flipped, cut or with a wrong count: either both parsers refuse it, or they agree."""
    body = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            # The head of a record is where a flip matters.
            body[at if data.draw(st.booleans()) else at % 48 % len(body)] ^= data.draw(
                st.integers(1, 255)
            )
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body))) :]
    count = max(0, len(records) + data.draw(st.integers(-1, 1)))
    view = memoryview(bytes(body))
    try:
        pairs = list(parse_records(view, count))
    except FormatError as error:
        refused = error
        with pytest.raises(type(refused)) as caught:
            parse_arrays(view, count)
        assert caught.type is type(refused)
    else:
        check_same(parse_arrays(view, count), pairs)


@given(st.lists(st.integers(1, MAX_ID), min_size=1, max_size=4), st.integers(0, MAX_ID))
def test_ids_beyond_the_last_one_are_refused(steps: list[int], first: int) -> None:
    """However often the sum of the steps wraps."""
    count = len(steps) + 1
    batch = EntryBatch(1, first, np.array(steps, np.int64), np.full(count, 32), bytes(32 * count))
    body = memoryview(encode_entries_head(batch, 0, False) + bytes(batch.payload))
    if first + sum(steps) > MAX_ID:
        with pytest.raises(FormatError):
            parse_arrays(body, 1)
        with pytest.raises(FormatError):
            list(parse_records(body, 1))
    else:
        check_same(parse_arrays(body, 1), list(parse_records(body, 1)))

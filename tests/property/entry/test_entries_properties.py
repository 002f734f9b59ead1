"""Properties of packets and batches, against a list of (id, packet) as the model."""

from __future__ import annotations

import contextlib
import struct
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.entry.batch import EntryBatch, check_headers, headers_of
from bookie.entry.digest import DigestType, derive_key, digester_for_key
from bookie.entry.entry import (
    Entry,
    lac_packet_ids,
    pack_batch,
    pack_lac,
    parse_header,
    unpack_lac,
    unpack_packet,
    verify_batch,
)
from bookie.errors import BadRequestError, ChecksumError, FormatError
from bookie.ids import MAX_ID

IDS = st.integers(0, MAX_ID)
PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=60)
DIGESTS = st.sampled_from(DigestType)


@st.composite
def batches(draw: st.DrawFn, ledger_id: int = 7, first_max: int = MAX_ID) -> EntryBatch:
    """A batch of packets with true headers and arbitrary gaps."""
    first = draw(st.integers(0, first_max))
    steps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 2**40)), max_size=20))
    ids = [i for i in accumulate(steps, initial=first) if i <= MAX_ID]
    packets = [
        struct.pack(">qqqq", ledger_id, i, draw(st.integers(-1, i - 1)), 5)
        + draw(st.binary(max_size=9))
        for i in ids
    ]
    gaps = [b - a for a, b in pairwise(ids)]
    return EntryBatch(
        ledger_id,
        first,
        None if all(gap == 1 for gap in gaps) else np.array(gaps, dtype=np.int64),
        np.array([len(packet) for packet in packets], dtype=draw(st.sampled_from(["i8", "u4"]))),
        b"".join(packets),
    )


def model_of(batch: EntryBatch) -> list[tuple[int, bytes]]:
    """What a batch holds, entry by entry; also checks that it is well formed."""
    if batch.count:
        batch.check_bounds()
        assert batch.last_entry_id == batch.entry_ids()[-1]
    if batch.steps is not None:
        assert any(step != 1 for step in batch.steps.tolist())
    packets = [bytes(packet) for packet in batch.packets()]
    return list(zip(batch.entry_ids().tolist(), packets, strict=True))


@given(IDS, st.integers(0, MAX_ID - 60), PAYLOADS, DIGESTS, st.integers(0, 2**40), st.data())
def test_packed_entries_verify(
    ledger_id: int,
    first: int,
    payloads: list[bytes],
    digest_type: DigestType,
    length: int,
    data: st.DataObject,
) -> None:
    """What was packed is what is verified, as one batch, as pieces, and one by one."""
    lac = data.draw(st.integers(-1, first - 1))
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    batch = pack_batch(ledger_id, first, lac, length, payloads, digester)
    expected = [Entry(first + i, payload) for i, payload in enumerate(payloads)]
    assert verify_batch(batch, digester) == expected
    assert check_headers(batch) == lac
    assert headers_of(batch)[3].tolist() == list(accumulate(map(len, payloads), initial=length))[1:]
    pieces = batch.split(data.draw(st.integers(1, 70)), data.draw(st.integers(0, 500)))
    assert [e for piece in pieces for e in verify_batch(piece, digester)] == expected
    for entry, packet in zip(expected, batch.packets(), strict=True):
        assert unpack_packet(ledger_id, entry.entry_id, packet, digester) == entry.payload
        assert parse_header(packet).entry_id == entry.entry_id


@given(PAYLOADS, st.sampled_from([d for d in DigestType if d is not DigestType.DUMMY]), st.data())
def test_damage_is_found(
    payloads: list[bytes], digest_type: DigestType, data: st.DataObject
) -> None:
    """A changed byte anywhere fails the entry that it is in."""
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    batch = pack_batch(7, 100, 99, 0, payloads, digester)
    damaged = bytearray(batch.payload)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    bad = 100 + int(np.searchsorted(batch.offsets(), at, side="right")) - 1
    with pytest.raises(ChecksumError, match=f"entry {bad} of ledger 7"):
        verify_batch(EntryBatch(7, 100, None, batch.sizes, bytes(damaged)), digester)


@given(batches(), st.integers(1, 30), st.integers(0, 500))
def test_split_loses_nothing(batch: EntryBatch, entries_max: int, bytes_max: int) -> None:
    """Pieces obey both limits and hold the entries of the batch."""
    pieces = list(batch.split(entries_max, bytes_max))
    assert [entry for piece in pieces for entry in model_of(piece)] == model_of(batch)
    for piece in pieces:
        assert 1 <= piece.count <= entries_max
        assert piece.payload_bytes <= bytes_max or piece.count == 1


@given(batches(first_max=10**6), st.integers(-5, 2**42), st.integers(-5, 2**42))
def test_clip_is_a_filter(batch: EntryBatch, first: int, last: int) -> None:
    """Clipping keeps exactly the ids inside."""
    clipped = batch.clip(first, last)
    assert model_of(clipped) == [e for e in model_of(batch) if first <= e[0] <= last]


@given(batches())
def test_headers_agree_with_struct(batch: EntryBatch) -> None:
    """The gathered columns are what `struct` reads from each packet."""
    expected = [tuple(parse_header(packet)) for _, packet in model_of(batch)]
    columns = [column.tolist() for column in headers_of(batch)]
    assert list(zip(*columns, strict=True)) == expected
    assert check_headers(batch) == max(header[2] for header in expected)


@given(
    st.integers(-(2**64), 2**64),
    st.integers(-(2**64), 2**64),
    st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(30, 34), max_size=4),
    st.binary(max_size=140),
)
def test_bounds_check_decides_like_python_integers(
    ledger_id: int, first: int, steps: list[int] | None, sizes: list[int], payload: bytes
) -> None:
    """Any numbers at all pass or are a bad request, exactly as unbounded integers say."""
    batch = EntryBatch(
        ledger_id,
        first,
        None if steps is None else np.array(steps, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        payload,
    )
    gaps = [1] * (len(sizes) - 1) if steps is None else steps
    is_good = (
        len(sizes) > 0
        and 0 <= ledger_id <= MAX_ID
        and first >= 0
        and len(gaps) == len(sizes) - 1
        and all(gap >= 1 for gap in gaps)
        and first + sum(gaps) <= MAX_ID
        and all(size >= 32 for size in sizes)
        and sum(sizes) == len(payload)
    )
    if is_good:
        batch.check_bounds()
        model_of(batch)
        with contextlib.suppress(BadRequestError):
            check_headers(batch)
        with contextlib.suppress(ChecksumError):
            verify_batch(batch, digester_for_key(DigestType.CRC32C, b""))
    else:
        with pytest.raises(BadRequestError):
            batch.check_bounds()


@given(st.binary(max_size=80), DIGESTS)
def test_random_packets_raise_only_what_they_may(data: bytes, digest_type: DigestType) -> None:
    """Random bytes are a packet, or one of the errors that the functions promise."""
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    with contextlib.suppress(ChecksumError):
        unpack_packet(1, 1, data, digester)
    with contextlib.suppress(ChecksumError):
        unpack_lac(1, data, digester)
    with contextlib.suppress(BadRequestError):
        lac_packet_ids(data)
    with contextlib.suppress(FormatError):
        parse_header(data)


@given(IDS, st.integers(-1, MAX_ID), DIGESTS)
def test_lac_packets_round_trip(ledger_id: int, lac: int, digest_type: DigestType) -> None:
    """Any LAC survives."""
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    packet = pack_lac(ledger_id, lac, digester)
    assert unpack_lac(ledger_id, packet, digester) == lac
    assert lac_packet_ids(packet) == (ledger_id, lac)

"""Properties of files, blocks, records and index pages."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.entry.batch import EntryBatch
from bookie.errors import ChecksumError, FormatError
from bookie.ids import MAX_ID
from bookie.node.engine.format.blocks import (
    ALIGNMENTS_BYTES,
    BLOCK_HEADER_SIZE_BYTES,
    BODY_SIZE_BYTES_MAX,
    BlockHeader,
    FileHeader,
    FileKind,
    block_size_on_disk,
    body_crc,
    decode_file_header,
    encode_block_header,
    padding,
    parse_block_header,
)
from bookie.node.engine.format.index_rows import (
    FileRow,
    FileState,
    HeldIn,
    LedgerIndexRow,
    Mark,
    decode_file_row,
    decode_ledger_row,
    decode_mark,
    encode_file_row,
    encode_ledger_row,
    encode_mark,
    file_key,
    ledger_key,
    parse_file_key,
    parse_ledger_key,
)
from bookie.node.engine.format.pages import (
    SLOT_SIZE_BYTES,
    decode_pages,
    encode_pages,
    page_key,
    parse_page_key,
)
from bookie.node.engine.format.records import (
    EntriesRecord,
    Record,
    encode_deleted,
    encode_entries_head,
    encode_fence,
    encode_lac,
    encode_ledger,
    encode_limbo,
    encode_link,
    parse_records,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(0, MAX_ID)
NONCES = st.binary(min_size=16, max_size=16)
KEYS = st.binary(max_size=64)
ALIGNMENTS = st.sampled_from(ALIGNMENTS_BYTES)


@st.composite
def entries_records(draw: st.DrawFn) -> bytes:
    """A whole ENTRIES record."""
    sizes = draw(st.lists(st.integers(32, 40), min_size=1, max_size=10))
    steps = draw(
        st.none() | st.lists(st.integers(1, 1000), min_size=len(sizes) - 1, max_size=len(sizes) - 1)
    )
    payload = draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
    batch = EntryBatch(
        draw(IDS),
        draw(st.integers(0, MAX_ID - 10**6)),
        None if steps is None else np.array(steps, dtype=np.int64),
        np.array(sizes, dtype=draw(st.sampled_from(["i8", "u4"]))),
        payload,
    )
    return encode_entries_head(batch, draw(U32), draw(st.booleans())) + payload


RECORDS = st.one_of(
    entries_records(),
    st.builds(encode_ledger, IDS, KEYS),
    st.builds(encode_fence, IDS, KEYS),
    st.builds(encode_lac, IDS, KEYS),
    st.builds(encode_deleted, IDS, st.integers(-(2**63), 2**63 - 1)),
    st.builds(encode_link, U64, NONCES, U64),
    st.builds(encode_limbo, IDS, st.booleans()),
)


def encoded(record: Record, body: memoryview) -> bytes:
    """A parsed record as bytes again."""
    match record:
        case EntriesRecord():
            payload = body[record.payload_offset :][: record.batch.payload_bytes]
            assert payload == record.batch.payload
            head = encode_entries_head(record.batch, record.payload_crc32c, record.recovery)
            return head + bytes(payload)
        case _:
            name = type(record).__name__.removesuffix("Record").lower()
            encoder = {
                "ledger": encode_ledger,
                "fence": encode_fence,
                "lac": encode_lac,
                "deleted": encode_deleted,
                "link": encode_link,
                "limbo": encode_limbo,
            }[name]
            values = [getattr(record, field) for field in type(record).__slots__]
            data: bytes = encoder(*values)  # type: ignore[operator]
            return data


@given(st.lists(RECORDS, max_size=8))
def test_records_round_trip(records: list[bytes]) -> None:
    """A body of records parses into what encodes to the same bytes, at the right offsets."""
    body = memoryview(b"".join(records))
    at = 0
    for data, (offset, record) in zip(records, parse_records(body, len(records)), strict=True):
        assert offset == at
        assert encoded(record, body) == data
        at += len(data)


@given(st.lists(RECORDS, max_size=4), st.data())
def test_damaged_bodies_parse_or_are_format_errors(
    records: list[bytes], data: st.DataObject
) -> None:
    """For any body: records, or a format error."""
    body = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    count = data.draw(st.integers(0, 5))
    for candidate in (body, body[:cut], data.draw(st.binary(max_size=60))):
        with contextlib.suppress(FormatError):
            list(parse_records(memoryview(bytes(candidate)), count))


@given(st.sampled_from(FileKind), U64, NONCES, ALIGNMENTS, st.data())
def test_file_headers(
    kind: FileKind, number: int, nonce: bytes, alignment: int, data: st.DataObject
) -> None:
    """A file header round trips, and one changed byte anywhere refuses."""
    header = FileHeader(kind, number, nonce, alignment)
    encoded_header = header.encode()
    assert decode_file_header(encoded_header) == header
    damaged = bytearray(encoded_header)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        decode_file_header(damaged)


@given(NONCES, U64, U64, st.integers(0, BODY_SIZE_BYTES_MAX), U32, U32, st.data())
def test_block_headers(
    nonce: bytes,
    sequence: int,
    durable_upto: int,
    body_length: int,
    count: int,
    crc: int,
    data: st.DataObject,
) -> None:
    """A block header round trips; changed bytes and another nonce invalidate it."""
    header = BlockHeader(sequence, durable_upto, body_length, count, crc)
    encoded_header = encode_block_header(nonce, header)
    assert parse_block_header(encoded_header, nonce) == header
    damaged = bytearray(encoded_header)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    assert parse_block_header(damaged, nonce) is None
    other = data.draw(NONCES.filter(lambda candidate: candidate != nonce))
    # Two nonces share a CRC once in 2^32.
    if crc32c(other) != crc32c(nonce):
        assert parse_block_header(encoded_header, other) is None


@given(st.binary(max_size=60), NONCES)
def test_random_bytes_are_no_block(data: bytes, nonce: bytes) -> None:
    """Random bytes and zeros are never a block."""
    assert parse_block_header(data, nonce) is None
    assert parse_block_header(bytes(len(data)), nonce) is None


@given(NONCES, U64, st.lists(st.binary(max_size=20)))
def test_body_crc_ignores_the_cuts(nonce: bytes, sequence: int, parts: list[bytes]) -> None:
    """The CRC of a body depends on its bytes only."""
    assert body_crc(nonce, sequence, parts) == body_crc(nonce, sequence, [b"".join(parts)])


@given(st.integers(0, 2**24), ALIGNMENTS)
def test_sizes_on_disk(body_length: int, alignment: int) -> None:
    """A block takes whole alignments, and less than one more than it needs."""
    size = block_size_on_disk(body_length, alignment)
    used = BLOCK_HEADER_SIZE_BYTES + body_length
    assert size % alignment == 0
    assert used <= size < used + alignment
    assert len(padding(used, alignment)) == size - used


SLOTS = st.tuples(U32, U32, st.integers(1, 2**32 - 1))
PAGES = st.dictionaries(
    st.integers(0, MAX_ID >> 6),
    st.dictionaries(st.integers(0, 63), SLOTS, min_size=1, max_size=8),
    max_size=5,
)


@given(IDS, PAGES)
def test_pages_round_trip(
    ledger_id: int, pages: dict[int, dict[int, tuple[int, int, int]]]
) -> None:
    """Any used slots survive; only trailing unused ones are left out."""
    numbers = np.array(sorted(pages), dtype=np.int64)
    slots = np.zeros((len(pages), 64, 3), np.uint32)
    for index, number in enumerate(sorted(pages)):
        for position, slot in pages[number].items():
            slots[index, position] = slot
    pairs = encode_pages(ledger_id, numbers, slots)
    assert [parse_page_key(key) for key, _ in pairs] == [(ledger_id, n) for n in sorted(pages)]
    assert [len(value) for _, value in pairs] == [
        4 + SLOT_SIZE_BYTES * (max(pages[number]) + 1) for number in sorted(pages)
    ]
    found, decoded = decode_pages(pairs)
    assert found.tolist() == sorted(pages)
    assert (decoded == slots).all()


def with_crc(data: bytes, wanted: bool, key: bytes = b"") -> bytes:
    """`data`, behind its right checksum under `key` if `wanted`."""
    return struct.pack("<I", crc32c(key + data)) + data if wanted else data


@given(st.lists(st.tuples(st.binary(max_size=18), st.binary(max_size=900), st.booleans())))
def test_random_pages_raise_only_corruption(pages: list[tuple[bytes, bytes, bool]]) -> None:
    """Random keys and bytes, with a right checksum or not, are pages or a corruption error."""
    with contextlib.suppress(ChecksumError, FormatError):
        decode_pages([(key, with_crc(value, is_sealed, key)) for key, value, is_sealed in pages])
    for key, _, _ in pages:
        with contextlib.suppress(FormatError):
            assert page_key(*parse_page_key(key)) == key


I64 = st.integers(-(2**63), 2**63 - 1)
SPANS = st.tuples(U32, U32)
ALIVE_ROWS = st.builds(
    LedgerIndexRow,
    fenced=st.booleans(),
    limbo=st.booleans(),
    key_digest=st.none() | KEYS,
    lac_packet=KEYS,
    max_lac=I64,
    first_entry_id=I64,
    last_entry_id=I64,
    entries=U64,
    payload_bytes=U64,
)
DELETED_ROWS = st.builds(
    LedgerIndexRow,
    fenced=st.booleans(),
    deleted_at_ms=I64,
    max_lac=I64,
    held_in=st.builds(HeldIn, SPANS, SPANS),
)
LEDGER_ROWS = ALIVE_ROWS | DELETED_ROWS
FILE_ROWS = st.builds(
    FileRow,
    kind=st.sampled_from(FileKind),
    state=st.sampled_from(FileState),
    size_bytes=U64,
    live_bytes=U64,
)
MARKS = st.builds(Mark, file_number=U32, offset=U64, sequence=U64, nonce=NONCES)


@given(IDS, U32, LEDGER_ROWS, FILE_ROWS, MARKS)
def test_index_rows_round_trip(
    ledger_id: int, number: int, ledger: LedgerIndexRow, file: FileRow, mark: Mark
) -> None:
    """Any row survives."""
    assert decode_ledger_row(ledger_id, encode_ledger_row(ledger_id, ledger)) == ledger
    assert decode_file_row(number, encode_file_row(number, file)) == file
    assert decode_mark(encode_mark(mark)) == mark


@given(st.binary(max_size=120), st.booleans())
def test_random_index_rows_raise_only_corruption(data: bytes, is_sealed: bool) -> None:
    """Random bytes, with a right checksum or not, are a row or a corruption error."""
    with contextlib.suppress(ChecksumError, FormatError):
        decode_ledger_row(7, with_crc(data, is_sealed, ledger_key(7)))
    with contextlib.suppress(ChecksumError, FormatError):
        decode_file_row(7, with_crc(data, is_sealed, file_key(7)))
    with contextlib.suppress(ChecksumError, FormatError):
        decode_mark(with_crc(data, is_sealed))
    for parse in (parse_ledger_key, parse_file_key):
        with contextlib.suppress(FormatError):
            parse(data)

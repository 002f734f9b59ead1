"""File and block headers: what validates, and what never may."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from bookie.errors import FormatError
from bookie.node.engine.format.blocks import (
    ALIGNMENTS_BYTES,
    BLOCK_HEADER_SIZE_BYTES,
    BODY_SIZE_BYTES_MAX,
    FILE_HEADER_SIZE_BYTES,
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

NONCE = bytes(range(16))
HEADER = FileHeader(FileKind.JOURNAL, 7, NONCE, 512)
BLOCK = BlockHeader(
    sequence=9, durable_upto=8192, body_length=100, record_count=2, body_crc=0x12345678
)


def resealed(data: bytes, at: int, replacement: bytes) -> bytes:
    """A file header with other bytes at `at` and a right checksum."""
    changed = data[:at] + replacement + data[at + len(replacement) : -4]
    return changed + struct.pack("<I", crc32c(changed))


def resealed_block(data: bytes, at: int, replacement: bytes) -> bytes:
    """A block header with other bytes at `at` and a right checksum."""
    changed = data[:at] + replacement + data[at + len(replacement) : -4]
    return changed + struct.pack("<I", crc32c(changed, crc32c(NONCE)))


@pytest.mark.parametrize("kind", list(FileKind))
@pytest.mark.parametrize("alignment", ALIGNMENTS_BYTES)
def test_file_header_round_trip(kind: FileKind, alignment: int) -> None:
    """A header is 4096 bytes and comes back equal, also with data behind it."""
    header = FileHeader(kind, 2**64 - 1, NONCE, alignment)
    data = header.encode()
    assert len(data) == FILE_HEADER_SIZE_BYTES
    assert decode_file_header(data) == header
    assert decode_file_header(memoryview(data + b"blocks")) == header


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter"),
        (HEADER.encode()[:-1], "shorter"),
        (bytes(4096), "starts with other bytes"),
        (b"\x7fELF".ljust(4096, b"x"), "starts with other bytes"),
        (HEADER.encode()[:100] + b"x" + HEADER.encode()[101:], "checksum"),
        (resealed(HEADER.encode(), 8, struct.pack("<I", 2)), "newer version: format 2"),
        (resealed(HEADER.encode(), 8, struct.pack("<I", 0)), "no sense"),
        (resealed(HEADER.encode(), 12, struct.pack("<I", 3)), "no sense"),
        (resealed(HEADER.encode(), 40, struct.pack("<I", 0)), "no sense"),
        (resealed(HEADER.encode(), 40, struct.pack("<I", 513)), "no sense"),
    ],
)
def test_file_header_refusals(data: bytes, message: str) -> None:
    """Foreign, damaged and newer files are told apart."""
    with pytest.raises(FormatError, match=message):
        decode_file_header(data)


def test_block_header_round_trip() -> None:
    """A block header is 40 bytes and comes back equal, also with a body behind it."""
    data = encode_block_header(NONCE, BLOCK)
    assert len(data) == BLOCK_HEADER_SIZE_BYTES
    assert parse_block_header(data, NONCE) == BLOCK
    assert parse_block_header(memoryview(data + b"body"), NONCE) == BLOCK


def test_zeros_and_short_data_are_no_block() -> None:
    """Preallocated space and the end of a file never validate, whatever the nonce."""
    for nonce in (NONCE, bytes(16)):
        assert parse_block_header(bytes(512), nonce) is None
        assert parse_block_header(b"", nonce) is None
    assert parse_block_header(encode_block_header(NONCE, BLOCK)[:-1], NONCE) is None


def test_a_block_of_another_file_is_no_block() -> None:
    """A stale block under another nonce does not validate."""
    assert parse_block_header(encode_block_header(NONCE, BLOCK), bytes(16)) is None


def test_every_flipped_bit_invalidates_a_block_header() -> None:
    """No single-bit change of a block header goes unnoticed."""
    data = encode_block_header(NONCE, BLOCK)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_block_header(damaged, NONCE) is None


def test_absurd_lengths_are_no_block_and_unknown_flags_are_refused() -> None:
    """A right checksum does not excuse an absurd length; flags come from a newer version."""
    data = encode_block_header(NONCE, BLOCK)
    absurd = resealed_block(data, 8, struct.pack("<I", BODY_SIZE_BYTES_MAX + 1))
    assert parse_block_header(absurd, NONCE) is None
    with pytest.raises(FormatError, match="block 9 has flags"):
        parse_block_header(resealed_block(data, 4, b"\1\0"), NONCE)
    with pytest.raises(FormatError, match="block 9 has flags"):
        parse_block_header(resealed_block(data, 6, b"\1\0"), NONCE)


def test_body_crc_chains_over_buffers() -> None:
    """The CRC does not depend on how a body is cut, but on nonce and sequence."""
    whole = body_crc(NONCE, 9, [b"hello world"])
    assert body_crc(NONCE, 9, [b"hello", memoryview(b" wor"), b"", bytearray(b"ld")]) == whole
    assert body_crc(NONCE, 10, [b"hello world"]) != whole
    assert body_crc(bytes(16), 9, [b"hello world"]) != whole
    assert whole == crc32c(NONCE + struct.pack("<Q", 9) + b"hello world")


@pytest.mark.parametrize(
    ("body_length", "alignment", "size"),
    [(0, 512, 512), (472, 512, 512), (473, 512, 1024), (0, 4096, 4096), (4057, 4096, 8192)],
)
def test_blocks_fill_whole_alignments(body_length: int, alignment: int, size: int) -> None:
    """Header, body and padding together are the size on disk."""
    assert block_size_on_disk(body_length, alignment) == size
    used = BLOCK_HEADER_SIZE_BYTES + body_length
    assert padding(used, alignment) == bytes(size - used)

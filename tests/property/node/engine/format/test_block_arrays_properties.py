"""Block headers as arrays are the block headers as objects, for any bytes, whole or damaged."""

from __future__ import annotations

from contextlib import suppress

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import FormatError
from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    BLOCK_MAGIC,
    BlockHeader,
    block_size_on_disk,
    body_crc,
    encode_block_header,
    padding,
    parse_block_header,
    parse_block_headers,
)

NONCE = bytes(range(16))
ALIGNMENT = 512
U64 = st.integers(0, 2**64 - 1)


@st.composite
def file_of_blocks(draw: st.DrawFn) -> bytearray:
    """Blocks one after the other; some bodies hold what looks like the begin of a block."""
    data = bytearray()
    for _ in range(draw(st.integers(0, 12))):
        body = bytearray(draw(st.binary(max_size=32)))
        if draw(st.booleans()):
            body = bytearray(draw(st.integers(400, 2000)))
            for at in range(ALIGNMENT - BLOCK_HEADER_SIZE_BYTES, len(body) - 4, ALIGNMENT):
                if draw(st.booleans()):
                    body[at : at + 4] = BLOCK_MAGIC
        sequence = draw(U64)
        crc = body_crc(NONCE, sequence, [body])
        count = draw(st.integers(0, 2**32 - 1))
        data += encode_block_header(NONCE, BlockHeader(sequence, draw(U64), len(body), count, crc))
        data += body
        data += padding(len(data), ALIGNMENT)
    return data


def expected(data: bytes) -> list[tuple[int, int, BlockHeader, int]]:
    """Start, end, header and seed of the body's checksum, block by block."""
    found = []
    at = 0
    with suppress(FormatError):
        while (header := parse_block_header(data[at : at + 40], NONCE)) is not None:
            if at + BLOCK_HEADER_SIZE_BYTES + header.body_length > len(data):
                break
            end = at + block_size_on_disk(header.body_length, ALIGNMENT)
            seed = crc32c(NONCE + header.sequence.to_bytes(8, "little"))
            found.append((at, end, header, seed))
            at = end
    return found


def parsed(data: bytes) -> list[tuple[int, int, BlockHeader, int]]:
    """The same from arrays."""
    arrays = parse_block_headers(memoryview(data), ALIGNMENT, NONCE)
    if arrays is None:
        return []
    headers = zip(
        arrays.sequences.tolist(),
        arrays.durable_upto.tolist(),
        arrays.body_lengths.tolist(),
        arrays.record_counts.tolist(),
        arrays.body_crcs.tolist(),
        strict=True,
    )
    return list(
        zip(
            arrays.starts.tolist(),
            arrays.ends.tolist(),
            [BlockHeader(*fields) for fields in headers],
            arrays.body_seeds.tolist(),
            strict=True,
        )
    )


@given(file_of_blocks())
def test_arrays_hold_what_the_headers_hold(data: bytearray) -> None:
    """Every value of every block, also when bodies hold magics at boundaries."""
    found = parsed(bytes(data))
    assert found == expected(bytes(data))
    assert (found[-1][1] if found else 0) == len(data)


@given(file_of_blocks(), st.data())
def test_the_first_that_is_wrong_ends_them(data: bytearray, draw: st.DataObject) -> None:
    """Flipped anywhere, mostly in a header, or cut: the same blocks as one by one."""
    starts = [at for at, *_ in expected(bytes(data))]
    for _ in range(draw.draw(st.integers(0, 3))):
        if starts:
            at = draw.draw(st.sampled_from(starts)) + draw.draw(st.integers(0, 44))
            if at < len(data):
                data[at] ^= draw.draw(st.integers(1, 255))
    if draw.draw(st.booleans()):
        del data[draw.draw(st.integers(0, len(data))) :]
    assert parsed(bytes(data)) == expected(bytes(data))


@given(file_of_blocks(), st.data())
def test_unknown_flags_end_them_with_a_right_checksum(data: bytearray, draw: st.DataObject) -> None:
    """A block of a newer version is none of ours; `parse_block_header` has the words."""
    starts = [at for at, *_ in expected(bytes(data))]
    if starts:
        at = draw.draw(st.sampled_from(starts))
        data[at + draw.draw(st.integers(4, 7))] = draw.draw(st.integers(1, 255))
        crc = crc32c(data[at : at + 36], crc32c(NONCE))
        data[at + 36 : at + 40] = crc.to_bytes(4, "little")
        assert len(expected(bytes(data))) == starts.index(at)
    assert parsed(bytes(data)) == expected(bytes(data))

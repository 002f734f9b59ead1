"""Reading a file of blocks, many at once, against reading it block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bookie.node.engine.format.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    BlockHeader,
    FileHeader,
    FileKind,
    block_size_on_disk,
    body_crc,
    encode_block_header,
    padding,
    parse_block_header,
)
from bookie.node.engine.format.records import (
    EntriesRecord,
    LinkRecord,
    Record,
    encode_link,
    parse_records,
)
from bookie.node.engine.scan import BlockRun, ScannedBlock, blocks, grouped, runs
from tests.property.node.engine.format.test_storage_properties import RECORDS

NONCE = bytes(range(16))
HEADER = FileHeader(FileKind.JOURNAL, 7, NONCE, 512)


@dataclass
class InMemory:
    """A file in memory."""

    data: bytes

    def pread(self, size: int, offset: int) -> bytes:
        """See `Readable.pread`."""
        return self.data[offset : offset + size]

    def size(self) -> int:
        """See `Readable.size`."""
        return len(self.data)


@st.composite
def block_lists(draw: st.DrawFn) -> list[bytes]:
    """The blocks of a file, as they are written; most hold one record, some many or none."""
    written = []
    end = FILE_HEADER_SIZE_BYTES
    first = draw(st.integers(1, 2**40))
    for number in range(draw(st.integers(1, 12))):
        records = draw(st.lists(RECORDS, min_size=draw(st.integers(0, 1)), max_size=3))
        records *= draw(st.sampled_from([1, 1, 1, 8]))
        if number == 0 and draw(st.booleans()):
            records.insert(0, encode_link(6, NONCE, 4096))
        body = b"".join(records)
        sequence = first + number
        header = BlockHeader(
            sequence, end, len(body), len(records), body_crc(NONCE, sequence, [body])
        )
        block = encode_block_header(NONCE, header) + body
        block += padding(len(block), HEADER.alignment)
        written.append(block)
        end += len(block)
    return written


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file whose blocks may be flipped, exchanged, repeated, left out, or cut off."""
    written = draw(block_lists())
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        one, other = (draw(st.integers(0, len(written) - 1)) for _ in range(2))
        match draw(st.sampled_from(["flip", "exchange", "repeat", "leave out"])):
            case "flip":
                block = bytearray(written[one])
                block[draw(st.integers(0, len(block) - 1))] ^= draw(st.integers(1, 255))
                written[one] = bytes(block)
            case "exchange":
                written[one], written[other] = written[other], written[one]
            case "repeat":
                written[one] = written[other]
            case _:
                written[one] = bytes(len(written[one]))
    data = bytes(FILE_HEADER_SIZE_BYTES) + b"".join(written)
    data += bytes(draw(st.sampled_from([0, 100, 512, 4096])))
    if draw(st.booleans()):
        data = data[: draw(st.integers(FILE_HEADER_SIZE_BYTES, len(data)))]
    return data


def one_by_one(data: bytes, sequence: int) -> Iterator[ScannedBlock]:
    """The blocks of a file up to the first that is not valid."""
    offset = FILE_HEADER_SIZE_BYTES
    while (header := parse_block_header(data[offset : offset + 40], NONCE)) is not None:
        if sequence not in (0, header.sequence - 1) or header.durable_upto > offset:
            return
        begin = offset + BLOCK_HEADER_SIZE_BYTES
        body = data[begin : begin + header.body_length]
        if len(body) < header.body_length:
            return
        if body_crc(NONCE, header.sequence, [body]) != header.body_crc:
            return
        end = offset + block_size_on_disk(header.body_length, HEADER.alignment)
        yield ScannedBlock(offset, end, header, memoryview(body))
        offset, sequence = end, header.sequence


def blocks_of(run: BlockRun) -> Iterator[ScannedBlock]:
    """The blocks of a run as objects."""
    found = run.headers
    rows = zip(
        found.starts.tolist(),
        found.ends.tolist(),
        found.sequences.tolist(),
        found.durable_upto.tolist(),
        found.body_lengths.tolist(),
        found.record_counts.tolist(),
        found.body_crcs.tolist(),
        run.bodies,
        strict=True,
    )
    for start, end, *fields, body in rows:
        yield ScannedBlock(run.offset + start, run.offset + end, BlockHeader(*fields), body)


@given(files(), st.sampled_from([1, 40, 600, 4096, 2**23]), st.booleans())
def test_many_at_once_are_those_that_come_one_by_one(
    data: bytes, ahead: int, sequence_is_known: bool
) -> None:
    """However much is read at once, and whatever is wrong with a block."""
    before = 0
    header = parse_block_header(data[FILE_HEADER_SIZE_BYTES:], NONCE)
    if header is not None and sequence_is_known:
        before = header.sequence - 1
    expected = list(one_by_one(data, before))
    found = list(runs(InMemory(data), HEADER, FILE_HEADER_SIZE_BYTES, before, ahead))
    assert [block for run in found for block in blocks_of(run)] == expected
    assert [run.end for run in found[-1:]] == [block.end for block in expected[-1:]]
    assert [run.sequence for run in found[-1:]] == [b.header.sequence for b in expected[-1:]]
    assert list(blocks(InMemory(data), HEADER, FILE_HEADER_SIZE_BYTES, before)) == expected


@given(block_lists(), st.sampled_from([1, 4096, 2**23]))
def test_groups_hold_the_records_of_their_blocks(written: list[bytes], ahead: int) -> None:
    """All records but links, in order, each with its place in the file."""
    data = bytes(FILE_HEADER_SIZE_BYTES) + b"".join(written)
    entries: list[tuple[int, int]] = []
    others: list[Record] = []
    for block in one_by_one(data, 0):
        for at, record in parse_records(block.body, block.header.record_count):
            if isinstance(record, EntriesRecord):
                packets = block.body_offset + record.payload_offset + record.batch.offsets()
                ids = record.batch.entry_ids()
                entries += zip(packets.tolist(), ids.tolist(), strict=False)
            elif not (isinstance(record, LinkRecord) and at == 0):
                others.append(record)
    found: list[tuple[int, int]] = []
    found_others: list[Record] = []
    end = FILE_HEADER_SIZE_BYTES
    for group in grouped(runs(InMemory(data), HEADER, FILE_HEADER_SIZE_BYTES, 0, ahead)):
        assert group.end > end
        end = group.end
        if group.records:
            parsed = group.parse()
            places = group.places_of(parsed.packets)
            found += zip(places.tolist(), parsed.entry_ids.tolist(), strict=True)
            found_others += parsed.others
    assert found == entries
    assert found_others == others
    assert end == len(data)

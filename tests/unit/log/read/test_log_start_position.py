"""Find times in a log: by halving, and compared with a look at every record."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bookie.api import connect
from bookie.env import SystemClock
from bookie.errors import FormatError, LogTruncatedError
from bookie.log.catalog.log_metadata import LogChunk, LogHead, LogRange
from bookie.log.head.chain import CHUNK_RANGES, seal, with_published
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.read.start_position import find_time
from bookie.log.read.status import log_extent
from bookie.log.record.log_record import LogRecord, encode_log_record
from bookie.metadata.model import NOT_EXISTS, Record
from bookie.metadata.store import MetadataStore
from tests.unit.ledger.real_cluster import RealCluster
from tests.unit.log.hand_made_log import HandMadeLog


async def check_every_time(log: HandMadeLog, times: Sequence[int]) -> None:
    """A reader that starts at a time sees what is right of the first record with it."""
    start = (await log.head()).start_offset
    for wanted in range(min(times) - 1, max(times) + 2):
        linear = [at for at in range(start, len(times)) if times[at] >= wanted]
        expected = list(range(linear[0], len(times))) if linear else []
        found = [record.offset async for record in log.reader(start_time=wanted)]
        assert found == expected, wanted


@pytest.mark.parametrize("seed", range(12))
async def test_late_records(log: HandMadeLog, seed: int) -> None:
    """Times go up and down within and across ledgers; one is open, one truncated in part."""
    draw = random.Random(seed)
    times = [draw.randrange(0, 30) for _ in range(draw.randrange(1, 25))]
    at = 0
    while at < len(times):
        writer = await log.add()
        count = draw.randrange(1, 9)
        chosen = times[at : at + count]
        await log.append_records(writer, [LogRecord(time, b"x") for time in chosen])
        at += len(chosen)
        if at < len(times) or draw.random() < 0.5:
            await log.close(writer)
    if draw.random() < 0.5 and not (await log.head()).open_ranges:
        await log.truncate(draw.randrange(0, len(times)))
    await check_every_time(log, times)


async def test_a_control_record_has_a_time_as_well(log: HandMadeLog) -> None:
    """It raises the greatest time, but the record that is wanted comes later."""
    writer = await log.add()
    await log.append_records(writer, [LogRecord(1, b"x")])
    await log.append_payloads(writer, [encode_log_record(LogRecord(9, b""), is_control=True)])
    payloads = [
        encode_log_record(LogRecord(time, b"x"), greatest_ms=max(9, time)) for time in (3, 9, 4)
    ]
    await log.append_payloads(writer, payloads)
    assert [record.offset async for record in log.reader(start_time=9)] == [3, 4]
    assert [record.offset async for record in log.reader(start_time=2)] == [2, 3, 4]


async def test_what_comes_later_is_skipped_until_the_time(log: HandMadeLog) -> None:
    """A follower from a time to come sees no record before it."""
    writer = await log.add()
    await log.append(writer, 2)
    reader = log.reader(start_time=4, follow=True, end=6)
    await log.append(writer, 4)
    assert [record.offset async for record in reader] == [4, 5]


# -- many ranges -----------------------------------------------------------------------------------


class CountingStore:
    """Counts the records that are read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str) -> Record | None:
        self.reads += 1
        return await self._store.get(key)


async def write_ranges(
    log: HandMadeLog, ledger_id: int, counts: Sequence[int]
) -> tuple[LogHead, list[LogChunk]]:
    """Publish ranges of one ledger, which have the time of their last offset, in a few steps."""
    head = LogHead(log.definition.log_id)
    entry_id, version = 0, NOT_EXISTS
    chunks: list[LogChunk] = []
    for begin in range(0, len(counts), 4096):
        ranges = []
        for count in counts[begin : begin + 4096]:
            last = entry_id + count - 1
            ranges.append(LogRange(ledger_id, entry_id, last, 0, last, 10 * count))
            entry_id = last + 1
        head, sealed = seal(with_published(head, ranges))
        chunks += sealed
        for at in range(0, len(sealed), 64):
            written = await log.client.logs.write_head(
                log.partition, head, version, sealed=sealed[at : at + 64]
            )
            version = written.version
    return head, chunks


@pytest.fixture
async def many(one_bookie: RealCluster, logs: LogClient, log: HandMadeLog) -> HandMadeLog:
    """20 000 ranges of 1 to 3 entries, of one ledger that is open."""
    writer = await log.create()
    draw = random.Random(7)
    counts = [draw.randrange(1, 4) for _ in range(20_000)]
    await log.append(writer, sum(counts))
    await write_ranges(log, writer.ledger_id, counts)
    return log


async def test_many_ranges_are_found_with_few_reads(many: HandMadeLog) -> None:
    """Any offset, time and end needs a search among 149 chunks: 8 or 9 of them."""
    client = many.client
    counting = CountingStore(client.store)
    end = many.next_offset
    counted = LogClient(client.ledgers, counting, clock=SystemClock())  # type: ignore[arg-type]
    counted_log = HandMadeLog(counted, many.partition, many.definition)
    for options, expected in (
        ({}, 0),
        ({"start": end - 1}, end - 1),
        *(({"start": offset}, offset) for offset in range(11, end, 5021)),
        *(({"start_time": offset}, offset) for offset in range(11, end, 5021)),
    ):
        counting.reads = 0
        reader = counted_log.reader(**options, end=expected + 3)
        found = [record.offset async for record in reader]
        assert found == list(range(expected, min(expected + 3, end)))
        assert counting.reads <= 12
    counting.reads = 0
    extent = await log_extent(counted, many.partition, many.definition)
    assert (extent.earliest_offset, extent.end_offset) == (0, end)
    assert extent.size_bytes == 10 * end
    assert extent.chunks > 100
    assert counting.reads == 1


async def test_all_of_many_ranges(many: HandMadeLog) -> None:
    """Chunk after chunk, then the head; nothing is left out at the borders."""
    offsets = [record.offset async for record in many.reader()]
    assert offsets == list(range(many.next_offset))
    ledger_id = (await many.head()).ranges[0].ledger_id
    reader = many.reader(start=(ledger_id, 777), end=780)
    assert [record.offset async for record in reader] == [777, 778, 779]


async def test_chunks_that_go_while_they_are_read(many: HandMadeLog) -> None:
    """The head that a reader knows names chunks that were truncated."""
    logs, partition = many.client.logs, many.partition
    ranges = LogRanges(logs, partition, many.definition.log_id)
    await ranges.refresh()
    found = await logs.read_latest_head(partition, many.definition.log_id)
    head = found.value
    gone = [await logs.read_chunk(partition, number) for number in range(100)]
    assert gone[-1] is not None
    start = gone[-1].ranges[-1].end_offset
    assert start is not None
    shorter = LogHead(
        head.log_id, ranges=head.ranges, first_chunk=100, next_chunk=head.next_chunk,
        start_offset=start,
    )  # fmt: skip
    await logs.write_head(partition, shorter, found.version)
    await logs.delete_chunks(partition, range(100))
    readers = LedgerReaders(many.client.ledgers)
    assert await find_time(ranges, readers, 0) == start
    fresh = LogRanges(logs, partition, many.definition.log_id)
    fresh.adopt(found)
    with pytest.raises(LogTruncatedError):
        await fresh.from_offset(3)
    assert fresh.head.first_chunk == 100
    fresh = LogRanges(logs, partition, many.definition.log_id)
    fresh.adopt(found)
    with pytest.raises(LogTruncatedError):
        await fresh.of_entry(head.ranges[0].ledger_id, 3)
    await logs.delete_chunks(partition, [120])
    with pytest.raises(FormatError, match="chunk 120 of orders#0 is missing"):
        await fresh.of_entry(head.ranges[0].ledger_id, start)


async def test_positions_are_found_by_another_client(
    one_bookie: RealCluster, many: HandMadeLog
) -> None:
    """A chunk holds 128 ranges; each reader searches from the start."""
    assert CHUNK_RANGES == 128
    async with connect(one_bookie.uri) as other:
        log = HandMadeLog(other._logs, many.partition, many.definition)
        extent = await log_extent(other._logs, log.partition, log.definition)
        assert extent.end_offset == many.next_offset
        assert [r.offset async for r in log.reader(start=many.next_offset - 1)] == [
            many.next_offset - 1
        ]

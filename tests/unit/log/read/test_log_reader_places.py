"""Places that are hard to hit: borders of chunks, and a seek while a batch is on its way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from bookie.api import connect
from bookie.log.catalog.log_metadata import LogHead, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head.chain import seal, with_published
from bookie.log.record.log_record import LogRecord
from bookie.metadata.model import NOT_EXISTS
from tests.unit.ledger.real_cluster import real_cluster, until
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog


async def test_borders_of_chunks(log: HandMadeLog) -> None:
    """The first offset of a chunk, and the last one of the chunk before it."""
    writer = await log.create()
    count = 3000
    await log.append(writer, count)
    ranges = [LogRange(writer.ledger_id, at, at, 0, at, 32) for at in range(count)]
    head, chunks = seal(with_published(LogHead(log.definition.log_id), ranges))
    await log.metadata.write_head(log.partition, head, NOT_EXISTS, sealed=chunks)
    assert len(chunks) > 5
    firsts = [chunk.ranges[0].base_offset or 0 for chunk in chunks]
    for first in (*firsts, head.ranges[0].base_offset or 0):
        for offset in (max(0, first - 1), first):
            expected = list(range(offset, offset + 3))
            for options in ({"start": offset}, {"start_time": offset}):
                reader = log.reader(**options, end=offset + 3)
                assert [record.offset async for record in reader] == expected


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_a_seek_while_a_batch_is_on_its_way(log: HandMadeLog, turns: int) -> None:
    """A task that waits for a batch gets the one of the new place, at every moment of a seek."""
    await log.fill(2, 2)
    await log.append(await log.add(), 2)
    for options in ({}, {"start": 4}, {"start": 4, "follow": True}):
        reader = log.reader(**options)
        async with aclosing(reader.batches()) as batches:

            async def wait() -> int:
                return (await anext(batches))[0].offset

            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(wait())
                for _ in range(turns):
                    await asyncio.sleep(0)
                came_first = waiting.done()
                reader.seek(3)
            assert waiting.result() == (options.get("start", 0) if came_first else 3)
            if came_first:
                assert await wait() == 3
            assert reader.next_offset == 4


async def test_a_log_of_a_local_store(tmp_path: Path) -> None:
    """Heads and ledgers are followed in another kind of store as in memory."""
    (tmp_path / "metadata").mkdir()
    uri = f"local://{tmp_path}/metadata"
    async with real_cluster(tmp_path, 1, uri=uri) as cluster, connect(cluster.uri) as client:
        partition = LogPartition(LogName.parse("orders"))
        definition = await client._logs.create(partition.name, policy=ONE_COPY)
        log = HandMadeLog(client._logs, partition, definition)
        seen: list[int] = []

        async def follow() -> None:
            async with aclosing(log.reader(follow=True).records()) as records:
                async for record in records:
                    seen.append(record.offset)  # noqa: PERF401  (others look while it grows)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follow())
            await log.fill(2, 1)
            writer = await log.add()
            await log.append_records(writer, [LogRecord(9, b"x")])
            await until(lambda: seen == [0, 1, 2, 3])
            await log.close(writer)
            async with client.open_log("orders") as owner:
                await owner.append(b"y")
                await owner.roll()
                await owner.append(b"z")
            await until(lambda: seen == [0, 1, 2, 3, 4, 5])
            task.cancel()
        assert [record.offset async for record in log.reader(start_time=9)] == [3, 4, 5]

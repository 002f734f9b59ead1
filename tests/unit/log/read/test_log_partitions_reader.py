"""Several partitions read as one: in order within each, and nothing lost or seen twice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from bookie.api import BookKeeper
from bookie.errors import BadRequestError, LogTruncatedError, NoSuchLogError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.read.partitions_reader import PartitionsReader, open_reader
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogPosition
from tests.unit.ledger.real_cluster import until
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog

NAME = LogName.parse("clicks")


async def merged(logs: LogClient, **options: Any) -> PartitionsReader:
    reader = await open_reader(logs, NAME, **options)
    assert isinstance(reader, PartitionsReader)
    return reader


@pytest.fixture
async def clicks(one_bk: BookKeeper) -> None:
    """Three partitions with 4 records each, in two ledgers."""
    await one_bk.create_log("clicks", partitions=3, policy=ONE_COPY)
    async with one_bk.open_log("clicks") as writer:
        for number in range(3):
            await writer.append_many([b"%d" % at for at in range(2)], partition=number)
        await writer.roll()
        for number in range(3):
            await writer.append_many([b"%d" % at for at in range(2, 4)], partition=number)


@pytest.mark.usefixtures("clicks")
async def test_all_partitions(logs: LogClient) -> None:
    """Each record tells its partition."""
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    reader = await merged(logs)
    assert await reader.lag() == 12
    async for record in reader:
        assert int(record.value) == record.offset
        assert record.position.partition == record.partition
        seen[record.partition].append(record.offset)
    assert seen == {number: [0, 1, 2, 3] for number in range(3)}
    assert reader.next_offsets == {0: 4, 1: 4, 2: 4}
    assert await reader.lag() == 0
    assert [batch async for batch in reader.batches()] == []
    reader.seek(1)
    reader.seek(time=2**62, partition=2)
    sizes = [(batch[0].partition, len(batch)) async for batch in reader.batches()]
    assert sum(size for number, size in sizes if number < 2) == 6
    assert all(number < 2 for number, _ in sizes)
    with pytest.raises(BadRequestError, match="partition 3"):
        reader.seek(0, partition=3)
    assert "clicks#2" in repr(reader)


@pytest.mark.usefixtures("clicks")
async def test_an_iteration_goes_on_where_the_last_one_was_left(logs: LogClient) -> None:
    """A batch that was ready and not taken is read again."""
    reader = await merged(logs)
    seen: list[tuple[int, int]] = []
    for _ in range(12):
        async with aclosing(reader.records()) as records:
            record = await anext(records)
            seen.append((record.partition, record.offset))
    assert sorted(seen) == [(number, at) for number in range(3) for at in range(4)]
    assert [record async for record in reader] == []


@pytest.mark.usefixtures("clicks")
async def test_an_iteration_over_batches_goes_on(logs: LogClient) -> None:
    """A batch that was handed out counts as read, and no other one."""
    reader = await merged(logs)
    seen: list[tuple[int, int]] = []
    while True:
        async with aclosing(reader.batches()) as batches:
            batch = await anext(batches, None)
        if batch is None:
            break
        seen += [(record.partition, record.offset) for record in batch]
    assert sorted(seen) == [(number, at) for number in range(3) for at in range(4)]


@pytest.mark.usefixtures("clicks")
async def test_following_and_seeking(one_bk: BookKeeper, logs: LogClient) -> None:
    """A new record of any partition comes; a seek drops what was ready in its partition."""
    reader = await merged(logs, follow=True, start="latest")
    seen: list[tuple[int, int]] = []

    async def follow() -> None:
        async with aclosing(reader.records()) as records:
            async for record in records:
                seen.append((record.partition, record.offset))  # noqa: PERF401  (it grows)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        await until(lambda: reader.next_offsets == {0: 4, 1: 4, 2: 4})
        async with one_bk.open_log("clicks") as writer:
            await writer.append(b"4", partition=1)
            await until(lambda: seen == [(1, 4)])
            reader.seek(3, partition=2)
            await until(lambda: seen == [(1, 4), (2, 3)])
            await writer.append(b"4", partition=0)
            await until(lambda: seen[2:] == [(0, 4)])
        task.cancel()


@pytest.mark.usefixtures("clicks")
async def test_a_position_moves_the_reader_of_its_partition(logs: LogClient) -> None:
    """The offset of the position means another record in each other partition."""
    reader = await merged(logs)
    last = [record async for record in reader if record.partition == 2][-1]
    reader.seek(last.position)
    assert [record async for record in reader] == [last]
    reader.seek((last.ledger_id, last.entry_id), partition=2)
    assert [record async for record in reader] == [last]
    for wrong, partition, said in [
        (last.position, 1, "is in partition 2, not in partition 1"),
        (LogPosition(1, 1, 1, 3), None, "partition 3 is not among"),
        ((last.ledger_id, last.entry_id), None, "name the partition"),
    ]:
        with pytest.raises(BadRequestError, match=said):
            reader.seek(wrong, partition=partition)  # type: ignore[arg-type]
    assert [record async for record in reader] == []
    one = await open_reader(logs, NAME, partition=1)
    assert isinstance(one, LogReader)
    with pytest.raises(BadRequestError, match="is in partition 2, not in partition 1"):
        one.seek(last.position)
    assert len([record async for record in one]) == 4


@pytest.mark.usefixtures("clicks")
async def test_a_failure_of_one_partition(logs: LogClient) -> None:
    """It is raised as it is; the others go on where they were."""
    definition = await logs.definition(NAME)
    log = HandMadeLog(logs, LogPartition(NAME, 1), definition)
    await log.truncate(2)
    reader = await merged(logs, start=0)
    seen: list[tuple[int, int]] = []

    async def read() -> None:
        async for record in reader:
            seen.append((record.partition, record.offset))

    with pytest.raises(LogTruncatedError):
        await read()
    reader.seek("earliest", partition=1)
    seen += [(record.partition, record.offset) async for record in reader]
    expected = [(number, at) for number in range(3) for at in range(4)]
    assert sorted(seen) == [one for one in expected if one not in ((1, 0), (1, 1))]


@pytest.mark.parametrize("turns", range(0, 60, 4))
@pytest.mark.usefixtures("clicks")
async def test_cancellation_of_a_merged_read(logs: LogClient, turns: int) -> None:
    """No task is left, and the next iteration sees all that is left."""
    reader = await merged(logs)
    seen: list[tuple[int, int]] = []

    async def read() -> None:
        async with aclosing(reader.records()) as records:
            async for record in records:
                seen.append((record.partition, record.offset))
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    names = [one.get_name() for one in asyncio.all_tasks()]
    assert not [name for name in names if "clicks" in name or name.startswith("entries of")]
    await read()
    assert sorted(seen) == [(number, at) for number in range(3) for at in range(4)]


@pytest.mark.usefixtures("clicks")
async def test_readers_by_name(logs: LogClient, log: HandMadeLog) -> None:
    """One partition of many, all, or the only one."""
    one = await open_reader(logs, NAME, partition=2, start=3)
    assert isinstance(one, LogReader)
    found = [record async for record in one]
    assert [(record.partition, record.offset) for record in found] == [(2, 3)]
    again = await open_reader(logs, NAME, partition=2, start=found[0].position)
    assert [record async for record in again] == found
    assert isinstance(await open_reader(logs, log.partition.name), LogReader)
    with pytest.raises(BadRequestError, match="a position needs one of"):
        await open_reader(logs, NAME, start=found[0].position)
    for wrong in ({"start": found[0].position}, {"end": found[0].position}):
        with pytest.raises(BadRequestError, match="is in partition 2, not in partition 1"):
            await open_reader(logs, NAME, partition=1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="no partition 3"):
        await open_reader(logs, NAME, partition=3)
    with pytest.raises(NoSuchLogError):
        await open_reader(logs, LogName.parse("other"))

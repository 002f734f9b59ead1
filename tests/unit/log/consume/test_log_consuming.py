"""Consumers and groups on real ledgers, whose writer rolls and changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.api import BookKeeper, LogPolicy, LogWriter, connect
from bookie.errors import BadRequestError, LogTruncatedError
from bookie.ids import MAX_ID
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.consumer import LogConsumer
from bookie.log.consume.cursors import Cursors
from bookie.log.consume.group import GroupMember, group_status
from bookie.log.head.chain import with_ledger
from bookie.log.log_client import LogClient
from bookie.log.read.reading import LogReading
from bookie.log.read.start_position import LogStart
from bookie.log.tidy.truncation import truncate
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
ORDERS = LogName.parse("orders")
FIRST = LogPartition(ORDERS)


@pytest.fixture
async def one_bookie(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """A cluster of one bookie."""
    async with real_cluster(tmp_path, 1) as started:
        yield started


@asynccontextmanager
async def client_of(cluster: RealCluster) -> AsyncIterator[tuple[BookKeeper, LogClient]]:
    """A process that consumes."""
    async with connect(cluster.uri) as bk:
        logs = bk._logs
        try:
            yield bk, logs
        finally:
            await logs.close()


async def take(consumer: LogConsumer, count: int) -> list[bytes]:
    """The next values."""
    async with asyncio.timeout(60):
        return [(await anext(consumer)).value for _ in range(count)]


async def append(log: LogWriter, *values: str) -> None:
    await log.append_many([value.encode() for value in values])


async def test_a_consumer_goes_from_ledger_to_ledger(one_bookie: RealCluster) -> None:
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        reading = LogReading(logs)
        cursors = Cursors(logs, ORDERS, reading)
        async with (
            LogConsumer(logs, "orders", reading, cursor="billing") as consumer,
            bk.open_log("orders") as log,
        ):
            await append(log, "a", "b")
            assert await take(consumer, 2) == [b"a", b"b"]
            await consumer.commit()
            await log.roll()
            await append(log, "c", "d")
            assert await take(consumer, 1) == [b"c"]
            assert (await consumer.lag(), await cursors.lag("billing")) == (1, 2)
        async with LogConsumer(logs, "orders", reading, cursor="billing") as consumer:
            assert await take(consumer, 2) == [b"c", b"d"]
            async with bk.open_log("orders") as log:
                await append(log, "e")
                assert await take(consumer, 1) == [b"e"]
            await consumer.commit()
        assert await cursors.lag("billing") == 0


async def test_what_was_truncated_is_no_lag(one_bookie: RealCluster) -> None:
    """A cursor before the earliest record lags by what can still be read."""
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        reading = LogReading(logs, on_truncated="skip")
        cursors = Cursors(logs, ORDERS, reading)
        async with LogConsumer(logs, "orders", reading, cursor="billing") as consumer:
            async with bk.open_log("orders") as log:
                await append(log, "a", "b", "c", "d")
            await truncate(logs, LogPartition(ORDERS), before=3)
            assert (await consumer.lag(), await cursors.lag("billing")) == (1, 1)
            await truncate(logs, LogPartition(ORDERS), before=4)
            assert (await consumer.lag(), await cursors.lag("billing")) == (0, 0)


async def test_a_cursor_goes_to_any_place(one_bookie: RealCluster) -> None:
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        reading = LogReading(logs)
        cursors = Cursors(logs, ORDERS, reading)
        async with bk.open_log("orders") as log:
            first = await log.append(b"a", timestamp=1000)
            await log.roll()
            second = await log.append(b"b", timestamp=2000)
            await log.append(b"c", timestamp=3000)
            await cursors.create("billing", time=2000)
            found = await cursors.all()
            assert found["billing"][0].offset == second.offset
            places: list[tuple[LogStart, int | None, int]] = [
                ("latest", None, 3),
                ("earliest", None, 0),
                (None, 3000, 2),
                (second, None, 1),
                ((first.ledger_id, first.entry_id), None, 0),
                (2, None, 2),
            ]
            for start, time, offset in places:
                assert await cursors.reset("billing", start, time=time) == {0: offset}
        with pytest.raises(LogTruncatedError):
            await cursors.reset("billing", (999, 0))


async def test_no_cursor_stands_behind_the_end(
    one_bookie: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pass over records that come. Right behind the last record it may stand.

    Bookies deny the record, so that no refusal waits for the last look.
    """
    monkeypatch.setattr("bookie.log.read.reading.END_LOOKS_MAX", 10**9)
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        reading = LogReading(logs)
        cursors = Cursors(logs, ORDERS, reading)
        async with bk.open_log("orders") as log:
            last = await log.append(b"a")
            behind = r"offset \d+ is behind the end of orders#0: its next record gets 1"
            far: list[LogStart] = [2, 1_000_000, (last.ledger_id, last.entry_id + 2)]
            await cursors.create("billing", 1)
            for start in far:
                with pytest.raises(BadRequestError, match=behind):
                    await cursors.create("other", start)
                with pytest.raises(BadRequestError, match=behind):
                    await cursors.reset("billing", start)
                with pytest.raises(BadRequestError, match=behind):
                    await LogConsumer(
                        logs, "orders", reading, cursor="new", start=start
                    ).__aenter__()
            with pytest.raises(BadRequestError, match=behind):
                await cursors.commit("billing", 2)
            async with bk.join_group("readers", logs=["orders"], start=2) as member:
                with pytest.raises(BadRequestError, match=behind):
                    await anext(member)
            assert (await cursors.all()).keys() == {"billing"}
            await append(log, "b")
            async with LogConsumer(logs, "orders", reading, cursor="billing") as consumer:
                assert await take(consumer, 1) == [b"b"]


async def test_a_stored_record_is_waited_for(
    one_bookie: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append has returned, and bookies do not report it as confirmed yet."""
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        reading = LogReading(logs)
        cursors = Cursors(logs, ORDERS, reading)
        bounds, looks = reading.bounds, [0]

        async def late(partition: LogPartition) -> tuple[int, int]:
            looks[0] += 1
            earliest, end = await bounds(partition)
            return earliest, end if looks[0] > 3 else 0

        monkeypatch.setattr(reading, "bounds", late)
        async with bk.open_log("orders") as log:
            await log.append(b"a")
            await cursors.create("billing", 1)
            assert looks == [4]
            looks[0] = 0
            with pytest.raises(BadRequestError, match="is behind the end"):
                await cursors.commit("billing", 2)
            assert looks == [1]


async def test_what_was_never_written_or_is_closed_ends_exactly(
    one_bookie: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log without a ledger, and one whose last ledger is closed."""
    monkeypatch.setattr("bookie.log.read.reading.END_LOOKS_MAX", 10**9)
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        cursors = Cursors(logs, ORDERS, LogReading(logs))
        await cursors.create("billing", 0)
        with pytest.raises(BadRequestError, match="is behind the end"):
            await cursors.commit("billing", 1)
        async with bk.open_log("orders") as log:
            await append(log, "a", "b")
        await cursors.commit("billing", 2)
        for offset in (3, MAX_ID):
            with pytest.raises(BadRequestError, match="is behind the end"):
                await cursors.commit("billing", offset)


async def test_what_is_open_behind_an_open_ledger_has_no_offset_yet(
    one_bookie: RealCluster,
) -> None:
    async with client_of(one_bookie) as (bk, logs):
        await bk.create_log("orders", policy=ONE_COPY)
        definition = await logs.definition(ORDERS)
        ids = [await _open_ledger(bk) for _ in range(2)]
        found = await logs.logs.read_head(FIRST, definition.log_id)
        head = with_ledger(with_ledger(found.value, ids[0]), ids[1])
        await logs.logs.write_head(FIRST, head, found.version)
        cursors = Cursors(logs, ORDERS, LogReading(logs))
        await cursors.create("billing")
        assert await cursors.reset("billing", (ids[0], 0)) == {0: 0}
        with pytest.raises(BadRequestError, match="cannot be read yet"):
            await cursors.reset("billing", (ids[1], 0))


async def _open_ledger(bk: BookKeeper) -> int:
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    return writer.ledger_id


async def test_a_group_shares_the_partitions_of_a_log(one_bookie: RealCluster) -> None:
    async with client_of(one_bookie) as (bk, logs), client_of(one_bookie) as (_, others):
        await bk.create_log("orders", partitions=4, policy=ONE_COPY)
        reading = LogReading(logs)
        async with (
            bk.open_log("orders") as log,
            GroupMember(logs, "workers", reading, pattern="ord*", member="a") as first,
            GroupMember(
                others, "workers", LogReading(others), pattern="ord*", member="b"
            ) as second,
        ):
            await until(lambda: len(first.assignment) == len(second.assignment) == 2)
            for number in range(40):
                await log.append(b"%d" % number, key=b"key %d" % number)
            seen: list[bytes] = []
            async with asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(_work(one, seen)) for one in (first, second)]
                await until(lambda: len(seen) == 40)
                for task in working:
                    task.cancel()
            assert sorted(map(int, seen)) == list(range(40))
            await first.commit()
            await second.commit()
            status = await group_status(logs, "workers", reading)
            assert (status.lag, sorted(status.members)) == (0, ["a", "b"])


async def _work(member: GroupMember, seen: list[bytes]) -> None:
    async for batch in member.batches():
        seen += [record.value for record in batch.records]
        await member.commit(batch)

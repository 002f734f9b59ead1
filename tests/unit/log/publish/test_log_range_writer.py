"""Writers of ranges on real bookies: what is cut is durable, exact, and published or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.env import SystemClock
from bookie.errors import (
    BadRequestError,
    LedgerFencedError,
    LogClosedError,
    NoSuchLogError,
)
from bookie.log.catalog.log_metadata import LogMode, LogRange
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.publish import range_writer
from bookie.log.publish.publisher import LogPublisher
from bookie.log.publish.range_writer import PendingRange, RangeWriter
from bookie.log.record.log_record import (
    LogRecord,
    decode_log_record,
    encode_log_record,
    greatest_timestamp_ms,
)
from bookie.log.record.record_encoder import NewRecord
from bookie.log.tidy.deletion import delete_log
from bookie.log.tidy.sweep import LogSweep, sweep_logs
from bookie.log.tidy.truncation import truncate
from bookie.metadata.connect import open_store
from tests.transactional_logs import APPLICATION, ORDERS, SetClock, metadata_client
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

_PARTITION = LogPartition(ORDERS, 1)
_SMALL = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, roll_bytes=1000)


class MovedClock(SetClock):
    """Both clocks are the test's, and begin with the machine's."""

    def __init__(self) -> None:
        self.ms = SystemClock().now_ms()
        self.suspended_ms = 0
        """The time that only the wall clock has counted."""

    def monotonic(self) -> float:
        return (self.ms - self.suspended_ms) / 1000


@pytest.fixture(params=["memory", "local"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Two bookies, on each store that needs no server."""
    uri = f"local://{tmp_path}/metadata" if request.param == "local" else ""
    async with real_cluster(tmp_path, 2, uri=uri) as started:
        yield started


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    """A connected client."""
    async with connect(cluster.uri) as client:
        yield client


@pytest.fixture
def clock() -> MovedClock:
    """Of `client`."""
    return MovedClock()


@pytest.fixture
async def client(
    cluster: RealCluster, bk: BookKeeper, clock: MovedClock
) -> AsyncIterator[LogClient]:
    """With a transactional log of two partitions."""
    async with open_store(cluster.uri) as store:
        logs = LogClient(bk._connected, store, clock=clock)
        logs.clocks = metadata_client(store, clock).clocks
        await logs.create(ORDERS, mode=LogMode.TRANSACTIONAL, partitions=2, policy=_SMALL)
        yield logs


@pytest.fixture
async def writer(client: LogClient) -> AsyncIterator[RangeWriter]:
    """A writer of ranges of partition 1."""
    async with await RangeWriter.open(client, _PARTITION, APPLICATION) as opened:
        yield opened


async def _cut(writer: RangeWriter) -> PendingRange:
    found = await writer.cut()
    assert found is not None
    return found


async def _payloads(client: LogClient, one: PendingRange | LogRange) -> list[bytes]:
    """The payloads of a published range, read without waiting for the ledger's end."""
    reader = await client.ledgers.open(one.ledger_id)
    assert one.last_entry_id is not None
    entries = reader.read_unconfirmed(one.first_entry_id, one.last_entry_id)
    return [entry.payload async for entry in entries]


async def _values(client: LogClient) -> list[bytes]:
    """Everything that is published in the partition."""
    log_id = (await client.definition(ORDERS)).log_id
    head = (await client.logs.read_latest_head(_PARTITION, log_id)).value
    found: list[bytes] = []
    for one in head.ranges:
        found += [decode_log_record(data).value for data in await _payloads(client, one)]
    return found


async def test_batches_go_from_writers_to_readers(client: LogClient, writer: RangeWriter) -> None:
    publisher = LogPublisher(client, ORDERS)
    assert await writer.cut() is None
    assert await writer.append_many([]) == 0
    assert await writer.append_many([b"a", bytearray(b"b"), memoryview(b"c")]) == 3
    first = await _cut(writer)
    assert await writer.append_many([b"d"]) == 1
    second = await _cut(writer)
    assert (first.first_entry_id, first.last_entry_id) == (0, 2)
    assert (second.ledger_id, second.first_entry_id) == (first.ledger_id, 3)
    assert second.last_entry_id == 3
    assert await _values(client) == []
    assert await publisher.publish(APPLICATION, 0, [first])
    assert await _values(client) == [b"a", b"b", b"c"]
    assert not await publisher.publish(APPLICATION, 0, [second])
    assert await publisher.publish(APPLICATION, 1, [second])
    assert await _values(client) == [b"a", b"b", b"c", b"d"]


async def test_records_keep_key_headers_and_times(
    client: LogClient, writer: RangeWriter, clock: MovedClock
) -> None:
    now = clock.ms
    await writer.append(b"v", key=b"k", headers={"h": b"x"}, timestamp=now + 50)
    await writer.append(b"late", key=b"k")
    await writer.append_many([b"late, too"])
    given: list[bytes | NewRecord] = [
        NewRecord(b"r", timestamp_ms=now + 70),
        b"s",
        NewRecord(b"t", b"key", {}, now + 60),
    ]
    await writer.append_many(given)
    one = await _cut(writer)
    data = await _payloads(client, one)
    records = [decode_log_record(payload) for payload in data]
    assert records[0][:4] == (now + 50, b"v", b"k", {"h": b"x"})
    assert records[5][:3] == (now + 60, b"t", b"key")
    assert [record.timestamp_ms - now for record in records] == [50, 0, 0, 70, 0, 60]
    assert [greatest_timestamp_ms(one) - now for one in data] == [50, 50, 50, 70, 70, 70]
    assert one.end_ms == now + 70
    assert one.size_bytes == sum(map(len, data))
    # The greatest timestamp belongs to the range: the next range starts without it.
    await writer.append_many([b"u"])
    (payload,) = await _payloads(client, two := await _cut(writer))
    assert (greatest_timestamp_ms(payload), two.end_ms) == (now, now)


async def test_encoded_records_are_written_as_they_are(
    client: LogClient, writer: RangeWriter, clock: MovedClock
) -> None:
    """The range knows the greatest of their timestamps, and those of other appends."""
    records = [LogRecord(clock.ms + 70, b"a", b"k"), LogRecord(clock.ms + 60, b"b")]
    payloads = [encode_log_record(one, greatest_ms=clock.ms + 70) for one in records]
    await writer.append_encoded([], 0)
    assert await writer.cut() is None
    await writer.append_encoded(payloads, clock.ms + 70)
    await writer.append(b"late")
    one = await _cut(writer)
    assert (one.end_ms, one.size_bytes > sum(map(len, payloads))) == (clock.ms + 70, True)
    found = await _payloads(client, one)
    assert found[:2] == payloads
    assert greatest_timestamp_ms(found[2]) == clock.ms + 70


async def test_wrong_records_are_refused(writer: RangeWriter) -> None:
    wrong: Any
    for wrong in ([1], ["text"], [b"a", None]):
        with pytest.raises(BadRequestError):
            await writer.append_many(wrong)
    with pytest.raises(BadRequestError):
        await writer.append("text")  # type: ignore[arg-type]
    # They did not reach the ledger, so the range goes on.
    assert await writer.append_many([b"a"]) == 1
    assert (await _cut(writer)).last_entry_id == 0


async def test_appends_at_the_same_time_and_a_cut(writer: RangeWriter) -> None:
    """All of them together are smaller than `roll_bytes`, so the ledger stays."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(writer.append_many([b"%d" % number] * 2))
        await asyncio.sleep(0)
        cutting = tasks.create_task(_cut(writer))
        await asyncio.sleep(0)
        tasks.create_task(writer.append_many([b"later"]))
    one, later = cutting.result(), await _cut(writer)
    assert (one.ledger_id, one.first_entry_id, one.last_entry_id) == (later.ledger_id, 0, 19)
    assert one.size_bytes < 1000
    assert (later.first_entry_id, later.last_entry_id) == (20, 20)


async def test_entries_follow_the_calls_while_a_ledger_is_made(
    client: LogClient, writer: RangeWriter
) -> None:
    calls: list[asyncio.Task[int]] = []
    async with asyncio.TaskGroup() as tasks:
        # One call in each turn of the loop, so that some come just when the range begins.
        while not calls or not calls[0].done():
            calls.append(tasks.create_task(writer.append_many([b"%d" % len(calls)])))
            await asyncio.sleep(0)
    assert await LogPublisher(client, ORDERS).publish(APPLICATION, 0, [await _cut(writer)])
    assert [int(value) for value in await _values(client)] == list(range(len(calls)))


async def test_a_cut_waits_for_an_append_that_compares_the_clock(
    client: LogClient, writer: RangeWriter, clock: MovedClock
) -> None:
    """Its records would otherwise be durable, acknowledged, and in no range."""
    await writer.append_many([b"0"])
    clock.ms += 2 * 86_400_000
    clock.suspended_ms = 2 * 86_400_000
    compare, may_go, asked = client.clocks.require_right, asyncio.Event(), asyncio.Event()

    async def slowly(*, again: bool = False) -> bool:
        asked.set()
        await may_go.wait()
        return await compare(again=again)

    client.clocks.require_right = slowly  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as tasks:
        appending = [tasks.create_task(writer.append_many([b"1"]))]
        await asked.wait()
        appending.append(tasks.create_task(writer.append_many([b"2"])))
        await asyncio.sleep(0)
        cutting = tasks.create_task(_cut(writer))
        await asyncio.sleep(0)
        may_go.set()
    assert [one.result() for one in appending] == [1, 1]
    values = [decode_log_record(data).value for data in await _payloads(client, cutting.result())]
    assert values == [b"0", b"1", b"2"]
    assert await writer.cut() is None


async def test_ledgers_roll_between_ranges(
    client: LogClient, writer: RangeWriter, clock: MovedClock
) -> None:
    await writer.append_many([b"a" * 600])
    small = await _cut(writer)
    await writer.append_many([b"b" * 600] * 5)  # a range is in one ledger
    large = await _cut(writer)
    await writer.append_many([b"c"])
    rolled = await _cut(writer)
    assert (small.ledger_id, large.last_entry_id) == (large.ledger_id, 5)
    assert rolled.ledger_id != large.ledger_id
    assert rolled.first_entry_id == 0
    metadata = (await client.ledgers.ledgers.read(large.ledger_id)).value
    assert (metadata.is_closed, metadata.last_entry_id) == (True, 5)
    clock.ms += 1000 * range_writer.LEDGER_SECONDS_MAX
    await writer.append_many([b"d"])
    assert (await _cut(writer)).ledger_id not in (large.ledger_id, rolled.ledger_id)
    publisher = LogPublisher(client, ORDERS)
    assert await publisher.publish(APPLICATION, 0, [small, large, rolled])
    assert len(await _values(client)) == 7


async def test_a_dead_ledger_fails_the_batch_and_another_one_follows(
    client: LogClient, writer: RangeWriter
) -> None:
    publisher = LogPublisher(client, ORDERS)
    await writer.append_many([b"published"])
    first = await _cut(writer)
    assert await publisher.publish(APPLICATION, 0, [first])
    await writer.append_many([b"cut"])
    cut = await _cut(writer)
    await writer.append_many([b"lost"])
    await client.ledgers.recover(cut.ledger_id)
    with pytest.raises(LedgerFencedError):
        await writer.append_many([b"fenced"])
    for _ in range(2):
        with pytest.raises(LogClosedError, match="discard it and write the batch again"):
            await writer.append(b"more")
    with pytest.raises(LogClosedError, match="nothing of it will be published"):
        await writer.cut()
    # The batch again, in another ledger. What was cut before can be published.
    await writer.append_many([b"again"])
    again = await _cut(writer)
    assert again.ledger_id != cut.ledger_id
    assert await publisher.publish(APPLICATION, 1, [cut, again])
    assert await _values(client) == [b"published", b"cut", b"again"]


async def test_what_is_discarded_or_cancelled_is_in_no_range(
    client: LogClient, writer: RangeWriter
) -> None:
    await writer.append_many([b"dropped"])
    writer.discard()
    await writer.append_many([b"kept"])
    kept = await _cut(writer)
    assert (kept.first_entry_id, kept.last_entry_id) == (1, 1)
    async with asyncio.TaskGroup() as tasks:
        appending = tasks.create_task(writer.append_many([b"cancelled"] * 3))
        while writer._range is None or not writer._range.under_way:  # noqa: ASYNC110  (begins soon)
            await asyncio.sleep(0)
        appending.cancel()
    with pytest.raises(LogClosedError, match="CancelledError"):
        await writer.append(b"more")
    writer.discard()
    await writer.append_many([b"next"])
    following = await _cut(writer)
    assert following.ledger_id == kept.ledger_id
    assert (following.first_entry_id, following.last_entry_id) == (5, 5)
    publisher = LogPublisher(client, ORDERS)
    assert await publisher.publish(APPLICATION, 0, [kept, following])
    assert await _values(client) == [b"kept", b"next"]


async def test_closing(client: LogClient) -> None:
    writer = await RangeWriter.open(client, _PARTITION, APPLICATION)
    await writer.aclose()
    writer = await RangeWriter.open(client, _PARTITION, APPLICATION)
    await writer.append_many([b"a"])
    one = await _cut(writer)
    await writer.append_many([b"never cut"])
    await writer.aclose()
    await writer.aclose()
    metadata = (await client.ledgers.ledgers.read(one.ledger_id)).value
    assert (metadata.is_closed, metadata.last_entry_id) == (True, 1)
    with pytest.raises(LogClosedError, match="closed"):
        await writer.append(b"b")
    assert await writer.cut() is None
    assert await LogPublisher(client, ORDERS).publish(APPLICATION, 0, [one])
    assert await _values(client) == [b"a"]


async def test_wrong_logs_are_refused(client: LogClient) -> None:
    with pytest.raises(BadRequestError, match="and no partition 2"):
        await RangeWriter.open(client, LogPartition(ORDERS, 2), APPLICATION)
    await client.create(LogName("default", "written"))
    with pytest.raises(BadRequestError, match="exclusive writer"):
        await RangeWriter.open(client, LogPartition(LogName("default", "written")), APPLICATION)
    with pytest.raises(NoSuchLogError):
        await RangeWriter.open(client, LogPartition(LogName("default", "none")), APPLICATION)


async def test_a_writer_outlives_an_abort_and_a_truncation(
    client: LogClient, writer: RangeWriter
) -> None:
    publisher = LogPublisher(client, ORDERS)
    await writer.append_many([b"a"])
    first = await _cut(writer)
    await writer.append_many([b"b"])
    second = await _cut(writer)
    assert await publisher.publish(APPLICATION, 0, [first])
    # The ledger has a published range, and stays. It stays open when that range is truncated.
    assert await publisher.abort([second]) == []
    assert await truncate(client, _PARTITION, before=1) == 1
    await writer.append_many([b"c"])
    assert await publisher.publish(APPLICATION, 1, [await _cut(writer)])
    assert await _values(client) == [b"c"]


async def test_an_aborted_ledger_is_replaced(client: LogClient, writer: RangeWriter) -> None:
    publisher = LogPublisher(client, ORDERS)
    await writer.append_many([b"a"])
    aborted = await _cut(writer)
    await writer.append_many([b"begun before"])
    assert await publisher.abort([aborted]) == [aborted.ledger_id]
    with pytest.raises(BadRequestError, match="write the batch of orders#1 again"):
        await publisher.publish(APPLICATION, 0, [await _cut(writer)])
    await writer.append_many([b"b"])
    assert await publisher.publish(APPLICATION, 0, [await _cut(writer)])
    assert await _values(client) == [b"b"]


async def test_a_ledger_that_was_closed_by_others_is_left_before_it_fails(
    client: LogClient, writer: RangeWriter
) -> None:
    await writer.append_many([b"a"])
    first = await _cut(writer)
    await client.ledgers.recover(first.ledger_id)
    await writer.append_many([b"b"])
    assert (await _cut(writer)).ledger_id != first.ledger_id


async def test_sweep_and_deletion_with_data(
    client: LogClient, writer: RangeWriter, clock: MovedClock
) -> None:
    publisher = LogPublisher(client, ORDERS)
    await writer.append_many([b"a"])
    assert await publisher.publish(APPLICATION, 0, [await _cut(writer)])
    async with await RangeWriter.open(client, _PARTITION, "dead") as dead:
        await dead.append_many([b"b"])
        left = await _cut(dead)
        assert await sweep_logs(client) == LogSweep()
        clock.ms += 2 * 86_400_000
        assert await sweep_logs(client) == LogSweep(ledgers=[left.ledger_id])
    assert await _values(client) == [b"a"]
    await delete_log(client, ORDERS)
    assert [one async for one in client.ledgers.ledgers.list_ids()] == []
    with pytest.raises(NoSuchLogError):
        await publisher.publish(APPLICATION, 1, [])

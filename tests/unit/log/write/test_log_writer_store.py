"""The writer of a log while its metadata store fails, and while others truncate the log."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from bookie.api import BookKeeper, LogPolicy, LogWriter, connect
from bookie.errors import (
    BookieError,
    LogFullError,
    LogTakenOverError,
    MetadataUnavailableError,
)
from bookie.log.catalog.log_metadata import LogOwner
from bookie.log.catalog.logs import LogManager, LogName, LogPartition
from bookie.log.head.chain import taken_over
from bookie.log.write import partition_writer, takeover
from bookie.log.write.takeover import WriterOptions
from bookie.metadata.memory.backend import MemoryStore
from tests.transactional_logs import SetClock, metadata_client
from tests.unit.ledger.real_cluster import RealCluster, until
from tests.unit.log.appending import (
    SMALL,
    append_all,
    append_one_by_one,
    error_of,
    faulty,
    logs_of,
    numbers,
)
from tests.unit.log.written_logs import head_of, left_over, values_of

# ---- a metadata store that loses replies -------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost_replies", "lost_requests"])
@pytest.mark.parametrize("nth", range(12))
async def test_a_lost_write_of_metadata_changes_nothing(
    cluster: RealCluster, bk: BookKeeper, nth: int, kind: str
) -> None:
    """Open, roll, fence, close: one write in the middle is not answered. Nothing is lost, doubled
    or left over, except a ledger that an opener could not know of."""
    await bk.create_log("orders")
    store = faulty(bk)
    writes = 0

    def lose() -> None:
        nonlocal writes
        setattr(store, kind, 1 if writes == nth else 0)
        writes += 1

    store.before_write = lose
    acknowledged: list[bytes] = []
    opened = 0
    while opened < 2:
        try:
            log = await bk.open_log("orders")
        except BookieError:
            continue
        opened += 1
        with suppress(BookieError):
            acknowledged += await _work(bk, log)
            await log.close()
    store.before_write = lambda: None
    async with bk.open_log("orders"):
        found = await values_of(bk, cluster.store, "orders")
    assert [value for value in found if value in set(acknowledged)] == acknowledged
    assert len(set(found)) == len(found)
    tags = logs_of(bk)
    for ledger_id in await left_over(bk, cluster.store, "orders"):
        assert "bookie.log" in (await bk.ledger_metadata(ledger_id)).custom_metadata, tags


_turn = iter(range(10**9))


async def _work(bk: BookKeeper, log: LogWriter) -> list[bytes]:
    """Appends around a roll and a fence; what was acknowledged."""
    acknowledged = []
    for step in range(4):
        value = b"%d" % next(_turn)
        position = await log.append(value)
        acknowledged.append(value)
        if step == 1:
            await log.roll()
        elif step == 2:
            await bk.open_ledger(position.ledger_id, recover=True)
    return acknowledged


async def test_an_unknown_head_is_read_back_before_the_ledger_is_deleted(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The write that adds the new ledger happened and was not answered: the ledger stays."""
    await bk.create_log("orders")
    store = faulty(bk)
    heads = 0

    def lose() -> None:
        nonlocal heads
        heads += 1
        store.lost_replies = 1 if heads == 3 else 0  # create, claim, add

    store.before_write = lose
    async with bk.open_log("orders") as log:
        assert heads >= 3
        assert (await log.append(b"one")).offset == 0
    assert await values_of(bk, cluster.store, "orders") == [b"one"]


async def test_a_ledger_stays_if_it_was_added_before_the_takeover(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The reply to the adding write is lost, and another process takes over: that owner's chain
    names the ledger, so its creator must not delete it."""
    old = await bk.open_log("orders")
    await old.append(b"one")
    store = faulty(bk)
    answer = asyncio.Event()

    def hold_the_adding_write() -> None:
        if store.counts["transaction"] == 2:  # after that which creates the ledger
            store.hold_reply = answer

    store.before_write = hold_the_adding_write
    logs, partition = LogManager(cluster.store), LogPartition(LogName.parse("orders"))
    async with asyncio.TaskGroup() as tasks:
        rolling = tasks.create_task(error_of(old.roll()))
        async with asyncio.timeout(60):
            while len((await head_of(cluster.store, "orders")).ranges) < 2:  # noqa: ASYNC110  (the store signals nothing)
                await asyncio.sleep(0.005)
        head = await head_of(cluster.store, "orders")
        found = await logs.read_head(partition, head.log_id)
        await logs.write_head(partition, taken_over(head, LogOwner("thief", 1)), found.version)
        store.lost_replies = 1
        answer.set()
    assert isinstance(rolling.result(), LogTakenOverError)
    assert len([one async for one in bk.list_ledgers()]) == 2
    async with bk.open_log("orders") as new:
        assert (await new.append(b"two")).offset == 1
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]


async def test_appends_go_on_while_the_store_is_away(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll waits for the store; the appends do not."""
    monkeypatch.setattr(partition_writer, "ROLL_RETRY_SECONDS", 0.1)
    await bk.create_log("orders", policy=SMALL)
    store = faulty(bk)
    async with bk.open_log("orders") as log:
        await log.append(b"one")
        store.is_down = True
        first = log._partitions[0].ledger_id
        await append_all(log, numbers(0, 200))
        assert log._partitions[0].ledger_id == first
        store.is_down = False
        await until(lambda: log._partitions[0].ledger_id != first)
    assert await values_of(bk, cluster.store, "orders") == [b"one", *numbers(0, 200)]


async def test_a_store_that_stays_away(cluster: RealCluster, bk: BookKeeper) -> None:
    """Appends go on; a close gives up after the patience, and the next owner finds everything."""
    store = faulty(bk)
    log = await bk.open_log("orders", patience_seconds=0.3)
    await log.append(b"one")
    store.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await log.roll()
    await log.append(b"two")
    with pytest.raises(MetadataUnavailableError):
        await log.close()
    with pytest.raises(MetadataUnavailableError):
        await log.append(b"three")
    store.is_down = False
    async with bk.open_log("orders"):
        assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]


async def test_a_lost_reply_and_a_truncation(cluster: RealCluster, bk: BookKeeper) -> None:
    """The reply to the adding write is lost, and the head is truncated before it is read back: the
    ledger is in the chain once."""
    await bk.create_log("orders")
    async with bk.open_log("orders") as log:
        await append_all(log, numbers(0, 10))
        await log.roll()
        await append_all(log, numbers(10, 20))
        store = faulty(bk)
        answer = asyncio.Event()

        def hold_the_adding_write() -> None:
            if store.counts["transaction"] == 2:
                store.hold_reply = answer

        store.before_write = hold_the_adding_write
        async with asyncio.TaskGroup() as tasks, connect(cluster.uri) as other:
            rolling = tasks.create_task(log.roll())
            async with asyncio.timeout(60):
                while len((await head_of(cluster.store, "orders")).ranges) < 3:  # noqa: ASYNC110  (the store signals nothing)
                    await asyncio.sleep(0.005)
            await other.truncate_log("orders", before=5)
            store.lost_replies = 1
            answer.set()
        rolling.result()
        await append_all(log, numbers(20, 30))
    head = await head_of(cluster.store, "orders")
    assert len({one.ledger_id for one in head.ranges}) == len(head.ranges) == 3
    assert head.start_offset == 5


async def test_a_full_log_is_truncated(cluster: RealCluster, bk: BookKeeper) -> None:
    """Another process truncates it: soon the writer takes records again."""
    await bk.create_log("orders", policy=LogPolicy(roll_bytes=1000, quota_bytes=3000))
    async with bk.open_log("orders") as log, connect(cluster.uri) as other:
        with suppress(LogFullError):
            await append_one_by_one(log, [bytes(100)] * 100)
        await other.truncate_log("orders", before=log.next_offset() - 9)
        async with asyncio.timeout(60):
            while await _is_full(log):  # noqa: ASYNC110  (the writer signals nothing)
                await asyncio.sleep(0.01)


async def _is_full(log: LogWriter) -> bool:
    try:
        await log.append(b"x")
    except LogFullError:
        return True
    return False


async def test_the_owner_applies_the_retention(cluster: RealCluster, bk: BookKeeper) -> None:
    """After each roll, what is beyond the policy goes; the newest closed ledger stays."""
    await bk.create_log("orders", policy=LogPolicy(roll_bytes=1000, retention_bytes=1))
    async with bk.open_log("orders") as log:
        await append_one_by_one(log, [bytes(100)] * 50)
        async with asyncio.timeout(60):
            while (await head_of(cluster.store, "orders")).start_offset < 20:  # noqa: ASYNC110  (the store signals nothing)
                await asyncio.sleep(0.01)
    head = await head_of(cluster.store, "orders")
    assert head.ranges
    assert not await left_over(bk, cluster.store, "orders")
    found = [record.offset async for record in bk.read_log("orders")]
    assert found == list(range(head.start_offset, 50))


# ---- who the owner is ---------------------------------------------------------------------------


async def test_two_claims_of_one_name_in_one_millisecond_have_one_winner() -> None:
    """Two processes may call themselves alike, and begin at the same moment: one owns the log."""
    clock = SetClock()
    async with MemoryStore("claims") as store:
        clients = [metadata_client(store, clock) for _ in range(2)]
        name = LogName.parse("orders")
        definition = (await clients[0].logs.create(name)).value
        options = WriterOptions(name="orders-service")
        first, second = (
            takeover._Takeover(client, LogPartition(name), definition, options, 0.0)
            for client in clients
        )
        found = await clients[0].logs.read_latest_head(LogPartition(name), definition.log_id)
        keeper = await first._begin_epoch(found)
        with pytest.raises(LogTakenOverError, match="orders-service took"):
            await second._begin_epoch(found)
        # The winner may ask again: a write whose reply was lost is recognised as its own.
        assert await keeper.refresh() == keeper.head

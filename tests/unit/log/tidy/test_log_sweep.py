"""Sweeps and deletions: what crashed processes leave is found, and nothing that is named goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie.errors import MetadataUnavailableError, NoSuchLogError
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogOwner
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head.chain import taken_over, with_ledger
from bookie.log.head.head_keeper import HeadKeeper
from bookie.log.publish import publisher as publisher_module
from bookie.log.publish.publisher import LogPublisher
from bookie.log.tidy.deletion import delete_log
from bookie.log.tidy.sweep import LogSweep, sweep_logs
from bookie.log.tidy.truncation import truncate
from bookie.metadata.model import NOT_EXISTS, Delete, Operation
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import (
    APPLICATION,
    NOON_MS,
    ORDERS,
    MetadataLog,
    SetClock,
    before_a_write,
    metadata_client,
    metadata_log,
    pending,
    turns_until,
)

DAY_MS = 86_400_000


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads keep 16 ranges, chunks have 8."""
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)


@pytest.mark.usefixtures("small_heads")
async def test_old_ledgers_that_no_range_names_go(orders: MetadataLog, clock: SetClock) -> None:
    await orders.publish_ledgers(0, 30)  # in chunks and in the head
    await orders.make_ledger(100)
    await orders.make_ledger(101, entries=3)
    await orders.make_ledger(102, 1)
    await orders.make_ledger(103, 7)  # there is no such partition: in doubt it stays
    clock.ms += DAY_MS
    await orders.make_ledger(104)
    clock.ms -= 1
    assert await sweep_logs(orders.client) == LogSweep()
    clock.ms += 1
    dry = await sweep_logs(orders.client, dry_run=True)
    assert dry == LogSweep(ledgers=[100, 101, 102])
    assert await orders.ledgers() == [*range(30), 100, 101, 102, 103, 104]
    assert await sweep_logs(orders.client) == dry
    assert await orders.ledgers() == [*range(30), 103, 104]
    assert await sweep_logs(orders.client) == LogSweep()
    assert await sweep_logs(orders.client, older_than_seconds=0) == LogSweep(ledgers=[104])


async def test_ledgers_of_nobody_and_of_unknown_age_stay(
    orders: MetadataLog, clock: SetClock
) -> None:
    ledgers = orders.client.ledgers.ledgers
    await orders.make_ledger(1)
    found = (await ledgers.read(1)).value
    plain = {"a": b"b"}
    odd = {"bookie.log": b"\xff", "bookie.log.partition": b"0"}
    nameless = {"bookie.log": b"?? x", "bookie.log.partition": b"0"}
    numberless = {**found.custom_metadata, "bookie.log.partition": b"one"}
    for ledger_id, custom in enumerate((plain, odd, nameless, numberless), 10):
        await ledgers.create(replace(found, ledger_id=ledger_id, custom_metadata=custom, c_token=0))
    await ledgers.create(replace(found, ledger_id=20, ctime_ms=-1, c_token=0))
    clock.ms += 2 * DAY_MS
    assert await sweep_logs(orders.client) == LogSweep(ledgers=[1])
    assert await orders.ledgers() == [10, 11, 12, 13, 20]


async def test_a_log_made_anew_does_not_keep_ledgers_of_the_former_one(
    orders: MetadataLog, clock: SetClock
) -> None:
    await orders.make_ledger(1)
    await delete_log(orders.client, ORDERS)
    again = await metadata_log(orders.client)
    await again.make_ledger(2)
    assert await again.batch(0, pending(2, 0, 3))
    clock.ms += 2 * DAY_MS
    assert await sweep_logs(orders.client, dry_run=True) == LogSweep(ledgers=[1])
    assert await sweep_logs(orders.client) == LogSweep(ledgers=[1])
    assert await again.ledgers() == [2]


async def test_a_publication_at_the_same_moment_keeps_its_ledger(
    orders: MetadataLog, store: FaultyStore, clock: SetClock
) -> None:
    """It comes between the sweep's look at the head and its deletion."""
    await orders.make_ledger(1)
    await orders.make_ledger(2)
    clock.ms += DAY_MS
    direct = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(
        store, lambda: direct.publish(APPLICATION, 0, [pending(1, 0, 3)])
    ) as published:
        assert await sweep_logs(orders.client) == LogSweep(ledgers=[2])
    assert published == [True]
    assert await orders.ledgers() == [1]


async def test_the_owner_of_a_partition_goes_on_after_a_sweep(
    orders: MetadataLog, clock: SetClock
) -> None:
    client, name = orders.client, LogName("default", "written")
    created = await client.create(name)
    written = MetadataLog(client, created.log_id, name)
    for ledger_id in (1, 2, 3):
        await written.make_ledger(ledger_id)
    partition = LogPartition(name)
    found = await client.logs.read_head(partition, created.log_id)
    head = with_ledger(taken_over(found.value, LogOwner("me", NOON_MS)), 1)
    versioned = await client.logs.write_head(partition, head, found.version)
    keeper = HeadKeeper(client.logs, partition, versioned, patience_seconds=1)
    clock.ms += DAY_MS
    assert await sweep_logs(client) == LogSweep(ledgers=[2, 3])
    await written.make_ledger(4)
    after = await keeper.change(lambda head: with_ledger(head, 4))
    assert [one.ledger_id for one in after.ranges] == [1, 4]
    assert after.epoch == 1


async def test_a_truncation_that_was_cut_off_is_finished(
    orders: MetadataLog, store: FaultyStore, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    await orders.publish_ledgers(0, 30)

    def go_away(_: object) -> None:
        store.is_down = True

    store.after_write = go_away
    with pytest.raises(MetadataUnavailableError):
        await truncate(orders.client, orders.partition(), before=100)
    store.after_write = lambda _: None
    store.is_down = False
    assert await orders.ledgers() == list(range(30))
    clock.ms += DAY_MS
    done = LogSweep(ledgers=list(range(8)), chunks={orders.partition(): [0]})
    assert await sweep_logs(orders.client, dry_run=True) == done
    assert await sweep_logs(orders.client) == done
    assert await orders.client.logs.chunk_numbers(orders.partition()) == [1]
    assert await orders.named() == [(n, 0, 9) for n in range(8, 30)]


async def test_a_sweep_applies_retention(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 3)
    await orders.client.namespaces.create("default", LogPolicy(retention_seconds=1))
    await orders.client.logs.write_cursor(orders.partition(), "slow", LogCursor(20), NOT_EXISTS)
    done = LogSweep(truncated={orders.partition(): 20})
    assert await sweep_logs(orders.client, dry_run=True) == done
    assert await orders.ledgers() == [0, 1, 2]
    assert await sweep_logs(orders.client) == done
    assert await orders.ledgers() == [2]


async def test_a_failure_leaves_the_other_logs_alone(orders: MetadataLog, clock: SetClock) -> None:
    other = await metadata_log(orders.client, name=LogName("default", "other"))
    await orders.make_ledger(1)
    await other.make_ledger(2)
    await orders.client.store.put(orders.partition().head_key, b"damaged")
    clock.ms += DAY_MS
    done = await sweep_logs(orders.client)
    assert done.ledgers == [2]
    assert list(done.failures) == ["orders#0"]
    assert await orders.ledgers() == [1]


# ---- deletion


@pytest.mark.usefixtures("small_heads")
async def test_a_deleted_log_leaves_nothing(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.publish_ledgers(0, 30)
    await orders.make_ledger(50, 2)
    await orders.make_ledger(51)
    await orders.client.namespaces.create("default")
    await orders.client.namespaces.set_log_policy("default", "orders", LogPolicy(quota_bytes=1))
    assert await orders.batch(50, pending(50, 0, 1, partition=2))
    await orders.client.logs.write_cursor(orders.partition(), "c", LogCursor(2), NOT_EXISTS)
    await delete_log(orders.client, ORDERS)
    assert await orders.ledgers() == [51]
    assert not await store.exists(ORDERS.key)
    assert await orders.client.namespaces.log_policy("default", "orders") is None
    with pytest.raises(NoSuchLogError):
        await delete_log(orders.client, ORDERS)
    with pytest.raises(NoSuchLogError):
        await orders.publisher.publish(APPLICATION, 51, [pending(51, 0, 1)])


@pytest.mark.usefixtures("small_heads")
async def test_a_deletion_goes_on_wherever_it_was_cut_off(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """The store goes away after each write in turn; the last call comes to the end."""
    await orders.publish_ledgers(0, 30)
    attempts = 0
    while True:
        attempts += 1
        left = attempts

        def count(_: object) -> None:
            nonlocal left
            left -= 1
            store.is_down = left <= 0

        store.after_write = count
        try:
            await delete_log(orders.client, ORDERS)
        except MetadataUnavailableError:
            store.after_write = lambda _: None  # of deletions that were under way, too
            store.is_down = False
            with pytest.raises(NoSuchLogError):
                await orders.client.definition(ORDERS)
        except NoSuchLogError:
            break
        else:
            break
    store.is_down = False  # it may have gone away with the last write
    assert attempts > 3
    assert await orders.ledgers() == []
    assert not await store.exists(ORDERS.key)


async def test_a_sweep_finishes_deletions(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 3)
    await orders.client.logs.mark_deleted(ORDERS)
    assert await sweep_logs(orders.client, dry_run=True) == LogSweep(deletions=[ORDERS])
    assert await orders.ledgers() == [0, 1, 2]
    assert await sweep_logs(orders.client) == LogSweep(deletions=[ORDERS])
    assert await orders.ledgers() == []
    assert [name async for name in orders.client.logs.list_logs()] == []


async def test_a_late_deletion_spares_the_next_log_of_the_name(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """Two deletions run; the log is made again when the first one has ended."""
    await orders.publish_ledgers(0, 3)
    direct = metadata_client(store._store)

    def hold_removal(operations: Sequence[Operation]) -> None:
        deleted = [one.key for one in operations if isinstance(one, Delete)]
        if any(key.startswith(ORDERS.key) for key in deleted):  # one step of the removal is done
            store.hold_writes.clear()

    store.after_write = hold_removal
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(delete_log(orders.client, ORDERS))
        await turns_until(lambda: not store.hold_writes.is_set())
        store.after_write = lambda _: None
        await delete_log(direct, ORDERS)
        again = await metadata_log(direct)
        await again.publish_ledgers(10, 3)
        store.hold_writes.set()
    assert slow.result() is None
    assert await again.named() == [(n, 0, 9) for n in (10, 11, 12)]
    assert await again.publisher.last_batch(APPLICATION) == 12


async def test_a_writer_learns_that_its_log_was_deleted(orders: MetadataLog) -> None:
    client, name = orders.client, LogName("default", "written")
    created = await client.create(name)
    partition = LogPartition(name)
    found = await client.logs.read_head(partition, created.log_id)
    head = taken_over(found.value, LogOwner("me", NOON_MS))
    versioned = await client.logs.write_head(partition, head, found.version)
    keeper = HeadKeeper(client.logs, partition, versioned, patience_seconds=1)
    await keeper.change(lambda head: with_ledger(head, 1))
    async with client.logs.watch_head(partition, created.log_id) as heads:
        assert (await anext(heads)).value.epoch == 1
        await delete_log(client, name)
        with pytest.raises(NoSuchLogError):
            await anext(heads)
    with pytest.raises(NoSuchLogError):
        await keeper.change(lambda head: with_ledger(head, 2))

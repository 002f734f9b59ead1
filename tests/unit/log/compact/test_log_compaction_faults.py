"""Publishing a compaction: every step cut off, lost or overtaken. Ledgers are mere metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie.env import gather
from bookie.errors import FormatError, MetadataUnavailableError
from bookie.log.catalog.log_metadata import LogOwner, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.compaction import (
    CompactionGroup,
    CopiedGroup,
    PublishedCompaction,
    plan_compaction,
    publish_compaction,
)
from bookie.log.compact.plan import CompactionLimits
from bookie.log.head import chain
from bookie.log.head.chain import LedgerEnd, taken_over
from bookie.log.head.head_keeper import HeadKeeper, adding, closing
from bookie.log.log_client import LogClient
from bookie.log.publish import publisher as publisher_module
from bookie.log.publish.publisher import LogPublisher
from bookie.log.tidy.sweep import LogSweep, sweep_logs
from bookie.log.tidy.truncation import truncate
from bookie.metadata.model import NOT_EXISTS
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import (
    APPLICATION,
    NOON_MS,
    MetadataLog,
    SetClock,
    before_a_write,
    metadata_client,
    pending,
)

LIMITS = CompactionLimits(small_bytes=200, target_bytes=500)
"""Ledgers of ten entries have 100 bytes: five of them become one."""

DAY_MS = 86_400_000


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads keep 16 ranges, chunks have 8."""
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)


async def groups_of(
    orders: MetadataLog, limits: CompactionLimits = LIMITS
) -> list[CompactionGroup]:
    """The ranges that a compaction would join."""
    return list((await plan_compaction(orders.client, orders.name, limits)).groups)


async def copies_of(
    orders: MetadataLog, first_ledger: int, groups: Sequence[CompactionGroup] | None = None
) -> list[CopiedGroup]:
    """Closed ledgers that hold what the groups hold, as far as metadata tell."""
    copies = []
    for at, group in enumerate(await groups_of(orders) if groups is None else groups):
        first, last = group.ranges[0], group.ranges[-1]
        await orders.make_ledger(first_ledger + at, entries=group.entries)
        after = LogRange(
            first_ledger + at,
            0,
            group.entries - 1,
            first.base_offset,
            last.end_ms,
            group.size_bytes,
        )
        copies.append(CopiedGroup(group, after))
    return copies


async def publish(orders: MetadataLog, copies: Sequence[CopiedGroup]) -> PublishedCompaction:
    """Publish them in partition 0."""
    return await publish_compaction(orders.client, orders.partition(), copies)


async def test_small_ranges_are_named_by_few_ledgers(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 12)
    done = await publish(orders, await copies_of(orders, 100))
    assert done == PublishedCompaction(joined=2, size_bytes=1000)
    named = [(100, 0, 49), (101, 0, 49), (10, 0, 9), (11, 0, 9)]
    assert await orders.named() == named
    assert await orders.ledgers() == [10, 11, 100, 101]
    assert await groups_of(orders) == []
    ends = [one.end_ms for one in await orders.chain()]
    assert ends == [4, 9, 10, 11]
    # Later publications continue behind it.
    await orders.publish_ledgers(12, 2)
    assert await orders.named() == [*named, (12, 0, 9), (13, 0, 9)]


@pytest.mark.usefixtures("small_heads")
async def test_ranges_in_chunks_are_joined(orders: MetadataLog) -> None:
    """The chunks that were are gone; new ones have new numbers."""
    await orders.publish_ledgers(0, 60)
    logs, partition = orders.client.logs, orders.partition()
    assert await logs.chunk_numbers(partition) == [0, 1, 2, 3, 4, 5]
    before = await orders.chain()
    done = await publish(orders, await copies_of(orders, 100))
    assert done.joined == 12
    assert await logs.chunk_numbers(partition) == []
    head = (await logs.read_head(partition, orders.log_id)).value
    assert (head.first_chunk, head.next_chunk, head.chunk_bytes) == (6, 6, 0)
    after = await orders.chain()
    assert [one.ledger_id for one in after] == [*range(100, 112), 59]
    assert after[-1] == before[-1]
    assert await orders.ledgers() == [59, *range(100, 112)]
    await orders.publish_ledgers(60, 30)
    assert await logs.chunk_numbers(partition) == [6, 7, 8, 9]
    assert len(await orders.chain()) == 43


@pytest.mark.usefixtures("small_heads")
async def test_a_chain_too_long_for_one_change_is_joined_in_its_head_only(
    orders: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orders.publish_ledgers(0, 60)
    monkeypatch.setattr("bookie.log.compact.compaction.CHUNKS_REWRITTEN_MAX", 0)
    monkeypatch.setattr(chain, "CHUNKS_REWRITTEN_MAX", 0)
    limits = CompactionLimits(small_bytes=200, target_bytes=200)
    plan = await plan_compaction(orders.client, orders.name, limits)
    assert plan.left == {
        0: "31 ranges would be left in orders#0, and one change writes at most 16; so only the "
        "newest ranges are joined"
    }
    assert plan.ledgers == 60
    assert [one.ranges[0].ledger_id for one in plan.groups] == [48, 50, 52, 54, 56]
    before = await orders.client.logs.chunk_numbers(orders.partition())
    done = await publish(orders, await copies_of(orders, 100, plan.groups))
    assert done.joined == 5
    assert await orders.client.logs.chunk_numbers(orders.partition()) == before
    # All of it at once would be refused, and the copies would go.
    monkeypatch.setattr("bookie.log.compact.compaction.CHUNKS_REWRITTEN_MAX", 99)
    groups = await groups_of(orders, limits)
    done = await publish(orders, await copies_of(orders, 200, groups))
    assert (done.joined, len(done.failures)) == (0, len(groups))
    assert "ranges would be left" in done.failures[0]
    assert max(await orders.ledgers()) < 200


async def test_a_group_that_was_truncated_is_given_up(orders: MetadataLog) -> None:
    """Others are published. One that was truncated in its first range stays whole."""
    await orders.publish_ledgers(0, 12)
    copies = await copies_of(orders, 100)
    assert await truncate(orders.client, orders.partition(), before=10) == 10
    assert await publish(orders, copies) == PublishedCompaction(1, 500, overtaken=1)
    assert await orders.named() == [
        *((n, 0, 9) for n in range(1, 5)),
        (101, 0, 49),
        (10, 0, 9),
        (11, 0, 9),
    ]
    assert await orders.ledgers() == [1, 2, 3, 4, 10, 11, 101]
    copies = await copies_of(orders, 200)
    assert await truncate(orders.client, orders.partition(), before=15) == 15
    assert (await publish(orders, copies)).joined == 1
    assert (await orders.named())[0] == (200, 0, 39)
    assert (await orders.chain())[0].base_offset == 10
    assert await truncate(orders.client, orders.partition(), before=50) == 50
    assert 200 not in await orders.ledgers()


async def test_of_two_compactions_one_wins(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 12)
    first, second = await copies_of(orders, 100), await copies_of(orders, 200)
    done = await gather([publish(orders, first), publish(orders, second)])
    assert sorted((one.joined, one.overtaken) for one in done) == [(0, 2), (2, 0)]
    left = [one for one in await orders.ledgers() if one >= 100]
    assert left in ([100, 101], [200, 201])
    assert [one for one, _, _ in await orders.named()] == [*left, 10, 11]


@pytest.mark.parametrize("fault", ["request", "reply"])
async def test_a_lost_message_is_settled(
    orders: MetadataLog, store: FaultyStore, fault: str
) -> None:
    await orders.publish_ledgers(0, 12)
    copies = await copies_of(orders, 100)
    if fault == "reply":
        store.lost_replies = 1
    else:
        store.lost_requests = 1
    assert await publish(orders, copies) == PublishedCompaction(joined=2, size_bytes=1000)
    assert await orders.ledgers() == [10, 11, 100, 101]


async def test_a_publication_comes_in_between(orders: MetadataLog, store: FaultyStore) -> None:
    """The step is taken on the head that has it."""
    await orders.publish_ledgers(0, 12)
    await orders.make_ledger(50, entries=3)
    copies = await copies_of(orders, 100)
    direct = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(
        store, lambda: direct.publish(APPLICATION, 50, [pending(50, 0, 2, end_ms=60)])
    ) as published:
        done = await publish(orders, copies)
    assert (published, done.joined) == ([True], 2)
    assert (await orders.named())[-1] == (50, 0, 2)
    assert (await orders.named())[0] == (100, 0, 49)


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("step", range(5))
async def test_a_driver_that_dies_at_any_step_leaves_a_whole_log(
    orders: MetadataLog, store: FaultyStore, clock: SetClock, step: int
) -> None:
    """The next compaction ends the work, and a sweep deletes what nothing names."""
    await orders.publish_ledgers(0, 40)
    copies = await copies_of(orders, 100)
    writes = 0

    def go_away(_: object) -> None:
        nonlocal writes
        writes += 1
        store.is_down = writes >= step

    store.after_write = go_away
    if step == 0:
        store.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await publish(orders, copies)
    store.after_write = lambda _: None
    store.is_down = False
    whole = await orders.chain()
    assert [whole[0].base_offset, whole[-1].end_offset] == [0, 400]
    existing = set(await orders.ledgers())
    assert {one.ledger_id for one in whole} <= existing
    again = await publish(orders, await copies_of(orders, 200))
    assert again.joined == (len(copies) if step == 0 else 0)
    clock.ms += DAY_MS
    swept = await sweep_logs(orders.client)
    assert not swept.failures
    named = {one.ledger_id for one in await orders.chain()}
    assert len(named) == 9
    assert set(await orders.ledgers()) == named
    assert await orders.client.logs.chunk_numbers(orders.partition()) == []


async def test_a_copy_that_a_sweep_deleted_is_not_published(
    orders: MetadataLog, clock: SetClock
) -> None:
    """The job took more than a day. Nothing is named that does not exist."""
    await orders.publish_ledgers(0, 12)
    copies = await copies_of(orders, 100)
    clock.ms += DAY_MS
    assert await sweep_logs(orders.client) == LogSweep(ledgers=[100, 101])
    done = await publish(orders, copies)
    assert (done.joined, done.overtaken) == (0, 0)
    assert sorted(done.failures) == [
        f"ledger {n}, a copy of ranges of orders#0, was deleted before it was published; a sweep "
        "keeps it for a day"
        for n in (100, 101)
    ]
    assert await orders.named() == [(n, 0, 9) for n in range(12)]


async def test_a_copy_that_failed_is_told_unless_its_group_is_gone(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 12)
    failed = [CopiedGroup(one, None, "no bookie answered") for one in await groups_of(orders)]
    assert await publish(orders, failed) == PublishedCompaction(
        failures=("no bookie answered", "no bookie answered")
    )
    await truncate(orders.client, orders.partition(), before=10)
    assert await publish(orders, failed) == PublishedCompaction(
        overtaken=1, failures=("no bookie answered",)
    )


async def test_a_ledger_stays_that_is_open_or_has_more_to_publish(orders: MetadataLog) -> None:
    """Its publisher goes on with it, and a later truncation of nothing deletes it."""
    await orders.publish_ledgers(0, 1)
    await orders.make_ledger(50)  # open
    await orders.make_ledger(51, entries=20)  # half of it is published
    assert await orders.batch(1, pending(50, 0, 9, end_ms=5), pending(51, 0, 9, end_ms=5))
    await orders.publish_ledgers(2, 2)
    assert (await publish(orders, await copies_of(orders, 100))).joined == 1
    assert await orders.named() == [(100, 0, 39), (3, 0, 9)]
    assert await orders.ledgers() == [3, 50, 51, 100]
    assert await orders.batch(9, pending(50, 10, 19, end_ms=9), pending(51, 10, 19, end_ms=9))
    assert (await orders.named())[2:] == [(50, 10, 19), (51, 10, 19)]


async def test_partitions_are_compacted_one_by_one(orders: MetadataLog) -> None:
    for partition in (0, 2):
        for number in range(4):
            ledger_id = 10 * partition + number
            await orders.make_ledger(ledger_id, partition, entries=10)
            one = pending(ledger_id, 0, 9, partition=partition, end_ms=number)
            assert await orders.batch(ledger_id, one)
    plan = await plan_compaction(orders.client, orders.name, LIMITS)
    assert plan.ledgers == 8
    assert [one.number for one in plan.by_partition()] == [0, 2]
    copies = await copies_of(orders, 100, plan.groups)
    assert (await publish(orders, copies[:1])).joined == 1
    assert await orders.named(2) == [(n, 0, 9) for n in range(20, 24)]


@pytest.mark.usefixtures("small_heads")
async def test_a_missing_chunk_stops_it_before_it_deletes(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 40)
    copies = await copies_of(orders, 100)
    await orders.client.logs.delete_chunks(orders.partition(), [1])
    with pytest.raises(FormatError, match="chunk 1 of orders#0 is missing"):
        await plan_compaction(orders.client, orders.name, LIMITS)
    with pytest.raises(FormatError, match="chunk 1 of orders#0 is missing"):
        await publish(orders, copies)
    assert len(await orders.ledgers()) == 40 + len(copies)


async def test_an_owner_goes_on_after_a_compaction(orders: MetadataLog) -> None:
    """Its epoch stays, and its next change is made on the new head."""
    client: LogClient = orders.client
    name = LogName("default", "written")
    created = await client.create(name)
    written = MetadataLog(client, created.log_id, name)
    partition, logs = LogPartition(name), client.logs
    found = await logs.read_head(partition, created.log_id)
    owner = LogOwner("me", NOON_MS)
    versioned = await logs.write_head(partition, taken_over(found.value, owner), NOT_EXISTS)
    keeper = HeadKeeper(logs, partition, versioned, patience_seconds=1)
    for ledger_id in range(1, 6):
        await written.make_ledger(ledger_id, entries=10)
        await keeper.change(adding(ledger_id))
        await keeper.change(closing([LedgerEnd(ledger_id, 9, NOON_MS, 100)]))
    await keeper.change(adding(6))
    plan = await plan_compaction(client, name, LIMITS)
    copies = await copies_of(written, 100, plan.groups)
    assert (await publish_compaction(client, partition, copies)).joined == 1
    after = await keeper.change(closing([LedgerEnd(6, 4, NOON_MS, 50)]))
    assert (after.epoch, after.owner) == (1, owner)
    assert [one.ledger_id for one in after.ranges] == [100, 5, 6]
    assert await written.ledgers() == [5, 100]
    late = replace(copies[0], after=None)
    assert (await publish_compaction(client, partition, [late])).overtaken == 1

"""Truncation and retention: what goes, what stays, and what a crash or a lost reply leaves."""

from __future__ import annotations

import pytest

from bookie.env import gather
from bookie.errors import (
    BadRequestError,
    FormatError,
    LogTakenOverError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogOwner
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head.chain import LedgerEnd, taken_over, with_closed, with_ledger
from bookie.log.head.head_keeper import HeadKeeper
from bookie.log.publish import publisher as publisher_module
from bookie.log.record.log_record import LogPosition
from bookie.log.tidy.truncation import apply_retention, truncate, truncate_as
from bookie.metadata.model import NOT_EXISTS
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import (
    NOON_MS,
    MetadataLog,
    SetClock,
    before_a_write,
    metadata_client,
    pending,
)


async def _start(orders: MetadataLog) -> int:
    return (
        await orders.client.logs.read_latest_head(orders.partition(), orders.log_id)
    ).value.start_offset


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads keep 16 ranges, chunks have 8."""
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)


async def test_whole_ranges_go_with_their_ledgers(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 4)
    assert await truncate(orders.client, orders.partition(), before=19) == 19
    assert await orders.named() == [(1, 0, 9), (2, 0, 9), (3, 0, 9)]
    assert await orders.ledgers() == [1, 2, 3]
    assert await truncate(orders.client, orders.partition(), before=LogPosition(2, 0, 20)) == 20
    assert await orders.ledgers() == [2, 3]
    # An offset that is gone changes nothing, and everything may go.
    assert await truncate(orders.client, orders.partition(), before=5) == 20
    assert await truncate(orders.client, orders.partition(), before=40) == 40
    assert await orders.ledgers() == []
    await orders.publish_ledgers(4, 1)
    assert (await orders.chain())[0].base_offset == 40


async def test_truncation_by_time_keeps_every_record_from_then_on(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 4)  # records of ledger n end at n ms
    assert await truncate(orders.client, orders.partition(), before_ms=2) == 20
    assert await orders.named() == [(2, 0, 9), (3, 0, 9)]
    assert await truncate(orders.client, orders.partition(), before_ms=-5) == 20
    assert await truncate(orders.client, orders.partition(), before_ms=100) == 40


@pytest.mark.usefixtures("small_heads")
async def test_chunks_go_when_all_of_them_is_gone(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 60)
    logs, partition = orders.client.logs, orders.partition()
    assert await logs.chunk_numbers(partition) == [0, 1, 2, 3, 4, 5]
    assert await truncate(orders.client, partition, before=165) == 165
    assert await logs.chunk_numbers(partition) == [2, 3, 4, 5]
    # The rest of a chunk stays, with its ledgers.
    assert await orders.ledgers() == list(range(16, 60))
    assert await orders.named() == [(n, 0, 9) for n in range(16, 60)]
    head = (await logs.read_head(partition, orders.log_id)).value
    assert head.chunk_bytes == 100 * 32
    # So does a chunk of which one entry is left.
    assert await truncate(orders.client, partition, before=239) == 239
    assert await logs.chunk_numbers(partition) == [2, 3, 4, 5]
    assert await truncate(orders.client, partition, before=240) == 240
    assert await logs.chunk_numbers(partition) == [3, 4, 5]
    assert await truncate(orders.client, partition, before_ms=50) == 500
    assert await logs.chunk_numbers(partition) == []
    assert await orders.ledgers() == list(range(50, 60))
    await orders.publish_ledgers(60, 20)
    assert await orders.named() == [(n, 0, 9) for n in range(50, 80)]


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("between", [1, 40])
async def test_a_ledger_stays_while_a_later_range_names_it(
    orders: MetadataLog, between: int
) -> None:
    """The later range is in the head, or in a chunk far behind."""
    await orders.make_ledger(100, entries=20)
    await orders.make_ledger(101, entries=10)
    await orders.make_ledger(102, entries=100)
    # The end of ledger 100 was published first, so nothing of it follows entry 19.
    assert await orders.batch(0, pending(100, 10, 19), pending(101, 0, 9))
    for batch in range(between):
        assert await orders.batch(1 + batch, pending(102, batch, batch))
    assert await orders.batch(90, pending(100, 0, 9))
    for batch in range(between, 2 * between):
        assert await orders.batch(91 + batch, pending(102, batch, batch))
    offset = 20 if between == 1 else 26  # the end of the first chunk
    assert await truncate(orders.client, orders.partition(), before=offset) == offset
    assert (100, 10, 19) not in await orders.named()
    assert (100, 0, 9) in await orders.named()
    assert await orders.ledgers() == [100, 102]


async def test_a_ledger_that_its_publisher_may_go_on_with_stays(orders: MetadataLog) -> None:
    await orders.make_ledger(1)  # open
    await orders.make_ledger(2, entries=20)  # closed, with ten entries that are not published yet
    assert await orders.batch(0, pending(1, 0, 9), pending(2, 0, 9))
    assert await truncate(orders.client, orders.partition(), before=20) == 20
    assert await orders.ledgers() == [1, 2]
    assert await orders.batch(1, pending(1, 10, 19), pending(2, 10, 19))
    assert await orders.named() == [(1, 10, 19), (2, 10, 19)]


async def test_wrong_bounds_are_refused(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 1)
    partition = orders.partition()
    with pytest.raises(BadRequestError, match="offset 11 is behind the last closed range"):
        await truncate(orders.client, partition, before=11)
    with pytest.raises(BadRequestError, match="one of an offset"):
        await truncate(orders.client, partition)
    with pytest.raises(BadRequestError, match="one of an offset"):
        await truncate(orders.client, partition, before=1, before_ms=1)
    with pytest.raises(BadRequestError, match="is in partition 1, not in"):
        await truncate(orders.client, partition, before=LogPosition(1, 0, 1, 1))
    with pytest.raises(BadRequestError, match="and no partition 3"):
        await truncate(orders.client, orders.partition(3), before=1)
    with pytest.raises(NoSuchLogError):
        await truncate(orders.client, LogPartition(LogName("default", "none")), before=1)
    assert await truncate(orders.client, orders.partition(1), before=0) == 0


async def test_a_lost_reply_still_deletes_ledgers_and_chunks(
    orders: MetadataLog, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    await orders.publish_ledgers(0, 30)
    store.lost_replies = 1
    assert await truncate(orders.client, orders.partition(), before=100) == 100
    # The first chunk is gone. Ledgers 8 and 9 are in the second one, which stays.
    assert await orders.ledgers() == list(range(8, 30))
    assert await orders.client.logs.chunk_numbers(orders.partition()) == [1]


async def test_a_lost_request_is_sent_again(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.publish_ledgers(0, 3)
    store.lost_requests = 1
    assert await truncate(orders.client, orders.partition(), before=20) == 20
    assert await orders.ledgers() == [2]


async def test_a_store_that_is_away_is_an_error(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.publish_ledgers(0, 3)
    store.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await truncate(orders.client, orders.partition(), before=20)
    store.is_down = False
    assert await _start(orders) == 0


async def test_publications_and_truncations_at_the_same_time(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 20)
    for number in range(20, 40):
        await orders.make_ledger(number, entries=10)

    async def publish() -> None:
        for number in range(20, 40):
            assert await orders.batch(number, pending(number, 0, 9))

    async def cut(offsets: list[int]) -> None:
        for offset in offsets:
            await truncate(orders.client, orders.partition(), before=offset)

    await gather([publish(), cut([10, 50, 90]), cut([30, 70, 110, 150])])
    assert await orders.named() == [(n, 0, 9) for n in range(15, 40)]
    assert await orders.ledgers() == list(range(15, 40))
    assert await _start(orders) == 150


async def test_a_missing_chunk_stops_a_truncation_before_it_deletes(
    orders: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    await orders.publish_ledgers(0, 30)
    await orders.client.logs.delete_chunks(orders.partition(), [1])
    with pytest.raises(FormatError, match="chunk 1 of orders#0 is missing"):
        await truncate(orders.client, orders.partition(), before=200)
    assert await orders.ledgers() == list(range(30))


async def test_an_owner_goes_on_after_a_truncation(orders: MetadataLog) -> None:
    """The truncation changes neither owner nor epoch; the owner's next step is on the new head."""
    client = orders.client
    name = LogName("default", "written")
    created = await client.create(name)
    partition, logs = LogPartition(name), client.logs
    found = await logs.read_head(partition, created.log_id)
    head = taken_over(found.value, LogOwner("me", NOON_MS))
    written = await logs.write_head(partition, head, NOT_EXISTS)
    keeper = HeadKeeper(logs, partition, written, patience_seconds=1)
    for ledger_id in (1, 2):
        await keeper.change(lambda head, n=ledger_id: with_ledger(head, n))  # type: ignore[misc]
        end = LedgerEnd(ledger_id, 9, NOON_MS, 100)
        await keeper.change(lambda head, end=end: with_closed(head, end))  # type: ignore[misc]
    await keeper.change(lambda head: with_ledger(head, 3))
    assert await truncate(client, partition, before=15) == 15
    after = await keeper.change(lambda head: with_closed(head, LedgerEnd(3, 4, NOON_MS, 50)))
    assert (after.epoch, after.owner) == (1, LogOwner("me", NOON_MS))
    assert (after.start_offset, [one.ledger_id for one in after.ranges]) == (15, [2, 3])
    with pytest.raises(BadRequestError):
        await truncate(client, partition, before=26)
    # Another owner is still noticed.
    latest = await logs.read_head(partition, created.log_id)
    await logs.write_head(
        partition, taken_over(latest.value, LogOwner("you", NOON_MS)), latest.version
    )
    await truncate(client, partition, before=25)
    with pytest.raises(LogTakenOverError, match="you took"):
        await keeper.change(lambda head: with_ledger(head, 4))


# ---- retention


async def _set_policy(orders: MetadataLog, policy: LogPolicy) -> None:
    await orders.client.namespaces.create("default")
    await orders.client.namespaces.set_log_policy("default", orders.name.log, policy)


@pytest.mark.usefixtures("small_heads")
async def test_retention_by_time_goes_through_chunks(orders: MetadataLog, clock: SetClock) -> None:
    await orders.publish_ledgers(0, 50)
    assert await apply_retention(orders.client, orders.partition()) == 0
    await _set_policy(orders, LogPolicy(retention_seconds=1))
    clock.ms = 1000 + 30  # the records of ledger 30 end at 30 ms
    assert await apply_retention(orders.client, orders.partition()) == 300
    assert await orders.ledgers() == list(range(24, 50))  # from the beginning of a chunk
    clock.ms = NOON_MS
    assert await apply_retention(orders.client, orders.partition()) == 500
    assert await apply_retention(orders.client, orders.partition()) == 500
    assert await orders.ledgers() == []


@pytest.mark.usefixtures("small_heads")
async def test_retention_by_size_keeps_at_least_as_much(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 50)  # 100 bytes each
    await _set_policy(orders, LogPolicy(retention_bytes=4001))
    assert await apply_retention(orders.client, orders.partition()) == 90
    head = (await orders.client.logs.read_head(orders.partition(), orders.log_id)).value
    # The first chunk is gone. Ledger 8 is in the second one, which stays.
    assert (head.first_chunk, head.start_offset) == (1, 90)


async def test_retention_keeps_what_a_protected_cursor_needs(orders: MetadataLog) -> None:
    await orders.publish_ledgers(0, 5)
    await _set_policy(orders, LogPolicy(retention_seconds=1))
    logs, partition = orders.client.logs, orders.partition()
    await logs.write_cursor(partition, "fast", LogCursor(45), NOT_EXISTS)
    slow = await logs.write_cursor(partition, "slow", LogCursor(25), NOT_EXISTS)
    await logs.write_cursor(partition, "free", LogCursor(0, is_protected=False), NOT_EXISTS)
    assert await apply_retention(orders.client, partition) == 20
    assert await orders.ledgers() == [2, 3, 4]
    await logs.write_cursor(partition, "slow", LogCursor(30), slow.version)
    assert await apply_retention(orders.client, partition) == 30
    await logs.delete_cursor(partition, "slow")
    assert await apply_retention(orders.client, partition) == 40
    await logs.delete_cursor(partition, "fast")
    assert await apply_retention(orders.client, partition) == 50


async def test_a_truncation_uses_the_newest_head(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.publish_ledgers(0, 3)
    direct = metadata_client(store._store)
    async with before_a_write(
        store, lambda: truncate(direct, orders.partition(), before=20)
    ) as truncated:
        assert await truncate(orders.client, orders.partition(), before=10) == 20
    assert truncated == [20]
    assert await orders.ledgers() == [2]


async def test_a_bound_that_is_lower_at_the_second_attempt_keeps_chunks(
    orders: MetadataLog, store: FaultyStore, small_heads: None
) -> None:
    """A cursor was protected between the two, and the head changed as well."""
    await orders.publish_ledgers(0, 30)
    assert await orders.client.logs.chunk_numbers(orders.partition()) == [0, 1]
    await orders.make_ledger(30, entries=10)
    other = MetadataLog(metadata_client(store._store), orders.log_id)
    offsets = iter([200, 30])

    async def choose(_: object) -> int:
        return next(offsets)

    async with before_a_write(store, lambda: other.batch(30, pending(30, 0, 9))):
        start = await truncate_as(orders.client, orders.partition(), orders.log_id, choose)
    assert start == 30
    assert await orders.client.logs.chunk_numbers(orders.partition()) == [0, 1]
    assert len(await orders.named()) == 31

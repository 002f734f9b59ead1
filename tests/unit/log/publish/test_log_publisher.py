"""Publications: the whole batch or nothing, once, even if replies are lost; and refusals."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    LogFullError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName
from bookie.log.head.chain import HEAD_RANGES_MAX
from bookie.log.publish import publisher as publisher_module
from bookie.log.publish.publisher import PARTITIONS_TOUCHED_MAX, LogPublisher, head_ranges_max
from bookie.log.publish.range_writer import PendingRange
from bookie.log.tidy.truncation import truncate
from bookie.metadata.model import Operation, Put, Record
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import (
    APPLICATION,
    MetadataLog,
    before_a_write,
    metadata_client,
    metadata_log,
    pending,
    turns_until,
)


async def test_a_batch_is_published_whole_and_once(orders: MetadataLog) -> None:
    await orders.make_ledger(1, 0, entries=10)
    await orders.make_ledger(2, 0)
    await orders.make_ledger(3, 2)
    assert await orders.publisher.last_batch(APPLICATION) == -1
    assert await orders.batch(
        4,
        pending(1, 0, 9, end_ms=50),
        pending(2, 0, 4, end_ms=40),
        pending(3, 0, 0, partition=2, end_ms=7),
    )
    assert [(one.base_offset, one.end_ms) for one in await orders.chain(0)] == [(0, 50), (10, 50)]
    assert await orders.named(1) == []
    assert await orders.named(2) == [(3, 0, 0)]
    assert await orders.publisher.last_batch(APPLICATION) == 4
    # Equal and older ones are dropped with all their ranges; a newer one follows.
    assert not await orders.batch(4, pending(2, 5, 9))
    assert not await orders.batch(3, pending(2, 5, 9))
    assert await orders.batch(5, pending(2, 5, 9, end_ms=60))
    assert await orders.named(0) == [(1, 0, 9), (2, 0, 4), (2, 5, 9)]
    assert (await orders.chain(0))[-1].base_offset == 15


async def test_applications_do_not_disturb_each_other(orders: MetadataLog) -> None:
    await orders.make_ledger(1)
    await orders.make_ledger(2, application="other")
    assert await orders.batch(7, pending(1, 0, 3))
    assert await orders.batch(0, pending(2, 0, 3), application="other")
    assert await orders.client.logs.applications(orders.name) == {APPLICATION: 7, "other": 0}
    assert await orders.named() == [(1, 0, 3), (2, 0, 3)]


async def test_a_full_log_takes_no_batch(orders: MetadataLog) -> None:
    """As with a writer, the batch that reaches the quota is the last one."""
    policy = LogPolicy(quota_bytes=20)
    await orders.client.namespaces.create("default")
    await orders.client.namespaces.set_log_policy("default", orders.name.log, policy)
    await orders.make_ledger(1, entries=10)
    assert await orders.batch(0, replace(pending(1, 0, 3), size_bytes=19))
    assert await orders.batch(1, replace(pending(1, 4, 4), size_bytes=1))
    with pytest.raises(LogFullError, match="has reached its quota of 20 bytes"):
        await orders.batch(2, pending(1, 5, 5))
    assert await orders.publisher.last_batch(APPLICATION) == 1
    # The old batch is still known for what it is, and one without ranges needs no room.
    assert not await orders.batch(1, pending(1, 5, 5))
    assert await orders.batch(3)


async def test_a_publisher_tells_what_its_log_is(orders: MetadataLog) -> None:
    assert (await orders.publisher.definition()).log_id == orders.log_id
    await orders.client.create(LogName("default", "owned"))
    with pytest.raises(BadRequestError, match="owned has an exclusive writer"):
        await LogPublisher(orders.client, LogName("default", "owned")).definition()
    with pytest.raises(NoSuchLogError):
        await LogPublisher(orders.client, LogName("default", "none")).definition()


async def test_an_empty_batch_is_recorded(orders: MetadataLog, store: FaultyStore) -> None:
    assert await orders.batch(0)
    assert not await orders.batch(0)
    store.lost_replies = 1
    assert await orders.batch(1)
    assert await orders.publisher.last_batch(APPLICATION) == 1


async def test_a_pending_range_travels() -> None:
    one = pending(1, 2, 3, partition=4, end_ms=5)
    assert pickle.loads(pickle.dumps(one)) == one
    assert PendingRange(**json.loads(json.dumps(asdict(one)))) == one


# ---- what is lost on the way


async def test_a_lost_reply_publishes_once(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.make_ledger(1)
    store.lost_replies = 1
    assert await orders.batch(0, pending(1, 0, 9))
    assert await orders.named() == [(1, 0, 9)]


async def test_a_lost_request_is_sent_again(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.make_ledger(1)
    store.lost_requests = 2
    assert await orders.batch(0, pending(1, 0, 9))
    assert await orders.named() == [(1, 0, 9)]
    for late in store.lost:
        with pytest.raises(BadVersionError):
            await store.transaction(late)
    assert await orders.named() == [(1, 0, 9)]


async def test_late_requests_of_a_forgotten_application_change_nothing(
    orders: MetadataLog, store: FaultyStore
) -> None:
    await orders.make_ledger(1)
    store.lost_requests = 2
    assert await orders.batch(0, pending(1, 0, 9))
    await orders.publisher.forget(APPLICATION)
    await orders.publisher.forget(APPLICATION)
    assert await orders.client.logs.applications(orders.name) == {}
    assert len(store.lost) == 2
    for late in store.lost:
        with pytest.raises(BadVersionError):
            await store.transaction(late)
    assert await orders.named() == [(1, 0, 9)]
    assert await orders.client.logs.applications(orders.name) == {}
    # Its published ranges stay if its driver aborts later.
    assert await orders.publisher.abort([pending(1, 0, 9)]) == []
    assert await orders.named() == [(1, 0, 9)]


async def test_a_lost_compare_and_set_is_made_on_the_new_head(
    orders: MetadataLog, store: FaultyStore
) -> None:
    await orders.make_ledger(1)
    await orders.make_ledger(2, application="other")
    other = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(store, lambda: other.publish("other", 0, [pending(2, 0, 3)])):
        assert await orders.batch(0, pending(1, 0, 9))
    assert await orders.named() == [(2, 0, 3), (1, 0, 9)]


async def test_a_lost_reply_is_recognised_behind_later_batches_and_in_a_chunk(
    orders: MetadataLog, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    await orders.make_ledger(1)
    await orders.make_ledger(2)
    direct = LogPublisher(metadata_client(store._store), orders.name)

    hold_reply = store.hold_reply = asyncio.Event()
    store.lost_replies = 1
    written: list[object] = []
    store.after_write = written.append
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(orders.batch(9, pending(1, 0, 9)))
        await turns_until(lambda: bool(written))
        for number in range(40):
            entry = 2 * number
            assert await direct.publish(APPLICATION, 10 + number, [pending(2, entry, entry)])
        hold_reply.set()
    assert publishing.result()
    head = await orders.client.logs.read_head(orders.partition(), orders.log_id)
    assert 1 not in [one.ledger_id for one in head.value.ranges]
    assert [one for one in await orders.named() if one[0] == 1] == [(1, 0, 9)]


@asynccontextmanager
async def unanswered(
    orders: MetadataLog, store: FaultyStore, *ranges: PendingRange
) -> AsyncIterator[asyncio.Task[bool]]:
    """Inside, batch 0 is published, and the call waits for a reply that will be lost."""
    hold_reply = store.hold_reply = asyncio.Event()
    store.lost_replies = 1
    written: list[object] = []
    store.after_write = written.append
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(orders.batch(0, *ranges))
        await turns_until(lambda: bool(written))
        yield publishing
        hold_reply.set()


@pytest.mark.parametrize("also_elsewhere", [False, True], ids=["all of it", "one of two"])
async def test_a_lost_reply_is_recognised_although_the_records_were_truncated(
    orders: MetadataLog, store: FaultyStore, *, also_elsewhere: bool
) -> None:
    """The head names no range of the batch any more when the publisher looks again."""
    await orders.make_ledger(1, entries=10)
    await orders.make_ledger(2, partition=1, entries=10)
    ranges = [pending(1, 0, 9)]
    if also_elsewhere:
        ranges.append(pending(2, 0, 9, partition=1))
    direct = metadata_client(store._store)
    async with unanswered(orders, store, *ranges) as publishing:
        assert await truncate(direct, orders.partition(), before=10) == 10
    assert publishing.result()
    assert await orders.named() == []


async def test_a_dropped_batch_is_recognised_although_its_partition_was_truncated(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """Another driver published the batch, and a second partition shows it."""
    for number in (1, 2):
        await orders.make_ledger(number, entries=10)
        await orders.make_ledger(number + 2, partition=1, entries=10)
    direct = metadata_client(store._store)
    other = LogPublisher(direct, orders.name)
    await other.publish("before", 0, [])

    async def overtake() -> None:
        theirs = [pending(2, 0, 9), pending(4, 0, 9, partition=1)]
        assert await other.publish(APPLICATION, 0, theirs)
        assert await truncate(direct, orders.partition(), before=10) == 10

    store.lost_requests = 1
    async with before_a_write(store, overtake):
        ours = [pending(1, 0, 9), pending(3, 0, 9, partition=1)]
        assert not await orders.batch(0, *ours)
    assert await orders.named(1) == [(4, 0, 9)]


async def test_a_dropped_batch_that_is_still_readable_is_not_ours(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """A truncation cut off only what others published before."""
    for number in (1, 2, 3):
        await orders.make_ledger(number, entries=10)
    await orders.make_ledger(4, entries=10, application="other")
    direct = metadata_client(store._store)
    other = LogPublisher(direct, orders.name)

    async def overtake() -> None:
        assert await other.publish("other", 0, [pending(4, 0, 9)])
        assert await other.publish(APPLICATION, 0, [pending(2, 0, 9), pending(3, 0, 9)])
        assert await truncate(direct, orders.partition(), before=5) == 5

    store.lost_requests = 1
    async with before_a_write(store, overtake):
        assert not await orders.batch(0, pending(1, 0, 9))


async def test_a_lost_reply_is_recognised_although_a_compaction_joined_the_records(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """The head names the copy, which no publisher wrote."""
    await orders.make_ledger(1, entries=10)
    await orders.make_ledger(2, entries=10)
    await orders.make_ledger(9, entries=20, application=None)
    direct = metadata_client(store._store)
    ranges = pending(1, 0, 9), pending(2, 0, 9)
    async with unanswered(orders, store, *ranges) as publishing:
        found = await direct.logs.read_head(orders.partition(), orders.log_id)
        (first, last) = found.value.ranges
        joined = replace(first, ledger_id=9, last_entry_id=19, end_ms=last.end_ms)
        head = replace(found.value, ranges=(joined,))
        await direct.logs.commit_heads([(orders.partition(), head, found.version, ())], [])
    assert publishing.result()


class _LateStore(FaultyStore):
    """Its lost requests happen at the next read of a ledger, and then `then` is called."""

    then: Callable[[], Awaitable[object]]

    async def get(self, key: str) -> Record | None:
        if self.lost and key.startswith("/ledgers/"):
            await self._store.transaction(self.lost.pop())
            await self.then()
        return await super().get(key)


async def test_a_late_request_whose_ledgers_are_gone_already_is_recognised(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """The batch is published after the second look, and truncated before its ledgers are read."""

    await orders.make_ledger(1, entries=10)
    late = _LateStore(store)
    late.then = lambda: truncate(orders.client, orders.partition(), before=10)
    late.lost_requests = 1
    client = metadata_client(late)
    assert await LogPublisher(client, orders.name).publish(APPLICATION, 0, [pending(1, 0, 9)])
    assert await orders.ledgers() == []
    assert not late.lost


async def test_a_batch_that_another_driver_published_is_not_ours(
    orders: MetadataLog, store: FaultyStore
) -> None:
    await orders.make_ledger(1)
    await orders.make_ledger(2)
    direct = LogPublisher(metadata_client(store._store), orders.name)
    store.lost_requests = 1
    async with before_a_write(store, lambda: direct.publish(APPLICATION, 0, [pending(2, 0, 3)])):
        assert not await orders.batch(0, pending(1, 0, 9))
    assert await orders.named() == [(2, 0, 3)]


async def test_a_store_that_is_away_before_the_proposal_is_an_error(
    orders: MetadataLog, store: FaultyStore
) -> None:
    await orders.make_ledger(1)
    store.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await orders.batch(0, pending(1, 0, 9))
    store.is_down = False
    assert await orders.named() == []
    assert await orders.publisher.last_batch(APPLICATION) == -1


async def test_an_unknown_outcome_is_waited_for(orders: MetadataLog, store: FaultyStore) -> None:
    await orders.make_ledger(1)

    def go_away(_: Sequence[Operation]) -> None:
        store.is_down = True
        store.after_write = lambda _: None

    store.after_write = go_away
    store.lost_replies = 1
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(orders.batch(0, pending(1, 0, 9)))
        await turns_until(lambda: store.counts["sync"] >= 4)  # it asks again and again
        assert not publishing.done()
        store.is_down = False
    assert publishing.result()
    assert await orders.named() == [(1, 0, 9)]


# ---- what is refused


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([pending(1, 5, 3)], "reversed"),
        ([pending(1, -1, 3)], "reversed"),
        ([PendingRange(0, 1, 0, 3, 0, -1)], "negative"),
        ([pending(9, 0, 3)], "ledger 9 does not exist"),
        ([pending(1, 0, 3, partition=1)], "ledger 1 was not written for orders#1"),
        ([pending(1, 0, 3, partition=3)], "has 3 partitions"),
        ([pending(1, 0, 3), pending(1, 3, 5)], "entry 3 of ledger 1 would be in orders#0 twice"),
        ([pending(2, 0, 10)], "ledger 2 ends with entry 9"),
        ([pending(3, 0, 1)], "ledger 3 was not written"),
        ([pending(4, 0, 1)], "ledger 4 was not written"),
        ([pending(5, 9, 12)], "entry 9 of ledger 5 would be in orders#0 twice"),
    ],
)
async def test_a_batch_with_a_wrong_range_is_refused_whole(
    orders: MetadataLog, store: FaultyStore, ranges: list[PendingRange], message: str
) -> None:
    await orders.make_ledger(1)
    await orders.make_ledger(2, entries=10)
    await orders.make_ledger(3, application="other")
    await orders.make_ledger(4, log_id="another log")
    await orders.make_ledger(5)
    await orders.make_ledger(6)
    assert await orders.batch(0, pending(5, 0, 9))
    written = store.counts["transaction"]
    with pytest.raises(BadRequestError, match=message):
        await orders.batch(1, pending(6, 0, 3), *ranges)
    assert store.counts["transaction"] == written
    assert await orders.named() == [(5, 0, 9)]
    assert await orders.publisher.last_batch(APPLICATION) == 0


async def test_logs_of_writers_and_logs_that_are_gone_are_refused(orders: MetadataLog) -> None:
    name = LogName("default", "written")
    await orders.client.create(name)
    with pytest.raises(BadRequestError, match="exclusive writer"):
        await LogPublisher(orders.client, name).publish("a", 0, [pending(1, 0, 1)])
    with pytest.raises(NoSuchLogError):
        await LogPublisher(orders.client, LogName("default", "none")).publish("a", 0, [])
    await orders.client.logs.mark_deleted(orders.name)
    with pytest.raises(NoSuchLogError):
        await orders.batch(0)
    with pytest.raises(BadRequestError, match="from 0 on"):
        await orders.batch(-1)


async def test_a_log_deleted_at_the_last_moment_gets_no_batch(
    orders: MetadataLog, store: FaultyStore
) -> None:
    direct = metadata_client(store._store).logs
    async with before_a_write(store, lambda: direct.mark_deleted(orders.name)):
        with pytest.raises(NoSuchLogError):
            await orders.batch(0)
    assert await orders.client.logs.applications(orders.name) == {}


async def test_more_than_a_transaction_holds_is_refused_before_it_is_written(
    store: FaultyStore,
) -> None:
    wide = await metadata_log(metadata_client(store), partitions=PARTITIONS_TOUCHED_MAX + 1)
    written = store.counts["transaction"]
    many = [pending(one, 0, 1, partition=one) for one in range(PARTITIONS_TOUCHED_MAX + 1)]
    with pytest.raises(BadRequestError, match="99 partitions of orders is too large"):
        await wide.batch(0, *many)
    assert store.counts["transaction"] == written
    await wide.make_ledger(1)
    long = [pending(1, entry, entry) for entry in range(30_000)]
    written = store.counts["transaction"]
    with pytest.raises(BadRequestError, match="publish fewer partitions or ranges in a batch"):
        await wide.batch(0, *long)
    assert await wide.publisher.last_batch(APPLICATION) == -1
    assert await wide.batch(0, *long[:3000])
    for number in range(1, PARTITIONS_TOUCHED_MAX):
        await wide.make_ledger(100 + number, number)
    most = [pending(100 + n, 0, 1, partition=n) for n in range(1, PARTITIONS_TOUCHED_MAX)]
    assert await wide.batch(1, pending(1, 30_000, 30_000), *most)


# ---- the index


async def test_large_heads_are_sealed_in_the_same_transaction(
    orders: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 60)
    assert head_ranges_max(3) == 20
    await orders.make_ledger(1)
    for batch in range(100):
        assert await orders.batch(batch, pending(1, batch, batch, end_ms=batch))
    head = (await orders.client.logs.read_head(orders.partition(), orders.log_id)).value
    assert len(head.ranges) <= 20
    assert head.next_chunk == 8
    assert head.chunk_bytes == 10 * (100 - len(head.ranges))
    assert await orders.named() == [(1, entry, entry) for entry in range(100)]


async def test_all_heads_that_a_transaction_takes_grow_and_are_sealed(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside these heads only two chunks have room, so the largest heads are sealed first."""
    count = PARTITIONS_TOUCHED_MAX - 2
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    wide = await metadata_log(metadata_client(store), partitions=count)
    for number in range(count):
        await wide.make_ledger(number, number)
    for batch in range(30):
        ranges = [pending(n, batch, batch, partition=n) for n in range(count)]
        assert await wide.batch(batch, *ranges)
    sealed = 0
    for number in range(count):
        head = (await wide.client.logs.read_head(wide.partition(number), wide.log_id)).value
        sealed += head.next_chunk
        assert await wide.named(number) == [(number, entry, entry) for entry in range(30)]
    assert sealed == 2 * (30 - 16)


async def test_heads_keep_what_fits_into_one_transaction() -> None:
    assert head_ranges_max(1) == HEAD_RANGES_MAX
    assert head_ranges_max(98) == 40
    assert head_ranges_max(1024) == 16
    for partitions in range(1, PARTITIONS_TOUCHED_MAX + 1):
        ranges = partitions * head_ranges_max(partitions) * 3 // 2  # with what is sealed
        assert ranges * 120 < 768 * 1024


# ---- abort


async def test_abort_deletes_only_what_nobody_published(
    orders: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    for ledger_id in (1, 2, 3, 7):
        await orders.make_ledger(ledger_id)
    await orders.make_ledger(4, 1)
    await orders.make_ledger(5, log_id="another log")
    assert await orders.batch(0, pending(1, 0, 9))
    for number in range(40):
        assert await orders.batch(1 + number, pending(2, number, number))
    head = (await orders.client.logs.read_head(orders.partition(), orders.log_id)).value
    assert 1 not in [one.ledger_id for one in head.ranges]  # a chunk names it
    aborted = [pending(n, 50, 59) for n in (1, 2, 3, 5, 6)] + [pending(4, 0, 3, partition=1)]
    assert await orders.publisher.abort(aborted) == [3, 4]
    assert await orders.ledgers() == [1, 2, 5, 7]
    assert await orders.publisher.abort(aborted) == []
    with pytest.raises(BadRequestError, match="ledger 3 does not exist"):
        await orders.batch(99, pending(3, 50, 59))


async def test_abort_of_many_ledgers(orders: MetadataLog) -> None:
    for ledger_id in range(100):
        await orders.make_ledger(ledger_id)
    assert await orders.batch(0, pending(50, 0, 1))
    deleted = await orders.publisher.abort([pending(n, 0, 1) for n in range(100)])
    assert deleted == [n for n in range(100) if n != 50]
    assert await orders.ledgers() == [50]


async def test_abort_leaves_what_is_published_at_the_same_moment(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """The publication comes between the abort's look at the head and its deletion."""
    await orders.make_ledger(1)
    direct = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(
        store, lambda: direct.publish(APPLICATION, 0, [pending(1, 0, 3)])
    ) as published:
        assert await orders.publisher.abort([pending(1, 0, 3)]) == []
    assert published == [True]
    assert await orders.ledgers() == [1]


async def test_a_publication_loses_against_an_abort_at_the_same_moment(
    orders: MetadataLog, store: FaultyStore
) -> None:
    """The abort comes between the publication's look at ledgers and its transaction."""
    await orders.make_ledger(1)
    await orders.make_ledger(2)
    assert await orders.batch(0, pending(2, 0, 3))
    direct = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(store, lambda: direct.abort([pending(1, 0, 3)])) as aborted:
        with pytest.raises(BadRequestError, match="ledger 1 does not exist"):
            await orders.batch(1, pending(1, 0, 3))
    assert aborted == [[1]]
    assert await orders.named() == [(2, 0, 3)]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_late_publication_does_not_name_what_was_aborted(
    orders: MetadataLog, store: FaultyStore, is_first: bool
) -> None:
    """The driver gave up while its request was on the way, and aborted; the request arrives."""
    await orders.make_ledger(1)
    await orders.make_ledger(2)
    if not is_first:
        assert await orders.batch(0, pending(2, 0, 3))
    store.loses_request = lambda operations: any(isinstance(one, Put) for one in operations)
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(orders.batch(1, pending(1, 0, 3)))
        await turns_until(lambda: bool(store.lost))
        publishing.cancel()
    store.loses_request = lambda _: False
    assert await orders.publisher.abort([pending(1, 0, 3)]) == [1]
    with pytest.raises(BadVersionError):
        await store.transaction(store.lost[0])
    assert await orders.named() == ([] if is_first else [(2, 0, 3)])


async def test_aborts_of_the_same_ledgers_meet(orders: MetadataLog, store: FaultyStore) -> None:
    for ledger_id in range(10):
        await orders.make_ledger(ledger_id)
    given = [pending(n, 0, 1) for n in range(10)]
    direct = LogPublisher(metadata_client(store._store), orders.name)
    async with before_a_write(store, lambda: direct.abort(given[:5])) as aborted:
        assert await orders.publisher.abort(given) == [5, 6, 7, 8, 9]
    assert aborted == [[0, 1, 2, 3, 4]]


async def test_a_driver_on_a_late_server_sees_what_was_done(
    store: FaultyStore, orders: MetadataLog
) -> None:
    """The present log, and the last batch of an application."""
    other = metadata_client(store._store)
    await orders.make_ledger(1, entries=10)
    await store.fall_behind()
    assert await MetadataLog(other, orders.log_id).batch(7, pending(1, 0, 9))
    assert await orders.publisher.last_batch(APPLICATION) == 7
    await store.fall_behind()
    late = await metadata_log(other, name=LogName("default", "late"))
    assert await LogPublisher(orders.client, late.name).publish(APPLICATION, 0, [])

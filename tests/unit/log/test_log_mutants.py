"""The tests of logs bite: each broken log is caught by a story that a right one passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from bookie.api import BookKeeper, LogPolicy, LogWriter, connect
from bookie.errors import BookieError, CursorLostError, LedgerFencedError, LogTakenOverError
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import take_cursor
from bookie.log.consume.cursors import CursorRecord
from bookie.log.log_client import LogClient
from bookie.log.tidy.truncation import apply_retention
from bookie.log.write.partition_writer import PartitionWriter
from bookie.metadata.connect import open_store
from bookie.metadata.model import NOT_EXISTS
from tests.transactional_logs import metadata_client, metadata_log, pending
from tests.unit.ledger.real_cluster import RealCluster
from tests.unit.log import broken_logs as broken
from tests.unit.log.appending import append_all, faulty, numbers
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog
from tests.unit.log.write import test_log_writer as writing
from tests.unit.log.write import test_log_writer_store as writing_metadata
from tests.unit.log.written_logs import values_of

ORDERS = LogName.parse("orders")
STORY_SECONDS_MAX = 20.0
"""A log that is broken may also stand still."""

Story = Callable[[RealCluster, BookKeeper], Awaitable[None]]


async def what_is_appended_is_read(cluster: RealCluster, bk: BookKeeper) -> None:
    """A reader of the chain sees it."""
    log = await bk.open_log("orders")
    await log.append(b"one")
    assert await values_of(bk, cluster.store, "orders") == [b"one"]


async def a_former_owner_is_refused(cluster: RealCluster, bk: BookKeeper) -> None:
    """It goes on while it is taken over."""
    async with connect(cluster.uri) as other:
        old = await other.open_log("orders")
        await old.append(b"one")

        async def go_on() -> None:
            with suppress(BookieError):
                await old.append(b"two")

        broken.hook_after_recovery(bk._logs, go_on)
        new = await bk.open_log("orders")
        await new.append(b"three")
        with pytest.raises(LogTakenOverError):
            await old.append(b"four")


async def both_open_ledgers_are_closed(cluster: RealCluster, bk: BookKeeper) -> None:
    """An owner crashed in the middle of a roll."""
    client = bk._logs
    definition = await client.create(ORDERS, policy=ONE_COPY)
    log = HandMadeLog(client, LogPartition(ORDERS), definition)
    first = await log.add()
    await log.append(first, 2)
    await log.add()
    new = await bk.open_log("orders")
    assert (await new.append(b"2")).offset == 2
    with pytest.raises(LedgerFencedError):
        await first.append(b"late")
    assert await values_of(bk, cluster.store, "orders") == [b"0", b"1", b"2"]


async def a_roll_waits_for_the_old_ledger(cluster: RealCluster, bk: BookKeeper) -> None:
    """Appends come at the last moment before the switch."""
    log = await bk.open_log("orders")
    await log.append(b"one")
    writer: Any = log._partitions[0]
    add_next, switch = writer._add_next, writer._switch
    unconfirmed: list[int] = []

    async def add_and_append() -> None:
        await add_next()
        writer.submit([b"two"] * 100, None)

    def look_and_switch(base_offset: int) -> None:
        old = writer._segment.writer
        unconfirmed.append(old.last_entry_id - old.last_add_confirmed)
        switch(base_offset)

    writer._add_next, writer._switch = add_and_append, look_and_switch
    await log.roll()
    assert unconfirmed == [0]


async def a_mended_log_keeps_the_order(cluster: RealCluster, bk: BookKeeper) -> None:
    """The ledger was fenced before the appends."""
    async with bk.open_log("orders") as log:
        ledger_id = (await log.append(b"first")).ledger_id
        await bk.open_ledger(ledger_id, recover=True)
        await append_all(log, numbers(0, 20))
    found = await values_of(bk, cluster.store, "orders")
    assert found == [b"first", *numbers(0, 20)]


def _with_futures(log: LogWriter, make: Callable[[asyncio.Future[range]], Any]) -> PartitionWriter:
    """`make` replaces the answers of the first ledger."""
    writer = log._partitions[0]
    handle: Any = writer._segment.writer
    submit = handle.submit
    handle.submit = lambda *arguments: make(submit(*arguments))
    return writer


async def what_was_written_is_not_appended_again(cluster: RealCluster, bk: BookKeeper) -> None:
    """It is in the ledger, and its writer was not told so."""
    async with bk.open_log("orders") as log:

        def lose(written: asyncio.Future[range]) -> asyncio.Future[range]:
            lost: asyncio.Future[range] = asyncio.get_running_loop().create_future()
            error = LedgerFencedError("the test lost the answer")
            written.add_done_callback(lambda _: lost.set_exception(error))
            return lost

        _with_futures(log, lose)
        assert (await log.append(b"one")).offset == 0
        assert (await log.append(b"two")).offset == 1
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]


async def a_lost_request_is_sent_again(cluster: RealCluster, bk: BookKeeper) -> None:
    """The write that adds the new ledger to the chain."""
    await bk.create_log("orders")
    store = faulty(bk)
    writes = 0

    def lose() -> None:
        nonlocal writes
        writes += 1
        store.lost_requests = 1 if writes == 3 else 0  # after the creation and the claim

    store.before_write = lose
    await what_is_appended_is_read(cluster, bk)


async def a_duplicate_waits_for_the_first(cluster: RealCluster, bk: BookKeeper) -> None:
    """Its answer is an acknowledgement."""
    async with bk.open_log("orders") as log:
        held = asyncio.get_running_loop().create_future()
        _with_futures(log, lambda written: held)
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(log.append(b"0", producer=("shop", 0))) for _ in range(2)]
            for _ in range(50):
                await asyncio.sleep(0)
            assert not both[1].done()
            held.set_result(range(1))
        assert both[0].result() == both[1].result()


async def an_open_ledger_holds_readers_back(cluster: RealCluster, bk: BookKeeper) -> None:
    """The next one has records already, whose offsets depend on where this one ends."""
    client = bk._logs
    definition = await client.create(ORDERS, policy=ONE_COPY)
    log = HandMadeLog(client, LogPartition(ORDERS), definition)
    first = await log.add()
    await log.append(first, 2)
    second = await log.add()
    await log.append(second, 1)
    found = [record.value async for record in log.reader()]
    assert found == [b"0", b"1"][: len(found)]


async def cursor_story(client: LogClient) -> tuple[CursorRecord, Any, Any]:
    """A cursor that a second consumer has taken."""
    await client.create(ORDERS)
    record = CursorRecord(client, LogPartition(ORDERS), "billing")
    await record.propose(LogCursor(0), NOT_EXISTS)
    return record, await take_cursor(client, record), await take_cursor(client, record)


async def a_consumer_without_the_cursor_is_refused(cluster: RealCluster, bk: BookKeeper) -> None:
    """Its epoch is over."""
    record, former, present = await cursor_story(bk._logs)
    await present.commit(3)
    with pytest.raises(CursorLostError):
        await former.commit(5)
    assert (await record.read()).value.offset == 3


async def a_cursor_does_not_go_back(cluster: RealCluster, bk: BookKeeper) -> None:
    """Commits that come late are ignored."""
    record, _, present = await cursor_story(bk._logs)
    await present.commit(3)
    await present.commit(1)
    assert (await record.read()).value.offset == 3


async def an_added_ledger_is_kept(cluster: RealCluster, bk: BookKeeper) -> None:
    """The answer to the write that added it was lost."""
    await writing_metadata.test_a_ledger_stays_if_it_was_added_before_the_takeover(cluster, bk)


async def a_batch_is_published_once(cluster: RealCluster, bk: BookKeeper) -> None:
    """The second attempt has ranges of its own."""
    async with open_store(f"{cluster.uri}-published") as store:
        log = await metadata_log(metadata_client(store))
        for number in (1, 2):
            await log.make_ledger(number, entries=10)
        assert await log.batch(7, pending(1, 0, 9))
        assert not await log.batch(7, pending(2, 0, 9))
        assert [ledger for ledger, *_ in await log.named()] == [1]


async def a_protected_cursor_keeps_its_records(cluster: RealCluster, bk: BookKeeper) -> None:
    """Whatever their size and age."""
    client, partition = bk._logs, LogPartition(ORDERS)
    await bk.create_log("orders", policy=LogPolicy(retention_bytes=1))
    await CursorRecord(client, partition, "billing").propose(LogCursor(1), NOT_EXISTS)
    async with bk.open_log("orders") as log:
        for value in (b"one", b"two", b"three"):
            await log.append(value)
            await log.roll()
    assert await apply_retention(client, partition) == 1


async def an_empty_ledger_has_no_offset(cluster: RealCluster, bk: BookKeeper) -> None:
    """It was fenced before anything was appended."""
    async with bk.open_log("orders") as log:
        await bk.open_ledger(log._partitions[0].ledger_id, recover=True)
        assert (await log.append(b"one")).offset == 0


STORIES: dict[broken.Break, Story] = {
    broken.serves_before_it_is_in_the_chain: what_is_appended_is_read,
    broken.fences_before_it_claims: a_former_owner_is_refused,
    broken.fences_only_the_last_ledger: both_open_ledgers_are_closed,
    broken.switches_before_all_is_confirmed: a_roll_waits_for_the_old_ledger,
    broken.mends_in_another_order: a_mended_log_keeps_the_order,
    broken.appends_again_what_was_written: what_was_written_is_not_appended_again,
    broken.takes_unknown_for_failure: an_added_ledger_is_kept,
    broken.takes_unknown_for_success: a_lost_request_is_sent_again,
    broken.forgets_producers_at_a_takeover: writing.test_a_duplicate_gets_the_first_position,
    broken.answers_duplicates_too_early: a_duplicate_waits_for_the_first,
    broken.reads_on_from_an_open_ledger: an_open_ledger_holds_readers_back,
    broken.commits_without_an_epoch: a_consumer_without_the_cursor_is_refused,
    broken.lets_cursors_go_back: a_cursor_does_not_go_back,
    broken.ignores_the_last_batch: a_batch_is_published_once,
    broken.truncates_past_cursors: a_protected_cursor_keeps_its_records,
    broken.counts_empty_ledgers: an_empty_ledger_has_no_offset,
}


def _name(one: Callable[..., object]) -> str:
    return one.__name__.removeprefix("test_")


@pytest.mark.parametrize("story", dict.fromkeys(STORIES.values()), ids=_name)
async def test_a_right_log_passes(story: Story, cluster: RealCluster, bk: BookKeeper) -> None:
    """Otherwise a story would prove nothing."""
    async with asyncio.timeout(STORY_SECONDS_MAX):
        await story(cluster, bk)


def _causes(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    else:
        yield error


@pytest.mark.parametrize("break_it", STORIES, ids=_name)
async def test_a_broken_log_is_caught(
    break_it: broken.Break, cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story fails as a test does, or by an error of the log."""
    break_it(monkeypatch)
    caught: list[BaseException] = []
    try:
        async with asyncio.timeout(STORY_SECONDS_MAX):
            await STORIES[break_it](cluster, bk)
    except (AssertionError, BookieError, TimeoutError, pytest.fail.Exception) as error:
        caught = list(_causes(error))
    except BaseExceptionGroup as group:
        caught = list(_causes(group))
    finally:
        monkeypatch.undo()
    assert caught, "nobody noticed"
    assert all(
        isinstance(one, AssertionError | BookieError | TimeoutError | pytest.fail.Exception)
        for one in caught
    ), caught

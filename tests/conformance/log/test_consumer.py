"""One consumer at a time holds a cursor, and only that one moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from bookie.errors import (
    BadRequestError,
    BookieUnreachableError,
    ClientClosedError,
    CursorLostError,
    LogClosedError,
    LogTruncatedError,
    MetadataUnavailableError,
    NoSuchCursorError,
    NoSuchLogError,
)
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import AutoCommit, HeldCursor
from bookie.log.consume.consumer import LogConsumer
from bookie.log.record.log_record import LogPosition
from tests.conformance.backends import Backend
from tests.conformance.log.conftest import (
    FIRST,
    ORDERS,
    LogProcess,
    NewProcess,
    process_maker,
)
from tests.conformance.log.fake_logs import CursorHistory, FakeLogs
from tests.conformance.waiting import settle, until, until_found


@pytest.fixture
async def orders(process: LogProcess) -> LogProcess:
    """A process, and a log with records 0 to 4."""
    await process.client.create(ORDERS)
    process.logs.append(FIRST, *(str(number).encode() for number in range(5)))
    return process


async def values(consumer: LogConsumer, count: int) -> list[bytes]:
    """The next values."""
    return [(await anext(consumer)).value for _ in range(count)]


async def test_the_next_consumer_begins_where_the_last_one_committed(orders: LogProcess) -> None:
    async with orders.consumer() as consumer:
        assert (consumer.partition, consumer.position) == (FIRST, 0)
        token = consumer.token
        assert await values(consumer, 4) == [b"0", b"1", b"2", b"3"]
        assert (consumer.position, consumer.committed, await consumer.lag()) == (4, 0, 1)
        await consumer.commit()
        assert consumer.committed == 4
        assert await values(consumer, 1) == [b"4"]
    async with orders.consumer() as consumer:
        assert (consumer.token, consumer.committed) == (token + 1, 4)
        record = await anext(consumer)
        assert record.value == b"4"
        await consumer.commit(record)
        orders.logs.append(FIRST, b"5", b"6")
        second, third = await anext(consumer), await anext(consumer)
        await consumer.commit(second.position)
        with pytest.raises(BadRequestError, match="consumed up to offset 7, not 8"):
            await consumer.commit(8)
        await consumer.commit(third.offset + 1)
    assert await orders.committed() == 7
    with pytest.raises(LogClosedError):
        await anext(consumer)


async def test_a_loop_over_records_and_one_over_batches(orders: LogProcess) -> None:
    seen = []
    async with orders.consumer() as consumer:
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 2:
                break
        async for batch in consumer.batches():
            assert (batch.partition, batch.token) == (FIRST, consumer.token)
            seen += [record.value for record in batch.records]
            if len(seen) == 5:
                break
        await consumer.commit()
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    assert await orders.committed() == 5


async def test_where_a_new_cursor_begins(orders: LogProcess) -> None:
    client, logs = orders.client, orders.logs
    with pytest.raises(NoSuchCursorError):
        async with LogConsumer(client, "orders", logs, cursor="a", create=False):
            pytest.fail("there is no such cursor")
    async with LogConsumer(client, "orders", logs, cursor="a", start="latest") as consumer:
        assert consumer.position == 5
    async with LogConsumer(client, "orders", logs, cursor="b", start=2) as consumer:
        assert await values(consumer, 1) == [b"2"]
    async with LogConsumer(client, "orders", logs, cursor="c", start_time=3) as consumer:
        assert await values(consumer, 1) == [b"3"]
    with pytest.raises(BadRequestError):
        LogConsumer(client, "orders", logs, cursor="d", start=-1)
    # It exists now.
    async with LogConsumer(client, "orders", logs, cursor="b", start=4) as consumer:
        assert consumer.position == 2


async def test_a_partition_is_named_if_there_are_several(process: LogProcess) -> None:
    with pytest.raises(NoSuchLogError):
        await process.consumer().__aenter__()
    name = LogName("default", "wide")
    await process.client.create(name, partitions=2)
    with pytest.raises(BadRequestError, match="2 partitions: name one"):
        async with LogConsumer(process.client, "wide", process.logs, cursor="a"):
            pytest.fail("no partition was named")
    with pytest.raises(BadRequestError, match="no partition 2"):
        async with LogConsumer(process.client, "wide", process.logs, cursor="a", partition=2):
            pytest.fail("there are two")
    async with LogConsumer(
        process.client, "wide", process.logs, cursor="a", partition=1
    ) as consumer:
        process.logs.append(LogPartition(name, 1), b"x")
        assert await values(consumer, 1) == [b"x"]
    wide = partial(LogConsumer, process.client, "wide", process.logs, cursor="b")
    with pytest.raises(BadRequestError, match="is in partition 1, not in partition 0"):
        wide(partition=0, start=LogPosition(1, 1, 1, 1))
    async with wide(start=LogPosition(1, 0, 0, 1)) as consumer:
        assert consumer.partition == LogPartition(name, 1)
    with pytest.raises(BadRequestError, match="async with"):
        await anext(process.consumer())


# ---- two consumers


async def test_the_second_consumer_waits_for_a_live_one(
    orders: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    other = await new_process()
    async with asyncio.TaskGroup() as tasks:
        async with orders.consumer() as first:
            second = other.consumer()
            waiting = tasks.create_task(second.__aenter__())
            await until_found(lambda: _claims(orders, 2))
            assert await values(first, 2) == [b"0", b"1"]
            await first.commit()
            token = first.token
            assert not waiting.done()
        await waiting
    assert (second.token, await values(second, 1)) == (token + 1, [b"2"])
    await second.__aexit__(None, None, None)
    assert history.check() == 2


async def _claims(process: LogProcess, count: int) -> bool:
    await process.session.sync()
    return len(await process.session.get_children(FIRST.holder_key("billing"))) == count


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_who_is_cancelled_while_it_begins_holds_nothing(
    orders: LogProcess, turns: int
) -> None:
    """At any point: in the queue, while the cursor is taken, while it is handed over."""
    async with asyncio.TaskGroup() as tasks:
        entering = tasks.create_task(orders.consumer().__aenter__())
        await settle(turns)
        entering.cancel()
    if not entering.cancelled():
        await entering.result().__aexit__(None, None, None)
    await until_found(lambda: _claims(orders, 0))
    async with orders.consumer() as consumer:
        assert await values(consumer, 1) == [b"0"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_wait_loses_no_record(orders: LogProcess, turns: int) -> None:
    async with orders.consumer() as consumer:
        seen = await values(consumer, 5)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_next_value(consumer))
            await settle(3)
            orders.logs.append(FIRST, b"5")
            await settle(turns)
            waiting.cancel()
        if not waiting.cancelled():
            seen.append(waiting.result())
        orders.logs.append(FIRST, b"6")
        seen += await values(consumer, 7 - len(seen))
        assert seen == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


async def _next_value(consumer: LogConsumer) -> bytes:
    return (await anext(consumer)).value


# ---- sessions that end


async def test_a_session_that_is_lost_costs_nothing_if_nobody_waits(
    backend: Backend, orders: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    """The lock is claimed again, and the cursor is still this consumer's."""
    observer = await new_process()
    async with orders.consumer() as consumer:
        assert await values(consumer, 1) == [b"0"]
        (claim,) = await orders.session.get_children(FIRST.holder_key("billing"))
        await backend.expire(orders.session)
        await until_found(lambda: _is_another_claim(observer, claim))
        assert await values(consumer, 4) == [b"1", b"2", b"3", b"4"]
        await consumer.commit()
        assert await orders.committed() == 5
    assert history.check() == 1


async def _is_another_claim(process: LogProcess, claim: str) -> bool:
    await process.session.sync()
    claims = await process.session.get_children(FIRST.holder_key("billing"))
    return len(claims) == 1 and claims != [claim]


async def test_a_lost_session_hands_the_cursor_to_the_one_who_waits(
    backend: Backend, orders: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    other = await new_process()
    async with orders.consumer() as first:
        assert await values(first, 2) == [b"0", b"1"]
        await first.commit()
        assert await values(first, 1) == [b"2"]
        async with asyncio.TaskGroup() as tasks:
            second = other.consumer()
            waiting = tasks.create_task(second.__aenter__())
            await until_found(lambda: _claims(orders, 2))
            token = first.token
            await backend.expire(orders.session)
            await waiting
        assert (second.token, await values(second, 3)) == (token + 1, [b"2", b"3", b"4"])
        await second.commit()
        with pytest.raises(CursorLostError):
            await first.commit()
        await _lost(first)
        await second.__aexit__(None, None, None)
    assert await orders.committed() == 5
    assert history.check() == 2


async def test_a_stopped_consumer_cannot_move_the_cursor_back(
    orders: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    """It hears nothing of the end of its session, and its commit arrives late."""
    other = await new_process()
    async with orders.consumer() as first:
        assert await values(first, 2) == [b"0", b"1"]
        orders.store.hold_writes.clear()
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(_outcome(first.commit()))
            await until(lambda: orders.store.counts["transaction"])
            # The store ends its claim, and it does not hear of it.
            orders.store.hold_changes.clear()
            for claim in await orders.session.get_children(FIRST.holder_key("billing")):
                await orders.session.delete(f"{FIRST.holder_key('billing')}/{claim}")
            async with other.consumer() as second:
                assert await values(second, 5) == [b"0", b"1", b"2", b"3", b"4"]
                await second.commit()
                orders.store.hold_writes.set()
                assert isinstance(await late, CursorLostError)
                orders.store.hold_changes.set()
    assert await other.committed() == 5
    assert history.check() == 2


async def _outcome(call: Awaitable[None]) -> BaseException | None:
    try:
        await call
    except CursorLostError as error:
        return error
    return None


async def test_nothing_is_given_out_while_the_session_is_in_doubt(
    cut_off_backend: Backend, history: CursorHistory
) -> None:
    """Another consumer may hold the cursor already, for all that this one knows."""
    backend, logs = cut_off_backend, FakeLogs(batch_size=1)
    logs.append(FIRST, b"0", b"1", b"2")
    async with AsyncExitStack() as stack:
        process = await process_maker(backend, logs, history, stack)(6.0)
        await process.client.create(ORDERS)
        async with process.consumer() as consumer, asyncio.TaskGroup() as tasks:
            assert await values(consumer, 1) == [b"0"]
            participant = await process.client.participant()
            await backend.disconnect(process.session)
            await until(lambda: not participant.is_certain)
            waiting = tasks.create_task(_next_value(consumer))
            await settle()
            assert not waiting.done()
            await backend.reconnect(process.session)
            assert await waiting == b"1"
            await consumer.commit()
            assert consumer.committed == 2


@pytest.mark.parametrize("taken", [1, 3], ids=["in a batch", "between batches"])
async def test_nothing_is_given_out_under_another_claim_before_the_cursor_was_looked_at(
    backend: Backend, orders: LogProcess, new_process: NewProcess, taken: int
) -> None:
    """The session was lost, and the cursor was reset before the lock was claimed again."""
    other = await new_process()
    async with orders.consumer() as consumer:
        await values(consumer, taken)
        inner = consumer._consumer
        cursor, may_look = inner.cursor, asyncio.Event()
        await until(lambda: inner._batch is not None)
        check = cursor.check

        async def look_late() -> None:
            await may_look.wait()
            await check()

        cursor.check = look_late  # type: ignore[method-assign]
        token = inner._lock.token
        await backend.expire(orders.session)
        await until(lambda: inner._lock.is_held and inner._lock.token != token)
        await other.cursors().reset("billing", 1)
        await until(lambda: inner._lock.is_held)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_lost(consumer))
            await settle()
            assert consumer.position == taken
            may_look.set()
            assert "was reset" in str(await waiting) or "lost the cursor" in str(await waiting)
        assert consumer.position == taken


async def test_the_rest_of_a_batch_waits_while_the_session_is_in_doubt(
    cut_off_backend: Backend, history: CursorHistory
) -> None:
    """Records one by one, and as a batch; it is given out when the session is certain again."""
    backend, logs = cut_off_backend, FakeLogs(batch_size=4)
    logs.append(FIRST, b"0", b"1", b"2", b"3")
    async with AsyncExitStack() as stack:
        process = await process_maker(backend, logs, history, stack)(6.0)
        await process.client.create(ORDERS)
        async with process.consumer() as consumer, asyncio.TaskGroup() as tasks:
            assert await values(consumer, 1) == [b"0"]
            participant = await process.client.participant()
            for by_record in (True, False):
                await backend.disconnect(process.session)
                await until(lambda: not participant.is_certain)
                asked = _next_value(consumer) if by_record else _next_values(consumer)
                waiting = tasks.create_task(asked)
                await settle()
                assert not waiting.done()
                await backend.reconnect(process.session)
                assert await waiting == (b"1" if by_record else b"23")


async def _next_values(consumer: LogConsumer) -> bytes:
    return b"".join(record.value for record in (await consumer.next_batch()).records)


# ---- resets


async def test_a_reset_ends_the_consumer_even_if_it_only_waits(
    orders: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    other = await new_process()
    async with orders.consumer() as consumer:
        await values(consumer, 5)
        await consumer.commit()
        token = consumer.token
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_lost(consumer))
            await settle()
            assert await other.cursors().reset("billing", 1) == {0: 1}
            await waiting
        with pytest.raises(CursorLostError, match="lost the cursor billing of orders#0"):
            await consumer.commit()
    async with orders.consumer() as consumer:
        assert (consumer.token, await values(consumer, 1)) == (token + 2, [b"1"])
    assert history.check() == 3


async def _lost(consumer: LogConsumer) -> CursorLostError:
    """The error that ends the records, some of which may come before."""
    try:
        async for _ in consumer:
            continue
    except CursorLostError as error:
        return error
    raise AssertionError("records never end")


async def test_a_deletion_ends_the_consumer(orders: LogProcess, new_process: NewProcess) -> None:
    other = await new_process()
    async with orders.consumer() as consumer:
        await values(consumer, 5)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_lost(consumer))
            await settle()
            await other.cursors().delete("billing")
            assert "was deleted" in str(await waiting)
    with pytest.raises(NoSuchCursorError):
        await orders.committed()


# ---- automatic commits


async def test_automatic_commits_are_of_what_is_finished(orders: LogProcess) -> None:
    """The record in the application's hand is not committed, also when the consumer closes."""
    auto_commit = AutoCommit(every_seconds=3600, every_records=2)
    consumer = orders.consumer(auto_commit=auto_commit)
    async with consumer:
        await values(consumer, 2)
        assert consumer.committed == 0
        await values(consumer, 1)
        assert await orders.committed() == 2
        await values(consumer, 1)
    assert await orders.committed() == 3
    with pytest.raises(BadRequestError, match="above 0"):
        AutoCommit(every_seconds=0)


async def test_automatic_commits_by_time_come_while_the_application_waits(
    orders: LogProcess,
) -> None:
    auto_commit = AutoCommit(every_seconds=0.001)
    consumer = orders.consumer(auto_commit=auto_commit)
    async with consumer, asyncio.TaskGroup() as tasks:
        await values(consumer, 5)
        waiting = tasks.create_task(_next_value(consumer))
        await until(lambda: consumer.committed == 5)
        waiting.cancel()
    assert await orders.committed() == 5


# ---- reading fails


async def test_reading_goes_on_after_a_failure_that_passes(orders: LogProcess) -> None:
    async with orders.consumer() as consumer:
        assert await values(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
        orders.logs.errors += [BookieUnreachableError("b1"), BookieUnreachableError("b1")]
        orders.logs.append(FIRST, b"5")
        assert await values(consumer, 1) == [b"5"]
    assert orders.logs.opened == [0, 5, 5]


async def test_an_error_that_stays_is_raised_after_what_was_read(orders: LogProcess) -> None:
    async with orders.consumer() as consumer:
        await values(consumer, 5)
        orders.logs.errors.append(LogTruncatedError("gone", earliest_offset=9))
        orders.logs.wake()
        for _ in range(2):
            with pytest.raises(LogTruncatedError):
                await anext(consumer)
        # Records that were given out can be committed.
        await consumer.commit()
    assert await orders.committed() == 5


async def test_a_closed_client_ends_its_consumers(orders: LogProcess) -> None:
    consumer = orders.consumer()
    await consumer.__aenter__()
    await values(consumer, 2)
    await orders.client.close()
    with pytest.raises(ClientClosedError):
        await anext(consumer)
    with pytest.raises(ClientClosedError):
        await orders.consumer().__aenter__()
    await consumer.__aexit__(None, None, None)
    assert await _claims(orders, 0)


async def test_a_late_check_does_not_undo_a_newer_one(orders: LogProcess) -> None:
    """Two claims in a row, each checked: the check of the first one fails once, and ends last."""
    async with orders.consumer() as consumer:
        inner = consumer._consumer
        cursor, failures = inner.cursor, [MetadataUnavailableError("not now")]

        async def check() -> None:
            if failures:
                raise failures.pop()

        inner._cursor = cast("HeldCursor", SimpleNamespace(check=check))
        token = inner._lock.token
        async with asyncio.TaskGroup() as checks:
            checks.create_task(inner._check(token - 1))
            checks.create_task(inner._check(token))
        inner._cursor = cursor
        assert await values(consumer, 1) == [b"0"]

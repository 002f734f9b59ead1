"""Queues: put once, taken in order, worked on by one at a time, given back by the dead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest

from bookie.coordination.participant import Participant
from bookie.coordination.queues import Queue, Taken
from bookie.errors import (
    LockLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    OperationTimeoutError,
    SessionLostError,
)
from bookie.metadata.model import Operation
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import cancel_in, settle, until, until_found


async def take(queue: Queue) -> bytes:
    """Take an item and be done with it."""
    async with await queue.take(timeout_seconds=20) as taken:
        return taken.value


async def test_items_come_out_in_the_order_in_which_they_went_in(new_client: NewClient) -> None:
    putter, taker = await new_client(), await new_client()
    queue = Queue(putter.participant, "/queue")
    for value in (b"1", b"2", b"3"):
        await queue.put(value)
    assert await queue.size() == 3
    await taker.session.sync()
    other = Queue(taker.participant, "/queue")
    assert [await take(other) for _ in range(3)] == [b"1", b"2", b"3"]
    assert await other.size() == 0
    assert await putter.session.get_children("/queue/receipts") == []
    with pytest.raises(OperationTimeoutError):
        await other.take(timeout_seconds=0.05)


async def test_an_item_is_one_consumers_at_a_time(new_client: NewClient) -> None:
    clients = [await new_client() for _ in range(4)]
    queues = [Queue(client.participant, "/queue") for client in clients]
    done: list[bytes] = []

    async def work(queue: Queue) -> None:
        while (value := await take(queue)) != b"end":
            done.append(value)

    async with asyncio.TaskGroup() as group:
        for queue in queues[1:]:
            group.create_task(work(queue))
        for i in range(30):
            await queues[0].put(b"%d" % i)
        for _ in queues[1:]:
            await queues[0].put(b"end")
    assert sorted(done, key=int) == [b"%d" % i for i in range(30)]


async def test_an_item_that_failed_is_somebody_elses(client: Client) -> None:
    queue = Queue(client.participant, "/queue")
    await queue.put(b"1")
    await queue.put(b"2")

    async def fail() -> None:
        async with await queue.take() as taken:
            assert taken.value == b"1"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with await queue.take() as again, await queue.take() as second:
        assert (again.value, second.value) == (b"1", b"2")
    assert await queue.size() == 0


async def test_an_item_that_failed_late_is_somebody_elses(new_client: NewClient) -> None:
    """The consumer has left its context meanwhile, but its session goes on."""
    first, second = await new_client(), await new_client()
    async with Participant(first.session) as participant:
        queue = Queue(participant, "/queue")
        await queue.put(b"1")
        taken = await queue.take()
    with pytest.raises(ZeroDivisionError):
        async with taken:
            raise ZeroDivisionError
    await second.session.sync()
    async with await Queue(second.participant, "/queue").take(timeout_seconds=20) as again:
        assert again.value == b"1"


async def test_the_items_of_the_dead_come_back(backend: Backend, new_client: NewClient) -> None:
    dying, heir = await new_client(session_timeout_seconds=3.0), await new_client()
    await Queue(heir.participant, "/queue").put(b"1")
    await dying.session.sync()
    taken = await Queue(dying.participant, "/queue").take()
    async with asyncio.TaskGroup() as group:
        inherited = group.create_task(Queue(heir.participant, "/queue").take(timeout_seconds=20))
        await settle()
        assert not inherited.done()
        await backend.expire(dying.session)
    again: Taken = inherited.result()
    assert again.value == b"1"
    await again.done()
    with pytest.raises(LockLostError, match="given back"):
        await taken.done()


async def test_a_new_item_wakes_the_first_in_line_only(new_client: NewClient) -> None:
    """No herd."""
    putter = await new_client()
    takers = [await new_client() for _ in range(5)]
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, client in enumerate(takers):
            tasks.append(group.create_task(take(Queue(client.participant, "/queue"))))
            wanted = "get_children" if number == 0 else "exists"
            count = 3 if number == 0 else 1  # its turn; what is taken, and what there is
            await until(partial(_has_asked, client, wanted, count))
        before = [client.store.reads for client in takers]
        await Queue(putter.participant, "/queue").put(b"1")
        await until(tasks[0].done)
        await until(lambda: takers[1].store.reads > before[1])
        await settle()
        woken = [i for i, client in enumerate(takers) if client.store.reads > before[i]]
        # The first took the item, and let the second one come forward.
        assert woken == [0, 1]
        for _ in range(4):
            await Queue(putter.participant, "/queue").put(b"1")


def _has_asked(client: Client, what: str, times: int) -> bool:
    return client.store.counts[what] == times


async def test_lost_replies_neither_lose_nor_double_an_item(client: Client) -> None:
    """Case 157."""
    queue = Queue(client.participant, "/queue")
    client.store.lost_replies = 1
    await queue.put(b"1")
    client.store.lost_requests = 1
    await queue.put(b"2")
    assert await queue.size() == 2
    taken = await queue.take()
    client.store.lost_replies = 1
    await taken.done()
    assert await queue.size() == 1
    taken = await queue.take()
    client.store.lost_requests = 1
    await taken.done()
    assert await queue.size() == 0
    client.store.lost_replies = 4
    await queue.put(b"3")
    client.store.lost_replies, client.store.lost_requests = 0, 100
    with pytest.raises(MetadataUnavailableError):
        await queue.put(b"4")
    client.store.lost_requests = 0
    assert await queue.size() == 1


async def test_a_cancelled_taker_takes_nothing(client: Client) -> None:
    queue = Queue(client.participant, "/queue")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(queue.take())
        await until(lambda: client.store.counts["get_children"] == 3)
        client.store.hold_writes.clear()
        await client.session.put("/queue/items/item-", b"1", sequential=True)
        writes = client.store.counts["transaction"]
        await until(lambda: client.store.counts["transaction"] > writes - 1)
        await settle()
        taking.cancel()
        await settle()
        client.store.hold_writes.set()
    await until_found(lambda: _is_free(client))
    assert await take(queue) == b"1"


async def test_a_put_across_two_sessions_is_not_made_twice(
    backend: Backend, new_client: NewClient
) -> None:
    """Its answer is lost, then the session: whether it was put is said to be unknown."""
    client = await new_client(session_timeout_seconds=3.0)
    queue = Queue(client.participant, "/queue")
    lost: list[None] = []

    def lose_reply(operations: Sequence[Operation]) -> None:
        if any(operation.key.startswith("/queue/items/") for operation in operations):
            client.store.lost_replies = 1
            client.store.hold_writes.clear()
            lost.append(None)

    client.store.after_write = lose_reply
    async with asyncio.TaskGroup() as group:
        putting = group.create_task(is_put(queue, b"1"))
        await until(lambda: lost)
        client.store.after_write = lambda _: None
        epoch = client.participant.session_epoch
        await backend.expire(client.session)
        await until(lambda: client.participant.session_epoch >= epoch + 2)
        client.store.hold_writes.set()
    assert not putting.result()
    assert await queue.size() == 1


async def is_put(queue: Queue, value: bytes) -> bool:
    """True if the item was put, as far as is known."""
    try:
        await queue.put(value)
    except SessionLostError:
        return False
    return True


async def test_a_put_that_comes_late_comes_once(client: Client) -> None:
    """An attempt that was not answered happens after the next one."""
    queue = Queue(client.participant, "/queue")
    client.store.lost_requests = 2
    await queue.put(b"1")
    for late in client.store.lost:
        # One that gives a receipt back may find that another one did so meanwhile.
        with suppress(NoSuchKeyError):
            await client.session.transaction(late)
    await until_found(lambda: _has_no_receipts(client))

    def lose_item(operations: Sequence[Operation]) -> bool:
        is_item = any(operation.key.startswith("/queue/items/") for operation in operations)
        if is_item:
            client.store.loses_request = lambda _: False
        return is_item

    client.store.loses_request = lose_item
    await queue.put(b"2")
    with pytest.raises(NoSuchKeyError):
        await client.session.transaction(client.store.lost[-1])
    assert await queue.size() == 2


async def _has_no_receipts(client: Client) -> bool:
    return not await client.session.get_children("/queue/receipts")


async def test_done_may_be_said_again_after_no_answer(client: Client) -> None:
    """The item was deleted, and no attempt of the first call was answered."""
    queue = Queue(client.participant, "/queue")
    await queue.put(b"1")
    taken = await queue.take()
    client.store.after_write = lambda _: setattr(client.store, "lost_requests", 100)
    client.store.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await taken.done()
    client.store.after_write = lambda _: None
    client.store.lost_requests = 0
    await taken.done()
    assert await queue.size() == 0


async def test_an_item_whose_claim_was_not_answered_comes_back(client: Client) -> None:
    queue = Queue(client.participant, "/queue")
    await queue.put(b"1")

    def lose_reply(operations: Sequence[Operation]) -> None:
        if any(operation.key.startswith("/queue/taken/") for operation in operations):
            client.store.after_write = lambda _: None
            client.store.lost_replies = 1

    client.store.after_write = lose_reply
    with pytest.raises(MetadataUnavailableError):
        await queue.take()
    async with asyncio.timeout(60):
        assert await take(queue) == b"1"


async def test_an_item_that_is_given_back_while_the_store_is_away_comes_back(
    client: Client,
) -> None:
    queue = Queue(client.participant, "/queue")
    await queue.put(b"1")
    taken = await queue.take()
    client.store.is_down = True
    await taken.give_back()
    client.store.is_down = False
    async with asyncio.timeout(60):
        assert await take(queue) == b"1"


@pytest.mark.parametrize("turns", range(8))
async def test_a_taker_that_is_cancelled_late_takes_nothing(client: Client, turns: int) -> None:
    """So many turns of the loop after the item was claimed: it was returned, or is free again."""
    queue = Queue(client.participant, "/queue")
    await queue.put(b"1")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(queue.take())

        def claimed(operations: Sequence[Operation]) -> None:
            if any(operation.key.startswith("/queue/taken/") for operation in operations):
                client.store.after_write = lambda _: None
                cancel_in(turns, taking)

        client.store.after_write = claimed
    if not taking.cancelled():
        await taking.result().give_back()
    async with asyncio.timeout(60):
        assert await take(queue) == b"1"


async def _is_free(client: Client) -> bool:
    return not await client.session.get_children("/queue/taken")


async def test_a_dead_consumer_is_not_done_with_a_new_item(
    backend: Backend, new_client: NewClient
) -> None:
    """Of the same name, because the queue was deleted and its numbers may begin anew."""
    dead, alive = await new_client(session_timeout_seconds=3.0), await new_client()
    queue, late_queue = (Queue(c.participant, "/queue") for c in (alive, dead))
    await queue.put(b"old")
    await dead.session.sync()
    late = await late_queue.take()
    await alive.session.delete_recursive("/queue")
    await queue.put(b"new")
    taken = await queue.take(timeout_seconds=20)
    with pytest.raises(LockLostError):
        await late.done()
    assert (taken.value, await queue.size()) == (b"new", 1)
    await taken.done()


async def test_who_is_done_too_late_keeps_no_new_item_from_others(client: Client) -> None:
    """The items were deleted, and numbered anew, while one was worked on."""
    queue = Queue(client.participant, "/queue")
    await queue.put(b"old")
    late = await queue.take()
    await client.session.delete_recursive("/queue/items")
    await queue.put(b"new")
    with pytest.raises(LockLostError):
        await late.done()
    assert await queue.size() == 1
    assert await take(queue) == b"new"


async def test_done_is_known_although_a_server_is_late(client: Client) -> None:
    """The first attempt was not answered, and the look for it goes to a server that is behind."""
    queue = Queue(client.participant, "/queue")
    await queue.put(b"x")
    taken = await queue.take()
    await client.store.fall_behind()
    client.store.lost_replies = 1
    await taken.done()
    await client.session.sync()
    assert await queue.size() == 0


async def test_an_item_whose_claim_was_not_answered_and_that_another_took_stays_his(
    new_client: NewClient,
) -> None:
    """A consumer that asked in vain deletes only what it may have left."""
    first = await new_client(session_timeout_seconds=3.0)
    second, third = await new_client(), await new_client()
    await Queue(second.participant, "/queue").put(b"x")
    await first.session.sync()
    first.store.loses_request = lambda operations: "/taken/" in operations[0].key
    with pytest.raises(MetadataUnavailableError):
        await Queue(first.participant, "/queue").take(timeout_seconds=20)
    async with await Queue(second.participant, "/queue").take(timeout_seconds=20) as taken:
        await until(lambda: not first.participant._sweeping)
        await third.session.sync()
        with pytest.raises(OperationTimeoutError):
            await Queue(third.participant, "/queue").take(timeout_seconds=0.2)
        assert taken.value == b"x"


async def test_an_item_that_is_done_is_not_claimed(new_client: NewClient) -> None:
    """A consumer sees it without a claim, because its server is behind."""
    first, second = await new_client(), await new_client()
    queue = Queue(first.participant, "/queue")
    await queue.put(b"x")
    await first.store.fall_behind()
    await second.session.sync()
    assert await take(Queue(second.participant, "/queue")) == b"x"
    assert await queue._take() is None
    await first.session.sync()
    assert await first.session.get_children("/queue/taken") == []

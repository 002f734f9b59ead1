"""Each call of a client, answered by a served node, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio

from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
    IdentityError,
    OperationTimeoutError,
    StorageFailedError,
    UnauthorizedError,
    WrongClusterError,
)
from bookie.ids import MAX_ID, Status
from bookie.wire.client.channel import BookieChannel
from bookie.wire.commands import LacReply, LacState, LedgerRow, ReadCommand, ReadReply, Reply
from bookie.wire.grpc import transport
from tests.unit.wire.conftest import Served
from tests.unit.wire.fake_node import INFO, INSTANCE_ID, batch_of, until

KEY = bytes(range(32))


async def test_a_read_returns_the_nodes_reply(served: Served) -> None:
    """The command arrives as it was given, and the reply with its batch."""
    batch = batch_of([40, 60], first=5, steps=[3])
    served.node.read_reply = ReadReply(Status.OK, "", batch, 9, Status.NO_SUCH_ENTRY, 4)
    command = ReadCommand(3, 5, 20, 100, 5000, True, KEY, 3, 2, 1)
    reply = await served.channel.read(command, timeout=60)
    assert served.node.calls == [("read", command)]
    assert reply.batch is not None
    assert reply.batch.ledger_id == 3
    assert reply.batch.entry_ids().tolist() == [5, 8]
    assert reply.batch.sizes.tolist() == [40, 60]
    assert (reply.next_entry_id, reply.stopped_by, reply.max_lac) == (9, Status.NO_SUCH_ENTRY, 4)


async def test_a_negative_answer_is_a_reply(served: Served) -> None:
    """Recovery counts negatives, so they do not raise."""
    reply = await served.channel.read(ReadCommand(3, 0, 0), timeout=60)
    assert (reply.status, reply.message) == (Status.NO_SUCH_ENTRY, "nothing here")


async def test_a_force_is_for_one_life_of_the_bookie(served: Served) -> None:
    """A stream of adds names the life. A force that means another one does not reach the node."""
    opened = asyncio.Event()
    stream = served.channel.add_stream(lambda *_: None, lambda _: None, opened.set)
    await opened.wait()
    assert stream.life
    channel, node = served.channel, served.node
    assert (await channel.force(5, timeout=5, life=stream.life)).status is Status.OK
    reply = await channel.force(6, timeout=5, life="another")
    assert reply.status is Status.WRONG_INCARNATION
    assert "restarted" in reply.message
    assert node.calls == [("force", 5)]


async def test_lac_fence_force_and_write_lac_carry_their_arguments(served: Served) -> None:
    """Each of the small calls reaches the node's method of the same name."""
    channel, node = served.channel, served.node
    assert await channel.read_lac(3, KEY, timeout=60) == node.lac_reply
    assert await channel.fence(4, KEY, timeout=60) == node.lac_reply
    assert (await channel.force(5, timeout=60)).status is Status.OK
    assert (await channel.write_lac(6, KEY, b"packet", timeout=60)).status is Status.OK
    assert node.calls == [
        ("read_lac", 3, KEY),
        ("fence", 4, KEY),
        ("force", 5),
        ("write_lac", 6, KEY, b"packet"),
    ]


@pytest.mark.parametrize("rpc", ["read", "read_lac", "fence", "force", "write_lac", "info"])
async def test_a_server_that_ends_a_call_without_an_answer(rpc: str) -> None:
    """gRPC for Python then returns None; no bookie does this, but something else may listen."""

    async def end(_requests: object, context: Any) -> None:
        await context.send_initial_metadata(())

    class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _details: object) -> Any:
            return grpc.stream_stream_rpc_method_handler(end)

    server = aio.server()
    server.add_generic_rpc_handlers((Silent(),))
    address = f"127.0.0.1:{transport.bind(server, '127.0.0.1:0')}"
    await server.start()
    arguments = {
        "read": (ReadCommand(3, 0, 0),),
        "force": (3,),
        "write_lac": (3, KEY, b"packet"),
        "info": (),
    }.get(rpc, (3, KEY))
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(address, INSTANCE_ID, tasks)
        try:
            await getattr(channel, rpc)(*arguments, timeout=60)
        except BookieError as error:
            said: BookieError | None = error  # not through the group, which would wrap it
        else:
            said = None
        await channel.close()
    await server.stop(None)
    assert isinstance(said, BookieUnreachableError)
    assert str(said) == f"bookie {address} ended a call without an answer"


async def test_info_describes_the_bookie(served: Served) -> None:
    """All fields survive the way."""
    assert await served.channel.info(timeout=60) == INFO


async def test_listings_come_in_pages(served: Served) -> None:
    """Pages arrive in order and unchanged; -1 lists to the end."""
    served.node.pages = [
        (np.array([0, 10]), np.array([5, 10])),
        (np.array([MAX_ID]), np.array([MAX_ID])),
    ]
    pages = [page async for page in served.channel.list_entries(3, key=b"k")]
    assert [(first.tolist(), last.tolist()) for first, last in pages] == [
        ([0, 10], [5, 10]),
        ([MAX_ID], [MAX_ID]),
    ]
    rows = [LedgerRow(n, True, False, 0, 9, 10, 1000, 8, b"tag") for n in range(5)]
    served.node.rows = [rows[:3], rows[3:]]
    assert [page async for page in served.channel.list_ledgers(7)] == [rows[:3], rows[3:]]
    assert served.node.calls == [("list_entries", 3, 0, MAX_ID, b"k"), ("list_ledgers", 7)]


async def test_a_listing_that_fails_midway_raises_after_its_pages(served: Served) -> None:
    """An incomplete listing never ends like a complete one."""
    served.node.pages = [(np.array([0]), np.array([5]))]
    served.node.failure = UnauthorizedError("not yours")
    pages = served.channel.list_entries(3)
    assert (await anext(pages))[0].tolist() == [0]
    with pytest.raises(UnauthorizedError, match="not yours"):
        await anext(pages)


async def test_a_listing_may_be_left_early(served: Served) -> None:
    """Leaving the loop cancels the call."""
    served.node.rows = [[LedgerRow(n, False, False, 0, 0, 1, 1, 0)] for n in range(1000)]
    pages = served.channel.list_ledgers()
    async for page in pages:
        assert page[0].ledger_id == 0
        break


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (UnauthorizedError("wrong key"), Status.UNAUTHORIZED, "wrong key"),
        (StorageFailedError("the disk is gone"), Status.IO_ERROR, "the disk is gone"),
        (IdentityError("not me"), Status.IO_ERROR, "not me"),
        (RuntimeError("secret"), Status.IO_ERROR, "the bookie failed on this request"),
        (KeyError(3), Status.IO_ERROR, "the bookie failed on this request"),
    ],
)
async def test_errors_of_the_node_are_answered_in_band(
    served: Served, error: Exception, status: Status, sentence: str
) -> None:
    """Each unary call maps errors the same way, and unknown ones keep their words to themselves."""
    served.node.failure = error
    channel = served.channel
    replies: list[ReadReply | LacReply | Reply] = [
        await channel.read(ReadCommand(3, 0, 0), timeout=60),
        await channel.read_lac(3, b"", timeout=60),
        await channel.fence(3, b"", timeout=60),
        await channel.force(3, timeout=60),
        await channel.write_lac(3, b"", b"x", timeout=60),
    ]
    assert {reply.status for reply in replies} == {status}
    for reply in replies:
        assert reply.message.startswith(sentence)
        assert "secret" not in reply.message
    assert served.requests("Fence", status.name) == 1


async def test_another_cluster_is_refused_by_every_call(served: Served) -> None:
    """The node hears of none of them."""
    channel = BookieChannel(served.address, "another", served.tasks)
    replies: list[ReadReply | LacReply | Reply] = [
        await channel.read(ReadCommand(3, 0, 0), timeout=60),
        await channel.read_lac(3, b"", timeout=60),
        await channel.fence(3, b"", timeout=60),
        await channel.force(3, timeout=60),
        await channel.write_lac(3, b"", b"x", timeout=60),
    ]
    assert {reply.status for reply in replies} == {Status.WRONG_CLUSTER}
    with pytest.raises(WrongClusterError):
        await channel.info(timeout=60)
    with pytest.raises(WrongClusterError):
        _ = [page async for page in channel.list_entries(3)]
    with pytest.raises(WrongClusterError):
        _ = [page async for page in channel.list_ledgers()]
    assert served.node.calls == []
    await channel.close()


async def test_a_call_that_is_not_answered_in_time_raises(served: Served) -> None:
    """Its outcome is unknown, and the bookie's budget is free again."""
    served.node.reading.clear()
    with pytest.raises(OperationTimeoutError):
        await served.channel.read(ReadCommand(3, 0, 0), timeout=0.05)
    await until(
        lambda: served.metrics.registry.get_sample_value("bookie_in_flight_read_bytes") == 0
    )


async def test_a_bookie_that_is_not_there_raises(served: Served) -> None:
    """A refused connection is told at once."""
    channel = BookieChannel("127.0.0.1:1", INSTANCE_ID, served.tasks)
    with pytest.raises(BookieUnreachableError, match="bookie 127"):
        await channel.fence(3, b"", timeout=60)
    await channel.close()


class Updates:
    """Records what a watcher's owner sees."""

    def __init__(self) -> None:
        self.states: list[LacState] = []
        self.broken: list[Exception] = []

    async def until_lac(self, ledger_id: int, lac: int) -> None:
        await until(lambda: LacState(ledger_id, lac, False) in self.states)


async def test_a_watcher_gets_the_state_at_once_and_then_each_change(served: Served) -> None:
    """A ledger that is not there yet is answered too, and followed when it appears."""
    served.node.lacs[1] = 5
    updates = Updates()
    watch = served.channel.watch_lac(updates.states.append, updates.broken.append)
    watch.subscribe([1, 2])
    await until(lambda: len(updates.states) == 2)
    assert updates.states == [
        LacState(1, 5, False),
        LacState(2, -1, False, Status.NO_SUCH_LEDGER),
    ]
    served.node.advance(2, [0])
    await updates.until_lac(2, 0)
    watch.unsubscribe([2])
    (watcher,) = served.node.watchers
    await until(lambda: watcher.ledgers == {1})
    await watch.close()
    await until(lambda: watcher.closed)
    assert updates.broken == []


async def test_updates_that_wait_are_merged_to_the_latest(served: Served) -> None:
    """A burst costs a watcher few messages, and the last one is the truth."""
    served.node.lacs[1] = 0
    updates = Updates()
    watch = served.channel.watch_lac(updates.states.append, updates.broken.append)
    watch.subscribe([1])
    await updates.until_lac(1, 0)
    served.node.advance(1, range(1, 10_001))
    await updates.until_lac(1, 10_000)
    assert len(updates.states) < 100
    lacs = [state.max_lac for state in updates.states]
    assert lacs == sorted(lacs)
    assert watch.is_open


async def test_a_watch_that_is_reopened_subscribes_again(served: Served) -> None:
    """Subscriptions belong to the watcher, not to its connection."""
    served.node.lacs[1] = 5
    updates = Updates()
    watch = served.channel.watch_lac(updates.states.append, updates.broken.append)
    watch.subscribe([1])
    await updates.until_lac(1, 5)
    updates.states.clear()
    watch.send_bytes(bytes(9 * 1024 * 1024))  # breaks the stream
    await until(lambda: bool(updates.broken))
    watch.reopen()
    await updates.until_lac(1, 5)


async def test_watches_over_the_bound_are_refused_one_by_one(served: Served) -> None:
    """The ledgers below the bound stay watched."""
    served.node.watches_max = 2
    served.node.lacs.update({1: 1, 2: 2, 3: 3})
    updates = Updates()
    watch = served.channel.watch_lac(updates.states.append, updates.broken.append)
    watch.subscribe([1, 2, 3])
    await until(lambda: len(updates.states) == 3)
    assert LacState(3, -1, False, Status.TOO_MANY_REQUESTS) in updates.states
    assert served.node.watchers[0].ledgers == {1, 2}


async def test_a_watcher_of_another_cluster_is_refused(served: Served) -> None:
    """It is told so by an update of no ledger, and the stream ends."""
    channel = BookieChannel(served.address, "another", served.tasks)
    updates = Updates()
    channel.watch_lac(updates.states.append, updates.broken.append)
    await until(lambda: bool(updates.broken))
    assert updates.states == [LacState(-1, -1, False, Status.WRONG_CLUSTER)]
    assert served.node.watchers == []
    await channel.close()


async def test_a_cancelled_call_leaves_the_channel_usable(served: Served) -> None:
    """Abandoning one call does not disturb the others."""
    served.node.reading.clear()
    task = served.tasks.create_task(served.channel.read(ReadCommand(3, 0, 0), timeout=60))
    await until(lambda: len(served.node.calls) == 1)
    task.cancel()
    await asyncio.wait((task,))
    served.node.reading.set()
    reply = await served.channel.read(ReadCommand(3, 0, 0), timeout=60)
    assert reply.status is Status.NO_SUCH_ENTRY


async def test_closing_a_channel_ends_its_calls_without_cancelling_their_callers(
    served: Served,
) -> None:
    """A task that waits for a bookie is told that the channel was closed, and lives on."""
    served.node.reading.clear()
    channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)

    async def read() -> str:
        with pytest.raises(ClientClosedError):
            await channel.read(ReadCommand(3, 0, 0), timeout=60)
        return "lives on"

    task = served.tasks.create_task(read())
    await until(lambda: len(served.node.calls) == 1)
    await channel.close()
    assert await task == "lives on"


async def test_closing_a_channel_ends_a_listing_without_cancelling_its_caller(
    served: Served,
) -> None:
    """The same for calls that answer in pages."""
    served.node.listing.clear()
    channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)

    async def follow() -> str:
        with pytest.raises(ClientClosedError):
            _ = [page async for page in channel.list_ledgers()]
        return "lives on"

    task = served.tasks.create_task(follow())
    await until(lambda: served.node.listed == 1)
    await channel.close()
    assert await task == "lives on"


async def test_a_closed_channel_refuses_calls_in_the_words_of_the_client(served: Served) -> None:
    """A caller may have got the channel before it was closed."""
    for has_moved, error in ((False, ClientClosedError), (True, BookieUnreachableError)):
        channel = served.channel
        if not has_moved:
            channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)
        await channel.close(has_moved=has_moved)
        with pytest.raises(error):
            await channel.info(timeout=60)
        with pytest.raises(error):
            await channel.read(ReadCommand(3, 0, 0), timeout=60)
        with pytest.raises(error):
            _ = [page async for page in channel.list_ledgers()]

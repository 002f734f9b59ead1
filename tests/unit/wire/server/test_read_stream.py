"""Reads of one entry by a stream between a client and a bookie, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import NodeSettings, RpcSettings
from bookie.entry.batch import EntryBatch
from bookie.env import gather
from bookie.errors import (
    BookieUnreachableError,
    ClientClosedError,
    OperationTimeoutError,
    StorageFailedError,
    UnauthorizedError,
)
from bookie.ids import INSTANCE_ID_METADATA_KEY, Status
from bookie.telemetry import Metrics
from bookie.wire.client import streams
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_streamed_read
from bookie.wire.commands import ReadCommand, ReadReply
from bookie.wire.grpc import transport
from bookie.wire.grpc.server.grpc_call import grpc_handlers
from bookie.wire.interfaces import SERVICE
from bookie.wire.server import read_stream as server_side
from bookie.wire.server.service import BookieService
from tests.served_node import serve
from tests.servers.ports import claimed_ports
from tests.unit.wire.conftest import Served
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.http2_peer import DATA, connected

METADATA = ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)


def one(entry_id: int) -> ReadCommand:
    """A read of one entry."""
    return ReadCommand(3, entry_id, entry_id, 1, 1000)


def found(entry_id: int, size: int = 40) -> ReadReply:
    """One entry, as a node returns it."""
    return ReadReply(Status.OK, "", batch_of([size], first=entry_id), entry_id + 1, max_lac=9)


async def in_flight_is(metrics: Metrics, size: float) -> None:
    """Wait until so many bytes of reads are charged."""
    sample = metrics.registry.get_sample_value
    await until(lambda: sample("bookie_in_flight_read_bytes") == size)


def given_up(metrics: Metrics) -> float:
    """Reads that the bookie left unanswered because their callers had gone."""
    return metrics.registry.get_sample_value("bookie_reads_given_up_total") or 0.0


def commands_of(node: FakeNode) -> list[object]:
    """The reads that the node was asked for."""
    return [call[1] for call in node.calls if isinstance(call, tuple) and call[0] == "read"]


@asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler) -> AsyncIterator[int]:
    """A server of another make on loopback; its port."""
    server = aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = transport.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_read_returns_the_nodes_reply(served: Served, waits: bool) -> None:
    """The node has it at once or after a while; the answers are counted as the stream's."""
    served.node.read_reply = found(5, 60)
    if waits:
        served.node.reading.clear()
    task = served.tasks.create_task(served.channel.read_entry(one(5), timeout=60))
    await until(lambda: len(served.node.calls) == 1)
    served.node.reading.set()
    reply = await task
    assert served.node.calls == [("read", one(5))]
    assert reply.batch is not None
    assert (reply.batch.ledger_id, reply.batch.first_entry_id) == (3, 5)
    assert (reply.batch.sizes.tolist(), bytes(reply.batch.payload)) == ([60], bytes(60))
    assert (reply.status, reply.next_entry_id, reply.max_lac) == (Status.OK, 6, 9)
    assert served.requests("ReadStream", "OK") == 1
    assert served.requests("Read", "OK") == 0
    await in_flight_is(served.metrics, 0)


async def test_a_read_that_waits_is_overtaken(served: Served) -> None:
    """A slow device holds up its own read and no other."""
    held = served.node.reading
    held.clear()
    slow = served.tasks.create_task(served.channel.read_entry(one(1), timeout=60))
    await until(lambda: len(served.node.calls) == 1)
    served.node.reading = asyncio.Event()
    served.node.reading.set()
    for entry_id in range(100):
        await served.channel.read_entry(one(entry_id), timeout=60)
    assert not slow.done()
    held.set()
    assert (await slow).status is Status.NO_SUCH_ENTRY


async def test_each_request_gets_its_own_answer(served: Served) -> None:
    """Many at a time, of which each second one waits."""
    node = served.node

    class Echo:
        """Answers with the entry that was asked for."""

        def try_read(self, command: ReadCommand) -> ReadReply | None:
            return found(command.first_entry_id) if command.first_entry_id % 2 else None

        async def read(self, command: ReadCommand) -> ReadReply:
            await asyncio.sleep(0)
            return found(command.first_entry_id)

    echo = Echo()
    node.try_read, node.read = echo.try_read, echo.read  # type: ignore[method-assign]  # of this one
    replies = await gather(
        served.channel.read_entry(one(entry_id), timeout=60) for entry_id in range(500)
    )
    assert [reply.batch.first_entry_id for reply in replies if reply.batch] == list(range(500))
    await in_flight_is(served.metrics, 0)


FAULTS: list[tuple[BaseException, Status, str]] = [
    (UnauthorizedError("wrong key"), Status.UNAUTHORIZED, "wrong key"),
    (StorageFailedError("the disk is gone"), Status.IO_ERROR, "the disk is gone"),
    (RuntimeError("secret"), Status.IO_ERROR, "the bookie failed on this request"),
]
STOPPED = (asyncio.CancelledError(), Status.SHUTTING_DOWN, "the bookie is stopping")


@pytest.mark.parametrize(
    ("waits", "error", "status", "sentence"),
    [(False, *fault) for fault in FAULTS] + [(True, *fault) for fault in [*FAULTS, STOPPED]],
)
async def test_errors_of_the_node_are_answered_in_band(
    served: Served, waits: bool, error: BaseException, status: Status, sentence: str
) -> None:
    """Errors are those of a call. A read that the bookie gave up is answered, too."""
    if waits:
        served.node.reading.clear()
    served.node.failure = error
    reply = await served.channel.read_entry(one(0), timeout=60)
    assert reply.status is status
    assert reply.message.startswith(sentence)
    assert "secret" not in reply.message
    assert served.requests("ReadStream", status.name) == 1
    served.node.failure = None
    served.node.reading.set()
    assert (await served.channel.read_entry(one(0), timeout=60)).message == "nothing here"
    await in_flight_is(served.metrics, 0)


@pytest.mark.parametrize("instance_id", ["another", ""])
async def test_every_request_of_another_cluster_is_refused(
    served: Served, instance_id: str
) -> None:
    """The node hears of none of them."""
    channel = BookieChannel(served.address, instance_id, served.tasks)
    for _ in range(2):
        reply = await channel.read_entry(one(0), timeout=60)
        assert reply.status is Status.WRONG_CLUSTER
    assert served.node.calls == []
    await channel.close()


async def test_a_request_that_breaks_a_bound_is_refused_under_its_id(served: Served) -> None:
    """Bytes that form no message are refused under the id 0. The stream goes on."""
    async with aio.insecure_channel(served.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        for data, request_id in (
            (encode_streamed_read(300, ReadCommand(3, 6, 5)), 300),
            (encode_streamed_read(7, ReadCommand(-1, 0, 0)), 7),
            (encode_streamed_read(7, ReadCommand(3, 0, 0, master_key=bytes(65))), 7),
            (b"\x58\x05\xff", 0),
            (b"garbage", 0),
        ):
            await call.write(data)
            answer = pb.ReadResponse.FromString(await call.read())
            assert (answer.status, answer.request_id) == (pb.STATUS_BAD_REQUEST, request_id)
        assert served.node.calls == []
        await call.write(encode_streamed_read(8, one(0)))
        answer = pb.ReadResponse.FromString(await call.read())
        assert (answer.status, answer.request_id) == (pb.STATUS_NO_SUCH_ENTRY, 8)
        await call.done_writing()
        assert await call.read() is aio.EOF


async def test_a_range_and_a_fence_are_served_too(served: Served) -> None:
    """Whoever likes one stream for all of its reads may have it."""
    command = ReadCommand(3, 0, 9, 5, 1000, True, b"k" * 32, 2, 1, 1)
    async with aio.insecure_channel(served.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        await call.write(encode_streamed_read(1, command))
        assert pb.ReadResponse.FromString(await call.read()).request_id == 1
        call.cancel()
    assert served.node.calls == [("read", command)]


async def test_reads_over_the_budget_are_turned_away() -> None:
    """Streams and calls share one budget, and what they hold is free again."""
    node, metrics = FakeNode(NodeSettings(in_flight_read_bytes_max=4 * 1024 * 1024)), Metrics()
    node.reading.clear()
    node.read_reply = found(0)
    async with (
        serve(node, "127.0.0.1", 0, RpcSettings(drain_seconds=0.2), metrics) as port,
        asyncio.TaskGroup() as tasks,
    ):
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        large = ReadCommand(3, 0, 0, 1, 4 * 1024 * 1024)
        first = tasks.create_task(channel.read_entry(large, timeout=60))
        await until(lambda: len(node.calls) == 1)
        for read in (channel.read_entry, channel.read):
            assert (await read(one(0), timeout=60)).status is Status.TOO_MANY_REQUESTS
        node.reading.set()
        assert (await first).status is Status.OK
        assert (await channel.read_entry(large, timeout=60)).status is Status.OK
        await in_flight_is(metrics, 0)
        await channel.close()


async def test_a_stream_that_breaks_holds_nothing_of_the_budget(served: Served) -> None:
    """It gives back the share of running reads and of answers that wait."""
    served.node.reading.clear()
    channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)
    reads = [
        served.tasks.create_task(_ending_in(ClientClosedError, channel, one(entry_id)))
        for entry_id in range(10)
    ]
    await until(lambda: len(served.node.calls) == 10)
    await in_flight_is(served.metrics, 10 * (1000 + 4096))
    await channel.close()
    _ = [await read for read in reads]
    await in_flight_is(served.metrics, 0)


async def _ending_in(
    error: type[Exception], channel: BookieChannel, command: ReadCommand, timeout: float = 60
) -> str:
    with pytest.raises(error):
        await channel.read_entry(command, timeout=timeout)
    return "lives on"


async def test_a_client_that_takes_no_answers_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answers use up exactly the budget. When the client goes, all of it is free again."""
    monkeypatch.setattr(server_side, "PENDING_MAX", 50)
    limit = 8 * 1024 * 1024
    node, metrics = FakeNode(NodeSettings(in_flight_read_bytes_max=limit)), Metrics()
    node.read_reply = found(0, 1024 * 1024)
    request = encode_streamed_read(1, ReadCommand(3, 0, 0))
    message = b"\x00" + len(request).to_bytes(4, "big") + request
    labels = {"rpc": "ReadStream", "status": "TOO_MANY_REQUESTS"}

    def refused() -> float:
        return metrics.registry.get_sample_value("bookie_requests_total", labels) or 0

    async with serve(node, "127.0.0.1", 0, RpcSettings(drain_seconds=0.2), metrics) as port:
        async with connected(port) as peer, asyncio.TaskGroup() as tasks:
            stream_id = peer.open("ReadStream")
            for _ in range(1000):
                peer.frame(DATA, 0, stream_id, message)
            await until(lambda: refused() > 0)
            honest = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            for _ in range(20):
                assert (await honest.info(timeout=60)).bookie_id == "b1"
                in_flight = metrics.registry.get_sample_value("bookie_in_flight_read_bytes")
                assert 0 < (in_flight or 0) <= limit + 5 * 1024 * 1024
            assert refused() <= 60
            await honest.close()
        await in_flight_is(metrics, 0)


async def test_requests_of_one_stream_are_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest waits with the client, and is read when there is room."""
    monkeypatch.setattr(server_side, "PENDING_MAX", 10)
    served.node.reading.clear()
    reads = [
        served.tasks.create_task(served.channel.read_entry(one(entry_id), timeout=60))
        for entry_id in range(40)
    ]
    await until(lambda: len(commands_of(served.node)) == 10)
    for _ in range(20):
        await served.channel.info(timeout=60)
    assert len(commands_of(served.node)) == 10
    served.node.reading.set()
    assert {(await read).status for read in reads} == {Status.NO_SUCH_ENTRY}
    assert len(commands_of(served.node)) == 40


async def test_reads_of_one_stream_that_wait_for_a_device_are_bounded(served: Served) -> None:
    """To far less than what may be unanswered, as each holds what it may return."""
    bound = server_side.WAITING_MAX
    assert bound < server_side.PENDING_MAX
    served.node.reading.clear()
    reads = [
        served.tasks.create_task(served.channel.read_entry(one(entry_id), timeout=60))
        for entry_id in range(bound + 40)
    ]
    await until(lambda: len(commands_of(served.node)) >= bound)
    for _ in range(20):
        await served.channel.info(timeout=60)
    assert len(commands_of(served.node)) == bound
    await in_flight_is(served.metrics, bound * (1000 + 4096))
    served.node.reading.set()
    assert {(await read).status for read in reads} == {Status.NO_SUCH_ENTRY}
    assert len(commands_of(served.node)) == bound + 40


async def test_a_read_that_is_not_answered_in_time_fails_alone(served: Served) -> None:
    """The bookie gives it up as well; the others and the stream live on."""
    held = served.node.reading
    held.clear()
    patient = served.tasks.create_task(served.channel.read_entry(one(1), timeout=60))
    await until(lambda: len(served.node.calls) == 1)
    with pytest.raises(OperationTimeoutError, match="did not answer in time"):
        await served.channel.read_entry(one(2), timeout=0.05)
    assert len(served.channel._reads._awaited) == 1
    await until(lambda: given_up(served.metrics) == 1)
    held.set()
    assert (await patient).status is Status.NO_SUCH_ENTRY
    assert (await served.channel.read_entry(one(3), timeout=60)).status is Status.NO_SUCH_ENTRY
    assert served.requests("ReadStream", "NO_SUCH_ENTRY") == 2
    assert served.channel._reads._awaited == {}


async def test_a_read_that_its_client_gave_up_holds_nothing(served: Served) -> None:
    """While the device is still silent: its bytes are free for others, and nothing waits for it."""
    served.node.reading.clear()
    for entry_id in range(3):
        with pytest.raises(OperationTimeoutError):
            await served.channel.read_entry(one(entry_id), timeout=0.02)
    await until(lambda: given_up(served.metrics) == 3)
    await in_flight_is(served.metrics, 0)
    assert served.requests("ReadStream", "NO_SUCH_ENTRY") == 0
    patient = served.tasks.create_task(served.channel.read_entry(one(9), timeout=60))
    await in_flight_is(served.metrics, 1000 + 4096)
    served.node.reading.set()
    assert (await patient).status is Status.NO_SUCH_ENTRY
    await in_flight_is(served.metrics, 0)


async def test_reads_that_were_given_up_make_room_on_their_stream(served: Served) -> None:
    """A device that is silent does not keep those behind them from being taken."""
    served.node.reading.clear()
    count = server_side.WAITING_MAX + 20
    hasty = [
        served.tasks.create_task(_late(served.channel, one(number))) for number in range(count)
    ]
    assert [await read for read in hasty] == ["too late"] * count
    await until(lambda: given_up(served.metrics) == count)
    await in_flight_is(served.metrics, 0)


async def _late(channel: BookieChannel, command: ReadCommand) -> str:
    with pytest.raises(OperationTimeoutError):
        await channel.read_entry(command, timeout=0.1)
    return "too late"


@pytest.mark.parametrize("breaks", [False, True])
async def test_what_a_device_is_reading_for_nobody_stays_charged(
    served: Served, breaks: bool
) -> None:
    """It is in memory until the device answers, also when the client itself is gone."""
    begun, answered = asyncio.Event(), asyncio.Event()

    async def read(command: ReadCommand) -> ReadReply:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await answered.wait()
        return found(0)

    served.node.reading.clear()
    served.node.read = read  # type: ignore[method-assign]  # of this one
    channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)
    if breaks:
        task = served.tasks.create_task(_ending_in(ClientClosedError, channel, one(0)))
        await begun.wait()
        await channel.close()
        assert await task == "lives on"
    while not begun.is_set():
        # On a busy machine its time may be over before the bookie begins.
        await _ending_in(OperationTimeoutError, channel, one(0), 0.05)
    for _ in range(20):
        await served.channel.info(timeout=60)
    await in_flight_is(served.metrics, 1000 + 4096)
    answered.set()
    await in_flight_is(served.metrics, 0)
    await channel.close()


async def test_a_read_whose_client_names_no_time_is_answered_whenever_it_may_be(
    served: Served,
) -> None:
    """Clients older than the field send none."""
    served.node.reading.clear()
    async with aio.insecure_channel(served.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        await call.write(encode_streamed_read(1, one(0)))
        await call.write(encode_streamed_read(2, one(0), 1))
        await until(lambda: given_up(served.metrics) == 1)
        served.node.reading.set()
        assert pb.ReadResponse.FromString(await call.read()).request_id == 1
        await call.done_writing()
        assert await call.read() is aio.EOF


async def test_a_stream_that_has_nothing_but_abandoned_reads_left_ends(served: Served) -> None:
    """Nobody wakes its writer but their end."""
    served.node.reading.clear()
    async with aio.insecure_channel(served.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        await call.write(encode_streamed_read(1, one(0), 20))
        await call.done_writing()
        assert await call.read() is aio.EOF
    assert given_up(served.metrics) == 1


async def test_a_cancelled_read_leaves_the_stream_usable(served: Served) -> None:
    """And is cancelled, not timed out; its answer is forgotten."""
    served.node.reading.clear()
    task = served.tasks.create_task(served.channel.read_entry(one(0), timeout=60))
    await until(lambda: len(served.node.calls) == 1)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert served.channel._reads._awaited == {}
    served.node.reading.set()
    assert (await served.channel.read_entry(one(0), timeout=60)).status is Status.NO_SUCH_ENTRY
    await in_flight_is(served.metrics, 0)


async def test_a_bookie_that_is_not_there_fails_the_read(served: Served) -> None:
    """At once, and every time."""
    channel = BookieChannel("127.0.0.1:1", INSTANCE_ID, served.tasks)
    for _ in range(2):
        with pytest.raises(BookieUnreachableError, match="bookie 127"):
            await channel.read_entry(one(0), timeout=60)
    await channel.close()


async def test_reads_fail_with_their_stream_and_the_next_one_opens_another() -> None:
    """A bookie that is cut off and comes back is read again."""
    (port,) = claimed_ports(1)
    settings = RpcSettings(drain_seconds=0.05)
    node = FakeNode()
    node.reading.clear()
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        async with serve(node, "127.0.0.1", port, settings, Metrics()):
            reads = [
                tasks.create_task(_ending_in(BookieUnreachableError, channel, one(entry_id)))
                for entry_id in range(5)
            ]
            await until(lambda: len(node.calls) == 5)
        assert {await read for read in reads} == {"lives on"}
        assert channel._reads._awaited == {}
        async with serve(FakeNode(), "127.0.0.1", port, settings, Metrics()):
            reply = await channel.read_entry(one(0), timeout=60)
            assert reply.status is Status.NO_SUCH_ENTRY
            await channel.close()


async def test_closing_a_channel_ends_its_reads_without_cancelling_their_callers(
    served: Served,
) -> None:
    """They are told so, and so is who comes later."""
    served.node.reading.clear()
    channel = BookieChannel(served.address, INSTANCE_ID, served.tasks)
    task = served.tasks.create_task(_ending_in(ClientClosedError, channel, one(0)))
    await until(lambda: len(served.node.calls) == 1)
    await channel.close()
    assert await task == "lives on"
    assert await _ending_in(ClientClosedError, channel, one(0)) == "lives on"


async def test_an_answer_that_contradicts_itself_fails_its_own_read(served: Served) -> None:
    """One that is no message at all breaks the stream, as it may be anybody's."""
    served.node.read_reply = ReadReply(
        Status.OK, "", EntryBatch(3, 0, None, np.array([40, 50]), bytes(80)), 2
    )
    served.node.reading.clear()
    bad = served.tasks.create_task(_ending_in(BookieUnreachableError, served.channel, one(0)))
    await until(lambda: len(served.node.calls) == 1)
    served.node.reading.set()
    assert await bad == "lives on"
    assert served.channel._reads.is_open


async def test_a_bookie_whose_answers_are_no_messages_breaks_the_stream(served: Served) -> None:
    """All reads on it fail."""

    async def nonsense(_requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await context.read()
        await context.write(b"\xff")
        await context.read()

    handler = grpc.stream_stream_rpc_method_handler(nonsense)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"ReadStream": handler})
    async with serving(handlers) as port:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, served.tasks)
        with pytest.raises(BookieUnreachableError, match="cannot be understood"):
            await channel.read_entry(one(0), timeout=60)
        await channel.close()


class OldBookie(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """A servicer from before there were streams of reads."""

    def __init__(self, node: FakeNode, metrics: Metrics) -> None:
        self._handlers = grpc_handlers(BookieService(node, node.settings, metrics).handlers())
        self.asked: list[str] = []

    def service(self, details: Any) -> Any:
        rpc = details.method.rpartition("/")[2]
        self.asked.append(rpc)
        return None if rpc == "ReadStream" else self._handlers.service(details)


async def test_a_bookie_without_such_streams_is_asked_by_calls() -> None:
    """Also for what was sent before that was known; nobody tries it again."""
    node = FakeNode()
    old = OldBookie(node, Metrics())
    async with serving(old) as port, asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        replies = await gather(
            channel.read_entry(one(entry_id), timeout=60) for entry_id in range(5)
        )
        assert {reply.status for reply in replies} == {Status.NO_SUCH_ENTRY}
        await channel.read_entry(one(5), timeout=60)
        assert set(commands_of(node)) == {one(entry_id) for entry_id in range(6)}
        assert old.asked == ["ReadStream"] + ["Read"] * 6
        node.reading.clear()
        with pytest.raises(OperationTimeoutError):
            await channel.read_entry(one(0), timeout=0.05)
        await channel.close()


async def test_a_full_stream_is_passed_by(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that wait to be sent are bounded; further reads go by calls."""
    await served.channel.read_entry(one(0), timeout=60)
    monkeypatch.setattr(streams, "QUEUE_BYTES_MAX", -1)
    await served.channel.read_entry(one(1), timeout=60)
    assert served.requests("ReadStream", "NO_SUCH_ENTRY") == 1
    assert served.requests("Read", "NO_SUCH_ENTRY") == 1

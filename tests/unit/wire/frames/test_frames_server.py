"""A bookie's listener for frames, and peers that do not speak as they should."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from bookie.config import RpcSettings
from bookie.env import gather
from bookie.errors import CannotStartError
from bookie.ids import JOINED_MESSAGES_METADATA, Status
from bookie.telemetry import Metrics
from bookie.wire import unary_codec
from bookie.wire.carrier import CallCode
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request, encode_streamed_read, parse_add_response
from bookie.wire.commands import ReadCommand, ReadReply, Reply
from bookie.wire.frames.connection import INBOX_BYTES_MAX, OUTBOX_BYTES_MAX, FramedConnection
from bookie.wire.frames.format import (
    CALLS,
    CallRequest,
    ClientHello,
    encode_cancelled,
    encode_client_hello,
    encode_end,
    encode_request,
    pack_size,
    parse_answer,
)
from bookie.wire.frames.server import (
    HANDSHAKES_MAX,
    HANDSHAKES_PER_TURN,
    FramesPort,
    hold_frames_port,
)
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.server.arrivals import Arrivals
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.frames.raw_peer import PAIRS, RawPeer, frame, hello, raw_peer

MIB = 1024 * 1024


@dataclass
class Bookie:
    node: FakeNode
    frames: FramesPort
    arrivals: Arrivals

    @property
    def port(self) -> int:
        return self.frames.port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.frames._connections)


@asynccontextmanager
async def serving(settings: RpcSettings | None = None, most: int = 100) -> AsyncIterator[Bookie]:
    settings = settings or RpcSettings(drain_seconds=1)
    node, arrivals = FakeNode(), Arrivals()
    async with (
        hold_port("127.0.0.1", 0, settings) as held,
        hold_frames_port("127.0.0.1", 0, settings, connections_max=most) as frames,
        held.serve(node, Metrics(), arrivals=arrivals, beside=[frames]),
    ):
        yield Bookie(node, frames, arrivals)


def add(request_id: int, size: int = 40) -> bytes:
    return frame(encode_add_request(request_id, 3, batch_of([size], first=request_id)))


def call(request_id: int, rpc: str, message: bytes) -> bytes:
    return frame(encode_request(CallRequest(request_id, rpc, PAIRS, message)))


async def answered(peer: RawPeer, count: int) -> list[tuple[int, Status]]:
    answers = [parse_add_response(await peer.message()) for _ in range(count)]
    return [(one.request_id, one.status) for one in answers]


async def test_a_stream_of_adds_byte_by_byte() -> None:
    """A slow sender gets the same answers. After its end it gets the rest, and the bookie's end."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        for byte in hello("AddStream") + add(1) + add(2) + encode_end(CallCode.OK):
            peer.send(bytes((byte,)))
            await asyncio.sleep(0)
        accepted = await peer.hello()
        assert accepted.code is CallCode.OK
        assert JOINED_MESSAGES_METADATA in accepted.metadata
        assert await answered(peer, 2) == [(1, Status.OK), (2, Status.OK)]
        assert await peer.end() == (CallCode.OK, "")
        assert await peer.is_closed()
        await until(lambda: not bookie.connections)


async def test_who_closes_its_side_gets_the_answers_that_are_owed() -> None:
    """As with an end; TCP alone can say it, too."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.held = []
        peer.send(hello("AddStream") + add(1))
        peer.writer.write_eof()
        await until(lambda: bool(bookie.node.held))
        await peer.hello()
        for _ in range(5):
            await asyncio.sleep(0)
        for outcome in bookie.node.held:
            outcome.settle(Reply(Status.OK))
        assert await answered(peer, 1) == [(1, Status.OK)]
        assert await peer.end() == (CallCode.OK, "")


@pytest.mark.parametrize(
    ("data", "is_cut"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", False, id="HTTP"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", False, id="HTTP/2"),
        pytest.param(b"\x00\x00\x00\x20" + b"x" * 32, False, id="BookKeeper"),
        pytest.param(b"\x89BKF\x00\x09\x00\x00", False, id="a later hello"),
        pytest.param(b"\x89BKF\x00\x01\xff\xff", False, id="a hello that is too large"),
        pytest.param(b"\x89BKF\x00\x01\x00\x02\xff\xff", False, id="a malformed hello"),
        pytest.param(hello(CALLS) + frame(b"x"), False, id="a malformed call"),
        pytest.param(hello(CALLS) + call(1, "Force", b"")[:9], True, id="half a frame"),
        pytest.param(hello(CALLS) + b"\x7f\xff\xff\xff", False, id="a huge frame"),
        pytest.param(hello("AddStream") + b"\x7f\xff\xff\xff", False, id="a huge message"),
        pytest.param(hello("AddStream") + b"\xff\xff\xff\xff", False, id="a huge end"),
        pytest.param(hello(CALLS) + call(1, "Read", b"")[:4], True, id="a head"),
        pytest.param(b"", True, id="nothing"),
    ],
)
async def test_who_does_not_speak_this_language_is_cut_off(data: bytes, is_cut: bool) -> None:
    """At once, and the node never hears of it."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.send(data)
        if is_cut:
            peer.writer.write_eof()
        while await peer.unit() is not None:
            pass
        peer.writer.close()
        await until(lambda: not bookie.connections)
        assert not bookie.node.calls


async def test_a_message_that_is_too_large_ends_its_stream_with_a_reason() -> None:
    """The client learns that its message is the fault."""
    settings = RpcSettings(message_bytes_max=64 * 1024, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("AddStream"))
        await peer.hello()
        peer.send(pack_size(64 * 1024 + 1))
        code, reason = await peer.end()
        assert await peer.is_closed()
        assert code is CallCode.RESOURCE_EXHAUSTED
        assert "too large" in reason


async def test_adds_before_a_message_that_is_too_large_are_answered() -> None:
    """As before an end; those behind it are not looked at."""
    settings = RpcSettings(message_bytes_max=64 * 1024, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("AddStream") + add(1) + add(2) + pack_size(64 * 1024 + 1) + add(3))
        await peer.hello()
        assert await answered(peer, 2) == [(1, Status.OK), (2, Status.OK)]
        assert (await peer.end())[0] is CallCode.RESOURCE_EXHAUSTED
        assert await peer.is_closed()
        assert len(bookie.node.added) == 2


async def test_calls_before_a_message_that_is_too_large_are_answered() -> None:
    """All calls of a client share the connection."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        peer.send(hello(CALLS) + call(1, "Read", b"\x08\x03") + b"\x7f\xff\xff\xff")
        await peer.hello()
        await until(lambda: len(bookie.node.calls) == 1)
        bookie.node.reading.set()
        assert parse_answer(await peer.message())[0] == 1
        assert (await peer.end())[0] is CallCode.RESOURCE_EXHAUSTED


async def test_a_listing_whose_request_is_too_large_is_refused_with_a_reason() -> None:
    """The client learns that its message is the fault."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("ListLedgers") + b"\x7f\xff\xff\xff")
        assert (await peer.hello()).code is CallCode.RESOURCE_EXHAUSTED
        assert await peer.is_closed()


async def test_metadata_that_is_too_large_is_refused_with_a_reason() -> None:
    """By the bound of `rpc.metadata_bytes_max`, in a hello and in a call alike."""
    settings = RpcSettings(metadata_bytes_max=1024, drain_seconds=1)
    large = (*PAIRS, ("authorization", "x" * 2000))
    async with serving(settings) as bookie:
        async with raw_peer(bookie.port) as peer:
            peer.send(encode_client_hello(ClientHello("AddStream", large)))
            refusal = await peer.hello()
            assert refusal.code is CallCode.RESOURCE_EXHAUSTED
            assert "too large" in refusal.details
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS) + frame(encode_request(CallRequest(1, "Force", large, b""))))
            await peer.hello()
            assert await peer.is_closed()
        assert not bookie.node.calls


async def test_a_listing_without_a_request_has_a_time_limit() -> None:
    """Nobody waits for it."""
    settings = RpcSettings(handshake_timeout_seconds=0.05, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("ListLedgers"))
        assert await peer.is_closed()


async def test_a_peer_by_ipv6_has_the_name_that_grpc_gives_it() -> None:
    """gRPC quotes the brackets; so an address has one share over both carriers."""
    settings, node, arrivals = RpcSettings(drain_seconds=1), FakeNode(), Arrivals()
    async with (
        hold_port("::1", 0, settings) as held,
        hold_frames_port("::1", 0, settings) as frames,
        held.serve(node, Metrics(), arrivals=arrivals, beside=[frames]),
        asyncio.TaskGroup() as tasks,
    ):
        for port, is_framed in ((held.port, False), (frames.port, True)):
            channel = BookieChannel(f"[::1]:{port}", INSTANCE_ID, tasks, is_framed=is_framed)
            await channel.info(timeout=60)
            await channel.close()
        names = [name.rpartition(":")[0] for name in arrivals._connections if "%" in name]
        assert names == ["ipv6:%5B::1%5D"] * 2


@pytest.mark.parametrize("data", [b"", b"\x89", hello("AddStream")[:-1]])
async def test_a_hello_has_a_time_limit(data: bytes) -> None:
    """Half a hello holds no connection."""
    settings = RpcSettings(handshake_timeout_seconds=0.05, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.send(data)
        assert await peer.is_closed()


async def test_an_unknown_conversation_is_refused() -> None:
    """A later client can then do without it."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("Telepathy"))
        assert (await peer.hello()).code is CallCode.UNIMPLEMENTED
        assert await peer.is_closed()


async def test_conversations_are_refused_until_the_bookie_serves() -> None:
    """The port is bound before. A client does not wait, and tries again."""
    settings = RpcSettings()
    async with hold_frames_port("127.0.0.1", 0, settings) as held, raw_peer(held.port) as peer:
        peer.send(hello("AddStream"))
        refusal = await peer.hello()
        assert (refusal.code, refusal.details) == (CallCode.UNAVAILABLE, "the bookie is starting")


async def test_a_taken_port_is_an_error_with_the_reason() -> None:
    """As for gRPC: before anything is written."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStartError, match=f"127.0.0.1:{port}: address already in use"):
            async with hold_frames_port("127.0.0.1", port, RpcSettings()):
                pass


async def test_calls_are_answered_as_they_are_done_and_cancelled_on_demand() -> None:
    """Many on one connection. What is unknown is refused alone."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        force = unary_codec.parse_reply
        peer.send(hello(CALLS) + call(1, "Read", b"\x08\x03") + call(2, "Force", b"\x08\x03"))
        peer.send(call(3, "Guess", b"") + frame(encode_cancelled(9)))
        await peer.hello()
        answers: dict[int, tuple[CallCode, bytes]] = {}
        for _ in range(2):
            request_id, code, content = parse_answer(await peer.message())
            answers[request_id] = (code, content)
        assert answers[2][0] is CallCode.OK
        assert force(answers[2][1]).status is Status.OK
        assert answers[3][0] is CallCode.UNIMPLEMENTED
        peer.send(frame(encode_cancelled(1)) + call(4, "Force", b"\x08\x04"))
        assert parse_answer(await peer.message())[0] == 4
        peer.send(encode_end(CallCode.OK))
        assert await peer.end() == (CallCode.OK, "")


async def test_calls_beyond_the_limit_of_a_connection_wait() -> None:
    """They are read, but not begun, and their bytes are bounded."""
    settings = RpcSettings(concurrent_streams_max=3, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        peer.send(hello(CALLS) + b"".join(call(n, "Read", b"\x08\x03") for n in range(10)))
        await until(lambda: len(bookie.node.calls) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(bookie.node.calls) == 3
        bookie.node.reading.set()
        await peer.hello()
        found = {parse_answer(await peer.message())[0] for _ in range(10)}
        assert found == set(range(10))


async def test_while_the_node_takes_nothing_the_bookie_reads_nothing() -> None:
    """The writer sends 100 MB, but the bookie holds a few; then everything is answered in order."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.admitting.clear()
        count, size = 400, 256 * 1024
        peer.send(hello("AddStream"))
        await peer.hello()
        sent = asyncio.ensure_future(_send(peer, count, size))  # noqa: TID251 (held back)
        await until(lambda: not _is_reading(bookie))
        for _ in range(200):
            await asyncio.sleep(0)
        assert _held(bookie) < INBOX_BYTES_MAX + 2 * MIB
        assert _held(bookie) > INBOX_BYTES_MAX // 2
        assert not sent.done()
        bookie.node.admitting.set()
        answers, _ = await gather([answered(peer, count), _done(sent)])
        assert [request_id for request_id, _ in answers] == list(range(count))


def _held(bookie: Bookie) -> int:
    (connection,) = bookie.frames._connections
    return connection._inbox_bytes


def _is_reading(bookie: Bookie) -> bool:
    (connection,) = bookie.frames._connections
    return connection._is_reading


async def _send(peer: RawPeer, count: int, size: int) -> list[tuple[int, Status]]:
    for number in range(count):
        peer.send(add(number, size))
        await peer.writer.drain()
    return []


async def _done(
    task: asyncio.Future[list[tuple[int, Status]]],
) -> list[tuple[int, Status]]:
    return await task


async def test_answers_that_nobody_takes_wait_where_they_are_charged() -> None:
    """Not in the connection, whose bytes no budget knows."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        bookie.node.read_reply = ReadReply(Status.OK, "", batch_of([MIB]), 1)
        peer.send(hello("ReadStream"))
        for number in range(1, 60):
            read = ReadCommand(3, 0, 0, 1, MIB)
            peer.send(frame(encode_streamed_read(number, read, 60_000)))
        await until(lambda: len(bookie.node.calls) > 20)
        for _ in range(200):
            await asyncio.sleep(0)
        (connection,) = bookie.frames._connections
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 3 * MIB


async def test_a_client_that_takes_no_answers_is_given_up() -> None:
    """After `slow_reader_seconds` its connection ends."""
    settings = RpcSettings(slow_reader_seconds=0.4, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(hello(CALLS))
        bookie.node.lac_reply = replace(bookie.node.lac_reply, last_entry=bytes(4 * MIB))
        peer.send(b"".join(call(number, "ReadLac", b"\x08\x03") for number in range(50)))
        await until(lambda: len(bookie.node.calls) >= 2)
        await until(lambda: not bookie.connections)
        assert len(bookie.node.calls) <= 50


async def test_times_beyond_those_of_the_kernel_count_as_its_longest() -> None:
    """Such as "never"; all other options of the socket are set as well."""
    settings = RpcSettings(
        slow_reader_seconds=1e12, keepalive_seconds=1e12, keepalive_timeout_seconds=1e12
    )
    async with hold_frames_port("127.0.0.1", 0, settings) as held, raw_peer(held.port):
        await until(lambda: bool(held._connections))
        (connection,) = held._connections
        assert connection._timer is not None
        assert connection._transport is not None
        option = connection._transport.get_extra_info("socket").getsockopt
        assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 32_767
        assert option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 32_767
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1


async def test_connections_beyond_the_limit_are_closed() -> None:
    """Those that stand go on."""
    async with serving(most=2) as bookie:
        async with raw_peer(bookie.port) as first, raw_peer(bookie.port) as second:
            for one in (first, second):
                one.send(hello("AddStream"))
                await one.hello()
            async with raw_peer(bookie.port) as third:
                assert await third.is_closed()
            first.send(add(1))
            assert await answered(first, 1) == [(1, Status.OK)]
        await until(lambda: not bookie.connections)
        async with raw_peer(bookie.port) as fourth:
            fourth.send(hello("AddStream"))
            assert (await fourth.hello()).code is CallCode.OK


async def test_the_limit_is_meant_for_each_address_of_the_host() -> None:
    """As gRPC's: a name with two addresses has two listening sockets."""
    settings = RpcSettings()
    async with (
        hold_frames_port("127.0.0.1", 0, settings, connections_max=1) as held,
        AsyncExitStack() as stack,
    ):
        held._sockets.append(held._sockets[0].dup())
        for _ in range(2):
            await stack.enter_async_context(raw_peer(held.port))
        await until(lambda: len(held._connections) == 2)
        third = await stack.enter_async_context(raw_peer(held.port))
        assert await third.is_closed()


async def test_the_wildcard_of_ipv6_takes_ipv4_as_well() -> None:
    """As for gRPC and HTTP; and the peer has the name that it has there."""
    async with hold_frames_port("::", 0, RpcSettings()) as held, raw_peer(held.port) as peer:
        await until(lambda: bool(held._connections))
        (connection,) = held._connections
        assert connection.peer().startswith("ipv4:127.0.0.1:")
        peer.send(hello("AddStream"))
        assert (await peer.hello()).code is CallCode.UNAVAILABLE


async def test_bytes_that_reach_handlers_are_counted_under_the_name_of_the_peer() -> None:
    """So the bounds of unread bytes and of connections see frames, too."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello("AddStream") + add(1, 1000))
        await peer.hello()
        await answered(peer, 1)
        host, port = peer.writer.get_extra_info("sockname")
        assert bookie.arrivals.of(f"ipv4:{host}:{port}").taken > 1000


async def test_a_stop_answers_what_was_accepted_and_refuses_the_rest() -> None:
    """Streams end after their answers, calls as well; a silent connection ends at once."""
    settings = RpcSettings(drain_seconds=30)
    node = FakeNode()
    node.held = []
    node.reading.clear()
    async with (
        hold_port("127.0.0.1", 0, settings) as held,
        hold_frames_port("127.0.0.1", 0, settings) as frames,
    ):
        stopped = asyncio.Event()

        async def serve() -> None:
            async with held.serve(node, Metrics(), beside=[frames]):
                await stopped.wait()

        async with asyncio.TaskGroup() as tasks:
            served = tasks.create_task(serve())
            port = frames.port
            async with raw_peer(port) as adds, raw_peer(port) as calls, raw_peer(port) as silent:
                adds.send(hello("AddStream") + add(1))
                calls.send(hello(CALLS) + call(1, "Read", b"\x08\x03"))
                await adds.hello()
                await calls.hello()
                await until(lambda: bool(node.held) and len(node.calls) == 2)
                stopped.set()
                assert await silent.is_closed()
                calls.send(call(2, "Force", b"\x08\x03"))
                late = parse_answer(await calls.message())
                assert late[:2] == (2, CallCode.UNAVAILABLE)
                for outcome in node.held:
                    outcome.settle(Reply(Status.OK))
                assert await answered(adds, 1) == [(1, Status.OK)]
                assert await adds.end() == (CallCode.OK, "")
                assert not served.done()
                node.reading.set()
                assert parse_answer(await calls.message())[0] == 1
                assert await calls.end() == (CallCode.OK, "")
            await served
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_what_does_not_end_in_time_is_ended_by_the_stop() -> None:
    """A client cannot hold up a restart."""
    async with serving(RpcSettings(drain_seconds=0.05)) as bookie, raw_peer(bookie.port) as peer:
        bookie.node.held = []
        peer.send(hello("AddStream") + add(1))
        await peer.hello()
        await until(lambda: bool(bookie.node.held))
    assert not bookie.connections


async def test_a_broken_connection_cancels_its_calls() -> None:
    """Nobody waits for them."""
    async with serving() as bookie:
        bookie.node.reading.clear()
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS) + call(1, "Read", b"\x08\x03"))
            await until(lambda: len(bookie.node.calls) == 1)
            peer.writer.transport.abort()
        await until(lambda: not bookie.connections)


async def test_a_joined_message_does_not_hold_up_its_writer() -> None:
    """The kernel may take a part of it; the writer goes on, and prepares the next message."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(hello("AddStream"))
        await until(lambda: bool(bookie.frames._connections))
        (connection,) = bookie.frames._connections
        await until(lambda: connection._is_accepted)
        transport = connection._transport
        assert transport is not None
        while not transport.get_write_buffer_size():  # the kernel takes no more from here on
            connection._send(bytes(4096))
        before = transport.get_write_buffer_size()
        await connection.write(bytes(70_000))
        await connection.write(bytes(70_000))
        assert transport.get_write_buffer_size() >= before + 140_000
        await connection.write(bytes(OUTBOX_BYTES_MAX - before - 150_000))
        waiting = asyncio.ensure_future(connection.write(b"x" * 20_000))  # noqa: TID251 (held back)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await peer.hello()
        while len(await peer.message()) != 20_000:
            pass
        await waiting


@pytest.mark.parametrize("is_tls", [False, True])
def test_by_tls_the_head_of_a_message_is_no_record_of_its_own(is_tls: bool) -> None:
    """It would cost more than a copy, which TLS makes anyhow."""
    written: list[tuple[str, bytes]] = []

    class Transport(asyncio.Transport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            assert (high, low) == (OUTBOX_BYTES_MAX, OUTBOX_BYTES_MAX // 2)

        def write(self, data: bytes | bytearray | memoryview) -> None:
            written.append(("write", bytes(data)))

        def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
            written.append(("writelines", b"".join(parts)))

    extra = {"sslcontext": ssl.create_default_context()} if is_tls else {}
    connection = FramedConnection(memoryview(bytearray(10)), 10)
    connection.connection_made(Transport(extra))
    connection._send(b"x" * 70_000)
    assert written == [("write" if is_tls else "writelines", frame(b"x" * 70_000))]


async def test_few_handshakes_begin_in_one_turn_of_the_loop() -> None:
    """Also when many handshakes of one host end at once, and as many wait."""
    handshakes, begun = asyncio.Semaphore(HANDSHAKES_MAX), 0
    async with serving() as bookie, asyncio.TaskGroup() as tasks:

        async def begin() -> None:
            nonlocal begun
            await bookie.frames._may_shake_hands(handshakes, "10.0.0.1")
            begun += 1

        for _ in range(2 * HANDSHAKES_MAX):
            tasks.create_task(begin())
        for expected in (HANDSHAKES_MAX, 2 * HANDSHAKES_MAX):
            while begun < expected:
                before = begun
                await asyncio.sleep(0)
                assert begun - before <= HANDSHAKES_PER_TURN
            for _ in range(HANDSHAKES_MAX):
                handshakes.release()


async def test_a_peer_that_leaves_before_its_turn_takes_no_handshake() -> None:
    handshakes = asyncio.Semaphore(HANDSHAKES_MAX)
    async with serving() as bookie, asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(bookie.frames._may_shake_hands(handshakes, "10.0.0.1"))
            for _ in range(HANDSHAKES_MAX)
        ]
        await asyncio.sleep(0)
        left = [task for task in waiting if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        assert left
        assert handshakes._value == len(left)

"""A client by frames, and bookies that do not speak as they should."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bookie.config import RpcSettings
from bookie.env import gather
from bookie.errors import (
    BadRequestError,
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
    OperationTimeoutError,
)
from bookie.ids import JOINED_MESSAGES_METADATA, Status
from bookie.telemetry import Metrics
from bookie.wire.carrier import CallCode
from bookie.wire.client.channel import BookieChannel
from bookie.wire.coalesce import split_message
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import ReadCommand
from bookie.wire.frames import client
from bookie.wire.frames.format import (
    SCRATCH_BYTES,
    BookieHello,
    CallRequest,
    UnitBuffer,
    UnitKind,
    encode_answer,
    encode_bookie_hello,
    encode_end,
    encode_request,
    pack_size,
)
from tests.served_node import serve_both
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.frames.raw_peer import frame

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = encode_bookie_hello(BookieHello(CallCode.OK, ""))
JOINING = BookieHello(CallCode.OK, "", (JOINED_MESSAGES_METADATA,))


@asynccontextmanager
async def channel_to(
    port: int, settings: RpcSettings | None = None, *, connect_timeout_seconds: float = 5
) -> AsyncIterator[BookieChannel]:
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(
            f"127.0.0.1:{port}",
            INSTANCE_ID,
            tasks,
            settings=settings,
            connect_timeout_seconds=connect_timeout_seconds,
            is_framed=True,
        )
        try:
            yield channel
        finally:
            await channel.close()


@asynccontextmanager
async def odd_bookie(*sends: bytes, closes: bool = True) -> AsyncIterator[int]:
    """A bookie that sends these bytes on each connection, whatever it is asked."""

    answering: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(writer)
        with contextlib.suppress(ConnectionError):
            await reader.read(100)
            for data in sends:
                writer.write(data)
                await asyncio.sleep(0.01)
            if not closes:
                await reader.read()
            writer.close()
            await writer.wait_closed()
        answering.remove(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await until(lambda: not answering)


async def error_of(call: Awaitable[object]) -> BookieError:
    with pytest.raises(BookieError) as caught:
        await call
    return caught.value


ODD = [
    pytest.param((), id="closes"),
    pytest.param((b"HTTP/1.1 400 Bad Request\r\n\r\n",), id="HTTP"),
    pytest.param((b"\x89BKF\x00\x02\x00\x00",), id="a later hello"),
    pytest.param((b"\x89BKF\x00\x01\x00\x00",), id="an empty hello"),
    pytest.param((OK[:-1],), id="half a hello"),
    pytest.param((OK, b"\x00\x00\x00"), id="half a frame"),
    pytest.param((OK, frame(b"x")), id="a malformed message"),
    pytest.param((OK, b"\x80\x00\x00\x00"), id="an empty end"),
    pytest.param((OK, encode_end(CallCode.UNAVAILABLE, "I stop")), id="an end with a reason"),
    pytest.param((OK, encode_end(CallCode.OK)), id="an end in order"),
    pytest.param(
        (encode_bookie_hello(BookieHello(CallCode.UNAVAILABLE, "I start")),), id="a refusal"
    ),
]


@pytest.mark.parametrize("sends", ODD)
async def test_a_bookie_that_speaks_oddly_counts_as_unreachable(sends: tuple[bytes, ...]) -> None:
    """For calls, for listings and for streams alike; no answer is made up."""
    async with odd_bookie(*sends) as port, channel_to(port) as channel:
        assert isinstance(await error_of(channel.force(3, timeout=60)), BookieUnreachableError)
        read = channel.read_entry(ReadCommand(3, 0, 0), timeout=60)
        assert isinstance(await error_of(read), BookieUnreachableError)
        broken: list[BookieError] = []
        stream = channel.add_stream(lambda *_: None, broken.append)
        stream.send(encode_add_request(1, 3, batch_of([40])))
        await until(lambda: bool(broken))
        assert isinstance(broken[0], BookieUnreachableError)


@pytest.mark.parametrize("sends", ODD[:-2] + ODD[-1:])
async def test_a_listing_that_breaks_is_never_taken_for_whole(sends: tuple[bytes, ...]) -> None:
    """Only the bookie's end says that nothing is missing."""

    async def listed(channel: BookieChannel) -> None:
        async for _ in channel.list_ledgers():
            pass

    async with odd_bookie(*sends) as port, channel_to(port) as channel:
        assert isinstance(await error_of(listed(channel)), BookieUnreachableError)


async def test_an_answer_that_is_too_large_ends_all_calls_as_unreachable() -> None:
    """By its size, before its bytes come. Nobody knows whose answer it is, so all may ask again."""
    large = pack_size((1 << 31) - 1)
    async with odd_bookie(OK, large, closes=False) as port, channel_to(port) as channel:
        errors = await gather(error_of(channel.force(number, timeout=60)) for number in range(3))
        assert {type(one) for one in errors} == {BookieUnreachableError}


async def test_a_bookie_that_is_not_there_is_unreachable_at_once() -> None:
    """The reason is the operating system's."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    async with channel_to(port) as channel:
        error = await error_of(channel.force(3, timeout=60))
        assert isinstance(error, BookieUnreachableError)
        assert "failed to connect" in str(error)
        assert not channel.is_connected


async def test_a_bookie_that_says_nothing_is_given_up() -> None:
    """After the time to connect, for a call as for a stream."""
    async with (
        odd_bookie(closes=False) as port,
        channel_to(port, connect_timeout_seconds=0.05) as channel,
    ):
        assert "did not answer in time" in str(await error_of(channel.force(3, timeout=60)))


async def test_an_answer_of_a_call_that_was_given_up_is_dropped() -> None:
    """Also one to a call that nobody made. The connection goes on."""
    async with (
        odd_bookie(OK, frame(encode_answer(77, CallCode.OK, b"")), closes=False) as port,
        channel_to(port) as channel,
    ):
        assert isinstance(await error_of(channel.force(3, timeout=0.3)), OperationTimeoutError)
        assert channel.is_connected


@asynccontextmanager
async def served(settings: RpcSettings | None = None) -> AsyncIterator[tuple[FakeNode, int]]:
    node = FakeNode()
    server = RpcSettings(drain_seconds=0.2)
    async with serve_both(node, "127.0.0.1", server, Metrics()) as ports:
        yield node, ports["frames"]


async def test_calls_share_a_connection_that_closes_when_it_is_idle() -> None:
    """The next call opens another one."""
    settings = RpcSettings(connection_idle_seconds_max=1)
    async with served() as (node, port), channel_to(port, settings) as channel:
        replies = await gather(channel.force(number, timeout=60) for number in range(20))
        assert {one.status for one in replies} == {Status.OK}
        assert channel.is_connected
        await until(lambda: not channel.is_connected)
        assert (await channel.force(3, timeout=60)).status is Status.OK
        assert len(node.calls) == 21


async def test_a_call_that_is_never_sent_leaves_no_connection_behind() -> None:
    """It opens the connection of all calls, which then is idle from the beginning."""
    settings = RpcSettings(message_bytes_max=64 * 1024, connection_idle_seconds_max=1)
    async with served() as (node, port), channel_to(port, settings) as channel:
        large = channel.write_lac(3, b"k", bytes(100_000), timeout=60)
        assert isinstance(await error_of(large), BadRequestError)
        await until(lambda: channel.is_connected)
        await until(lambda: not channel.is_connected)
        assert not node.calls


async def test_a_call_that_is_given_up_is_cancelled_at_the_bookie() -> None:
    """It stops to wait for a device there."""
    async with served() as (node, port), channel_to(port) as channel:
        node.reading.clear()
        ended = asyncio.Event()
        read = node.read

        async def noting(command: ReadCommand) -> object:
            try:
                return await read(command)
            except asyncio.CancelledError:
                ended.set()
                raise

        node.read = noting  # type: ignore[assignment]
        error = await error_of(channel.read(ReadCommand(3, 0, 0), timeout=0.05))
        assert isinstance(error, OperationTimeoutError)
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_close_ends_calls_with_their_own_error() -> None:
    """As with gRPC: the client was closed, or the bookie has moved."""
    async with served() as (node, port), channel_to(port) as channel:
        node.reading.clear()
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(error_of(channel.read(ReadCommand(3, 0, 0), timeout=60)))
            await until(lambda: bool(node.calls))
            await channel.close()
            assert isinstance(await call, ClientClosedError)


async def test_a_message_that_is_too_large_is_not_sent() -> None:
    """The error names the message as the fault, for calls and for streams."""
    settings = RpcSettings(message_bytes_max=64 * 1024)
    async with served() as (node, port), channel_to(port, settings) as channel:
        large = channel.write_lac(3, b"k", bytes(100_000), timeout=60)
        assert isinstance(await error_of(large), BadRequestError)
        broken: list[BookieError] = []
        stream = channel.add_stream(lambda *_: None, broken.append)
        stream.send(encode_add_request(1, 3, batch_of([100_000])))
        await until(lambda: bool(broken))
        assert isinstance(broken[0], BadRequestError)
        assert not node.calls


async def test_calls_share_the_encoded_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same in each call of one kind, so it is encoded once."""
    encoded: list[str] = []

    def noting(request: CallRequest) -> bytes:
        encoded.append(request.rpc)
        return encode_request(request)

    monkeypatch.setattr(client, "encode_request", noting)
    async with served() as (node, port), channel_to(port) as channel:
        for number in range(5):
            assert (await channel.force(number, timeout=60)).status is Status.OK
            assert (await channel.read_lac(number, b"k", timeout=60)).status is Status.OK
        assert len(node.calls) == 10
        assert encoded == ["Force", "ReadLac"]


async def test_messages_that_came_together_let_others_run_in_between() -> None:
    """What the answers set free is sent after the first of them, not after the last."""
    messages = b"".join(frame(b"%d" % number) for number in range(20))
    async with odd_bookie(OK + messages + encode_end(CallCode.OK)) as port:
        async with asyncio.TaskGroup() as tasks:
            carrier = client.FramesCarrier(f"127.0.0.1:{port}", tasks, RpcSettings(), 5)
            ran: list[bytes] = []
            loop = asyncio.get_running_loop()
            async for message in carrier.stream("AddStream", carrier.prepared(())):
                assert len(ran) == int(message)
                loop.call_soon(ran.append, message)
            await carrier.close()
        assert len(ran) == 20


async def test_adds_from_before_the_acceptance_are_joined() -> None:
    """Only the bookie's hello says that it takes messages of many adds."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        units = UnitBuffer(memoryview(bytearray(SCRATCH_BYTES)))
        while data := await reader.read(SCRATCH_BYTES):
            units.space()[: len(data)] = data
            for kind, body in units.received(len(data)):
                if kind is UnitKind.HELLO:
                    units.frame_bytes_max = 1 << 20
                    writer.write(encode_bookie_hello(JOINING))
                else:
                    received.append(body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, channel_to(server.sockets[0].getsockname()[1]) as channel:
        stream = channel.add_stream(lambda *_: None, lambda _: None)
        adds = [encode_add_request(number, 3, batch_of([40])) for number in range(10)]
        for add in adds:
            stream.send(add)
        await until(lambda: len(received) == 2)
        assert received[0] == adds[0]  # it waited for the acceptance
        assert [bytes(one) for one in split_message(received[1])] == adds[1:]

"""Clients that want more of a bookie than their share, by frames."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import uvloop

from bookie.config import RpcSettings
from bookie.env.own_sockets import shut_down, socket_inode
from bookie.env.turns import UNITS_PER_TURN
from bookie.ids import Status
from bookie.wire.carrier import CallCode
from bookie.wire.codec import encode_read_request
from bookie.wire.commands import ReadCommand, ReadReply
from bookie.wire.frames.connection import INBOX_BYTES_MAX, OUTBOX_BYTES_MAX
from bookie.wire.frames.format import (
    CALLS,
    SCRATCH_BYTES,
    UNITS_MAX,
    UnitKind,
    encode_cancelled,
    encode_end,
    pack_size,
    parse_answer,
)
from bookie.wire.frames.server import URGENT_CALLS_PER_TURN, ServedConnection
from tests.unit.wire.fake_node import batch_of, until
from tests.unit.wire.frames.raw_peer import frame, hello, raw_peer
from tests.unit.wire.frames.test_frames_server import MIB, Bookie, add, answered, call, serving

READ = b"\x08\x03"
"""A read of one entry."""


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def most_in_one_turn(bookie: Bookie, total: int) -> int:
    """Return how many calls at most the node got in one turn, until it has got `total`."""
    most, before, calls = 0, len(bookie.node.calls), bookie.node.calls
    async with asyncio.timeout(60):
        while len(calls) < total:
            await asyncio.sleep(0)
            most, before = max(most, len(calls) - before), len(calls)
    return most


def unsent(bookie: Bookie) -> int:
    (connection,) = bookie.frames._connections
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


async def test_answers_to_cancelled_calls_do_not_gather() -> None:
    """Each round's charges end with the cancel, so its answer must not stay."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        bookie.node.read_reply = ReadReply(Status.OK, "", batch_of([MIB]), 1)
        peer.send(hello(CALLS))
        await until(lambda: bool(bookie.frames._connections))
        (connection,) = bookie.frames._connections
        for number in range(60):
            peer.send(call(number, "Read", READ))
            await until(lambda: len(bookie.node.calls) == number + 1)  # noqa: B023  (awaited)
            await turns(5)
            peer.send(frame(encode_cancelled(number)))
            assert connection._calls is not None
            running = connection._calls._running
            await until(lambda: not running)  # noqa: B023  (awaited)
        assert unsent(bookie) < 2 * MIB + OUTBOX_BYTES_MAX
        assert not connection._writers


async def test_small_answers_to_cancelled_calls_do_not_gather_either() -> None:
    """They overtake large ones, but not without a bound."""
    settings = RpcSettings(message_bytes_max=MIB, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        bookie.node.lac_reply = replace(bookie.node.lac_reply, last_entry=bytes(60_000))
        peer.send(hello(CALLS))
        for number in range(200):
            peer.send(call(number, "ReadLac", READ))
            await until(lambda: len(bookie.node.calls) == number + 1)  # noqa: B023  (awaited)
            peer.send(frame(encode_cancelled(number)))
        await turns()
        assert unsent(bookie) < MIB + 2 * OUTBOX_BYTES_MAX


async def test_a_small_answer_overtakes_large_ones() -> None:
    """A fence waits behind one large answer, not behind all of a bulk reader."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        bookie.node.read_reply = ReadReply(Status.OK, "", batch_of([4 * MIB]), 1)
        peer.send(hello(CALLS) + b"".join(call(number, "Read", READ) for number in range(20)))
        await until(lambda: len(bookie.node.calls) == 20)
        await turns()
        peer.send(call(99, "Fence", READ))
        await until(lambda: len(bookie.node.calls) == 21)
        await turns()
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await peer.hello()
        ids = [parse_answer(await peer.message())[0] for _ in range(21)]
        assert ids.index(99) <= 3
        assert sorted(ids) == [*range(20), 99]


@pytest.mark.parametrize("more", [b"x", frame(b"x") * 1000])
@pytest.mark.parametrize("is_apart", [False, True])
async def test_bytes_behind_an_end_end_the_connection(more: bytes, is_apart: bool) -> None:
    """Otherwise they would be read and thrown away for ever."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.held = []
        peer.send(hello("AddStream") + add(1) + encode_end(CallCode.OK))
        if is_apart:
            await peer.hello()
            await until(lambda: bool(bookie.node.held))
        peer.send(more)
        while await peer.unit() is not None:
            pass
        await until(lambda: not bookie.connections)


async def test_a_connection_handles_few_units_in_one_turn() -> None:
    """Very small frames of one client delay no other client."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.send(hello(CALLS))
        await peer.hello()
        (connection,) = bookie.frames._connections
        taken: list[int] = []
        take = connection._take

        def count(kind: UnitKind, body: bytes) -> None:
            taken[-1] += 1
            take(kind, body)

        connection._take = count  # type: ignore[method-assign]
        received = connection.buffer_updated

        def note(nbytes: int) -> None:
            taken.append(0)
            received(nbytes)

        connection.buffer_updated = note  # type: ignore[method-assign]
        peer.send(frame(encode_cancelled(7)) * 10_000 + call(1, "Force", READ))
        assert parse_answer(await peer.message())[0] == 1
        assert sum(taken) == 10_001
        assert max(taken) <= UNITS_MAX
        await until(lambda: connection._is_reading)
        peer.send(call(2, "Force", READ))
        assert parse_answer(await peer.message())[0] == 2
        assert len(connection._units.space()) == SCRATCH_BYTES


async def test_units_that_wait_for_their_turn_wait_for_room_as_well() -> None:
    """An inbox that is full takes no more of them."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        bookie.node.admitting.clear()
        peer.send(hello("AddStream") + add(0) * 8_000)
        await peer.hello()
        (connection,) = bookie.frames._connections
        await until(lambda: not connection._is_reading and connection._is_full)
        await turns()
        assert connection._inbox_bytes < INBOX_BYTES_MAX + UNITS_MAX * 300
        bookie.node.admitting.set()
        assert len(await answered(peer, 8_000)) == 8_000
        await until(lambda: connection._is_reading)


async def test_a_lost_connection_with_calls_leaves_nothing() -> None:
    """No timer holds it and the beginning of its next frame for ten minutes."""
    async with serving() as bookie:
        bookie.node.reading.clear()
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS) + call(1, "Read", READ))
            peer.send(pack_size(4 * MIB) + bytes(MIB))
            await until(lambda: len(bookie.node.calls) == 1)
            (connection,) = bookie.frames._connections
            units = connection._units
            await until(lambda: units.held_bytes > MIB)
            peer.writer.transport.abort()
        await until(lambda: not bookie.connections)
        await turns()
        assert len(units.space()) == SCRATCH_BYTES
        kept = weakref.ref(connection)
        del connection
        gc.collect()
        assert kept() is None


async def test_a_fence_does_not_wait_behind_calls_that_were_given_up() -> None:
    """A cancel counts when it comes, whether its call runs or waits."""
    settings = RpcSettings(concurrent_streams_max=3, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        peer.send(hello(CALLS) + b"".join(call(n, "Read", READ) for n in range(9)))
        await until(lambda: len(bookie.node.calls) == 3)
        peer.send(b"".join(frame(encode_cancelled(n)) * 2 for n in range(9)))
        peer.send(call(99, "Fence", READ))
        await peer.hello()
        assert parse_answer(await peer.message())[:2] == (99, CallCode.OK)
        (connection,) = bookie.frames._connections
        assert connection._inbox_bytes == 0
        assert len(bookie.node.calls) == 4
        assert connection._calls is not None
        assert connection._calls._idle is not None


@pytest.mark.parametrize("most", [1, 9])
async def test_an_id_that_is_in_use_ends_the_connection(most: int) -> None:
    """Two answers could not be told apart. Nothing behind it is begun."""
    settings = RpcSettings(concurrent_streams_max=most, drain_seconds=1)
    async with serving(settings) as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        peer.send(hello(CALLS) + call(1, "Read", READ) + call(2, "Read", READ))
        peer.send(call(2, "Read", READ) + call(3, "Fence", READ))
        await peer.hello()
        assert await peer.is_closed()
        await until(lambda: not bookie.connections)
        assert len(bookie.node.calls) <= min(most, 2)


async def test_a_busy_client_does_not_hold_up_a_stop() -> None:
    """Its late calls are refused, and none of them counts as one that still runs."""
    async with serving(RpcSettings(drain_seconds=60)) as bookie, raw_peer(bookie.port) as peer:
        bookie.node.reading.clear()
        peer.send(hello(CALLS) + call(0, "Read", READ))
        await peer.hello()
        await until(lambda: len(bookie.node.calls) == 1)
        (connection,) = bookie.frames._connections
        assert connection._calls is not None
        connection._calls.drain()
        for number in range(1, 300):
            peer.send(call(number, "Force", READ))
        for number in range(1, 300):
            assert parse_answer(await peer.message())[:2] == (number, CallCode.UNAVAILABLE)
            assert list(connection._calls._running) == [0]
        bookie.node.reading.set()
        peer.send(call(300, "Force", READ))
        unit = await peer.unit()
        assert unit is not None
        assert parse_answer(unit[1])[0] in (0, 300)
        kinds = [unit[0]]
        while (unit := await peer.unit()) is not None:
            kinds.append(unit[0])
        assert kinds[-1] is UnitKind.END


async def test_a_stop_does_not_send_refusals_to_a_client_that_takes_none() -> None:
    """They would fill the memory; the end of the connection refuses as well."""
    async with serving() as bookie, raw_peer(bookie.port) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        bookie.node.read_reply = ReadReply(Status.OK, "", batch_of([4 * MIB]), 1)
        peer.send(hello(CALLS) + b"".join(call(number, "Read", READ) for number in range(4)))
        await until(lambda: len(bookie.node.calls) == 4)
        (connection,) = bookie.frames._connections
        assert connection._calls is not None
        await until(lambda: len(connection._writers) == 4)
        connection._calls.drain()
        before = unsent(bookie)
        peer.send(b"".join(call(number, "Force", READ) for number in range(4, 500)))
        await turns()
        assert unsent(bookie) <= before
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await peer.hello()
        answers = [parse_answer(await peer.message())[0] for _ in range(4)]
        assert answers == [0, 1, 2, 3]


async def test_a_call_that_fails_beyond_its_answer_ends_only_its_connection() -> None:
    """Its task belongs to the group of the whole bookie."""
    async with serving() as bookie:
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS))
            await peer.hello()
            (connection,) = bookie.frames._connections

            async def fail(data: bytes) -> None:
                raise ZeroDivisionError

            connection.answer = fail  # type: ignore[method-assign]
            peer.send(call(1, "Force", READ))
            assert await peer.is_closed()
        await until(lambda: not bookie.connections)
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS) + call(1, "Force", READ))
            await peer.hello()
            assert parse_answer(await peer.message())[:2] == (1, CallCode.OK)


class FailingOnceError(Exception):
    """What no code expects."""


def failing_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Have a method fail at its first call; the list is not empty after that."""
    method, failed = getattr(owner, name), list[object]()

    def fail(*arguments: object, **named: object) -> object:
        if failed:
            return method(*arguments, **named)
        failed.append(arguments)
        raise FailingOnceError

    monkeypatch.setattr(owner, name, fail)
    return failed


@pytest.mark.parametrize("name", ["connect_accepted_socket", "_accepted", "finish"])
async def test_an_unknown_error_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It does not stop the bookie, whose tasks these are."""
    async with serving() as bookie:
        places = {
            "connect_accepted_socket": asyncio.get_running_loop(),
            "_accepted": bookie.frames,
            "finish": ServedConnection,
        }
        failed = failing_once(monkeypatch, places[name], name)
        async with raw_peer(bookie.port) as peer:
            peer.send(hello("AddStream") + encode_end(CallCode.OK))
            while await peer.unit() is not None:
                pass
        assert failed
        async with raw_peer(bookie.port) as peer:
            peer.send(hello("AddStream") + add(1))
            await peer.hello()
            assert await answered(peer, 1) == [(1, Status.OK)]
        await until(lambda: not bookie.connections)


async def test_a_connection_that_ends_is_forgotten_whatever_else_fails() -> None:
    """Otherwise a stop would wait for it for ever."""
    async with serving() as bookie:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with raw_peer(bookie.port) as peer:
            peer.send(hello("AddStream"))
            await peer.hello()
            (connection,) = bookie.frames._connections
            connection.add_done_callback([].remove)  # which raises ValueError
        await until(lambda: bool(errors))
        assert not bookie.connections


FENCED_READ = encode_read_request(ReadCommand(3, 0, 0, fence=True))


async def test_one_address_begins_few_calls_in_one_turn() -> None:
    """Twenty connections with a hundred calls each; another address comes in between."""
    async with serving() as bookie, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(bookie.port)) for _ in range(20)]
        modest = await stack.enter_async_context(raw_peer(bookie.port, "127.0.0.2"))
        for peer in (*peers, modest):
            peer.send(hello(CALLS))
            await peer.hello()
        for peer in peers:
            peer.send(b"".join(call(number, "Force", READ) for number in range(100)))
        most = await most_in_one_turn(bookie, 200)
        modest.send(call(1, "GetInfo", b""))
        assert max(most, await most_in_one_turn(bookie, 2001)) <= 2 * UNITS_PER_TURN
        assert bookie.node.calls.index(("info",)) < 1000
        assert parse_answer(await modest.message())[0] == 1


@pytest.mark.parametrize(
    ("rpc", "request_bytes"), [("Fence", READ), ("ReadLac", READ), ("Read", FENCED_READ)]
)
async def test_what_recovery_waits_for_overtakes(rpc: str, request_bytes: bytes) -> None:
    """Calls that came before it on its connection, and those of all other connections."""
    async with serving() as bookie, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(bookie.port)) for _ in range(10)]
        for peer in peers:
            peer.send(hello(CALLS))
            await peer.hello()
        many = b"".join(call(number, "Force", READ) for number in range(100))
        for peer in peers:
            peer.send(many)
        peers[-1].send(call(100, rpc, request_bytes))
        calls = bookie.node.calls
        await until(lambda: len(calls) == 1001)
        (place,) = (place for place, one in enumerate(calls) if one != ("force", 3))
        assert place < 300


async def test_urgent_calls_are_not_without_a_bound() -> None:
    """Whoever calls everything urgent still delays nobody for long."""
    async with serving() as bookie, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(bookie.port)) for _ in range(10)]
        for peer in peers:
            peer.send(hello(CALLS))
            await peer.hello()
        for peer in peers:
            peer.send(b"".join(call(number, "ReadLac", READ) for number in range(100)))
        assert await most_in_one_turn(bookie, 1000) <= 2 * URGENT_CALLS_PER_TURN


@pytest.mark.parametrize("factory", [None, uvloop.new_event_loop])
@pytest.mark.parametrize("is_by_client", [False, True])
def test_an_end_is_noticed_while_nothing_is_read(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, is_by_client: bool
) -> None:
    """The bounds of connections shut sockets down; their memory must become free."""

    async def case() -> None:
        async with serving() as bookie, raw_peer(bookie.port) as peer:
            bookie.node.admitting.clear()
            peer.send(hello("AddStream") + add(0, MIB) * 8)
            await peer.hello()
            (connection,) = bookie.frames._connections
            await until(lambda: not connection._is_reading)
            if is_by_client:
                client = peer.writer.get_extra_info("socket")
                linger = struct.pack("ii", 1, 0)  # the connection is reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                peer.writer.transport.abort()
            else:
                descriptor = connection.idle_descriptor()
                inode = socket_inode(descriptor)
                assert inode is not None
                assert shut_down(descriptor, inode)
            await until(lambda: not bookie.connections)
            bookie.node.admitting.set()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(case())


async def test_a_stop_waits_for_calls_whose_clients_are_gone() -> None:
    """What they use is taken apart after the stop."""
    ended: list[str] = []

    async def slow_info() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns()
            ended.append("call")

    async with serving() as bookie:
        bookie.node.info = slow_info  # type: ignore[assignment, method-assign]
        async with raw_peer(bookie.port) as peer:
            peer.send(hello(CALLS) + call(1, "GetInfo", b""))
            await peer.hello()
            await until(lambda: bool(bookie.frames._works))
            await turns(5)
            await bookie.frames.stop(0)
            ended.append("stop")
    assert ended == ["call", "stop"]

"""Clients that want more of a bookie than their share, by frames."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.config import RpcSettings
from bookie.ids import Status
from bookie.wire.carrier import CallCode
from bookie.wire.commands import ReadReply
from bookie.wire.frames.connection import INBOX_BYTES_MAX, OUTBOX_BYTES_MAX
from bookie.wire.frames.format import (
    CALLS,
    SCRATCH_BYTES,
    UNITS_MAX,
    UnitKind,
    encode_cancelled,
    encode_end,
    parse_answer,
)
from tests.unit.wire.fake_node import batch_of, until
from tests.unit.wire.frames.raw_peer import frame, hello, raw_peer
from tests.unit.wire.frames.test_frames_server import MIB, Bookie, add, answered, call, serving

READ = b"\x08\x03"
"""A read of one entry."""


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


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
        for number in range(60):
            peer.send(call(number, "Read", READ))
            await until(lambda: len(bookie.node.calls) == number + 1)  # noqa: B023  (awaited)
            await turns(5)
            peer.send(frame(encode_cancelled(number)))
            (connection,) = bookie.frames._connections
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
        peer.send(hello("AddStream") + add(0) * 20_000)
        await peer.hello()
        (connection,) = bookie.frames._connections
        await until(lambda: not connection._is_reading and connection._is_full)
        await turns()
        assert connection._inbox_bytes < INBOX_BYTES_MAX + UNITS_MAX * 300
        bookie.node.admitting.set()
        assert len(await answered(peer, 20_000)) == 20_000
        await until(lambda: connection._is_reading)

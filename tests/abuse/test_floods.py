"""Peers that send frames, streams and connections as fast as they can, and nothing useful."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tests.abuse.frames import ACK, CONTINUATION, Answers, listen, message
from tests.abuse.target import Target
from tests.unit.wire.http2_peer import DATA, HEADERS, PING, RST_STREAM, SETTINGS, Peer, header_block

Tell = Callable[[str, object], None]

ATTACK_SECONDS = 6.0
CONNECTIONS = 80
STREAMS = 128
CANCEL = (8).to_bytes(4, "big")
REFUSED_STREAM, ENHANCE_YOUR_CALM = 7, 11
PATIENCE_SECONDS = 60.0
"""A bookie on a busy machine refuses 10 000 streams within this time."""
BATCH = 200
"""Frames that are sent before the peer listens again."""


def rapid_reset(peer: Peer, number: int) -> None:
    """Open a stream and take it back."""
    rpc = ("AddStream", "ReadStream", "WatchLac", "Fence")[number % 4]
    peer.frame(RST_STREAM, 0, peer.open(rpc), CANCEL)


def rapid_reset_of_calls(peer: Peer, _number: int) -> None:
    """Make a whole call, which reaches its handler, and take it back."""
    peer.frame(RST_STREAM, 0, peer.call("ListLedgers", b""), CANCEL)


def ping(peer: Peer, _number: int) -> None:
    """Ask for an answer."""
    peer.frame(PING, 0, 0, bytes(8))


def ping_answers(peer: Peer, _number: int) -> None:
    """Answer what nobody has asked."""
    peer.frame(PING, ACK, 0, bytes(8))


def settings(peer: Peer, number: int) -> None:
    """Change a setting, which the bookie has to acknowledge."""
    peer.frame(SETTINGS, 0, 0, b"\0\4" + (65535 + number % 2).to_bytes(4, "big"))


def empty_data(peer: Peer, number: int) -> None:
    """Send nothing on a stream, again and again."""
    if number == 0:
        peer.open("AddStream")
    peer.frame(DATA, 0, 1, b"")


def garbage_adds(peer: Peer, number: int) -> None:
    """Send requests that are none, and take the refusals."""
    if number == 0:
        peer.open("AddStream")
    peer.frame(DATA, 0, 1, message(1, b"\xff"))


def headers_without_end(peer: Peer, number: int) -> None:
    """Begin headers, and go on with them for ever."""
    part = header_block([(f"x-{number}", "b" * 500)])
    if number == 0:
        peer.frame(HEADERS, 0, 1, part)
    peer.frame(CONTINUATION, 0, 1, part)


def empty_continuations(peer: Peer, number: int) -> None:
    """Begin headers, and go on with nothing for ever."""
    if number == 0:
        peer.frame(HEADERS, 0, 1, b"")
    peer.frame(CONTINUATION, 0, 1, b"")


def header_bombs(peer: Peer, number: int) -> None:
    """Put a header of 4 KB into the table of the connection, and name it hundreds of times."""
    block = b"\x40" + header_block([("x-bomb", "b" * 3900)])[1:] if number == 0 else b""
    stream_id = 2 * number + 1
    peer.frame(HEADERS, 4, stream_id, block + b"\xbe" * 1000)


Flood = Callable[[Peer, int], None]
FLOODS: dict[str, tuple[Flood, bool]] = {
    "rapid reset": (rapid_reset, False),
    "rapid reset of whole calls": (rapid_reset_of_calls, False),
    "pings": (ping, True),
    "answers to no ping": (ping_answers, False),
    "settings": (settings, False),
    "empty data": (empty_data, False),
    "garbage on a stream": (garbage_adds, False),
    "headers without end": (headers_without_end, True),
    "empty continuations": (empty_continuations, False),
    "header bombs": (header_bombs, False),
}
"""What is sent again and again, and whether the peer must be sent away for it."""


async def flood_by(peer: Peer, flood: Flood, answers: Answers, until: float) -> int:
    """Send until the time is over, or the bookie hangs up; how often."""
    count = 0
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(listen(peer, answers))
        while time.monotonic() < until and not answers.is_ended:
            for _ in range(BATCH):
                flood(peer, count)
                count += 1
            await peer.flush()
            await asyncio.sleep(0)
        listening.cancel()
    return count


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood(target: Target, record_property: Tell, name: str) -> None:
    """One peer sends one kind of frames; when it is sent away it comes again."""
    flood, must_end = FLOODS[name]
    async with target.under_attack(name, record_property) as on:
        until = time.monotonic() + ATTACK_SECONDS
        count, connections, reasons, resets = 0, 0, set(), 0
        while time.monotonic() < until:
            answers = Answers()
            async with target.peer() as peer:
                count += await flood_by(peer, flood, answers, until)
            connections += 1
            resets += answers.resets.total()
            if answers.is_ended:
                reasons.add(answers.sent_away)
        on.note(f"{count / ATTACK_SECONDS:.0f}/s on {connections} connections")
        on.note(f"sent away: {', '.join(sorted(reasons)) or 'never'}; {resets} resets")
        assert reasons or not must_end


async def test_ten_thousand_streams_on_one_connection(
    target: Target, record_property: Tell
) -> None:
    """All but the first are refused, by the transport or for the share of the connection."""
    async with (
        target.under_attack("10 000 streams on a connection", record_property) as on,
        target.peer() as peer,
        asyncio.TaskGroup() as tasks,
    ):
        answers = Answers()
        listening = tasks.create_task(listen(peer, answers))
        for number in range(10_000):
            peer.open(("AddStream", "ReadStream", "WatchLac")[number % 3])
            if number % BATCH == 0:
                await peer.flush()
                await asyncio.sleep(0)
        await peer.flush()
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            await asyncio.sleep(ATTACK_SECONDS / 2)
            refused, ended = answers.resets[REFUSED_STREAM], answers.ended_calls
            if 10_000 - refused - ended <= STREAMS:
                break
            assert time.monotonic() < until, f"{refused} + {ended} streams refused, no more"
        on.note(f"{refused} refused by the transport, {ended} for their share")
        listening.cancel()


async def test_ten_thousand_streams_on_many_connections(
    target: Target, record_property: Tell
) -> None:
    """Each connection has as many as it may."""
    async with (
        target.under_attack("10 240 streams on 80 connections", record_property) as on,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        every = []
        for _ in range(CONNECTIONS):
            peer, answers = await stack.enter_async_context(target.peer()), Answers()
            every.append((tasks.create_task(listen(peer, answers)), answers))
            for number in range(STREAMS):
                peer.open(("AddStream", "ReadStream", "WatchLac")[number % 3])
            await peer.flush()
        await asyncio.sleep(ATTACK_SECONDS)
        on.note(f"{sum(answers.frames[HEADERS] for _, answers in every)} taken up")
        for listening, _ in every:
            listening.cancel()


HALVES = (
    b"",
    b"PRI * HTTP/2.0\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06",
    b"\x16\x03\x01\x02\0\x01",
)
"""Beginnings of a handshake; the last one is of TLS, to a port that does not speak it."""


async def test_halves_of_handshakes(target: Target, record_property: Tell) -> None:
    """400 connections that say no more are closed in time."""
    async with (
        target.under_attack("400 half handshakes", record_property) as on,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        every = []
        for number in range(400):
            peer = await stack.enter_async_context(target.peer(introduced=False))
            peer.writer.write(HALVES[number % len(HALVES)])
            every.append(tasks.create_task(peer.until_closed()))
        await asyncio.sleep(ATTACK_SECONDS)
        closed = sum(one.done() for one in every)
        on.note(f"{closed} closed")
        async with asyncio.timeout(60):
            await asyncio.wait(every)

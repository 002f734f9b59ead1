"""Requests go from the loop to kazoo's thread, and answers and notices back, in one order."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss, RolledBackError
from kazoo.protocol.states import KeeperState

from bookie.metadata.security import MetadataSecurity
from bookie.metadata.zookeeper.client import Bridge, LostError, NoAnswerError, NotSentError
from bookie.metadata.zookeeper.kazoo_parts import (
    KazooConnected,
    KazooDisconnected,
    NodeEvent,
    Notice,
)
from bookie.metadata.zookeeper.requests import (
    CheckVersion,
    DeleteNode,
    Exists,
    GetData,
    Multi,
    MultiRefusedError,
    NodeError,
)

SESSION = 7


class Wire:
    """A bridge whose client believes to be connected, and whose thread is the test."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.quiet = 0
        self.bridge = Bridge("x:1", 10.0, MetadataSecurity(), self.notices.append, self._count)
        self.client: Any = self.bridge._client
        self.handler = self.bridge._handler
        self.client._connection._read_sock, self.client._connection._write_sock = (
            self.handler.create_socket_pair()
        )
        self.connect()

    def _count(self) -> None:
        self.quiet += 1

    def connect(self) -> None:
        self.client._session_id = SESSION
        self.client._session_callback(KeeperState.CONNECTING)
        self.client._session_callback(KeeperState.CONNECTED)
        self.client.open_way(10.0)

    def answer(self, value: object, error: Exception | None = None) -> None:
        """As kazoo's thread answers the oldest request."""
        _, result = self.client._queue.popleft()
        if error is None:
            result.set(value)
        else:
            result.set_exception(error)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    found = Wire()
    yield found
    found.client._connection._write_sock.close()


async def test_answers_and_events_come_in_one_order_with_one_wake_up(wire: Wire) -> None:
    await asyncio.sleep(0)
    before, order = wire.quiet, []
    first, second = wire.bridge.send(Exists("/a")), wire.bridge.send(GetData("/a"))
    wire.bridge._on_notice = lambda notice: order.append(
        (notice, first.answer.done(), second.answer.done())
    )

    def serve() -> None:
        wire.answer(None)
        wire.client.post(NodeEvent(1, "/a", 5))
        wire.answer((b"x", "stat"))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert await first.answer is None
    assert await second.answer == (b"x", "stat")
    assert order == [(NodeEvent(1, "/a", 5), True, False)]
    assert wire.quiet == before + 1


async def test_a_request_leaves_only_in_its_session_and_through_its_connection(wire: Wire) -> None:
    for session, connection in ((SESSION + 1, None), (None, 2), (SESSION, 2)):
        with pytest.raises(NotSentError):
            await wire.bridge.send(Exists("/a"), session, connection).answer
    assert not wire.client._queue
    wire.bridge.send(Exists("/a"), SESSION, 1)
    assert len(wire.client._queue) == 1


async def test_what_kazoo_missed_when_the_connection_broke_is_lost_with_it(wire: Wire) -> None:
    """It fails what waits, and only then says that the connection is gone."""
    lost = wire.bridge.send(Exists("/a"))
    wire.client._notify_pending(KeeperState.CONNECTING)
    late = wire.bridge.send(Exists("/b"))
    wire.client._session_callback(KeeperState.CONNECTING)
    with pytest.raises(NotSentError):
        await wire.bridge.send(Exists("/c")).answer
    with pytest.raises(LostError):
        await lost.answer
    wire.client._queue.append(("close", None))
    wire.client.drop_waiting()
    with pytest.raises(LostError):
        await late.answer
    assert list(wire.client._queue) == [("close", None)], "kazoo's own request stays"
    assert [type(notice) for notice in wire.notices] == [KazooConnected, KazooDisconnected]


async def test_a_refused_transaction_names_its_first_culprit(wire: Wire) -> None:
    multi = Multi([DeleteNode("/a", 1), CheckVersion("/b", 2), CheckVersion("/c", 3)])
    pending = wire.bridge.send(multi)
    wire.answer([RolledBackError(), BadVersionError(), RolledBackError()])
    with pytest.raises(MultiRefusedError) as caught:
        await pending.answer
    assert (caught.value.index, caught.value.code) == (1, -103)


async def test_an_error_of_the_server_is_its_code_and_a_lost_connection_is_none(wire: Wire) -> None:
    refused, lost = wire.bridge.send(GetData("/a")), wire.bridge.send(GetData("/a"))
    wire.answer(None, BadVersionError())
    wire.answer(None, ConnectionLoss())
    with pytest.raises(NodeError) as caught:
        await refused.answer
    assert caught.value.code == -103
    with pytest.raises(LostError):
        await lost.answer


async def test_silence_counts_from_the_oldest_request_without_an_answer(wire: Wire) -> None:
    silent = wire.bridge.silent_since
    assert silent is None
    old = wire.bridge.send(Exists("/a"))
    assert wire.bridge.silent_since == old.begun_at
    wire.bridge.give_up(old.begun_at + 1)
    with pytest.raises(NoAnswerError):
        await old.answer
    assert wire.bridge.silent_since == old.begun_at, "it was given up, not answered"
    wire.answer(None)
    await asyncio.sleep(0)
    silent = wire.bridge.silent_since
    assert silent is None


async def test_who_sends_never_waits_for_a_thread_that_stands_still(wire: Wire) -> None:
    """A pipe has room for a few hundred wake-ups; each request is one, and the thread counts."""
    for _ in range(100_000):
        wire.bridge.send(Exists("/a"))
    reader = wire.client._connection._read_sock
    for _ in range(100_000):
        reader.recv(1)
    with pytest.raises(BlockingIOError):
        reader.recv(1)


async def test_an_event_has_the_write_that_it_tells_of(wire: Wire) -> None:
    """A hand-shake names the last zxid that the client has seen; kazoo forgets that of events."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = wire.client._connection
        connection._socket = ours
        for zxid in (9, -1):  # the second is from an old server
            body = struct.pack("!iqi", -1, zxid, 0) + struct.pack("!iii", 3, 3, 2) + b"/a"
            theirs.sendall(struct.pack("!i", len(body)) + body)
            connection._read_socket(10.0)
    await asyncio.sleep(0)
    assert wire.notices[1:] == [NodeEvent(3, "/a", 9), NodeEvent(3, "/a", -1)]
    assert wire.client.last_zxid == 9
    wire.client._reset()
    assert wire.client.last_zxid == 9, "a new session accepts no server that is behind"


async def test_a_wait_tells_which_sockets_are_ready(wire: Wire) -> None:
    with ExitStack() as stack:
        ours, server = (stack.enter_context(end) for end in socket.socketpair())
        assert wire.handler.select([ours], [], [], 0.0) == ([], [], [])
        assert wire.handler.select([], [ours], [], 10.0) == ([], [ours], [])
        server.send(b"x")
        assert wire.handler.select([ours, server], [], [], 10.0) == ([ours], [], [])
        server.close()
        assert wire.handler.select([ours], [], []) == ([ours], [], [])


def _frame(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("!i", len(body)) + body


async def test_an_answer_out_of_order_ends_the_connection_and_not_the_client() -> None:
    """A server does so whose session has moved to another server: it leaves out the refused one."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        is_first = connections == 1
        with closing(writer):
            await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0])
            writer.write(_frame(struct.pack("!iiqi", 0, 10_000, SESSION, 16), bytes(17)))
            while length := await reader.read(4):
                xid, _ = struct.unpack_from(
                    "!ii", await reader.readexactly(*struct.unpack("!i", length))
                )
                writer.write(_frame(struct.pack("!iqi", xid + is_first, 1, -101)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    bridge = Bridge(f"127.0.0.1:{port}", 10.0, MetadataSecurity(), notices.put_nowait, lambda: None)
    async with server, asyncio.timeout(60):
        bridge.start()
        assert isinstance(await notices.get(), KazooConnected)
        with pytest.raises(LostError):
            await bridge.send(GetData("/a")).answer
        assert isinstance(await notices.get(), KazooDisconnected)
        again = await notices.get()
        assert isinstance(again, KazooConnected)
        assert again.session == SESSION, "the session goes on"
        with pytest.raises(NodeError):
            await bridge.send(GetData("/a")).answer
        await bridge.stop()

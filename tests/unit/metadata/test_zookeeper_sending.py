"""How requests get from the loop to ZooKeeper's socket, and what the thread waits for."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionDropped

from bookie.env import boot_time_seconds
from bookie.metadata.zookeeper_sockets import Handler
from bookie.metadata.zookeeper_thread import (
    SEND_BYTES,
    Answered,
    Client,
    LostError,
    Notice,
    NotSentError,
    Pending,
)
from bookie.metadata.zookeeper_wire import SetData

SESSION = 7
SECONDS = 60.0


class Wire:
    """A client that believes to be connected, and the other end of its socket."""

    def __init__(self, stack: ExitStack) -> None:
        self.posted: list[Answered | Notice] = []
        self.client = Client(self.posted.extend, sasl=None, handler=Handler(1.0, None))
        self.client._session_id = SESSION
        self.client._state = "CONNECTED"
        self.connection = self.client._connection
        ours, self.server = (stack.enter_context(end) for end in socket.socketpair())
        ours.setblocking(False)
        self.connection._socket = ours
        self.connection._takes_from_loop = True
        self.connection._heard_at = boot_time_seconds()
        self.connection._read_sock, self._waker = (
            stack.enter_context(end) for end in socket.socketpair()
        )

    def ask(self, path: str, size: int = 0, session: int | None = None) -> Pending:
        """A request that waits to be sent."""
        answer = cast("asyncio.Future[Any]", None)
        pending = Pending(SetData(path, bytes(size), -1), answer, 0.0, session, None)
        self.connection.outgoing.append(pending)
        return pending

    def wake(self) -> None:
        """Let the thread send what waits."""
        self._waker.send(b"\0")
        self.connection._send_request(SECONDS, SECONDS)

    def received(self) -> list[tuple[int, str]]:
        """The number and the path of each request that arrived, in order; waits for the end."""
        bytes_received, found = bytearray(), []
        while piece := self.server.recv(1 << 20):
            bytes_received += piece
        while bytes_received:
            length, xid, _, path_length = struct.unpack_from("!iiii", bytes_received)
            found.append((xid, bytes_received[16 : 16 + path_length].decode()))
            del bytes_received[: 4 + length]
        return found

    def close(self) -> None:
        self.connection._socket.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(stack)


def test_requests_leave_in_the_loop_in_one_piece(wire: Wire) -> None:
    pending = [wire.ask("/a"), wire.ask("/b")]
    assert wire.connection.send_from_loop()
    assert [one for _, one, _ in wire.client._pending] == pending
    wire.close()
    assert wire.received() == [(1, "/a"), (2, "/b")]


def test_what_comes_while_answers_are_to_come_is_left_to_the_thread(wire: Wire) -> None:
    """It leaves in as few pieces as the thread has turns."""
    wire.ask("/a")
    assert wire.connection.send_from_loop()
    pending = [wire.ask("/b"), wire.ask("/c")]
    assert not wire.connection.send_from_loop()
    assert list(wire.connection.outgoing) == pending
    wire.wake()
    wire.close()
    assert wire.received() == [(1, "/a"), (2, "/b"), (3, "/c")]


def test_the_rest_of_what_the_loop_sent_leaves_when_the_thread_is_woken(wire: Wire) -> None:
    wire.ask("/a", 8 * SEND_BYTES)
    assert not wire.connection.send_from_loop()
    arrived: list[tuple[int, str]] = []
    reader = threading.Thread(target=lambda: arrived.extend(wire.received()), daemon=True)
    reader.start()
    wire.wake()
    wire.close()
    reader.join()
    assert arrived == [(1, "/a")]


def test_what_finds_no_room_leaves_before_all_else(wire: Wire) -> None:
    """The thread sends the rest of a request, and only then what came later, its own as well."""
    pending = [wire.ask("/a", 8 * SEND_BYTES)]
    assert not wire.connection.send_from_loop()
    pending.append(wire.ask("/b"))
    assert not wire.connection.send_from_loop()
    assert list(wire.connection.outgoing) == pending[1:]
    arrived: list[tuple[int, str]] = []
    reader = threading.Thread(target=lambda: arrived.extend(wire.received()), daemon=True)
    reader.start()
    ping = struct.pack("!iiii", 12, -2, 11, 0)
    wire.connection._write(ping, SECONDS)
    wire.wake()
    wire.close()
    reader.join()
    assert arrived == [(1, "/a"), (-2, ""), (2, "/b")]
    assert [one for _, one, _ in wire.client._pending] == pending


def test_the_loop_never_waits_for_the_thread_to_write(wire: Wire) -> None:
    pending, is_writing, is_over = wire.ask("/a"), threading.Event(), threading.Event()

    def write() -> None:
        with wire.connection._writing:
            is_writing.set()
            is_over.wait(SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    is_writing.wait(SECONDS)
    assert not wire.connection.send_from_loop()
    is_over.set()
    thread.join()
    assert list(wire.connection.outgoing) == [pending]
    assert wire.connection.send_from_loop()


def test_no_request_leaves_in_another_session(wire: Wire) -> None:
    other, own = wire.ask("/a", session=SESSION + 1), wire.ask("/b", session=SESSION)
    assert wire.connection.send_from_loop()
    ((refused, _, error),) = cast("list[Answered]", wire.posted)
    assert refused is other
    assert isinstance(error, NotSentError)
    assert [one for _, one, _ in wire.client._pending] == [own]


def test_a_lost_connection_takes_nothing_more_from_the_loop(wire: Wire) -> None:
    """What it took is lost, what it did not take was not sent, and all of it is told."""
    lost = wire.ask("/a", 8 * SEND_BYTES)
    assert not wire.connection.send_from_loop()
    kept = wire.ask("/b")
    wire.client._session_callback("CONNECTING")
    outcomes = cast("list[Answered]", wire.posted[:-1])
    assert [(pending, type(error)) for pending, _, error in outcomes] == [
        (lost, LostError),
        (kept, NotSentError),
    ]
    late = wire.ask("/c")
    assert not wire.connection.send_from_loop()
    assert list(wire.connection.outgoing) == [late]
    assert not wire.connection._unsent


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_any_error_ends_what_the_loop_may_send(wire: Wire, error: type[Exception]) -> None:
    """Before kazoo closes the socket, whose number may then be that of another one."""
    with suppress(error, ConnectionDropped), wire.connection._socket_error_handling():
        raise error
    assert not wire.connection._takes_from_loop


def test_a_broken_socket_is_left_to_the_thread(wire: Wire) -> None:
    pending = wire.ask("/a")
    wire.server.close()
    assert not wire.connection.send_from_loop()
    assert [one for _, one, _ in wire.client._pending] == [pending]
    with pytest.raises(ConnectionDropped):
        wire.connection._write(b"", SECONDS)


def test_a_wait_tells_which_sockets_are_ready(wire: Wire) -> None:
    handler, ours = wire.client.handler, wire.connection._socket
    assert handler.select([ours], [], [], 0.0) == ([], [], [])
    assert handler.select([], [ours], [], SECONDS) == ([], [ours], [])
    wire.server.send(b"x")
    assert handler.select([ours, wire.server], [], [], SECONDS) == ([ours], [], [])
    wire.server.close()
    assert handler.select([ours], [], []) == ([ours], [], [])


def test_a_write_waits_for_room_no_longer_than_it_may(wire: Wire) -> None:
    with pytest.raises(wire.client.handler.timeout_exception, match="no room"):
        wire.connection._write(bytes(8 * SEND_BYTES), 0.01)


def test_what_cannot_be_written_down_fails_where_it_is_asked_for(wire: Wire) -> None:
    """Later it would have a number already, and whoever is behind it would be lost with it."""
    with pytest.raises(UnicodeEncodeError):
        wire.ask("/\ud800")
    wire.ask("/a")
    assert wire.connection.send_from_loop()
    wire.close()
    assert wire.received() == [(1, "/a")]

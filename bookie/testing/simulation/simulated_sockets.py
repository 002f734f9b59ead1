"""Simulated TCP for carriers of bytes: sockets and transports on a `SimulatedNetwork`.

The real carrier by frames (`bookie.wire.frames`) uses these sockets and transports through the
event loop's own methods: `create_connection`, `sock_accept` and `connect_accepted_socket`. The
bytes of one connection arrive in the order of sending, in pieces that the seed draws. The faults of
the network break these connections like the connections of simulated gRPC.

In each direction, at most `WINDOW_BYTES` bytes are sent that the peer has not read. The transport
keeps what its protocol writes beyond this limit, and asks the protocol to pause. An acknowledgement
takes no time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from bookie.addresses import join_address
from bookie.testing.simulation.loop import SimulatedLoop
from bookie.testing.simulation.simulated_network import (
    PROCESS,
    Connection,
    Pipe,
    SimulatedNetwork,
    SimulatedProcess,
    run_in,
)

WINDOW_BYTES = 64 * 1024
"""The largest number of bytes that are sent, but that the peer has not read yet."""

PIECES_SHARE = 0.2
"""The share of writes whose bytes travel in two pieces."""

LOOK_SECONDS = 1.0
"""The time until a bookie notices that a connection broke from which it reads nothing; see
`FramesPort`."""

CLIENT_PORT_FIRST = 40_000

Step = tuple[str, bytes]
"""A message between two transports: ``data`` with its bytes, ``end`` if the sender sends no more,
or ``reset``."""


class SimulatedSocket:
    """A listening or an accepted socket of a process, with the methods that a server calls."""

    family = socket.AF_UNIX
    """The family of Unix sockets, so that no code sets options that only TCP has."""

    def __init__(self, sockets: SimulatedSockets, process: SimulatedProcess, port: int) -> None:
        self.process = process
        self.accepted: deque[SimulatedTransport] = deque()
        """New connections that the server has not accepted yet."""
        self.transport: SimulatedTransport | None = None
        """The transport of an accepted socket."""
        self._sockets = sockets
        self._port = port
        self._waiting: asyncio.Future[None] | None = None

    def getsockname(self) -> tuple[str, int]:
        return self.process.host, self._port

    def listen(self, backlog: int) -> None:
        del backlog
        self._sockets.listening[join_address(self.process.host, self._port)] = self

    def close(self) -> None:
        address = join_address(self.process.host, self._port)
        if self._sockets.listening.get(address) is self:
            del self._sockets.listening[address]
        for transport in (self.transport, *self.accepted):
            if transport is not None and not transport.is_started:
                transport.abort()

    def shutdown(self, how: int) -> None:
        del how
        if self.transport is not None:
            self.transport.abort()

    def fileno(self) -> int:
        """Return -1, because no real descriptor belongs to the socket."""
        return -1

    def connected(self, transport: SimulatedTransport) -> None:
        """Queue a new connection for `accept`."""
        self.accepted.append(transport)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def accept(self) -> SimulatedSocket:
        while not self.accepted:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        found = SimulatedSocket(self._sockets, self.process, self._port)
        found.transport = self.accepted.popleft()
        return found


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, which belongs to one process.

    Args:
        connection: the connection, which the network may break.
        is_client: True for the end that connected.
        peername: host and port of the other end.
    """

    def __init__(
        self, connection: Connection, *, is_client: bool, peername: tuple[str, int]
    ) -> None:
        super().__init__()
        self._network = network = connection.network
        self._loop = network.loop
        self._connection = connection
        self._is_client = is_client
        self._peername = peername
        ends = connection.client, connection.server
        self._process, self._other = ends if is_client else reversed(ends)
        lane = self._loop.new_lane()
        self._context = self._loop.context_in_lane(lane, run_in(self._process))
        self._protocol: Any = None
        self._peer: SimulatedTransport | None = None
        self._out: Pipe | None = None
        self._received = bytearray()
        self._backlog = bytearray()
        """Bytes that the protocol wrote, but that are not sent yet because the window is full."""
        self._under_way_bytes = 0
        """The number of bytes that were sent, and that the peer has not read yet."""
        self._high = self._low = 0
        self._is_reading = True
        self._is_paused = False
        """True after a call of the protocol's `pause_writing`, until `resume_writing`."""
        self._is_due = False
        """True if a call of `_feed` is already scheduled."""
        self._has_ended = self._is_end_told = False
        """True if the peer has sent ``end``, and True if the protocol was told so."""
        self._is_eof_written = self._is_end_sent = False
        self._is_closing = False
        self._failure: ConnectionResetError | None = None
        """The error of a broken connection, which the process notices at its next read or write."""
        self.is_open = True

    # --- for the simulation --------------------------------------------------------------

    def join(self, peer: SimulatedTransport) -> None:
        """Make `peer` the other end."""
        self._peer = peer
        self._out = Pipe(self._network, self._process, self._other, peer.take)
        self._calls()[self] = None

    @property
    def is_started(self) -> bool:
        """True if this end of the connection has its asyncio protocol."""
        return self._protocol is not None

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Give this end its asyncio protocol; call this method in a task of the end's process."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self.is_open:
            self._feed_soon()
        else:
            self._in_lane(protocol.connection_lost, _reset())

    @property
    def method(self) -> str:
        """The name of the conversation, from the client's hello message."""
        hello = getattr(self._protocol, "_hello", None)
        return "" if hello is None else f"/frames/{hello.conversation}"

    @property
    def is_sending_adds(self) -> bool:
        return self.method.endswith("/AddStream") and self._out is not None and self._out.is_busy

    def delay(self, seconds: float) -> None:
        """Delay by `seconds` the bytes that this end has sent, but that have not arrived."""
        if self._out is not None:
            self._out.delay(seconds)

    def on_broken(self, reason: str) -> None:
        """Lose the connection, because it broke at this end."""
        self._fail(_reset(reason))

    def take(self, step: Step) -> None:
        """Receive one message from the peer."""
        connection = self._connection
        kind, data = step
        if not (connection.is_client_open if self._is_client else connection.is_server_open):
            return
        if not self.is_open:
            if kind == "data" and self._out is not None:
                self._out.send(("reset", b""))  # nobody is here any more
            return
        if kind == "reset":
            self._fail(_reset())
            return
        if kind == "end":
            self._has_ended = True
        else:
            self._count_adds()
            self._received += data
        self._feed_soon()

    def _count_adds(self) -> None:
        network, connection, peer = self._network, self._connection, self._peer
        is_accepted = getattr(self._protocol, "_is_accepted", False)
        if peer is not None and is_accepted and peer.method.endswith("/AddStream"):
            network.framed_adds += 1
            network.late_framed_adds += connection.has_successor(peer.method)

    def _calls(self) -> dict[Any, None]:
        connection = self._connection
        return connection.client_calls if self._is_client else connection.server_calls

    def _in_lane(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    def _feed_soon(self) -> None:
        if not self._is_due and self._protocol is not None:
            self._is_due = True
            self._in_lane(self._feed)

    def _feed(self) -> None:
        """Pass received bytes to the protocol, at most one buffer in a turn of the event loop."""
        self._is_due = False
        if not self._is_reading or self.is_closing():
            return
        protocol = self._protocol
        if self._received:
            space = protocol.get_buffer(-1)
            count = min(len(space), len(self._received))
            if not count:
                raise RuntimeError("get_buffer returned an empty buffer")
            space[:count] = self._received[:count]
            del self._received[:count]
            if self._peer is not None:
                self._peer.was_read(count)
            protocol.buffer_updated(count)
            self._feed_soon()
        elif self._failure is not None:
            self._lose(self._failure)
        elif self._has_ended and not self._is_end_told:
            self._is_end_told = True
            if not protocol.eof_received():
                self.close()

    def was_read(self, count: int) -> None:
        """Send more from the backlog, because the peer has read `count` bytes."""
        self._under_way_bytes -= count
        if self._backlog and self.is_open:
            self._in_lane(self._send_more)

    def _fill_window(self) -> None:
        while self._backlog and self._under_way_bytes < WINDOW_BYTES:
            count = min(len(self._backlog), WINDOW_BYTES - self._under_way_bytes)
            self._send(bytes(self._backlog[:count]))
            del self._backlog[:count]

    def _send_more(self) -> None:
        self._fill_window()
        if self._is_paused and len(self._backlog) <= self._low:
            self._is_paused = False
            if self.is_open:
                self._protocol.resume_writing()
        self._send_end()

    def _send(self, data: bytes) -> None:
        """Send the bytes in one piece or, at random, in two pieces."""
        assert self._out is not None
        self._under_way_bytes += len(data)
        choose, cut = self._network.choose, len(data)
        if choose.random() < PIECES_SHARE:
            cut = choose.randint(1, len(data))
        for piece in (data[:cut], data[cut:]):
            if piece:
                self._out.send(("data", piece))

    def _send_end(self) -> None:
        """Send ``end`` if this end sends no more, and if all bytes before it are sent."""
        if self._backlog or not (self._is_eof_written or self._is_closing):
            return
        if self._out is not None and not self._is_end_sent:
            self._is_end_sent = True
            self._out.send(("end", b""))
        if self._is_closing:
            self._in_lane(self._lose, None)

    def _fail(self, failure: ConnectionResetError) -> None:
        """Note that the connection broke; the process notices this at its next read or write."""
        if self._failure is None:
            self._failure = failure
        self._feed_soon()
        if not self._is_client:
            # A bookie also looks for broken connections among those from which it reads nothing.
            later = self._loop.time() + LOOK_SECONDS
            self._loop.call_at(later, self._lose, failure, context=self._context)

    def _lose(self, error: Exception | None) -> None:
        if not self.is_open:
            return
        if self._received and self._out is not None:
            self._out.send(("reset", b""))  # as TCP does if unread bytes are left
        self.is_open = False
        self._backlog.clear()
        connection = self._connection
        self._calls().pop(self, None)
        if self._is_client:
            connection.is_client_open = False
        if self._peer is None or not self._peer.is_open:
            for process in (connection.client, connection.server):
                process.connections.pop(connection, None)
        if self._protocol is not None:
            self._in_lane(self._protocol.connection_lost, error)

    # --- as asyncio has it ---------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = {"peername": self._peername, "socket": _SOCKET}
        return found.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing or not self.is_open

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._feed_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        return len(self._backlog)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_eof_written:
            raise RuntimeError("a write follows the end")
        if self.is_closing() or not data or self._out is None:
            return
        if self._failure is not None:
            self._in_lane(self._lose, self._failure)
            return
        self._backlog += data
        self._fill_window()
        if not self._is_paused and len(self._backlog) > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.is_closing() and not self._is_eof_written:
            self._is_eof_written = True
            self._send_end()

    def close(self) -> None:
        """Close after all bytes are sent; the peer then notices that this end sends no more."""
        if not self.is_closing():
            self._is_closing = True
            self._send_end()

    def abort(self) -> None:
        """Close at once; bytes that were already sent still arrive before the peer notices."""
        if self.is_open:
            self._backlog.clear()
            self._is_closing = True
            if not self._received:
                self._send_end()
            self._in_lane(self._lose, None)


def _reset(reason: str = "") -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, reason or os.strerror(errno.ECONNRESET))


class _OptionlessSocket:
    """The socket that a transport returns; it has no options that only TCP has."""

    family = socket.AF_UNIX

    def fileno(self) -> int:
        return -1


_SOCKET = _OptionlessSocket()


class SimulatedSockets:
    """The listening sockets of all processes, and attempts to connect to them."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.listening: dict[str, SimulatedSocket] = {}
        self._next_port = CLIENT_PORT_FIRST

    async def bind_all(self, host: str, port: int) -> list[SimulatedSocket]:
        """Return a socket of the present process; replaces `bookie.env.listening.bind_all`."""
        process = PROCESS.get()
        assert process.host == host
        return [SimulatedSocket(self, process, port)]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect the present process by a message to the server and the server's answer.

        Raises:
            ConnectionRefusedError: nobody listens at the address.
        """
        loop = self.network.loop
        attempt: asyncio.Future[SimulatedTransport] = loop.create_future()
        self._begin(PROCESS.get(), join_address(host, port), attempt)
        try:
            transport = await attempt
        except asyncio.CancelledError:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                attempt.result().abort()
            raise
        protocol = factory()
        transport.start(protocol)
        return transport, protocol

    async def accept(self, listening: SimulatedSocket) -> tuple[SimulatedSocket, tuple[str, int]]:
        return await listening.accept(), listening.getsockname()

    async def start(
        self, factory: Callable[[], asyncio.BaseProtocol], accepted: SimulatedSocket
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Give an accepted connection its asyncio protocol."""
        protocol = factory()
        assert accepted.transport is not None
        accepted.transport.start(protocol)
        return accepted.transport, protocol

    def _begin(
        self,
        client: SimulatedProcess,
        address: str,
        attempt: asyncio.Future[SimulatedTransport],
    ) -> None:
        network, loop = self.network, self.network.loop
        listening = self._find(address)
        if listening is None:
            there = network.arrival(client.host, client.host)
            loop.call_in_lane_at(loop.new_lane(), there, _refuse, attempt)
            return
        server = listening.process
        back = Pipe(network, server, client, lambda _: self._accepted(client, address, attempt))
        there_pipe = Pipe(network, client, server, lambda _: back.send(None))
        there_pipe.send(None)

    def _accepted(
        self,
        client: SimulatedProcess,
        address: str,
        attempt: asyncio.Future[SimulatedTransport],
    ) -> None:
        listening = self._find(address)
        if attempt.done():
            return
        if listening is None:
            _refuse(attempt)
            return
        self._next_port += 1
        connection = Connection(self.network, client, listening.process)
        ours = SimulatedTransport(connection, is_client=True, peername=listening.getsockname())
        theirs = SimulatedTransport(
            connection, is_client=False, peername=(client.host, self._next_port)
        )
        ours.join(theirs)
        theirs.join(ours)
        attempt.set_result(ours)
        listening.connected(theirs)

    def _find(self, address: str) -> SimulatedSocket | None:
        listening = self.listening.get(address)
        return listening if listening is not None and listening.process.is_alive else None


def _refuse(attempt: asyncio.Future[SimulatedTransport]) -> None:
    if not attempt.done():
        reason = os.strerror(errno.ECONNREFUSED)
        attempt.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, reason))


def open_sockets(loop: SimulatedLoop, network: SimulatedNetwork) -> SimulatedSockets:
    """Make the event loop use the simulated network for its connections."""
    loop.sockets = sockets = SimulatedSockets(network)
    return sockets

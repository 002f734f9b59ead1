"""Accepts the HTTP server's connections, and bounds their number, including TLS handshakes.

asyncio's own server hides connections until their TLS handshake has ended. So with asyncio's server
this module could not count and close connections during the handshake.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from aiohttp import web

from bookie.addresses import join_address
from bookie.env.listening import bind_all
from bookie.errors import CannotStartError

BACKLOG: Final = 100
"""The largest number of new connections that wait in the kernel for each listening socket."""

RECEIVED_BYTES: Final = 8 * 1024
"""The size of a connection's receive buffer in the kernel; Linux doubles this size. A buffer of a
quarter of a megabyte could hold so many chunks of one byte that parsing these chunks would block
the event loop for 0.1 s.
"""

PAUSE_SECONDS: Final = 0.5
"""The pause after a failed accept, for example if no descriptor is free."""


class _UnquotingHandler(web.RequestHandler):
    """aiohttp's protocol, except that answers to malformed requests do not quote the request.

    A malformed line may contain a secret token. If an answer quoted this line, a proxy could write
    the token to its log.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a malformed or failed request."""
        if status < 500:
            message = "the request is not well-formed HTTP"
        return super().handle_error(request, status, exc, message)


@dataclass(frozen=True, slots=True)
class ListenerBounds:
    """The maximal numbers of connections that are open at the same time."""

    in_all: int
    per_address: int


HTTP_BOUNDS: Final = ListenerBounds(in_all=256, per_address=64)
"""The default bounds of the HTTP server; they are low: probes and commands need few connections."""


class Listener:
    """Listens on sockets, and passes accepted connections to `server`.

    Args:
        server: the server of aiohttp.
        bounds: the largest numbers of open connections. If a new connection exceeds the total, the
            oldest connection is closed. If a new connection exceeds the bound of its address, the
            oldest connection of this address is closed. Connections in a TLS handshake are closed
            before all other connections.
        context: returns the SSL context for a new connection; None listens without TLS.
        handshake_seconds: the timeout of the TLS handshake.
        shutdown_seconds: the timeout of the TLS shutdown.
        on_surplus: called with the reason for each closed connection; the reason is a label of the
            metric.
    """

    def __init__(
        self,
        server: web.Server,
        bounds: ListenerBounds,
        context: Callable[[], ssl.SSLContext] | None,
        *,
        handshake_seconds: float,
        shutdown_seconds: float,
        on_surplus: Callable[[str], None],
    ) -> None:
        self._server = server
        self._bounds = bounds
        self._on_surplus = on_surplus
        self._context = context
        self._times = handshake_seconds, shutdown_seconds
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._beginning: dict[asyncio.Task[None], tuple[str, socket.socket]] = {}
        """The tasks that run TLS handshakes, the oldest first, with peer address and socket."""

    @property
    def port(self) -> int:
        """The port of the first listening socket."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Listen on all addresses of `host`, and begin to accept connections.

        Raises:
            CannotStartError: the process cannot listen on the address now.
        """
        loop = asyncio.get_running_loop()
        try:
            self._sockets = await bind_all(host, port)
            for one in self._sockets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
                one.listen(BACKLOG)
        except OSError as error:
            self._close_sockets()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            address = join_address(host, port)
            raise CannotStartError(f"cannot serve HTTP on {address}: {reason}") from error
        self._accepting = [loop.create_task(self._accept(one)) for one in self._sockets]

    async def close(self) -> None:
        """Stop listening, and close connections in a TLS handshake; other connections stay open."""
        tasks = {*self._accepting, *self._beginning}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # Close the listening sockets only now, because the tasks used the sockets' descriptors
        # until they ended.
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            address = _host_of(peer)
            self._make_room("http_address", self._bounds.per_address, address)
            self._make_room("http_total", self._bounds.in_all)
            begun = asyncio.Event()
            task = loop.create_task(self._begin(accepted, begun))
            self._beginning[task] = address, accepted
            task.add_done_callback(partial(self._ended, accepted, begun))
            await asyncio.sleep(0)  # as long as connections wait, sock_accept never yields

    def _ended(
        self, accepted: socket.socket, begun: asyncio.Event, task: asyncio.Task[None]
    ) -> None:
        self._beginning.pop(task, None)
        if not begun.is_set():  # the task was cancelled before a transport got the socket
            accepted.close()

    def _make_room(self, reason: str, connections_max: int, address: str | None = None) -> None:
        """Close the oldest connections of `address`, so that one more connection is allowed.

        If `address` is None, the bound applies to the connections of all addresses together.
        """
        transports = [
            one.transport
            for one in self._server.connections
            if one.transport and not one.transport.is_closing()
            if address in (None, _host_of(one.transport.get_extra_info("peername")))
        ]
        tasks = [one for one, (from_, _) in self._beginning.items() if address in (None, from_)]
        surplus = len(tasks) + len(transports) + 1 - connections_max
        for task in tasks[: max(0, surplus)]:
            # Shut the socket down, and do not cancel the task. After a cancellation, uvloop (0.23)
            # closes the transport without `connection_lost`, so the server would keep the protocol.
            _, accepted = self._beginning.pop(task)
            with suppress(OSError):  # the peer has disconnected
                accepted.shutdown(socket.SHUT_RDWR)
            surplus -= 1
            self._on_surplus(reason)
        for transport in transports[: max(0, surplus)]:
            transport.abort()
            self._on_surplus(reason)

    def _protocol(self) -> web.RequestHandler:
        """Return a new protocol object of the server, which does not quote malformed requests."""
        made = self._server()
        made.__class__ = _UnquotingHandler
        return made

    async def _begin(self, accepted: socket.socket, begun: asyncio.Event) -> None:
        begun.set()
        loop = asyncio.get_running_loop()
        handshake, shutdown = self._times
        with suppress(OSError):  # the peer has disconnected, or its TLS handshake failed
            if self._context is None:
                await loop.connect_accepted_socket(self._protocol, accepted)
                return
            await loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=handshake,
                ssl_shutdown_timeout=shutdown,
            )


def _host_of(peer: tuple[str, int] | None) -> str:
    """Return the IP address of a peer without the IPv6 zone; empty if the peer is disconnected."""
    return str(peer[0]).partition("%")[0] if peer else ""

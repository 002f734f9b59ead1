"""Accepts the HTTP server's connections, and bounds them: those in a TLS handshake as well.

asyncio's own server creates a protocol for each accepted socket. It knows no connection before the
handshake has ended, so nobody could close the oldest of many silent ones.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from aiohttp import web

from bookie.addresses import is_wildcard, join_address
from bookie.errors import CannotStartError

BACKLOG: Final = 100
"""Connections that wait until they are accepted."""

PAUSE_SECONDS: Final = 0.5
"""The pause after a failed accept, for example without free descriptors."""


class _UnquotingHandler(web.RequestHandler):
    """aiohttp's protocol, except that its refusals quote nothing: a malformed line may be a token.

    Whoever sent the line knows it, but answers pass proxies, and end up in their logs.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that cannot be handled."""
        if status < 500:
            message = "the request is not well-formed HTTP"
        return super().handle_error(request, status, exc, message)


class Listener:
    """Listening sockets, whose connections go to `server`.

    Args:
        server: aiohttp's.
        connections_max: the most connections; with one more, the oldest is closed. One in a
            handshake is closed before those that have made it.
        context: returns the SSL context for a new connection; None listens without TLS.
        handshake_seconds: the time for the TLS handshake.
        shutdown_seconds: the time for the end of TLS.
    """

    def __init__(
        self,
        server: web.Server,
        connections_max: int,
        context: Callable[[], ssl.SSLContext] | None,
        *,
        handshake_seconds: float,
        shutdown_seconds: float,
    ) -> None:
        self._server = server
        self._connections_max = connections_max
        self._context = context
        self._times = handshake_seconds, shutdown_seconds
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._beginning: dict[asyncio.Task[None], None] = {}
        """The connections that have no protocol yet, the oldest first."""

    @property
    def port(self) -> int:
        """The port of the first socket."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            CannotStartError: the address cannot be listened on now.
        """
        loop = asyncio.get_running_loop()
        try:
            if ":" in host and is_wildcard(host) and socket.has_dualstack_ipv6():
                # The IPv6 wildcard takes IPv4 as well, as it does for gRPC.
                self._sockets = [
                    socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
                ]
            else:
                bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
                self._sockets = [one.dup() for one in bound.sockets]
                bound.close()
            for one in self._sockets:
                one.setblocking(False)
                one.listen(BACKLOG)
        except OSError as error:
            self._close_sockets()
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            address = join_address(host, port)
            raise CannotStartError(f"cannot serve HTTP on {address}: {reason}") from error
        self._accepting = [loop.create_task(self._accept(one)) for one in self._sockets]

    async def close(self) -> None:
        """Listen no more, and close connections that have not begun; others go on."""
        tasks = {*self._accepting, *self._beginning}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # Not before: the loop still waits for these descriptors.
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._make_room()
            begun = asyncio.Event()
            task = loop.create_task(self._begin(accepted, begun))
            self._beginning[task] = None
            task.add_done_callback(partial(self._ended, accepted, begun))
            await asyncio.sleep(0)  # sock_accept does not yield while connections wait

    def _ended(
        self, accepted: socket.socket, begun: asyncio.Event, task: asyncio.Task[None]
    ) -> None:
        self._beginning.pop(task, None)
        if not begun.is_set():  # it was cancelled so early that no transport has the socket
            accepted.close()

    def _make_room(self) -> None:
        """Close the oldest connections, so that one more is allowed."""
        transports = [one.transport for one in self._server.connections if one.transport]
        surplus = len(self._beginning) + len(transports) + 1 - self._connections_max
        for task in list(self._beginning)[: max(0, surplus)]:
            del self._beginning[task]
            task.cancel()
            surplus -= 1
        for transport in transports[: max(0, surplus)]:
            transport.abort()

    def _protocol(self) -> web.RequestHandler:
        """Return a new protocol of the server; only aiohttp knows the arguments to make one."""
        made = self._server()
        made.__class__ = _UnquotingHandler
        return made

    async def _begin(self, accepted: socket.socket, begun: asyncio.Event) -> None:
        begun.set()
        loop = asyncio.get_running_loop()
        handshake, shutdown = self._times
        with suppress(OSError):  # the peer is gone, or does not speak TLS as it must
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

"""A TCP proxy whose link can be broken in the ways that networks break.

It runs in a thread of its own, so it outlives the event loop of one test. Its methods take effect
before they return. The proxy never looks into the bytes that pass.

* `hold`: silence, as when packets are dropped. Bytes wait, closed connections stay open at the
  other end, and new connections are accepted and stay silent. When the link heals, the bytes arrive
  late, as TCP would send them again.
* `reset`: every connection ends with an RST.
* `refuse`: new connections end at once, and so do the present ones.
* `delay`: every piece arrives later.
* `eat_next_reply`: the next bytes from the server are lost, and their connection ends. The request
  took effect, and its sender does not know.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

PIECE_BYTES = 64 * 1024


class Direction(enum.Enum):
    """Which way bytes flow."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop in which all proxies of the process run."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="proxies", daemon=True).start()
    return loop


def _run(action: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(action, _loop()).result(30)


class _Connection:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server

    def reset(self) -> None:
        for writer in (self.client, self.server):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens on a port of its own and connects to `target_port` for everybody who connects.

    With `server_ssl` it speaks TLS to clients and plain TCP to the server. A connection is accepted
    before the server is asked: `patience_seconds` is how long a server that refuses is asked again.
    """

    def __init__(
        self,
        target_port: int,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        server_ssl: ssl.SSLContext | None = None,
        patience_seconds: float = 0.0,
    ) -> None:
        self.target_port = target_port
        self.port = port
        self._host = host
        self.accepted = 0
        """Connections so far."""
        self._server_ssl = server_ssl
        self._patience_seconds = patience_seconds
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._open: dict[Direction, asyncio.Event] = {}
        self._delay_seconds = 0.0
        self._refusing = False
        self._eating = False
        self._eaten = threading.Event()

    def __enter__(self) -> Self:
        _run(self._start())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _run(self._stop())

    def hold(self, *directions: Direction) -> None:
        """Silence in these directions, in both if none is named."""
        _run(self._set_open(directions or tuple(Direction), is_open=False))

    def heal(self) -> None:
        """Back to passing everything on; what was held arrives now."""
        _run(self._heal())

    def reset(self) -> None:
        """End every connection with an RST; new ones are accepted."""
        _run(self._reset())

    def refuse(self) -> None:
        """End every connection, and every new one as soon as it is made, until `heal`."""
        self._refusing = True
        self.reset()

    def delay(self, seconds: float) -> None:
        """From now on every piece is passed on so much later."""
        self._delay_seconds = seconds

    def eat_next_reply(self) -> None:
        """Lose the next bytes from the server, and reset their connection."""
        self._eaten.clear()
        self._eating = True

    @property
    def has_eaten(self) -> bool:
        """True if a reply was lost since `eat_next_reply`."""
        return self._eaten.is_set()

    async def _start(self) -> None:
        for direction in Direction:
            self._open[direction] = asyncio.Event()
            self._open[direction].set()
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, ssl=self._server_ssl, limit=PIECE_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._heal()
        await self._reset()

    async def _set_open(self, directions: tuple[Direction, ...], *, is_open: bool) -> None:
        for direction in directions:
            if is_open:
                self._open[direction].set()
            else:
                self._open[direction].clear()

    async def _heal(self) -> None:
        self._delay_seconds = 0.0
        self._refusing = self._eating = False
        await self._set_open(tuple(Direction), is_open=True)

    async def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        # A connection through a silent link reaches the server when the link is back.
        await self._open[Direction.TO_SERVER].wait()
        server = await self._connect()
        if server is None:
            writer.transport.abort()
            return
        from_server, to_server = server
        connection = _Connection(writer, to_server)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(connection, reader, to_server, Direction.TO_SERVER))
                tasks.create_task(self._pump(connection, from_server, writer, Direction.TO_CLIENT))
        finally:
            self._connections.discard(connection)
            writer.transport.abort()
            to_server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        give_up_at = _loop().time() + self._patience_seconds
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self.target_port)
            except OSError:
                if _loop().time() >= give_up_at:
                    return None
                await asyncio.sleep(0.02)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        try:
            while piece := await reader.read(PIECE_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                await self._open[direction].wait()
                if self._eating and direction is Direction.TO_CLIENT:
                    self._eating = False
                    self._eaten.set()
                    connection.reset()
                    return
                writer.write(piece)
                await writer.drain()
        except (OSError, ssl.SSLError):
            await self._open[direction].wait()
            connection.reset()
            return
        # One end is done: the other one hears of it, unless the link is silent.
        await self._open[direction].wait()
        writer.close()

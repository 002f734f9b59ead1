"""The network between the members of an etcd cluster: a proxy in front of each, cut per direction.

All members reach a member at one URL. So the proxy in front of it learns from the first request of
a connection who is calling (``X-Server-From``).

A member sends its messages over connections that either side opened. So a cut stops the bytes of
one direction, whoever opened the connection. Bytes that meet a cut wait, as in a network that loses
packets, and go on when it heals.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable
from itertools import permutations
from types import TracebackType
from typing import Self

CLUSTER_TOKEN = "bookie-test"

_CHUNK_BYTES = 64 * 1024
_HEAD_BYTES_MAX = 16 * 1024
_CALLER = re.compile(rb"\r\nX-Server-From: *([0-9a-f]+)\r\n", re.IGNORECASE)


def member_id(peer_url: str) -> bytes:
    """The id of a member: etcd derives it from its URL and the cluster's token."""
    digest = hashlib.sha1((peer_url + CLUSTER_TOKEN).encode(), usedforsecurity=False).digest()
    return b"%x" % int.from_bytes(digest[:8], "big")


class PeerLinks:
    """Proxies in front of the members `ports` (name → the port where it listens to its peers)."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports
        self._servers: dict[str, asyncio.Server] = {}
        self._callers: dict[bytes, str] = {}
        self._open = {pair: asyncio.Event() for pair in permutations(ports, 2)}
        self._connections: set[asyncio.Task[None]] = set()
        for event in self._open.values():
            event.set()

    def port(self, name: str) -> int:
        """The port for the member's peers."""
        port: int = self._servers[name].sockets[0].getsockname()[1]
        return port

    def url(self, name: str) -> str:
        """The same as a URL."""
        return f"http://127.0.0.1:{self.port(name)}"

    async def __aenter__(self) -> Self:
        for name in self._ports:
            self._servers[name] = await asyncio.start_server(
                functools.partial(self._serve, name), "127.0.0.1", 0
            )
        self._callers = {member_id(self.url(name)): name for name in self._ports}
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def cut(self, sender: str, receiver: str) -> None:
        """Messages of `sender` no longer reach `receiver`; the other way stays."""
        self._open[sender, receiver].clear()

    def isolate(self, name: str) -> None:
        """Cut a member off from all others, both ways."""
        for pair, event in self._open.items():
            if name in pair:
                event.clear()

    def split(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Cut all links between two groups."""
        one, other = set(one), set(other)
        for (sender, receiver), event in self._open.items():
            if (sender in one and receiver in other) or (sender in other and receiver in one):
                event.clear()

    def heal(self) -> None:
        """Open all links."""
        for event in self._open.values():
            event.set()

    async def _serve(
        self, to: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._relay(to, reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _relay(
        self, to: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES_MAX:
            chunk = await reader.read(_CHUNK_BYTES)
            if not chunk:
                return
            head += chunk
        found = _CALLER.search(head)
        caller = self._callers.get(found[1]) if found else None
        if caller is not None and caller != to:
            await self._open[caller, to].wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._ports[to])
        try:
            server_writer.write(head)
            pumps = [
                self._pump(reader, server_writer, caller, to),
                self._pump(server_reader, writer, to, caller),
            ]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(pump) for pump in pumps]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in running:
                    task.cancel()
        finally:
            server_writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sender: str | None,
        receiver: str | None,
    ) -> None:
        link = self._open.get((sender or "", receiver or ""))
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if link is not None:
                    await link.wait()
                writer.write(chunk)
                await writer.drain()

"""A relay between a bookie and its clients, which can stop, resume, or break connections."""

from __future__ import annotations

import asyncio

_HOST = "127.0.0.1"
_PIECE_BYTES = 256 * 1024


class NetworkLink:
    """Listens on a port of the loopback device and relays its connections to a bookie's port.

    After `silence`, no byte passes: open connections hang, and a new connection gets no answer.
    After `resume`, bytes that were sent in the meantime arrive, as with TCP. The link's tasks run
    in the task group `tasks`.
    """

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.port = 0
        self._tasks = tasks
        self._target_port = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, target_port: int) -> None:
        """Listen on a free port, store its number in `port`, and relay to `target_port`."""
        self._target_port = target_port
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def silence(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    async def cut(self) -> None:
        """Reset all connections and stop listening, as if the bookie's process had ended."""
        if self._server is not None:
            self._server.close()
        running = set(self._connections)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._tasks.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side closes it."""
        try:
            await self._flows.wait()
            there, back = await asyncio.open_connection(_HOST, self._target_port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._copy(reader, back))
                    both.create_task(self._copy(there, writer))
            finally:
                back.transport.abort()
        except* OSError:
            pass  # one side has closed or reset the connection
        finally:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE_BYTES):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # the error also ends the other direction

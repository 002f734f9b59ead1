"""The other process of the benchmarks: a bookie that stores, or one that only says that it did.

``python -m tests.bench.rpc_server KIND DIRECTORY LOOP`` serves until its standard input ends and
prints its port. Kinds: ``real`` is a bookie on the files of DIRECTORY; ``null`` parses each request
and answers it from memory; ``echo`` does not even parse, it is gRPC's own ceiling.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop
from grpc import aio

from bookie.config import RpcSettings
from bookie.entry.batch import EntryBatch
from bookie.env import Outcome
from bookie.env.process_tuning import keep_freed_memory
from bookie.ids import Status
from bookie.telemetry import Metrics
from bookie.wire.codec import encode_add_response, encode_read_response
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply, Reply
from bookie.wire.grpc import transport
from bookie.wire.grpc.server.grpc_server import ServedNode
from bookie.wire.interfaces import SERVICE
from tests.served_node import serve
from tests.unit.wire.fake_node import FakeNode
from tests.unit.wire.real_bookie import real_bookie

SETTINGS = RpcSettings(drain_seconds=0.5)
READ_BYTES = 1024 * 1024


class NullNode(FakeNode):
    """Answers every add at once, and every read with the same batch of entries of one size."""

    def __init__(self) -> None:
        super().__init__()
        self._replies: dict[int, ReadReply] = {}

    def try_admit_add(self, size: int, recovery: bool = False) -> bool:
        return True

    async def admit_add(self, size: int) -> None:
        pass

    def add(self, command: AddCommand, admitted: int) -> Outcome[Reply]:
        return Outcome.of(Reply(Status.OK))

    def try_read(self, command: ReadCommand) -> ReadReply | None:
        return canned_reply(command.max_entries)

    async def read(self, command: ReadCommand) -> ReadReply:
        """`max_entries` entries of a MiB together."""
        return canned_reply(command.max_entries)


def canned_reply(entries: int) -> ReadReply:
    """A reply of `entries` entries that have a MiB together."""
    size = READ_BYTES // entries
    batch = EntryBatch(1, 0, None, np.full(entries, size, np.int64), bytes(size * entries))
    return ReadReply(Status.OK, "", batch, entries)


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Answers every message with the same bytes."""
    answer = encode_add_response(1, Status.OK)
    reply = encode_read_response(canned_reply(1024))

    async def add_stream(_requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        arrived = asyncio.Semaphore(0)

        async def count() -> None:
            while await context.read() is not aio.EOF:
                arrived.release()

        # Reading while an answer is being written is worth a third of the throughput.
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(count())
            while not reader.done():
                await arrived.acquire()
                await context.write(answer)

    async def read(_request: bytes, _context: Any) -> bytes:
        return reply

    server = aio.server(options=transport.server_options(SETTINGS))
    handlers = {
        "AddStream": grpc.stream_stream_rpc_method_handler(add_stream),
        "Read": grpc.unary_unary_rpc_method_handler(read),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = transport.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0.1)


async def main(kind: str, directory: Path) -> None:
    """Serve until standard input ends."""
    keep_freed_memory()
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        if kind == "echo":
            port = await stack.enter_async_context(echo())
        else:
            node: ServedNode = NullNode()
            if kind == "real":
                node = await stack.enter_async_context(real_bookie(directory, metrics))
            port = await stack.enter_async_context(serve(node, "127.0.0.1", 0, SETTINGS, metrics))
        print(port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    _, kind_, directory_, loop_ = sys.argv
    if loop_ == "uvloop":
        uvloop.run(main(kind_, Path(directory_)))
    else:
        asyncio.run(main(kind_, Path(directory_)))

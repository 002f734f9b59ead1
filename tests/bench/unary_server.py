"""gRPC alone: a server that answers each unary call with the same bytes.

``python -m tests.bench.unary_server BYTES`` prints its port and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import grpc
from grpc import aio

from bookie.config import RpcSettings
from bookie.daemon.loop import run
from bookie.wire.grpc import transport
from bookie.wire.interfaces import SERVICE


async def main(reply_bytes: int) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reply = bytes(reply_bytes)

    async def read(_request: bytes, _context: Any) -> bytes:
        return reply

    server = aio.server(options=transport.server_options(RpcSettings()))
    handlers = {"Read": grpc.unary_unary_rpc_method_handler(read)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(transport.bind(server, "127.0.0.1:0"), flush=True)
    await server.start()
    await stop.wait()
    await server.stop(0.1)


if __name__ == "__main__":
    run(main(int(sys.argv[1])))

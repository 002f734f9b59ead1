"""A bookie's gRPC server by TLS, as a process of its own that handshakes may crash.

``python -m tests.unit.security.flooded_bookie DIR`` serves with the certificates in DIR, prints its
port, and takes changed files at each line that it reads. It ends when its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bookie.config import RpcSettings, SecuritySettings
from bookie.security import PemFiles, authority, followed_file
from bookie.telemetry import Metrics
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_server import hold_port
from tests.unit.wire.fake_node import FakeNode


async def serve(directory: Path) -> None:
    followed_file.LOOK_SECONDS = 0.0
    settings = SecuritySettings.model_validate(authority.settings_for(directory, "bookie"))
    files = PemFiles(settings)
    async with (
        hold_port("127.0.0.1", 0, RpcSettings(), security=ServerSecurity(files)) as held,
        held.serve(FakeNode(), Metrics()),
    ):
        print(held.port, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(files.refresh(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

"""A store whose ZooKeeper server cannot write its log any further."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from bookie.errors import MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from tests.servers.zookeeper import single_server

LOG_BYTES_MAX = 1 << 19

UNAVAILABLE = (MetadataUnavailableError, SessionLostError)
"""The second where the server is away for so long that the session counts as lost."""


async def test_a_server_with_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Its files may not grow beyond a size, which the log of writes reaches: it ends itself.

    Writes fail with one error, which says of each whether it may have been done. When there is
    room and the server runs again, so does the store, and all that was acknowledged is there.
    """
    with single_server(tmp_path, java_options=("-Dzookeeper.preAllocSize=64",)) as server:
        uri = f"zk://{server.address}/scope"
        async with open_store(uri, session_timeout_seconds=6) as store:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (LOG_BYTES_MAX, limit[1]))
            done = 0

            async def fill() -> None:
                nonlocal done
                while done < 1000:
                    await store.put(f"/{done}", bytes(10_000))
                    done += 1

            with pytest.raises(UNAVAILABLE, match="metadata store"):
                await fill()
            assert done >= 10
            with pytest.raises(UNAVAILABLE, match="metadata store"):
                await store.put("/refused", b"")
            await asyncio.to_thread(server.restart)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await store.put("/after", b"")
                    except UNAVAILABLE:
                        continue
                    break
            names = await store.get_children("/")
            assert {str(number) for number in range(done)} <= set(names)
            assert set(names) <= {str(number) for number in range(done + 1)} | {"after"}

"""The ZooKeeper side of `bench_metadata`: the store, and kazoo as it comes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from bookie.metadata.connect import open_store
from tests.bench.metadata_embedded import Ours
from tests.servers.zookeeper import ZooKeeperEnsemble, single_server

if TYPE_CHECKING:
    from tests.bench.bench_metadata import Contender

_PARENTS = ("/mix", "/ledgers")
"""Both sides keep something there, as a cluster in use does; else each last delete removes them."""


class Bare:
    """kazoo's own asynchronous calls, brought into the loop in the shortest way."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def get(self, key: str) -> object:
        return await _answer(self._client.get_async("/bare" + key))

    async def create(self, key: str, value: bytes) -> int:
        await _answer(self._client.create_async("/bare" + key, value))
        return 0

    async def write(self, key: str, value: bytes, version: int) -> int:
        stat = await _answer(self._client.set_async("/bare" + key, value, version))
        return int(stat.version)

    async def delete(self, key: str, version: int) -> None:
        await _answer(self._client.delete_async("/bare" + key, version))


async def _answer(result: Any) -> Any:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    result.rawlink(lambda _: loop.call_soon_threadsafe(done.set_result, None))
    await done
    return result.get_nowait()


@asynccontextmanager
async def contest(members: int) -> AsyncIterator[dict[str, Contender]]:
    """Both sides on one server, or on the same one of three."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        if members == 1:
            address = stack.enter_context(single_server(directory)).address
        else:
            ensemble = ZooKeeperEnsemble(directory, stack.enter_context(ExitStack()))
            for server in ensemble.servers.values():
                server.start()
                stack.callback(server.kill)
            ensemble.wait_until_ready()
            address = ensemble.servers[ensemble.followers()[0]].address
        store = await stack.enter_async_context(open_store(f"zk://{address}/ours"))
        client = KazooClient(hosts=address, timeout=30)
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)
        for parent in _PARENTS:
            await store.put(f"{parent}/kept", b"")
            client.ensure_path(f"/bare{parent}")
        yield {"ours": Ours(store), "bare": Bare(client)}

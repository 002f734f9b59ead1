"""The stores without a server in `bench_metadata`, beside a dictionary and bare LMDB.

The store in memory is compared with a dictionary. The one in a directory is compared with
transactions of LMDB on the same disk. They run one after the other, are durable each, and run in a
thread, because a loop must not wait for a device. Those two lack sessions, watches and conditions
on ancestors. The share shows what these cost, so there is no target.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from bookie.metadata.connect import open_store
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore

if TYPE_CHECKING:
    from tests.bench.bench_metadata import Contender


class Ours:
    """Any store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, key: str) -> object:
        return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> int:
        return (await self._store.put(key, value, version=NOT_EXISTS)).version

    async def write(self, key: str, value: bytes, version: int) -> int:
        return (await self._store.put(key, value, version=version)).version

    async def delete(self, key: str, version: int) -> None:
        await self._store.delete(key, version=version)


class Dictionary:
    """Versions and values by key."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, bytes]] = {}

    async def get(self, key: str) -> object:
        return self._records[key]

    async def create(self, key: str, value: bytes) -> int:
        assert key not in self._records
        self._records[key] = (0, value)
        return 0

    async def write(self, key: str, value: bytes, version: int) -> int:
        assert self._records[key][0] == version
        self._records[key] = (version + 1, value)
        return version + 1

    async def delete(self, key: str, version: int) -> None:
        assert self._records.pop(key)[0] == version


class BareLmdb:
    """One durable transaction for each write."""

    def __init__(self, environment: lmdb.Environment, thread: ThreadPoolExecutor) -> None:
        self._environment = environment
        self._thread = thread

    async def get(self, key: str) -> object:
        with self._environment.begin() as transaction:
            return transaction.get(key.encode())

    async def create(self, key: str, value: bytes) -> int:
        return await self._write(key, value, None)

    async def write(self, key: str, value: bytes, version: int) -> int:
        return await self._write(key, value, version)

    async def delete(self, key: str, version: int) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._commit, key.encode(), None, version
        )

    async def _write(self, key: str, value: bytes, version: int | None) -> int:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._commit, key.encode(), value, version
        )

    def _commit(self, key: bytes, value: bytes | None, version: int | None) -> int:
        with self._environment.begin(write=True) as transaction:
            found = transaction.get(key)
            assert version == (None if found is None else int.from_bytes(found[:8], "big"))
            if value is None:
                transaction.delete(key)
                return 0
            new = 0 if version is None else version + 1
            transaction.put(key, new.to_bytes(8, "big") + value)
            return new


@asynccontextmanager
async def memory_contest(_: int) -> AsyncIterator[dict[str, Contender]]:
    """The store in memory and a dictionary."""
    async with open_store("memory://bench") as store:
        yield {"ours": Ours(store), "bare": Dictionary()}


def _directory_here() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=Path.cwd())


@asynccontextmanager
async def local_contest(_: int) -> AsyncIterator[dict[str, Contender]]:
    """The store in a directory and LMDB, on the disk of the directory that this is started in."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(_directory_here())
        store = await stack.enter_async_context(open_store(f"local://{directory}/ours"))
        environment = stack.enter_context(lmdb.open(f"{directory}/bare", map_size=1024**3))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        yield {"ours": Ours(store), "bare": BareLmdb(environment, thread)}

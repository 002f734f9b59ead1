"""Opens the metadata store or a client for a command, and runs the command's work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bookie.api import BookKeeper
    from bookie.ledger.ledger_client import LedgerClient
    from bookie.metadata.store import MetadataStore

T = TypeVar("T")


def open_metadata(
    uri: str, config: Path | None = None, *, create: bool = False
) -> AbstractAsyncContextManager[MetadataStore]:
    """Open the store of `uri`; for ZooKeeper and etcd, use TLS and credentials of the settings.

    TLS and credentials come from the section ``[metadata]`` of the settings file `config`. If
    `config` is None, BOOKIE_CONFIG may name the file. With `create`, the function creates a missing
    local store.

    Raises:
        ConfigurationError: the URI or the settings are wrong.
    """
    from bookie.metadata.connect import open_store
    from bookie.metadata.uri import split_uri

    if split_uri(uri).scheme in ("memory", "local"):
        return open_store(uri, create=create)
    # Import the settings only here: to load them takes longer than most commands on a local store.
    from bookie.config import load_settings
    from bookie.metadata.security import security_of

    return open_store(uri, security=security_of(load_settings(config).metadata))


def on_store(uri: str, work: Callable[[MetadataStore], Awaitable[T]], *, create: bool = False) -> T:
    """Open a store like `open_metadata`, await ``work(store)``, and return its result.

    `work` runs in a new event loop. The store is closed before the function returns.
    """

    async def run() -> T:
        async with open_metadata(uri, create=create) as store:
            return await work(store)

    return asyncio.run(run())


def on_instance(uri: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Call `on_store`, but refuse a store without a cluster.

    Without this check, a mistyped URI would look like a cluster without records.

    Raises:
        NoSuchKeyError: the store holds no cluster.
    """

    async def in_cluster(store: MetadataStore) -> T:
        from bookie.cluster.instance import read_instance_id

        await read_instance_id(store)
        return await work(store)

    return on_store(uri, in_cluster)


@asynccontextmanager
async def open_client(uri: str) -> AsyncIterator[tuple[LedgerClient, MetadataStore]]:
    """Open a client of ledgers, and the metadata store that it uses.

    The settings come from environment variables, and from the file that BOOKIE_CONFIG names.
    """
    from bookie.config import Sources
    from bookie.ledger.ledger_client import open_ledger_client

    sources = Sources.read(None, {})
    async with (
        open_metadata(uri) as store,
        open_ledger_client(store, sources, sources.settings().rpc) as client,
    ):
        yield client, store


def worker_name() -> str:
    """Return the name with which this process locks the ledgers that it copies: host and pid."""
    return f"{socket.gethostname()}:{os.getpid()}"


def on_cluster(uri: str, work: Callable[[BookKeeper], Awaitable[T]]) -> T:
    """Connect a client, await ``work(client)`` in a new uvloop event loop; return its result."""
    from bookie.api import connect
    from bookie.daemon.loop import run

    async def main() -> T:
        async with connect(uri) as client:
            return await work(client)

    return run(main())


def on_configuration(uri: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Call `on_store` with the store that holds the namespaces, and return the result.

    The namespaces are in the store of ``metadata.configuration_uri``, or in the store of `uri` if
    this setting is empty. If ``metadata.configuration_uri`` names a missing local store, the
    function creates this store.
    """
    from bookie.config import load_settings

    own = load_settings().metadata.configuration_uri
    return on_store(own or uri, work, create=bool(own))

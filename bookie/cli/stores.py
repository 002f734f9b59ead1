"""Opens the store that ``--metadata`` names, its cluster, or its configuration store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from bookie.api import BookKeeper
    from bookie.metadata.store import MetadataStore

T = TypeVar("T")


def open_metadata(
    uri: str, config: Path | None = None, *, create: bool = False
) -> AbstractAsyncContextManager[MetadataStore]:
    """Open the store of `uri`; TLS and credentials come from the settings' section ``[metadata]``.

    `config` is a file of settings. If `config` is None, the file that BOOKIE_CONFIG names is used,
    if the variable is set. With `create`, the function creates a local store if its directory holds
    no store.

    Raises:
        ConfigurationError: the URI or the settings are wrong.
    """
    from bookie.metadata.connect import open_store
    from bookie.metadata.uri import split_uri

    if split_uri(uri).scheme in ("memory", "local"):
        return open_store(uri, create=create)
    # Import here: loading settings takes longer than most commands on a local store.
    from bookie.config import load_settings
    from bookie.metadata.security import security_of

    return open_store(uri, security=security_of(load_settings(config).metadata))


def on_store(uri: str, work: Callable[[MetadataStore], Awaitable[T]], *, create: bool = False) -> T:
    """Open a store like `open_metadata`, await `work` with it, and return the result.

    `work` runs in its own event loop. The store is closed when this function returns.
    """

    async def run() -> T:
        async with open_metadata(uri, create=create) as store:
            return await work(store)

    return asyncio.run(run())


def on_cluster(uri: str, work: Callable[[BookKeeper], Awaitable[T]]) -> T:
    """Connect a client, await `work` with it in a uvloop event loop, and return its result."""
    from bookie.api import connect
    from bookie.daemon.loop import run

    async def main() -> T:
        async with connect(uri) as client:
            return await work(client)

    return run(main())


def on_configuration(uri: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Call `on_store` with the store of namespaces: ``metadata.configuration_uri``, or `uri`.

    If the store of ``metadata.configuration_uri`` does not exist, the first command on namespaces
    creates it.
    """
    from bookie.config import load_settings

    own = load_settings().metadata.configuration_uri
    return on_store(own or uri, work, create=bool(own))

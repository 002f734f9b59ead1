"""Commands in this process, and the metadata store that they work on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookie.cli import app
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore

T = TypeVar("T")

_names = itertools.count()


def new_uri() -> str:
    """Of a new, empty store in memory."""
    return f"memory://cli-{next(_names)}"


def on(uri: str, act: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Do something to the store; what `act` returns."""

    async def run() -> T:
        async with open_store(uri) as store:
            return await act(store)

    return asyncio.run(run())


def bookie(*words: str) -> int:
    """Run a command; its exit status."""
    return app.run(list(words))

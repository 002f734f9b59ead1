"""A cache that is current in every process: a dict that follows a log of changes.

Each record has a key and its new value; an empty value removes the key. Readers take from the dict
and never wait. A process that starts later reads the log from its beginning, and then follows it.

With `make run` in one terminal, follow in a second one, and change values in a third one::

    export BOOKIE_METADATA=local://$PWD/data/metadata
    .venv/bin/python examples/tailing_cache.py
    .venv/bin/python examples/tailing_cache.py colour=red size=7 colour=
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie import BookKeeper, connect
from bookie.api import NewRecord

LOG = "settings"


class TailingCache(dict[str, str]):
    """The newest values by key; made by `open`."""

    def __init__(self, bk: BookKeeper) -> None:
        super().__init__()
        self._bk = bk
        self.changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, bk: BookKeeper) -> "AsyncIterator[TailingCache]":
        """A cache that follows its log until the end of the block."""
        cache = cls(bk)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(cache._follow())
            yield cache
            following.cancel()

    async def _follow(self) -> None:
        async for record in self._bk.read_log(LOG, follow=True):
            key = (record.key or b"").decode()
            if record.value:
                self[key] = record.value.decode()
            else:
                self.pop(key, None)
            self.changed.set()


async def change(bk: BookKeeper, words: list[str]) -> None:
    """Append one change for each `key=value`."""
    pairs = [word.encode().partition(b"=") for word in words]
    async with bk.open_log(LOG) as log:
        await log.append_many([NewRecord(value, key) for key, _, value in pairs])


async def main() -> None:
    """Change what the words say; without words, print the cache whenever it changes."""
    async with connect(os.environ["BOOKIE_METADATA"]) as bk:
        if words := sys.argv[1:]:
            await change(bk, words)
            return
        async with bk.open_log(LOG):  # so that it exists
            print("following", flush=True)
        async with TailingCache.open(bk) as cache:
            while await cache.changed.wait():
                cache.changed.clear()
                print(dict(sorted(cache.items())), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

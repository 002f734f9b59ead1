"""A metadata store whose writes are lost before they happen, or happen unanswered, or late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from bookie.errors import BookieError, MetadataUnavailableError
from bookie.log.log_client import LogClient
from bookie.metadata.model import Operation, Stat
from bookie.metadata.store import MetadataStore
from tests.conformance.faulty_store import FaultyStore

LATE_SECONDS_MAX = 0.3


class UnreliableStore(FaultyStore):
    """`store`, of which a share of the writes goes wrong."""

    def __init__(
        self,
        store: MetadataStore,
        rng: random.Random,
        tasks: asyncio.TaskGroup,
        count: Callable[[str], object],
    ) -> None:
        super().__init__(store)
        self.share = 0.0
        self._rng = rng
        self._tasks = tasks
        self._count = count

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if self._rng.random() >= self.share:
            return await super().transaction(operations)
        kind = self._rng.choice(["request lost", "reply lost", "request late"])
        self._count(kind)
        if kind == "reply lost":
            await super().transaction(operations)
        elif kind == "request late":
            self._tasks.create_task(self._happen_late(operations))
        raise MetadataUnavailableError(f"the test decided: {kind}")

    async def _happen_late(self, operations: Sequence[Operation]) -> None:
        await asyncio.sleep(self._rng.uniform(0, LATE_SECONDS_MAX))
        with suppress(BookieError):  # it meets what has happened meanwhile, and nobody hears of it
            await super().transaction(operations)


def make_unreliable(
    client: LogClient,
    rng: random.Random,
    tasks: asyncio.TaskGroup,
    count: Callable[[str], object],
) -> UnreliableStore:
    """Put such a store between the client's logs, ledgers and cursors, and its store."""
    store = UnreliableStore(client.store, rng, tasks, count)
    client.logs._store = store
    client.ledgers.ledgers._store = store
    return store

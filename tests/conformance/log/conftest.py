"""Clients of logs that need no bookies: their records are in the memory of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from bookie.ledger.ledger_client import LedgerClient
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import AutoCommit
from bookie.log.consume.consumer import LogConsumer
from bookie.log.consume.cursors import Cursors
from bookie.log.log_client import LogClient
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore
from tests.conformance.log.fake_logs import CursorHistory, FakeLogs, NotedStore

ORDERS = LogName("default", "orders")
FIRST = LogPartition(ORDERS)


@dataclass
class LogProcess:
    """One process with a session of its own."""

    session: MetadataStore
    store: FaultyStore
    client: LogClient
    logs: FakeLogs

    def cursors(self, name: LogName = ORDERS) -> Cursors:
        """The cursors of a log."""
        return Cursors(self.client, name, self.logs)

    def consumer(
        self,
        cursor: str = "billing",
        *,
        partition: int | None = None,
        auto_commit: AutoCommit | None = None,
    ) -> LogConsumer:
        """A consumer of `ORDERS`."""
        return LogConsumer(
            self.client,
            str(ORDERS),
            self.logs,
            cursor=cursor,
            partition=partition,
            auto_commit=auto_commit,
        )

    async def committed(self, cursor: str = "billing", partition: LogPartition = FIRST) -> int:
        """The offset that the store holds."""
        await self.session.sync()
        return (await self.client.logs.read_cursor(partition, cursor)).value.offset


NewProcess = Callable[..., Awaitable[LogProcess]]
"""(session_timeout_seconds=10.0)."""


@pytest.fixture
def logs() -> FakeLogs:
    """The records of all logs."""
    return FakeLogs()


@pytest.fixture
def history() -> CursorHistory:
    """Every change of a cursor."""
    return CursorHistory()


def process_maker(
    backend: Backend, logs: FakeLogs, history: CursorHistory, stack: AsyncExitStack
) -> NewProcess:
    """Makes processes that end with `stack`."""

    async def make(session_timeout_seconds: float = 10.0) -> LogProcess:
        session = await backend.open(session_timeout_seconds=session_timeout_seconds)
        store = FaultyStore(NotedStore(session, history))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        ledgers = SimpleNamespace(pool=SimpleNamespace(spawn=tasks.create_task))
        client = LogClient(cast("LedgerClient", ledgers), store)
        stack.push_async_callback(client.close)
        return LogProcess(session, store, client, logs)

    return make


@pytest.fixture
async def new_process(
    backend: Backend, logs: FakeLogs, history: CursorHistory
) -> AsyncIterator[NewProcess]:
    """Makes processes, which end with the test."""
    async with AsyncExitStack() as stack:
        yield process_maker(backend, logs, history, stack)


@pytest.fixture
async def process(new_process: NewProcess) -> LogProcess:
    """One process."""
    return await new_process()

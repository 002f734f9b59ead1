"""Logs on three real bookies, whose metadata store loses what a test wants it to lose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.metadata.memory.backend import MemoryStore
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import MetadataLog, SetClock, metadata_client, metadata_log
from tests.unit.ledger.real_cluster import RealCluster, real_cluster
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    """A connected client that gives bookies up soon."""
    async with connect(cluster.uri, add_timeout_seconds=2) as client:
        yield client


@pytest.fixture
async def one_bookie(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """A cluster that starts sooner."""
    async with real_cluster(tmp_path, 1) as started:
        yield started


@pytest.fixture
async def one_bk(one_bookie: RealCluster) -> AsyncIterator[BookKeeper]:
    """A client of one bookie."""
    async with connect(one_bookie.uri) as client:
        yield client


@pytest.fixture
def logs(one_bk: BookKeeper) -> LogClient:
    """The logs of that client."""
    return one_bk._logs


@pytest.fixture
async def log(logs: LogClient) -> HandMadeLog:
    """A log without a writer, changed step by step."""
    name = LogName.parse("orders")
    definition = await logs.create(name, policy=ONE_COPY)
    return HandMadeLog(logs, LogPartition(name), definition)


@pytest.fixture
def clock() -> SetClock:
    """The wall clock of `orders`."""
    return SetClock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FaultyStore]:
    """The store of `orders`, in memory; its requests and replies can be lost."""
    async with MemoryStore(str(tmp_path), session_timeout_seconds=30.0) as inner:
        yield FaultyStore(inner)


@pytest.fixture
async def orders(store: FaultyStore, clock: SetClock) -> MetadataLog:
    """A transactional log with three partitions; its ledgers are mere metadata."""
    return await metadata_log(metadata_client(store, clock), partitions=3)

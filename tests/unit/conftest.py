"""A cluster of three bookies and a client of it, for each test that asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from tests.unit.ledger.real_cluster import RealCluster, real_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Three bookies."""
    async with real_cluster(tmp_path) as started:
        yield started


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    """A connected client."""
    async with connect(cluster.uri) as client:
        yield client

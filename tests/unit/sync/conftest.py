"""Three bookies in the loop of `bookie.sync`, and a client of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookie.sync import SyncBookKeeper
from bookie.testing import SyncBookieCluster, sync_cluster


@pytest.fixture
def bookies() -> Iterator[SyncBookieCluster]:
    """Three bookies."""
    with sync_cluster() as running:
        yield running


@pytest.fixture
def bk(bookies: SyncBookieCluster) -> Iterator[SyncBookKeeper]:
    """A connected client."""
    with bookies.connect() as client:
        yield client

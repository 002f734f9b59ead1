"""Fixtures for pytest, which finds this module automatically if bookie is installed.

====================== ============================================================================
`bookie_cluster`       the function `bookie.testing.cluster`, for use in the test's own event loop:
                       ``async with bookie_cluster(bookies=3) as c``. So the fixture works with
                       every plugin that runs async tests on asyncio
`sync_bookie_cluster`  three running bookies for `bookie.sync`
====================== ============================================================================

Other modules of bookie are imported only when a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from bookie.testing import BookieCluster, SyncBookieCluster


@pytest.fixture
def bookie_cluster() -> Callable[..., AbstractAsyncContextManager[BookieCluster]]:
    """Return the function that creates a cluster of real bookies; see `bookie.testing.cluster`."""
    from bookie.testing import cluster

    return cluster


@pytest.fixture
def sync_bookie_cluster() -> Iterator[SyncBookieCluster]:
    """Run three real bookies for tests of `bookie.sync`."""
    from bookie.testing import sync_cluster

    with sync_cluster() as running:
        yield running

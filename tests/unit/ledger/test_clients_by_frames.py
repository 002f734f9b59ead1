"""The promises of clients hold by frames as by gRPC: the same tests on bookies with frames."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.ledger.real_cluster import RealCluster, real_cluster
from tests.unit.ledger.test_faults import *  # noqa: F403  (each of its tests runs here, too)
from tests.unit.ledger.test_ledger_client import *  # noqa: F403  (each of its tests runs here, too)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Three bookies that clients reach by frames."""
    async with real_cluster(tmp_path, offers_frames=True) as started:
        yield started


def test_no_test_hides_another() -> None:
    """Tests of the same name would replace each other."""
    modules = ("test_faults", "test_ledger_client")
    names = [
        name
        for module in modules
        for name in vars(importlib.import_module(f"tests.unit.ledger.{module}"))
        if name.startswith("test_")
    ]
    assert len(names) == len(set(names)) > 30

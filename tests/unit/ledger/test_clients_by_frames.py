"""The promises of clients hold by frames as by gRPC: the same tests on bookies with frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.ledger import test_faults, test_ledger_client
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

TESTS = [
    (name, test)
    for module in (test_faults, test_ledger_client)
    for name, test in vars(module).items()
    if name.startswith("test_")
]

# Each of these tests runs here, too, with the cluster of this module.
globals().update(TESTS)


@pytest.fixture(params=["frames", "auto"])
async def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[RealCluster]:
    """Three bookies that clients reach by frames: from the beginning, or after a change to them."""
    monkeypatch.setenv("BOOKIE_CLIENT__TRANSPORT", request.param)
    async with real_cluster(tmp_path, offers_frames=True) as started:
        yield started


def test_no_test_hides_another() -> None:
    """Tests of the same name would replace each other."""
    assert len(dict(TESTS)) == len(TESTS) > 30

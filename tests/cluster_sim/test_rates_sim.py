"""Rates in virtual time: whole clusters whose bookies hold their clients back."""

from __future__ import annotations

import asyncio

import pytest

from bookie.api import BookKeeper
from bookie.config import NodeSettings
from bookie.errors import BookieError
from bookie.testing import simulate
from bookie.testing.simulation import simulated_cluster

RATE = 1_000
ENTRY_BYTES = 500
ENTRIES = 60
ADD_TIMEOUT_SECONDS = float(simulated_cluster.CLIENT["client.add_timeout_seconds"])


@pytest.fixture(autouse=True)
def _rates(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    limits = NodeSettings(integrity_check_interval_seconds=4.0, identity_bytes_per_second=RATE)
    monkeypatch.setattr(simulated_cluster, "LIMITS", limits)


async def append_all(bk: BookKeeper) -> tuple[range, int, bool, float]:
    """Append everything at once; ids, fragments, whether copies are missing, and the seconds."""
    began = asyncio.get_running_loop().time()
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
    ids = await writer.append_many([bytes(ENTRY_BYTES)] * ENTRIES)
    seconds = asyncio.get_running_loop().time() - began
    return ids, len(writer.metadata.fragments), writer.is_under_replicated, seconds


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_replaced_for_a_rate(seed: int) -> None:
    """Appends wait for many add timeouts; a fourth bookie stands by."""
    outcome = simulate(seed, append_all, faults=())
    ids, fragments, is_under_replicated, seconds = outcome.result
    assert ids == range(ENTRIES)
    assert (fragments, is_under_replicated) == (1, False)
    assert seconds > 8 * ADD_TIMEOUT_SECONDS


async def write_through_faults(bk: BookKeeper) -> list[bytes]:
    """Append to a log whatever comes, and read it back."""
    number = 0
    while number < ENTRIES:
        try:
            async with bk.open_log("orders") as log:
                while number < ENTRIES:
                    value = b"%d" % number + bytes(ENTRY_BYTES)
                    await log.append(value, producer=("shop", number))
                    number += 1
        except BookieError:
            await asyncio.sleep(0.5)
    while True:
        try:
            return [record.value async for record in bk.read_log("orders")]
        except BookieError:
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(3))
def test_faults_under_a_rate_lose_nothing(seed: int) -> None:
    """Bookies die and stand still while they hold the writer back."""
    outcome = simulate(seed, write_through_faults, seconds_max=900.0)
    assert [int(value.rstrip(b"\0")) for value in outcome.result] == list(range(ENTRIES))

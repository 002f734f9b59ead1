"""Thousands of adversarial schedules of one ledger: writer, two recoverers, crashes and losses."""

from __future__ import annotations

import os

import pytest

from tests.property.protocol.protocol_run import SIZES, Setting, run
from tests.property.protocol.protocol_world import Faults

pytestmark = pytest.mark.model

SEEDS = int(os.environ.get("BOOKIE_TEST_PROTOCOL_SEEDS", "100"))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_schedule_breaks_a_rule(sizes: tuple[int, int, int]) -> None:
    """Every rule holds at every step and at the end, for every seed."""
    for seed in range(SEEDS):
        try:
            run(seed, Setting(sizes))
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}")
            raise


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_duel_breaks_a_rule(sizes: tuple[int, int, int]) -> None:
    """The smallest races of writer and recoverer: one batch on its way when recovery begins."""
    for seed in range(3 * SEEDS):
        try:
            run(seed, Setting(sizes, duel=True, steps=30, faults=Faults(slow=0.35)))
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, duel")
            raise


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_schedule_breaks_deferred_sync(sizes: tuple[int, int, int]) -> None:
    """The LAC of a deferred-sync writer names only entries that no crash can take away."""
    for seed in range(SEEDS):
        try:
            run(seed, Setting(sizes, deferred_sync=True))
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, deferred sync")
            raise


@pytest.mark.parametrize("deferred_sync", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_lost_disk_breaks_a_rule(sizes: tuple[int, int, int], deferred_sync: bool) -> None:
    """Fewer bookies than an ack quorum come back empty, older, or with half of what they had."""
    losses = 0
    for seed in range(2 * SEEDS):
        try:
            faults = Faults(lose_disk=0.02)
            losses += run(seed, Setting(sizes, deferred_sync=deferred_sync, faults=faults)).losses
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, lost disks")
            raise
    assert (losses > SEEDS) is (sizes[2] > 1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_ensemble_change_breaks_a_rule(sizes: tuple[int, int, int]) -> None:
    """Two spares, a store that loses answers, bookies that go for good or lose their disks."""
    changes = losses = 0
    keeps_quorum = sizes[1] > sizes[2]
    for seed in range(3 * SEEDS):
        faults = Faults(
            lose_disk=0.01,
            kill_bookie=0.004 if keeps_quorum else 0.0,
            fail_metadata=0.15,
            break_stream=0.02,
        )
        try:
            world = run(seed, Setting(sizes, spares=2, faults=faults))
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, ensemble changes")
            raise
        changes, losses = changes + world.changes, losses + world.losses
    assert changes > SEEDS // 2

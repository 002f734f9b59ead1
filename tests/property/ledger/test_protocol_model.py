"""Thousands of adversarial schedules of one ledger: writer, two recoverers, crashes and losses."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.property.ledger.protocol_faults import Faults
from tests.property.ledger.protocol_run import SIZES, Setting, run

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
    for seed in range(3 * SEEDS):
        faults = Faults(
            lose_disk=0.01,
            kill_bookie=0.004,
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


UNRELIABLE = Faults(lose_call=0.15)
"""Many adds of a recovery are not answered, so that others take over."""

SURVIVORS = [sizes for sizes in SIZES if sizes[2] > 1]
"""A ledger may outlive one bookie: one of Qa copies may be gone, and a denial still counts."""


@pytest.mark.parametrize("sizes", SURVIVORS, ids=str)
def test_a_dead_bookie_and_a_spare_stop_no_recovery(sizes: tuple[int, int, int]) -> None:
    """One bookie dies for good at some step: the ledger is closed, and every rule holds (L1)."""
    newcomers = 0
    for seed in range(2 * SEEDS):
        try:
            newcomers += run(seed, Setting(sizes, spares=1, loses_bookie=True)).newcomers
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, one dead")
            raise
    if sizes[1] == sizes[2]:
        assert newcomers > SEEDS // 10


@pytest.mark.parametrize("sizes", [s for s in SURVIVORS if s[1] > s[2]], ids=str)
def test_no_recovery_waits_for_a_silent_bookie(sizes: tuple[int, int, int]) -> None:
    """If the others suffice, recovery ends without one timeout of the bookie that hangs."""
    for seed in range(SEEDS):
        try:
            run(seed, Setting(sizes, loses_bookie=True, silently=True))
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, one silent")
            raise


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_recovery_may_crash_at_any_step(sizes: tuple[int, int, int]) -> None:
    """Several recoveries crash between two of their effects; the last one closes."""
    newcomers = 0
    for seed in range(2 * SEEDS):
        try:
            setting = Setting(sizes, spares=2, crashing=True, faults=UNRELIABLE)
            newcomers += run(seed, setting).newcomers
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, crashing recoveries")
            raise
    assert newcomers > SEEDS // 10 or sizes[2] == 1


@pytest.mark.parametrize("sizes", SURVIVORS, ids=str)
def test_no_newcomer_loses_what_it_acknowledged(sizes: tuple[int, int, int]) -> None:
    """Bookies lose their disks, also newcomers that no metadata names yet."""
    newcomers = 0
    for seed in range(3 * SEEDS):
        faults = replace(UNRELIABLE, lose_disk=0.02)
        try:
            setting = Setting(sizes, spares=2, crashing=True, faults=faults)
            newcomers += run(seed, setting).newcomers
        except Exception as error:
            error.add_note(f"seed {seed}, sizes {sizes}, newcomers lose disks")
            raise
    assert newcomers > SEEDS // 10

"""An index that is lost is made again from the files, also when the power goes meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from bookie.node.engine.engine import Engine
from bookie.testing.simulation.loop import Mode
from bookie.testing.simulation.machine import Left, SimulatedMachine
from tests.sim.crash_images import Moment, Recorder, images_of, signature
from tests.sim.observed import check_files, packets_stored
from tests.sim.promises import Frozen, Promises
from tests.sim.script import changes_of, record

IMAGES_A_MOMENT = 12
MOMENTS = 6
"""Moments of a recording after which the index is lost."""


def without_index(left: Left) -> Left:
    """The same machine, and its index is gone."""
    machine = SimulatedMachine(left)
    for path in machine.disk.paths():
        if path.endswith(".mdb"):
            machine.disk.unlink(path)
    machine.disk.sync_directory("/d/ledgers/index")
    return Left(machine.disk.freeze(), left.boots, left.seconds, left.lives, left.stamped)


async def check_entries(engine: Engine, promises: Frozen, *, power: bool) -> int:
    """Every acknowledged entry has its newest bytes; doubt about the rest is announced.

    Returns how many entries there are.
    """
    assert engine.needs_integrity_check
    entries = 0
    for ledger_id, promise in promises.items():
        state = await engine.load(ledger_id)
        if True in promise.deleted or state.deleted:
            continue
        found = await packets_stored(engine, state)
        certain = promise.stored if power else promise.stored | promise.written
        assert certain.keys() <= found.keys(), f"ledger {ledger_id}: {certain.keys() - found}"
        for entry_id, packet in found.items():
            assert packet in promise.allowed(entry_id), f"{ledger_id}/{entry_id} is another"
        entries += len(found)
    check_files(engine)
    return entries


def moments_of(seed: int) -> list[Moment]:
    """Some moments between two calls, after a bookie has been through a lot."""
    moments = record(seed, mode=list(Mode)[seed % len(Mode)], interleaving=0.1 * seed)
    between = [moment for moment in moments if moment.inside is None and moment.left.stamped]
    return random.Random(f"rebuild/{seed}").sample(between, MOMENTS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two recordings by default, many in a soak."""
    if "seed" in metafunc.fixturenames:
        soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
        metafunc.parametrize("seed", range(100 if soak else 2))


def test_a_rebuild_has_every_entry_and_may_be_interrupted(
    seed: int, report: Callable[[str], None], count_images: Callable[[int], None]
) -> None:
    """At each of its calls; the next start begins it anew."""
    seen: set[bytes] = set()
    entries = 0
    for number, moment in enumerate(moments_of(seed)):
        choose = random.Random(f"rebuild/{seed}/{number}")
        lost = without_index(moment.left.after_kill())
        promises = Promises()
        promises.ledgers = dict(moment.promises)
        recorder = Recorder(promises)
        machine = SimulatedMachine(lost, seed, changes=changes_of(seed))
        recorder.watch(machine)
        entries += machine.die_after(partial(check_entries, promises=moment.promises, power=False))
        for later in recorder.moments:
            for image in images_of(later, choose, IMAGES_A_MOMENT):
                key = signature(image.left.image, number)
                if key in seen:
                    continue
                seen.add(key)
                again = SimulatedMachine(image.left, seed, changes=changes_of(seed))
                again.die_after(partial(check_entries, promises=moment.promises, power=image.power))
    report(f"rebuilds, recording {seed}: {len(seen)} images of {MOMENTS} rebuilds")
    count_images(len(seen))
    assert len(seen) > 50
    assert entries > 50

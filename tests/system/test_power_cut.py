"""Power cuts under a real bookie: what was acknowledged is there, and nothing else was promised.

The last tests turn the question round, with a kernel that forgets a sync. Power cuts must find it.
Killing the process cannot, because the page cache survives.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.crash_harness import Kill
from tests.system.devices import MIB, Volume, restarts_of_the_kernel, volume
from tests.system.power_harness import Cut, PowerHarness, cuts

DATA_MODES = ("ordered", "writeback", "journal")
"""What ext4 promises about data that was never synced; each seed has another one."""

DEVICE_BYTES = 1024 * MIB


@pytest.fixture(name="boot_id")
def _boot_id(tmp_path: Path) -> Iterator[Path]:
    with restarts_of_the_kernel(tmp_path) as path:
        yield path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some 36 cuts by default; 600, of seeds never tried before, in a soak."""
    if "seed" in metafunc.fixturenames:
        soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
        seeds = random.SystemRandom().sample(range(10**9), 50) if soak else range(3)
        metafunc.parametrize("seed", seeds)


@pytest.mark.timeout(1800)
async def test_power_cuts_lose_nothing(seed: int, tmp_path: Path, ram: Path, boot_id: Path) -> None:
    """Under load, at every failpoint, and while it boots from the cut before."""
    mode = f"commit=1,data={DATA_MODES[seed % len(DATA_MODES)]}"
    with volume(ram, "disk", DEVICE_BYTES, options=mode) as disk:
        harness = PowerHarness(tmp_path, seed, [disk], boot_id=boot_id)
        await live_and_finish(harness, cuts(seed))
        assert harness.promises.fenced


async def live_and_finish(harness: PowerHarness, lives: list[Kill]) -> None:
    """All `lives`, each of which may only end as it was meant to, and a last look."""
    try:
        await harness.initialize()
        for kill in lives:
            await harness.live(kill)
        await harness.finish()
    finally:
        await harness.close()
    missed = [
        life.kill.failpoint for life in harness.lives if life.kill.failpoint and not life.reached
    ]
    assert not missed, f"seed {harness.seed}: these failpoints were never passed: {missed}"
    assert len(harness.promises.batches) > 20


@pytest.fixture(name="two")
def _two(ram: Path) -> Iterator[list[Volume]]:
    """A device for the journal, and one for the rest."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(volume(ram, name, DEVICE_BYTES)) for name in ("fast", "capacity")
        ]


async def test_two_devices_lose_power_together(
    tmp_path: Path, two: list[Volume], boot_id: Path
) -> None:
    """Whatever the one got of the last seconds and the other did not."""
    lives = [Cut(after_seconds=seconds) for seconds in (0.8, 0.2, 1.1)]
    harness = PowerHarness(tmp_path, 77, two, boot_id=boot_id)
    await live_and_finish(harness, [*lives, Cut(after_seconds=0.8, booting=True)])


@pytest.mark.parametrize("index", [0, 1])
async def test_one_device_of_two_goes_away(
    index: int, tmp_path: Path, two: list[Volume], boot_id: Path
) -> None:
    """The bookie ends by itself, with the status that says so; back in, everything is there."""
    harness = PowerHarness(tmp_path, 78 + index, two, boot_id=boot_id)
    lives: list[Kill] = [Cut(after_seconds=0.7, volumes=(index,), wait=True) for _ in range(2)]
    await live_and_finish(harness, lives)


# ---- the test of the tests --------------------------------------------------------------------

FORGOTTEN = {
    "journal": [f"journal/{number:08d}.journal" for number in range(64)],
    "index": ["ledgers/index/data.mdb"],
    "replayed": [f"ledgers/logs/{number:08d}.log.tmp" for number in range(64)],
}
"""Files whose syncs are forgotten, each losing something else; by the names they have just then."""

TRACED = ("-e", "trace=fdatasync,fsync")
LIES = (*TRACED, "-e", "inject=fdatasync,fsync:retval=0")


SYNCS_ALONE = "commit=300"
"""Nothing but a sync makes anything durable, or chance could hide what is missing."""


async def test_kills_cannot_find_a_kernel_that_never_syncs(
    tmp_path: Path, ram: Path, boot_id: Path
) -> None:
    """The page cache outlives the process: killing proves nothing about a sync."""
    with volume(ram, "disk", DEVICE_BYTES) as disk:
        harness = PowerHarness(tmp_path, 99, [disk], boot_id=boot_id, inject=LIES, cut_power=False)
        await live_and_finish(harness, [Kill(after_seconds=0.7) for _ in range(3)])


@pytest.mark.parametrize("forgotten", FORGOTTEN)
async def test_power_cuts_find_a_sync_that_is_missing(
    forgotten: str, tmp_path: Path, ram: Path, boot_id: Path
) -> None:
    """The same run with power cuts notices within three lives."""
    with volume(ram, "disk", DEVICE_BYTES, options=SYNCS_ALONE) as disk:
        paths = [f"{disk.path}/{name}" for name in FORGOTTEN[forgotten]]
        inject = [*LIES, *(word for path in paths for word in ("-P", path))]
        harness = PowerHarness(tmp_path, 99, [disk], boot_id=boot_id, inject=inject)
        found = await first_finding(harness, [Cut(after_seconds=0.7) for _ in range(3)])
    assert re.search(r"^lost |^forgot |^other bytes|corruption|rebuilt", found), found


async def test_the_same_power_cuts_find_nothing_where_every_sync_is_made(
    tmp_path: Path, ram: Path, boot_id: Path
) -> None:
    """What is found above is the missing sync, not the way of looking for it."""
    with volume(ram, "disk", DEVICE_BYTES, options=SYNCS_ALONE) as disk:
        harness = PowerHarness(tmp_path, 99, [disk], boot_id=boot_id, inject=TRACED)
        await live_and_finish(harness, [Cut(after_seconds=0.7) for _ in range(3)])


async def first_finding(harness: PowerHarness, lives: list[Kill]) -> str:
    """What the harness complained about; empty when it found nothing."""
    try:
        await live_and_finish(harness, lives)
    except AssertionError as error:
        return str(error)
    except BaseExceptionGroup as group:
        found = group.subgroup(AssertionError)
        if found is None:
            raise
        return str(_leaf(found))
    return ""


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first

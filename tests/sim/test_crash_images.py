"""The engine is started on thousands of crash images of a workload that does everything."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.sim.crash_images import try_moments
from tests.sim.loop import Mode
from tests.sim.script import CHANGES, record

RECORDINGS = ((0, Mode.FIFO, 0.0), (1, Mode.UNIFORM, 0.3), (2, Mode.PRIORITY, 0.3))
IMAGES_A_MOMENT = 24
IMAGES_MIN = 1_000
"""Of each recording; equal images with equal promises are one."""

RECORDINGS_OF_A_SOAK = 160


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A few recordings by default; in a soak enough for 300 000 images."""
    if "recording" not in metafunc.fixturenames:
        return
    soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
    modes = list(Mode)
    many = [
        (seed, modes[seed % len(modes)], 0.0 if seed % 4 == 0 else 0.1 * (seed % 7))
        for seed in range(RECORDINGS_OF_A_SOAK)
    ]
    metafunc.parametrize("recording", many if soak else RECORDINGS, ids=lambda item: str(item[0]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_legal_image_keeps_every_promise(
    recording: tuple[int, Mode, float], report: Callable[[str], None]
) -> None:
    """At every boundary of disk and index, whatever a kill or a power cut may leave."""
    seed, mode, interleaving = recording
    moments = record(seed, mode=mode, interleaving=interleaving)
    started = time.monotonic()
    tally = try_moments(moments, seed, IMAGES_A_MOMENT, CHANGES)
    seconds = time.monotonic() - started
    report(
        f"crash images, recording {seed} ({mode.value}): {tally.images} images of "
        f"{tally.moments} moments, {tally.images / seconds:.0f}/s; {tally.deep} went on and "
        f"crashed again, {tally.double} crashed while they started"
    )
    assert tally.images >= IMAGES_MIN

"""The engine is started on thousands of crash images of a workload that does everything."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bookie.testing.simulation.loop import Mode
from tests.sim.crash_images import try_moments
from tests.sim.script import changes_of, record

RECORDINGS = 2
RECORDINGS_OF_A_SOAK = 180
IMAGES_A_MOMENT = 16
IMAGES_MIN = 1_700
"""Of each recording; equal images with equal promises are one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some thousand images by default, three hundred thousand in a soak."""
    if "recording" not in metafunc.fixturenames:
        return
    soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
    metafunc.parametrize("recording", range(RECORDINGS_OF_A_SOAK if soak else RECORDINGS))


@pytest.mark.timeout(1800)
def test_every_legal_image_keeps_every_promise(
    recording: int, report: Callable[[str], None], count_images: Callable[[int], None]
) -> None:
    """At every boundary of disk and index, whatever a kill or a power cut may leave."""
    mode = list(Mode)[recording % len(Mode)]
    moments = record(
        recording, mode=mode, interleaving=0.15 * (recording % 4), old_room=recording % 2 == 1
    )
    started = time.monotonic()
    tally = try_moments(moments, recording, IMAGES_A_MOMENT, changes_of(recording), IMAGES_MIN)
    seconds = time.monotonic() - started
    report(
        f"crash images, recording {recording} ({mode.value}): {tally.images} images of "
        f"{tally.moments} moments, {tally.images / seconds:.0f}/s; {tally.deep} went on and "
        f"crashed again, {tally.double} crashed while they started"
    )
    count_images(tally.images)
    assert tally.images >= IMAGES_MIN

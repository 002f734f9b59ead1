"""The watch over the devices, by a clock that the test moves: late looks and devices that hang."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie.config import StorageSettings
from bookie.env import SystemClock
from bookie.node.engine.hung_devices import DeviceWatch
from bookie.telemetry import Metrics

SYNC_FAIL_SECONDS = 60.0
STOPPED_SECONDS = 10 * SYNC_FAIL_SECONDS
DEVICES = ("journal", "ledgers", "index")


class MovedClock(SystemClock):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        """The test's time."""
        return self.seconds


@dataclass
class Watched:
    """A watch over devices that hold answers back as the test says."""

    clock: MovedClock
    watch: DeviceWatch
    metrics: Metrics
    parts: dict[str, Any]
    failures: list[BaseException] = field(default_factory=list)

    def hold(self, device: str) -> None:
        """From now on `device` owes an answer."""
        self._owe(device, self.clock.seconds)

    def answer(self, device: str) -> None:
        """`device` owes nothing."""
        self._owe(device, None)

    def _owe(self, device: str, since: float | None) -> None:
        if device == "journal":
            self.parts["queue"].waiting_since = since
        elif device == "ledgers":
            self.parts["removal"].working_since = since
        else:
            self.parts["store"].is_committing = since is not None
            self.parts["store"].commits_begun += since is not None

    def look_after(self, seconds: float) -> None:
        """Let time pass, and look."""
        self.clock.seconds += seconds
        self.watch.look()

    def seconds_until_failure(self, seconds_max: float = 10 * SYNC_FAIL_SECONDS) -> float:
        """Look whenever a look is due until one ends the engine; how long that took."""
        began = self.clock.seconds
        while not self.failures and self.clock.seconds < began + seconds_max:
            self.look_after(self.watch.interval_seconds)
        return self.clock.seconds - began


@pytest.fixture(name="watched")
def _watched() -> Watched:
    return watched_for(SYNC_FAIL_SECONDS)


def watched_for(sync_fail_seconds: float) -> Watched:
    """A watch that ends the engine after so many seconds."""
    settings = StorageSettings(
        journal_dir=Path("/journal"),
        ledgers_dir=Path("/ledgers"),
        sync_warn_seconds=sync_fail_seconds / 10,
        sync_fail_seconds=sync_fail_seconds,
    )
    clock, metrics, failures = MovedClock(), Metrics(), list[BaseException]()
    store: Any = SimpleNamespace(is_committing=False, commits_begun=0)
    queue: Any = SimpleNamespace(waiting_since=None)
    removal: Any = SimpleNamespace(working_since=None)
    watch = DeviceWatch(clock, settings, metrics, store, queue, removal, failures.append)
    parts = {"store": store, "queue": queue, "removal": removal}
    return Watched(clock, watch, metrics, parts, failures)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_hangs_ends_the_engine_in_time(watched: Watched, device: str) -> None:
    """Not before the configured time, and at the first look after it."""
    watched.hold(device)
    waited = watched.seconds_until_failure()
    assert device in str(watched.failures[0])
    # The commit of the index is timed from the look that first saw it.
    assert SYNC_FAIL_SECONDS <= waited <= SYNC_FAIL_SECONDS + 2 * watched.watch.interval_seconds


@pytest.mark.parametrize("device", DEVICES)
def test_a_late_look_proves_nothing(watched: Watched, device: str) -> None:
    """The whole process stood still: the answer may have come long ago, and be unheard."""
    watched.hold(device)
    watched.look_after(watched.watch.interval_seconds)
    watched.look_after(STOPPED_SECONDS)
    assert not watched.failures
    watched.answer(device)
    watched.look_after(watched.watch.interval_seconds)
    watched.hold(device)
    watched.look_after(watched.watch.interval_seconds)
    assert not watched.failures


@pytest.mark.parametrize("device", DEVICES)
def test_a_stop_just_before_the_end_ends_nothing(watched: Watched, device: str) -> None:
    """A device that was slow before the stop gets the rest of its time after it."""
    watched.hold(device)
    while watched.clock.seconds < 1000.0 + SYNC_FAIL_SECONDS - 1:
        watched.look_after(watched.watch.interval_seconds)
    watched.look_after(STOPPED_SECONDS)
    assert not watched.failures
    watched.answer(device)
    assert watched.seconds_until_failure(STOPPED_SECONDS) >= STOPPED_SECONDS


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_hangs_through_a_stop_ends_the_engine(watched: Watched, device: str) -> None:
    """The time around the stop counts, the stop does not."""
    watched.hold(device)
    for _ in range(10):
        watched.look_after(watched.watch.interval_seconds)
    watched.look_after(STOPPED_SECONDS)
    waited = watched.seconds_until_failure()
    before = 10 * watched.watch.interval_seconds
    assert watched.failures
    assert abs(before + waited - SYNC_FAIL_SECONDS) <= 2 * watched.watch.interval_seconds


def test_a_machine_on_which_every_look_is_late_still_notices(watched: Watched) -> None:
    """Each late look counts as one interval, so that the end comes in the end."""
    watched.hold("journal")
    looks = 0
    while not watched.failures and looks < 1000:
        watched.look_after(5 * watched.watch.interval_seconds)
        looks += 1
    assert watched.failures
    assert looks * watched.watch.interval_seconds >= SYNC_FAIL_SECONDS


def test_a_request_after_the_stop_has_all_its_time(watched: Watched) -> None:
    """A request that came behind a stop is not credited with it either."""
    watched.look_after(STOPPED_SECONDS)
    watched.hold("journal")
    assert watched.seconds_until_failure() <= SYNC_FAIL_SECONDS + watched.watch.interval_seconds


def test_a_stop_is_no_slow_sync(watched: Watched) -> None:
    """It would be an alarm for nothing; a sync that is slow while the loop runs is one, once."""
    watched.hold("journal")
    watched.look_after(STOPPED_SECONDS)
    slow = watched.metrics.errors_total.labels("slow_sync")
    assert slow._value.get() == 0
    for _ in range(20):
        watched.look_after(watched.watch.interval_seconds)
    assert slow._value.get() == 1


def test_a_short_limit_is_looked_at_often_enough() -> None:
    """A single late look is never the first that could have noticed."""
    watched = watched_for(0.2)
    watched.hold("journal")
    watched.look_after(watched.watch.interval_seconds)
    watched.look_after(10.0)
    assert not watched.failures
    assert watched.seconds_until_failure() <= 2 * 0.2

"""What a run costs: its ten most costly groups of tests, each with the reason why it stays.

A group is a file, or files that one process runs together (`sharing.py`). Who adds a costly test
writes the reason here, or makes it cheap. With several processes, seconds overlap; a group's share
is of the seconds of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from tests.sharing import group_of

GROUPS = 10
QUIET_TESTS_MAX = 100
QUIET_SECONDS_MAX = 60.0
"""A run of fewer tests that takes no longer prints nothing."""

NO_REASON = "no reason is written down"

REASONS = {
    "spark": "one JVM and one cluster, started once; Spark plans each frame and starts workers",
    "installed": "fresh environments as users make them, 1 GB with Spark, and the guides typed",
    "corruption": "a bookie starts two times on each of 544 damages and of 250 random ones",
    "bookie local": "clusters of processes as users start them; a port is chosen by one at a time",
    "sources": "each file of the tree is read by each rule",
    "tests/abuse/test_floods.py": "13 kinds of floods, each for 6 s on a bookie of its own",
    "tests/abuse/test_greed.py": "9 kinds of greed, each for 8 s on a bookie of its own",
    "tests/abuse/test_http_abuse.py": "10 kinds of abuse, each for 5 s on a bookie of its own",
    "tests/cluster_sim/test_cluster_sim.py": "seeds of whole clusters reach all rare things",
    "tests/cluster_sim/test_cluster_sim_finds_bugs.py": "14 clusters with one bug are caught",
    "tests/cluster_sim/test_log_sim.py": "50 seeds of logs reach all rare things of logs",
    "tests/cluster_sim/test_log_sim_finds_bugs.py": "7 logs with one bug are caught",
    "tests/explorer/test_explorer.py": "all orders of events, in scopes that find mutants",
    "tests/fault/test_crash_kill.py": "forty lives of a bookie that end at kills",
    "tests/fault/test_logs_at_random.py": "eight episodes on each kind of store, judged as a whole",
    "tests/fault/test_lost_disks.py": "each loss of a disk, on bookies that stop and start for it",
    "tests/fault/test_lost_disks_at_random.py": "eight episodes on each kind of store",
    "tests/fault/test_repair_at_random.py": "sixty episodes with sessions that end and repairs",
    "tests/fault/test_replacement.py": "a thousand ledgers lose a bookie at once",
    "tests/fault/test_true_health.py": "an operator's stories, each with bookies of its own",
    "tests/fuzz/test_fuzz_hypothesis.py": "two thousand inputs for each parser of bytes",
    "tests/matrix/test_io_errors.py": "each call on each kind of file fails, in three phases",
    "tests/sim/test_crash_images.py": "thousands of images that a crash may leave, each opened",
    "tests/system/test_failing_calls.py": "each call that may fail fails once, in a real bookie",
    "tests/system/test_full_disks.py": "real devices are filled, and emptied again",
    "tests/system/test_power_cut.py": "the power of a device is cut, and a bookie starts on it",
}
"""Group → why its price is right."""


class Costs:
    """Adds up what reports say. Only the process that prints has them all."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tests: set[str] = set()
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        self._tests.add(report.nodeid)
        group = cost_group(report.nodeid)
        self._seconds[group] = self._seconds.get(group, 0.0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the groups of a run that was not small."""
        small = len(self._tests) <= QUIET_TESTS_MAX
        if small and time.monotonic() - self._began <= QUIET_SECONDS_MAX:
            return
        terminalreporter.write_sep("-", "the most costly groups")
        for line in told(self._seconds):
            terminalreporter.write_line(line)


def cost_group(nodeid: str) -> str:
    """The name of a group that is one process's, else the test's file."""
    group = group_of(nodeid)
    return nodeid.partition("::")[0] if group == nodeid else group


def told(seconds: Mapping[str, float]) -> Iterator[str]:
    """A line for each of the most costly groups."""
    total = sum(seconds.values())
    for group in sorted(seconds, key=lambda one: -seconds[one])[:GROUPS]:
        share = seconds[group] / total if total else 0.0
        yield f"{seconds[group]:5.0f} s {share:4.0%}  {group}: {REASONS.get(group, NO_REASON)}"


def pytest_configure(config: pytest.Config) -> None:
    """Each run has its own sums."""
    config.pluginmanager.register(Costs(), "costs of groups")

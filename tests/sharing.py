"""How several processes share the tests of a run (``make test``): one by one, but for a few files.

A plugin of pytest-xdist. It replaces xdist's own groups by marks. Those fail under pytest 9, which
no longer reads the attribute that they are written into.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    # One process has the answers of all cells; both keep every core busy by themselves.
    "tests/matrix/test_corruption_matrix.py": "corruption",
    "tests/matrix/test_corruption_fuzz.py": "corruption",
    # `bookie local` chooses ports before its bookies listen on them: one such at a time.
    "tests/examples/test_examples.py": "bookie local",
    "tests/fault/test_commands_on_a_cluster.py": "bookie local",
    "tests/fault/test_demo.py": "bookie local",
    "tests/fault/test_local_cluster.py": "bookie local",
    "tests/system/test_first_process.py": "bookie local",
    # It parses every file once.
    "tests/unit/test_tidy.py": "sources",
}
"""File → the group that one process runs, one test after the other."""

SPARK = "tests/spark/test_"
"""All of these share one JVM and one cluster. Those of ``tests/spark/unit`` need neither."""

INSTALLED = "tests/installed/"
"""They share environments that take a minute to make."""


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to; its own name if it runs by itself."""
    if nodeid.startswith(SPARK):
        return "spark"
    if nodeid.startswith(INSTALLED):
        return "installed"
    return TOGETHER.get(nodeid.partition("::")[0], nodeid)


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The groups of `TOGETHER` first, the largest before the others; then each test by itself.

    Whoever has little left gets the next one, in the order of the collection.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Sharing | None:
    """Take the place of ``--dist loadgroup``."""
    return Sharing(config, log) if config.getoption("dist") == "loadgroup" else None

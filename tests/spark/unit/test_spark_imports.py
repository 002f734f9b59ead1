"""The imports of each Spark process before it has work."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = {"bookie.api", "bookie.config", "bookie.sync", "grpc", "pydantic"}
"""Modules that are imported with the client: they take 0.5 to 0.9 s of each process."""

LOOK = "import sys, {}; print(*sorted({!r} & sys.modules.keys()))"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        pytest.param("pyspark_bookkeeper", {*CLIENT, "numpy", "pyarrow"}, id="looks-for-sources"),
        pytest.param("bookie.spark.stream_source", CLIENT, id="plans-a-stream"),
        pytest.param("bookie.spark.batch_source", CLIENT, id="unpickles-a-batch"),
        pytest.param("bookie.spark.sinks, bookie.spark.tables.reading", set(), id="writes"),
    ],
)
def test_a_phase_imports_only_what_it_uses(modules: str, absent: set[str]) -> None:
    """Pandas takes half a second of each process, and no phase uses it."""
    code = LOOK.format(modules, {*absent, "pandas"})
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"

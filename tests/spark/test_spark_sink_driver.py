"""Drivers are killed by SIGKILL between the log's commit and Spark's, and others go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from bookie.sync import SyncBookKeeper
from tests.spark.sink_checker import sink_problems
from tests.spark.sink_streams import FileStream, orphans_of, rows_in


def run_driver(stream: FileStream, kill_at: str) -> int:
    """Run a driver until it ends, or is killed; returns how it ended."""
    asked = {
        "uri": stream.uri,
        "directory": str(stream.directory),
        "query": stream.query,
        "logs": stream.logs,
        "kill_at": kill_at,
    }
    words = [sys.executable, "-m", "tests.spark.sink_driver", json.dumps(asked)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        words, env=environment, check=False, cwd=Path(__file__).parents[2]
    ).returncode


def committed(stream: FileStream) -> list[str]:
    """The batches that Spark knows to be done."""
    return sorted(path.name for path in (stream.checkpoint / "commits").glob("[0-9]*"))


def test_killed_drivers(
    spark: SparkSession,
    uri: str,
    bk: SyncBookKeeper,
    log: str,
    tmp_path: Path,
    is_soak: bool,
) -> None:
    """One dies when one of two logs has batch 1; in a soak another when both have batch 2."""
    logs = (f"{log}-a", f"{log}-b")
    for name in logs:
        bk.create_log(name, partitions=2, transactional=True)
    stream = FileStream(spark, uri, tmp_path / "stream", "q", logs, files=3)
    stream.make_input()

    assert run_driver(stream, "published-1-0") == -signal.SIGKILL
    assert committed(stream) == ["0"]
    application = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    # No transaction holds both logs.
    assert [bk.publisher(name).last_batch(application) for name in logs] == [1, 0]
    before = rows_in(bk, logs)

    if is_soak:
        assert run_driver(stream, "published-2-1") == -signal.SIGKILL
        assert committed(stream) == ["0", "1"]
        assert [bk.publisher(name).last_batch(application) for name in logs] == [2, 2]
        before = rows_in(bk, logs)

    assert run_driver(stream, "") == 0
    assert committed(stream) == ["0", "1", "2"]
    found = rows_in(bk, logs)
    assert sink_problems(stream.expected, found) == []
    for place, rows in before.items():  # what was published comes a second time, and is dropped
        assert found[place][: len(rows)] == rows
    bk.sweep_logs(older_than_seconds=0)
    assert orphans_of(bk, *logs) == set()
    assert rows_in(bk, logs) == found

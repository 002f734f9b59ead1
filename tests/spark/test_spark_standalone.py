"""A real cluster of Spark: a master and two workers, each with an executor of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bookie.sync import SyncBookKeeper
from tests.servers.standalone_spark import WORKERS, standalone_spark
from tests.spark.standalone_job import ROWS

JOB = Path(__file__).parent / "standalone_job.py"


@pytest.mark.timeout(1800)
def test_two_workers_write_and_read(uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path) -> None:
    bk.create_log(log, partitions=2, transactional=True)
    with standalone_spark(tmp_path) as cluster:
        job = subprocess.run(
            cluster.submit_command(str(JOB), uri, log),
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
    assert job.returncode == 0, job.stderr[-4000:]
    assert f"FOUND {ROWS} {ROWS} {WORKERS}" in job.stdout
    keys: dict[bytes | None, set[int]] = {}
    for record in bk.read_log(log):
        keys.setdefault(record.key, set()).add(record.partition)
    assert len(keys) == 7
    assert all(len(partitions) == 1 for partitions in keys.values())

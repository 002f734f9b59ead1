"""A topic of a real Kafka broker becomes a log by the command that a user types, twice the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bookie.sync
from bookie.log.record.log_record import LogRecord
from tests.servers.kafka_broker import KafkaBroker, kafka_broker
from tests.spark.conftest import three_bookies

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300
"""One session of Spark takes ten to twenty seconds."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker whose topics have three partitions."""
    with kafka_broker(tmp_path_factory.mktemp("kafka"), 3) as running:
        yield running


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def fill(broker: KafkaBroker, topic: str) -> None:
    """Write the rows of `fill_topic` once more."""
    done = run("tests/kafka/fill_topic.py", broker.address, topic, broker.spark_jars)
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_topic_is_migrated_once(broker: KafkaBroker, tmp_path: Path) -> None:
    """Defaults refuse a tombstone. What was migrated stays so, and new records follow it."""
    uri, checkpoint = f"local://{tmp_path}/bookies/metadata", tmp_path / "checkpoint"

    def migrate(*options: str) -> subprocess.CompletedProcess[str]:
        words = ["-m", "bookie", "spark", "migrate-from-kafka", broker.address, "events"]
        words += ["--metadata", uri, "--checkpoint", str(checkpoint), "--output", "json"]
        words += ["--create", "--partitions", "3", "--keep-partitions", "--master", "local[2]"]
        words += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.jars={broker.spark_jars}"]
        return run(*words, *options)

    def moved(*options: str) -> dict[str, Any]:
        done = migrate(*options)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def read() -> list[list[LogRecord]]:
        with bookie.sync.connect(uri) as bk:
            return [list(bk.read_log("events", partition=number)) for number in range(3)]

    with three_bookies(tmp_path / "bookies"):
        began_ms = time.time_ns() // 1_000_000
        fill(broker, "events")
        ended_ms = time.time_ns() // 1_000_000
        refused = migrate()
        assert refused.returncode == 1
        assert "topic events, partition 2, offset 0: the value is null" in refused.stderr
        assert "--tombstones skip leaves such records out" in refused.stderr
        assert "Traceback" not in refused.stderr

        assert moved("--tombstones", "empty")["rows"] == 6
        first = read()
        found = [[(one.key, one.value) for one in records] for records in first]
        assert found == [
            [(b"k0", b"plain"), (b"k0", b"headers")],
            [(None, b"no key"), (b"", b"")],
            [(b"k2", b""), (b"k5", b"x" * 900_000)],
        ]
        assert [dict(one.headers) for one in first[0]] == [
            {},
            {"a": b"1", "b": b"", "a#2": b"2", "a#3": b""},
        ]
        assert dict(first[2][0].headers) == {"why": b"a tombstone"}
        filled_ms = [one.timestamp_ms for records in first for one in records]
        assert began_ms <= min(filled_ms)
        assert max(filled_ms) <= ended_ms

        assert moved("--tombstones", "empty")["rows"] == 0
        assert read() == first
        fill(broker, "events")
        assert moved("--tombstones", "skip")["rows"] == 5
        again = read()
        assert [len(records) for records in again] == [4, 4, 3]
        assert [records[:2] for records in again] == first

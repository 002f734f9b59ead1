"""Streams of files into logs, which tests kill and start again, and what became of their rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from bookie.errors import NoSuchLedgerError
from bookie.ids import LOG_TAG
from bookie.sync import SyncBookKeeper
from tests.spark.faulty_sink import FaultySource
from tests.spark.sink_checker import Place, row_text

SMALL_SPLITS = {
    "spark.sql.files.maxPartitionBytes": "160",
    "spark.sql.files.openCostInBytes": "0",
}
"""A file of more bytes is read by more than one task."""


@contextmanager
def file_streams(spark: SparkSession) -> Iterator[None]:
    """The session's settings for streams of files."""
    for name, value in SMALL_SPLITS.items():
        spark.conf.set(name, value)
    spark.dataSource.register(FaultySource)
    yield
    for name in SMALL_SPLITS:
        spark.conf.unset(name)


@dataclass(frozen=True)
class FileStream:
    """A stream whose batches are files. Rows go to `logs` in turn, by key."""

    spark: SparkSession
    uri: str
    directory: Path
    query: str
    logs: tuple[str, ...]
    files: int = 4
    rows: int = 24

    @property
    def faults(self) -> Path:
        """The directory in which faults are planted."""
        return self.directory / "faults"

    @property
    def checkpoint(self) -> Path:
        """The directory of Spark's checkpoint."""
        return self.directory / "checkpoint"

    @property
    def expected(self) -> list[str]:
        """All rows."""
        return [
            row_text(self.query, file, row)
            for file in range(self.files)
            for row in range(self.rows)
        ]

    def make_input(self) -> None:
        """Write the files; their times order them."""
        source = self.directory / "input"
        source.mkdir(parents=True)
        self.faults.mkdir()
        for file in range(self.files):
            path = source / f"{file}.txt"
            path.write_text(
                "".join(row_text(self.query, file, row) + "\n" for row in range(self.rows))
            )
            os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))

    def frame(self) -> DataFrame:
        """The rows of the files, one file a batch."""
        files = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        number = F.split("value", "/")[2].cast("int")
        logs = F.array(*map(F.lit, self.logs))
        return files.load(str(self.directory / "input")).select(
            "value",
            F.concat(F.lit("key-"), (number % 5).cast("string")).alias("key"),
            logs[number % len(self.logs)].alias("log"),
        )

    def start(self) -> StreamingQuery:
        """Go on from the checkpoint to the last file."""
        # Spark looks for registered sources in the session of the thread, which this sets.
        self.spark.createDataFrame([], "value string")
        writing = self.frame().writeStream.format("faulty").option("metadata", self.uri)
        writing = writing.option("faults", str(self.faults)).trigger(availableNow=True)
        return writing.option("checkpointLocation", str(self.checkpoint)).start()


def rows_in(bk: SyncBookKeeper, logs: Iterable[str]) -> dict[Place, list[str]]:
    """All rows of some logs, by partition."""
    found: dict[Place, list[str]] = {}
    for log in logs:
        for record in bk.read_log(log):
            found.setdefault((log, record.partition), []).append(record.value.decode())
    return found


def ledgers_by_log(bk: SyncBookKeeper) -> dict[str, set[int]]:
    """The ledgers that were made for each log, published or not."""
    found: dict[str, set[int]] = {}
    for ledger_id in bk.list_ledgers():
        with suppress(NoSuchLedgerError):  # another stream has aborted it
            tag = bk.ledger_metadata(ledger_id).custom_metadata.get(LOG_TAG, b"").decode()
            found.setdefault(tag.split(" ")[0].removeprefix("default/"), set()).add(ledger_id)
    return found


def orphans_of(bk: SyncBookKeeper, *logs: str) -> set[int]:
    """The ledgers of logs that have no record which a reader sees."""
    ledgers = ledgers_by_log(bk)
    orphans = set()
    for log in logs:
        orphans |= ledgers.get(log, set()) - {record.ledger_id for record in bk.read_log(log)}
    return orphans

"""Spark Connect: the example, and every job, as processes that have no Java of their own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bookie.sync import SyncBookKeeper
from tests.spark.connect_jobs import ROWS
from tests.spark.damage import change_metadata, with_bookies, write_ledger
from tests.spark.programs import run_program

RECORDS = 300


@pytest.mark.timeout(1800)
def test_the_example_writes_reads_streams_and_queries(
    connect_address: str, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    lines = run_program(
        *("examples/spark/connect.py", "--remote", connect_address, "--metadata", uri),
        *("--log", log, "--rows", str(RECORDS), "--checkpoints", str(tmp_path)),
    ).splitlines()
    assert lines == [
        f"{log} has {RECORDS} records of 97 shops",
        f"the stream copied {RECORDS} records to {log}-copy",
        f"table logs: {log} {RECORDS}",
        f"table logs: {log}-copy {RECORDS}",
    ]
    values = {record.value for record in bk.read_log(f"{log}-copy")}
    assert values == {b'{"id":%d,"shop":%d}' % (number, number % 97) for number in range(RECORDS)}


@pytest.mark.timeout(1800)
def test_every_job_runs_or_says_what_is_missing(
    connect_address: str, uri: str, bk: SyncBookKeeper, log: str, tmp_path: Path
) -> None:
    bk.create_log(log, transactional=True)
    ledger = asyncio.run(write_ledger(uri, [b"x" * 100] * 10, ensemble=2, copies=2))
    has_none = set(bk.bookies()) - {*ledger.last_fragment.bookies}
    everywhere = with_bookies(ledger, *ledger.last_fragment.bookies, *has_none)
    asyncio.run(change_metadata(uri, everywhere))
    found = json.loads(
        run_program(
            *("-m", "tests.spark.connect_jobs", connect_address, uri),
            *(log, str(ledger.ledger_id), str(tmp_path)),
        )
    )
    assert found.pop("static setting").startswith("a client of Spark Connect cannot set spark.exec")
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka" in found.pop("kafka")
    assert found == {
        "ingested": ROWS,
        "exported": ROWS,
        "ids": ROWS,
        "damaged": True,
        "repaired": {"repaired": 1},
        "damaged later": False,
        "bookies": 3,
        "no such log": "there is no log none; create it first",
    }

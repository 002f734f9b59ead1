"""Audits find what is damaged and nothing else; repairs mend it with the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.api import connect
from bookie.cli.app import run
from bookie.errors import BadRequestError
from bookie.ledger.copies.replica_audit import IN_LIMBO
from bookie.ledger.metadata import LedgerMetadata
from bookie.spark.jobs.audit import audit, audit_page, verdicts
from bookie.spark.jobs.marks import JobMark, write_mark
from bookie.spark.jobs.repair import repair
from bookie.spark.jobs.small_files import small_files
from bookie.sync import SyncBookKeeper
from tests.spark.damage import (
    NAMES,
    change_metadata,
    flip_bit,
    running,
    with_bookies,
    write_ledger,
    write_ledgers,
)

PAYLOADS = [b"payload %d " % number * 20 for number in range(40)]
MARKED = b"the entry whose bit is flipped " * 8


@dataclass(frozen=True)
class Planted:
    """Ledgers by what is wrong with them."""

    clean: LedgerMetadata
    striped: LedgerMetadata
    missing: LedgerMetadata
    misplaced: LedgerMetadata
    corrupt: LedgerMetadata
    wrong_length: LedgerMetadata


async def _plant(uri: str) -> Planted:
    planted = Planted(
        clean=await write_ledger(uri, PAYLOADS),
        striped=await write_ledger(uri, PAYLOADS, ensemble=4, copies=2),
        missing=await write_ledger(uri, PAYLOADS, ensemble=2, copies=2),
        misplaced=await write_ledger(uri, PAYLOADS),
        corrupt=await write_ledger(uri, [*PAYLOADS[:7], MARKED, *PAYLOADS[8:]]),
        wrong_length=await write_ledger(uri, PAYLOADS),
    )
    first, second = planted.missing.last_fragment.bookies
    newcomer = next(name for name in NAMES if name not in (first, second))
    await change_metadata(uri, with_bookies(planted.missing, first, second, newcomer))
    stayed = planted.misplaced.last_fragment.bookies[:2]
    stranger = next(
        name for name in NAMES if name not in planted.misplaced.last_fragment.bookies
    )  # fmt: skip
    await change_metadata(uri, with_bookies(planted.misplaced, *stayed, stranger))
    await change_metadata(
        uri, replace(planted.wrong_length, length=planted.wrong_length.length + 7)
    )
    return planted


@dataclass(frozen=True)
class Damaged:
    """A cluster that runs, and is damaged."""

    uri: str
    planted: Planted


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """Damage in the metadata while the bookies run, and in a file while they do not.

    The bookies repair nothing by themselves: an audit would not find what they have mended.
    """
    home = tmp_path_factory.mktemp("damaged")
    with running(home) as uri:
        assert run(["cluster", "settings", "set", "repair.enabled=false", "-m", uri]) == 0
        planted = asyncio.run(_plant(uri))
    flip_bit(home, planted.corrupt.last_fragment.bookies[1], MARKED)
    with running(home) as uri:
        yield Damaged(uri, planted)


Found = set[tuple[int, str, str, int, str]]


def _found(spark: SparkSession, report: str) -> Found:
    """What an audit found. A bookie's own check may have put it in doubt meanwhile, or not yet."""
    rows = spark.read.parquet(f"{report}/verdicts").where("verdict <> 'ok'").collect()
    return {
        (
            row["ledgerId"],
            row["bookie"],
            row["verdict"],
            row["entries"],
            row["detail"].replace(IN_LIMBO, ""),
        )
        for row in rows
    }


async def _payloads(uri: str, ledger_id: int, bookie: str) -> list[bytes]:
    """All entries of a ledger, as one bookie alone has them."""
    async with connect(uri) as bk:
        metadata = await bk.ledger_metadata(ledger_id)
        alone = with_bookies(metadata, bookie)
        await change_metadata(uri, replace(alone, ack_quorum_size=1))
        reader = await bk.open_ledger(ledger_id)
        found = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
    await change_metadata(uri, metadata)
    return found


def test_planted_damage_is_found_exactly_and_mended(
    spark: SparkSession, damaged: Damaged, tmp_path: Path
) -> None:
    report = str(tmp_path / "report")
    uri, planted = damaged.uri, damaged.planted
    newcomer = next(n for n in NAMES if n not in planted.missing.last_fragment.bookies)
    stranger = next(n for n in NAMES if n not in planted.misplaced.last_fragment.bookies)
    flipped = planted.corrupt.last_fragment.bookies[1]
    says = f"the metadata says {planted.wrong_length.length + 7} bytes"
    says += f", the last entry {planted.wrong_length.length}"
    length = {
        (planted.wrong_length.ledger_id, name, "wrong-length", 1, says)
        for name in planted.wrong_length.last_fragment.bookies
    }
    fails = f"entry 7 of ledger {planted.corrupt.ledger_id} fails its digest"

    summary = audit(spark, uri, report)
    assert _found(spark, report) == length | {
        (planted.missing.ledger_id, newcomer, "missing", 40, ""),
        (planted.misplaced.ledger_id, stranger, "misplaced", 40, ""),
        (planted.corrupt.ledger_id, flipped, "corrupt", 1, fails),
    }
    # 4 ledgers of 3 copies, 1 with 2 of 3, and 1 with 2 copies on 4 bookies; less what is wrong.
    assert summary.verified_entries == 4 * 3 * 40 + 2 * 40 + 2 * 40 - 40 - 1
    assert (summary.ledgers, summary.damaged_ledgers) == (6, 4)
    assert summary.has_damage
    assert summary.is_complete
    page = audit_page(summary)
    assert "4 ledgers are damaged" in page
    assert page.count("<rect") >= 4
    rows = spark.read.parquet(f"{report}/verdicts").where("verdict = 'corrupt'").collect()
    assert [one.asDict() for one in rows[0]["ranges"]] == [{"first": 7, "last": 7}]

    done = repair(spark, uri, report)
    assert done.copies == {"repaired": 3}, spark.read.parquet(f"{report}/repairs").collect()
    assert done.entries == 40 + 40 + 1
    assert repair(spark, uri, report).copies == {"was-fine": 3}
    audit(spark, uri, report)
    assert _found(spark, report) == length
    mended = asyncio.run(_payloads(uri, planted.corrupt.ledger_id, flipped))
    assert mended == [*PAYLOADS[:7], MARKED, *PAYLOADS[8:]]
    assert asyncio.run(_payloads(uri, planted.missing.ledger_id, newcomer)) == PAYLOADS


def test_the_command_tells_damage_by_its_exit_status(
    damaged: Damaged, connect_address: str, tmp_path: Path
) -> None:
    """In a process of its own, which needs no Java: a Spark Connect server is its master."""
    words = [sys.executable, "-m", "bookie", "spark", "audit", "--metadata", damaged.uri]
    words += ["--report", str(tmp_path / "report"), "--master", connect_address]
    words += ["--conf", "spark.sql.shuffle.partitions=2", "--output", "json"]
    environment = {**os.environ, "JAVA_HOME": "/nowhere"}
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert found["damaged_ledgers"] >= 1
    assert any("wrong-length" in name for name in found["verdicts"])
    assert (tmp_path / "report" / "audit.html").read_text().startswith("<!DOCTYPE html>")


def test_a_bookie_that_is_away_leaves_both_jobs_unfinished(
    spark: SparkSession,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody knows what it has. So the audit fails, and a repair with nothing to copy as well."""
    monkeypatch.setattr("bookie.cli.spark.spark_session", lambda *_: nullcontext(spark))
    report = str(tmp_path / "report")
    metadata = asyncio.run(write_ledger(uri, PAYLOADS))
    bookies = metadata.last_fragment.bookies
    asyncio.run(change_metadata(uri, with_bookies(metadata, *bookies[:2], "stopped")))
    words = ["--metadata", uri, "--report", report]
    audits = ["spark", "audit", *words, "--ledgers", str(metadata.ledger_id)]
    assert run(audits) == 1
    assert "no damage was found, but bookies did not answer" in capsys.readouterr().out
    assert run(["spark", "repair", *words]) == 1
    said = capsys.readouterr()
    assert "unreachable" in said.out
    assert "not every copy is known to be whole (1 unreachable)" in said.err
    asyncio.run(change_metadata(uri, metadata))
    assert run(audits) == 0
    assert run(["spark", "repair", *words]) == 0
    assert capsys.readouterr().err == ""


def test_open_ledgers_are_audited_up_to_what_is_confirmed(
    spark: SparkSession, uri: str, bk: SyncBookKeeper
) -> None:
    writer = bk.create_ledger(ack_quorum_size=3)
    writer.append_many(PAYLOADS)
    while bk.open_ledger(writer.ledger_id).last_entry_id < 39:
        pass  # the writer, which is idle, publishes what is confirmed
    rows = verdicts(spark, uri, ledgers=str(writer.ledger_id)).collect()
    assert {row["verdict"] for row in rows} == {"ok"}
    assert [row["entries"] for row in rows] == [40, 40, 40]
    writer.close()


def test_small_ledgers_cost_the_same_each(
    spark: SparkSession,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prints the time for each ledger; a machine that others share proves nothing about it."""
    lines = []
    report = str(tmp_path / "report")
    few = asyncio.run(write_ledgers(uri, 10, entries=5, size=100))
    many = asyncio.run(write_ledgers(uri, 1000, entries=5, size=100))
    for some in (few, many):
        begin = time.perf_counter()
        summary = audit(spark, uri, report, ledgers=f"{some[0]}-{some[-1]}")
        seconds = time.perf_counter() - begin
        assert summary.ledgers == len(some)
        assert summary.verified_entries == summary.ledgers * 15
        assert not summary.has_damage
        each = seconds / summary.ledgers * 1000
        lines.append(f"{summary.ledgers} ledgers in {seconds:.1f} s: {each:.1f} ms each")
    with capsys.disabled():
        print("\naudit: " + "; ".join(lines))
    monkeypatch.setattr("bookie.cli.spark.spark_session", lambda *_: nullcontext(spark))
    words = ["spark", "audit", "--metadata", uri, "--report", report, "--ledgers", str(few[0])]
    assert run(words) == 0
    assert "no damage was found; 15 copies of entries of 1 ledgers" in capsys.readouterr().out


def test_a_report_belongs_to_its_cluster(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    """No audit replaces another cluster's, and no repair calls that one's copies whole."""
    report = str(tmp_path / "report")
    write_mark(small_files(spark), report, JobMark("audit", "another", report))
    for job in (audit, repair):
        with pytest.raises(BadRequestError, match="is not a report of this cluster"):
            job(spark, uri, report)
    assert sorted(one.name for one in (tmp_path / "report").iterdir()) == ["_bookie"]

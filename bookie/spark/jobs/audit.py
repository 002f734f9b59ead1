"""Audit: read every copy of every entry from its bookie, and verify the copy's digest.

The verdicts (see `bookie.ledger.copies.replica_audit`) are written as Parquet below the report's
directory. The counts in a report are computed from these files. An audit fences no ledger and
writes nothing to the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.ledger.copies.replica_audit import DAMAGE
from bookie.spark.collecting import collected
from bookie.spark.executors import cores
from bookie.spark.jobs import pictures
from bookie.spark.jobs.marks import claim_report

VERDICTS = "verdicts"
"""The name of the verdicts' directory, below the report's directory."""

DAMAGED_ROWS_SHOWN = 50
"""The largest number of verdicts other than ``ok`` that the report's page shows; the Parquet files
contain all verdicts."""


@dataclass(frozen=True, slots=True)
class VerdictCount:
    """For one bookie and one verdict: the numbers of ledgers, copies of entries, and bytes."""

    bookie: str
    verdict: str
    ledgers: int
    entries: int
    packet_bytes: int


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """One ledger's copies of entries on one bookie with the same verdict, which is not ``ok``."""

    ledger_id: int
    bookie: str
    verdict: str
    entries: int
    ranges: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """The counts of an audit's verdicts, and examples of damage."""

    report: str
    ledgers: int
    damaged_ledgers: int
    counts: tuple[VerdictCount, ...]
    examples: tuple[DamagedCopy, ...]
    """The first `DAMAGED_ROWS_SHOWN` verdicts other than ``ok``."""

    @property
    def has_damage(self) -> bool:
        return any(one.verdict in DAMAGE for one in self.counts)

    @property
    def is_complete(self) -> bool:
        """True if every bookie answered, so that every copy was judged."""
        return not any(one.verdict == "unreachable" for one in self.counts)

    @property
    def is_whole(self) -> bool:
        """True if every copy was judged, and no copy is damaged."""
        return self.is_complete and not self.has_damage

    @property
    def verified_entries(self) -> int:
        """Return the number of copies of entries that have a right digest."""
        return sum(one.entries for one in self.counts if one.verdict == "ok")

    @property
    def verified_bytes(self) -> int:
        """Return the total size, in bytes, of the packets that have a right digest."""
        return sum(one.packet_bytes for one in self.counts)

    @property
    def sentence(self) -> str:
        checked = (
            f"{self.verified_entries} copies of entries of {self.ledgers} ledgers are right "
            f"({pictures.size_text(self.verified_bytes)})"
        )
        if self.has_damage:
            more = "" if self.is_complete else ", and bookies did not answer"
            return f"{self.damaged_ledgers} ledgers are damaged{more}; {checked}"
        if not self.is_complete:
            return f"no damage was found, but bookies did not answer; {checked}"
        return f"no damage was found; {checked}"


def audit(
    spark: SparkSession,
    metadata: str,
    report: str,
    *,
    ledgers: str | None = None,
    bytes_of_a_task: str | None = None,
) -> AuditSummary:
    """Audit a cluster and write the report, which replaces an earlier report in the directory.

    Args:
        spark: the session.
        metadata: the URI of the metadata store, as the executors reach it.
        report: a directory of any file system that Spark knows.
        ledgers: ids and ranges, such as ``1,2,10-20``; None for all.
        bytes_of_a_task: the bytes that one task reads, such as ``256m``.

    Raises:
        BadRequestError: the directory has a report of another cluster; nothing was changed.
    """
    claim_report(spark, metadata, report, writes=True)
    verdicts(spark, metadata, ledgers=ledgers, bytes_of_a_task=bytes_of_a_task).write.mode(
        "overwrite"
    ).parquet(f"{report}/{VERDICTS}")
    return summarize(spark, report)


def verdicts(
    spark: SparkSession,
    metadata: str,
    *,
    ledgers: str | None = None,
    bytes_of_a_task: str | None = None,
) -> DataFrame:
    """Return the verdicts as a frame.

    Every Spark action on the frame repeats the audit, so first write the frame to files.
    """
    reader = spark.read.format("bookkeeper").option("metadata", metadata).option("table", "audit")
    if ledgers is not None:
        reader = reader.option("ledgers", ledgers)
    if bytes_of_a_task is not None:
        reader = reader.option("maxBytesPerPartition", bytes_of_a_task)
    return reader.option("minPartitions", str(4 * cores(spark))).load()


def summarize(spark: SparkSession, report: str) -> AuditSummary:
    """Count the verdicts in the files that an audit has written to the directory `report`."""
    found = spark.read.parquet(f"{report}/{VERDICTS}")
    damage = F.col("verdict").isin(*DAMAGE)
    ((ledgers, damaged),) = collected(
        found.agg(F.countDistinct("ledgerId"), F.countDistinct(F.when(damage, F.col("ledgerId"))))
    )
    rows = collected(
        found.groupBy("bookie", "verdict")
        .agg(F.countDistinct("ledgerId"), F.sum("entries"), F.sum("bytes"))
        .orderBy("bookie", "verdict")
    )
    wrong = found.where("verdict <> 'ok'").orderBy("ledgerId", "bookie", "verdict")
    examples = [
        DamagedCopy(
            row["ledgerId"],
            row["bookie"],
            row["verdict"],
            row["entries"],
            _ranges_text([(one["first"], one["last"]) for one in row["ranges"]]),
            row["detail"] or (f"found on {', '.join(row['foundOn'])}" if row["foundOn"] else ""),
        )
        for row in collected(wrong.limit(DAMAGED_ROWS_SHOWN))
    ]
    counts = tuple(VerdictCount(*row) for row in rows)
    return AuditSummary(report, ledgers, damaged, counts, tuple(examples))


def _ranges_text(ranges: Sequence[tuple[int, int]], shown: int = 6) -> str:
    words = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:shown]]
    return ", ".join([*words, "…"] if len(ranges) > shown else words)


def audit_picture(summary: AuditSummary) -> str:
    """Return an SVG picture of the numbers of right, damaged and unknown copies on each bookie."""
    drawn = []
    for bookie in sorted({one.bookie for one in summary.counts if one.bookie}):
        of_bookie = [one for one in summary.counts if one.bookie == bookie]
        right = sum(one.entries for one in of_bookie if one.verdict == "ok")
        wrong = sum(one.entries for one in of_bookie if one.verdict in DAMAGE)
        silent = sum(one.entries for one in of_bookie if one.verdict == "unreachable")
        parts = [(right, pictures.OK), (wrong, pictures.BAD), (silent, pictures.OPEN)]
        text = f"{right} right, {wrong} damaged" + (f", {silent} unknown" if silent else "")
        drawn.append((bookie, parts, text))
    return pictures.bars(drawn)


def audit_page(summary: AuditSummary) -> str:
    """Return a report of the audit as one HTML page."""
    counts = [
        (one.bookie or "—", one.verdict, one.ledgers, one.entries, one.packet_bytes)
        for one in summary.counts
    ]
    parts_of_page = [
        pictures.sentence(summary.sentence, "good" if summary.is_whole else "bad"),
        pictures.heading("Copies of entries by bookie"),
        audit_picture(summary),
        pictures.heading("Verdicts"),
        pictures.table(("bookie", "verdict", "ledgers", "entries", "bytes"), counts),
    ]
    if summary.examples:
        rows = [
            (one.ledger_id, one.bookie or "—", one.verdict, one.entries, one.ranges, one.detail)
            for one in summary.examples
        ]
        parts_of_page += [
            pictures.heading(f"The first {len(rows)} that are not right"),
            pictures.table(("ledger", "bookie", "verdict", "entries", "ids", "detail"), rows),
        ]
    return pictures.page("Audit of a bookie cluster", parts_of_page)


def write_page(page: str, report: str, name: str, path: str | None) -> str | None:
    """Write a page to `path`, or to the file `name` in the directory `report`; return its path.

    If `path` is None and `report` is a URI of another file system, write nothing and return None.
    """
    local = re.sub(r"^file:(//(?=/))?", "", report)
    if path is None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", local):
        return None
    target = Path(path) if path is not None else Path(local) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return str(target)

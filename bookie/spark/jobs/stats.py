"""Statistics from metadata only: sizes, rates, skew, and copies by bookie and rack.

All numbers of bytes are payload bytes of closed ledgers, because the metadata store does not know
the size of open ledgers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.spark.collecting import collected
from bookie.spark.jobs import pictures

DAYS_SHOWN = 30
"""The most days that a report shows; the newest days are shown."""

LOGS_SHOWN = 30
"""The most logs that a report shows; the largest logs are shown."""


@dataclass(frozen=True, slots=True)
class BookieShare:
    """The copies and bytes that one bookie should store according to the metadata."""

    bookie: str
    state: str
    rack: str
    copies: int
    """The number of fragments of which the bookie should have a copy."""
    stored_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class LogShare:
    """The closed ledgers of one log; an empty name means ledgers that belong to no log."""

    log: str
    ledgers: int
    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class DayShare:
    """The closed ledgers that were created on one day."""

    day: str
    ledgers: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """Numbers about the ledgers, bookies and logs of a cluster."""

    ledgers: int
    open_ledgers: int
    entries: int
    payload_bytes: int
    median_bytes: int
    """The median size of closed ledgers; the next fields are 95th percentile and maximum."""
    p95_bytes: int
    largest_bytes: int
    bookies: tuple[BookieShare, ...]
    logs: tuple[LogShare, ...]
    days: tuple[DayShare, ...]

    @property
    def skew(self) -> float:
        """Return the bytes of the fullest bookie divided by the mean; 1 if all are equally full."""
        return skew_of([one.stored_bytes for one in self.bookies])

    @property
    def racks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in self.bookies:
            found[one.rack] = found.get(one.rack, 0) + one.stored_bytes
        return dict(sorted(found.items()))


def skew_of(sizes: Sequence[int]) -> float:
    """Return the greatest of `sizes` divided by their mean; 1 if all sizes are 0."""
    whole = sum(sizes)
    return max(sizes) * len(sizes) / whole if whole else 1.0


def stats(spark: SparkSession, metadata: str) -> ClusterStats:
    """Count the ledgers, entries and bytes of the cluster."""
    ledgers = _table(spark, metadata, "ledgers").cache()
    closed = ledgers.where("length IS NOT NULL")
    sizes = ledgers.agg(
        F.count("*"),
        F.count_if(F.col("length").isNull()),
        F.coalesce(F.sum("entries"), F.lit(0)),
        F.coalesce(F.sum("length"), F.lit(0)),
        F.percentile_approx("length", [0.5, 0.95, 1.0]),
    )
    (totals,) = collected(sizes)
    logs = closed.groupBy(F.coalesce("log", F.lit("")).alias("log")).agg(
        F.count("*"), F.sum("entries"), F.sum("length").alias("bytes")
    )
    day = F.date_format("createdAt", "yyyy-MM-dd").alias("day")
    days = closed.where("createdAt IS NOT NULL").groupBy(day)
    sums = days.agg(F.count("*"), F.sum("length")).orderBy(F.desc("day")).limit(DAYS_SHOWN)
    median, p95, largest = totals[4] or (0, 0, 0)
    found = ClusterStats(
        totals[0],
        totals[1],
        totals[2],
        totals[3],
        median,
        p95,
        largest,
        bookies=_shares(spark, metadata),
        logs=tuple(
            LogShare(*row)
            for row in collected(logs.orderBy(F.desc("bytes"), "log").limit(LOGS_SHOWN))
        ),
        days=tuple(DayShare(*row) for row in reversed(collected(sums))),
    )
    ledgers.unpersist()
    return found


def _shares(spark: SparkSession, metadata: str) -> tuple[BookieShare, ...]:
    """Return the copies and bytes of each bookie that is registered or named by a ledger."""
    stored = (
        _table(spark, metadata, "replicas")
        .groupBy("bookie")
        .agg(F.count("*").alias("copies"), F.sum("estimatedBytes").alias("bytes"))
    )
    registered = _table(spark, metadata, "bookies").select("bookie", "state", "rack", "freeBytes")
    joined = registered.join(stored, "bookie", "full_outer").orderBy("bookie")
    return tuple(
        BookieShare(
            row["bookie"],
            row["state"] or "lost",
            row["rack"] or "",
            row["copies"] or 0,
            row["bytes"] or 0,
            row["freeBytes"] or 0,
        )
        for row in collected(joined)
    )


def _table(spark: SparkSession, metadata: str, table: str) -> DataFrame:
    reader = spark.read.format("bookkeeper").option("metadata", metadata)
    return reader.option("table", table).load()


def stats_page(found: ClusterStats) -> str:
    """Return a report of the statistics as one HTML page."""
    size = pictures.size_text
    summary = (
        f"{found.ledgers} ledgers ({found.open_ledgers} open) hold {found.entries} entries and "
        f"{size(found.payload_bytes)}. A closed ledger has {size(found.median_bytes)} in the "
        f"middle, {size(found.p95_bytes)} at the 95th percentile, {size(found.largest_bytes)} at "
        f"most. The fullest bookie stores {found.skew:.2f} times the mean."
    )
    bookies = [
        (
            f"{one.bookie} ({one.rack})" if one.rack else one.bookie,
            [(one.stored_bytes, pictures.OK if one.state != "lost" else pictures.BAD)],
            f"{size(one.stored_bytes)}, {one.copies} copies, {one.state}",
        )
        for one in found.bookies
    ]
    sizes = {
        "Copies by rack": [(rack or "no rack", stored) for rack, stored in found.racks.items()],
        "Largest logs": [(one.log or "no log", one.payload_bytes) for one in found.logs],
        "Created by day": [(one.day, one.payload_bytes) for one in found.days],
    }
    parts = [pictures.sentence(summary), pictures.heading("Copies by bookie")]
    parts.append(pictures.bars(bookies))
    for title, rows in sizes.items():
        drawn = [(label, [(count, pictures.OK)], size(count)) for label, count in rows]
        parts += [pictures.heading(title), pictures.bars(drawn)]
    return pictures.page("Statistics of a bookie cluster", parts)

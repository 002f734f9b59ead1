"""Repair: copy to bookies the entries that an audit found missing, misplaced or corrupt.

Each task repairs some ledgers, one after the other. While a task repairs a ledger, the task holds
the ledger's lock, which all repair workers of the cluster respect. A task skips copies that were
repaired after the audit. So an interrupted run can safely be repeated, and two concurrent runs do
no harm. Lost bookies are not replaced, because that would change ensembles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.ledger.copies.replica_audit import REPAIRABLE
from bookie.ledger.copies.replica_plan import merged
from bookie.ledger.copies.replica_repair import CopyDamage
from bookie.spark.collecting import collected
from bookie.spark.connecting import SparkConnection
from bookie.spark.executors import cores
from bookie.spark.jobs.audit import VERDICTS
from bookie.spark.jobs.marks import claim_report

REPAIRS = "repairs"
"""The name of the outcomes' directory, below the report's directory."""

LEDGERS_OF_A_TASK = 100
"""The approximate number of damaged ledgers that one task repairs."""

_DONE = frozenset({"repaired", "was-fine", "deleted"})
"""Outcomes after which nothing remains to be done for a copy."""

OUTCOMES = (
    "ledgerId BIGINT, bookie STRING, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
)


@dataclass(frozen=True, slots=True)
class RepairSummary:
    """The outcome of a repair."""

    copies: Mapping[str, int]
    """The number of copies with each outcome of `RepairOutcome`."""
    entries: int
    packet_bytes: int
    left: Mapping[str, int] = field(default_factory=dict)
    """The number of copies with each verdict that no repair can fix, such as ``unreachable``."""

    @property
    def is_whole(self) -> bool:
        """True if all copies in the report are known to be whole after the repair."""
        return not self.left and not self.copies.keys() - _DONE

    @property
    def sentence(self) -> str:
        """Return a sentence about the remaining damage; empty if `is_whole`."""
        if self.is_whole:
            return ""
        unlike = {name: count for name, count in self.copies.items() if name not in _DONE}
        counts = ", ".join(f"{count} {name}" for name, count in {**unlike, **self.left}.items())
        return f"not every copy is known to be whole ({counts}); audit again to see what is left"


def repair(spark: SparkSession, metadata: str, report: str) -> RepairSummary:
    """Repair the damage that an audit reports.

    The written outcomes replace the outcomes of an earlier run.

    Raises:
        BadRequestError: an operator has disabled repairs, or the report belongs to another cluster.
    """
    claim_report(spark, metadata, report, writes=False)
    connection = SparkConnection(metadata)
    connection.client().maintenance().require_repairs_enabled()
    verdicts = spark.read.parquet(f"{report}/{VERDICTS}")
    left = verdicts.where(~F.col("verdict").isin("ok", *REPAIRABLE)).groupBy("verdict").count()
    damage = (
        verdicts.where(F.col("verdict").isin(*REPAIRABLE))
        .groupBy("ledgerId")
        .agg(F.collect_list(F.struct("bookie", "ranges", "foundOn")).alias("damages"))
    ).cache()
    tasks = max(1, min(4 * cores(spark), -(-damage.count() // LEDGERS_OF_A_TASK)))
    damage.repartition(tasks).mapInArrow(_repairing(connection), OUTCOMES).write.mode(
        "overwrite"
    ).parquet(f"{report}/{REPAIRS}")
    damage.unpersist()
    done = spark.read.parquet(f"{report}/{REPAIRS}")
    rows = collected(done.groupBy("outcome").agg(F.count("*"), F.sum("entries"), F.sum("bytes")))
    return RepairSummary(
        {row[0]: row[1] for row in rows},
        sum(row[2] for row in rows),
        sum(row[3] for row in rows),
        {row[0]: row[1] for row in collected(left)},
    )


def damages_of(rows: Sequence[Mapping[str, Any]]) -> list[CopyDamage]:
    """Join the verdicts about one ledger into one description of the damage for each bookie."""
    by_bookie: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_bookie.setdefault(row["bookie"], []).append(row)
    return [
        CopyDamage(
            bookie,
            tuple(merged((one["first"], one["last"]) for row in some for one in row["ranges"])),
            tuple(sorted({name for row in some for name in row["foundOn"]})),
        )
        for bookie, some in sorted(by_bookie.items())
    ]


def _repairing(
    connection: SparkConnection,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that each task runs; Spark sends this function to the executors."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        maintenance = connection.client().maintenance()
        for batch in batches:
            outcomes = [
                outcome
                for row in batch.to_pylist()
                for outcome in maintenance.repair(row["ledgerId"], damages_of(row["damages"]))
            ]
            yield pa.RecordBatch.from_pydict(
                {
                    "ledgerId": pa.array([one.ledger_id for one in outcomes], pa.int64()),
                    "bookie": pa.array([one.bookie_id for one in outcomes], pa.string()),
                    "outcome": pa.array([one.outcome for one in outcomes], pa.string()),
                    "entries": pa.array([one.entries for one in outcomes], pa.int64()),
                    "bytes": pa.array([one.packet_bytes for one in outcomes], pa.int64()),
                    "detail": pa.array([one.detail for one in outcomes], pa.string()),
                }
            )

    return run

"""The owner of the checkpoint of an ingest or a migration.

It belongs to the logs that it has written to. For another log, or one that was made anew, it would
leave out what it wrote before. So it has a mark, as `bookie.spark.jobs.marks` says. Older versions
wrote none. Then a log knows the query that has published to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from bookie.log.catalog.logs import LogName
from bookie.spark.connecting import SparkConnection
from bookie.spark.jobs.marks import claim_checkpoint, new_mark, read_progress
from bookie.spark.jobs.moving import MoveTarget
from bookie.spark.jobs.small_files import small_files
from bookie.spark.sink_task import find_log


def claim_moves(spark: SparkSession, job: str, names: Sequence[str], target: MoveTarget) -> None:
    """Mark the checkpoint for a job that writes to these logs, or see that it is marked for it.

    Logs that are missing are made, if the target says so.

    Raises:
        NoSuchLogError, BadRequestError: what `find_log` raises.
        BadRequestError: the checkpoint belongs to another job or log.
    """
    client = SparkConnection(target.metadata).client()
    logs = {
        str(LogName.parse(name)): find_log(
            client, name, creates=target.create, partitions=target.partitions
        ).log_id
        for name in names
    }
    mark = new_mark(job, target.log or "", target.checkpoint, logs)
    files = small_files(spark)
    progress = read_progress(files, mark.checkpoint)
    query = progress.query_id
    is_proven = query is None or progress.last_commit < 0
    if query is not None and not is_proven:
        is_proven = any(client.publisher(log).last_batch(query) >= 0 for log in mark.logs)
    claim_checkpoint(files, mark, is_proven=is_proven, takes_over=target.takes_over)

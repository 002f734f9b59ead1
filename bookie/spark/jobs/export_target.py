"""Checks that the target directory of an export belongs to the export's log and checkpoint.

The batch with the number N replaces the directory ``batch=N``. So a second export to the same
target, with another log or checkpoint, would replace batches of the first export. If an export used
its old checkpoint with another target, the new target would lack the records that were exported
before. Marks show if a target and a checkpoint belong together.

Older versions wrote no marks. A target and a checkpoint without marks belong together if each batch
in the target has only records whose offsets the checkpoint names for this batch.

================ ====================== ===========================================================
mark of target   mark of checkpoint     what happens
================ ====================== ===========================================================
exists           the same id            the export continues, if the log is the same
exists           another, or none       refused
none             exists                 begins if the checkpoint was never started; else refused
none             none                   begins if both are new; or continues, if proven
================ ====================== ===========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

from bookie.errors import BadRequestError
from bookie.spark.jobs.marks import (
    JobMark,
    Progress,
    read_mark,
    read_progress,
    require_same_job,
    write_mark,
)
from bookie.spark.jobs.small_files import SmallFiles, load_if_there, small_files

DIRECTORIES = ("data", "quarantine")
"""The directories of an export's data, below the export's target."""

ENDING = ".parquet"


@dataclass(frozen=True, slots=True)
class WrittenOffsets:
    """The offsets of a partition's records in one batch that an older bookie version wrote."""

    batch: int
    log: str
    partition: int
    first: int
    last: int


def claim_target(spark: SparkSession, mark: JobMark, *, takes_over: bool = False) -> None:
    """Mark the target and the checkpoint of an export, or check the marks that exist.

    The checkpoint is marked before the target, so the checkpoint of a marked target always has a
    mark.

    Args:
        spark: the session.
        mark: the mark of the export; its id is used only if neither directory has a mark yet.
        takes_over: True to use a target without a mark with a checkpoint that was used before.

    Raises:
        BadRequestError: the target or the checkpoint belongs to another export, or nothing proves
            that the target belongs to the checkpoint.
    """
    files = small_files(spark)
    target, checkpoint = read_mark(files, mark.target), read_mark(files, mark.checkpoint)
    if target is not None:
        _check_marked(mark, target, checkpoint)
        return
    if checkpoint is not None:
        require_same_job(checkpoint, mark)
        _check_log(mark, checkpoint, f"the checkpoint {mark.checkpoint}")
    progress = read_progress(files, mark.checkpoint)
    if progress.query_id is None:
        _check_new(files, mark)
    elif not takes_over:
        _check_used(spark, mark, checkpoint, progress)
    if checkpoint is None:
        write_mark(files, mark.checkpoint, mark)
    else:
        mark = replace(mark, id=checkpoint.id)
    write_mark(files, mark.target, mark)


def is_written_by(progress: Progress, log: str, written: list[WrittenOffsets]) -> bool:
    """True if the checkpoint's offsets of each batch cover all records in the target's batch.

    Spark removes the offsets of old batches from a checkpoint, so these batches are not checked.
    The result is False if no batch can be checked.
    """
    known = 0
    for one in written:
        begin, end = (_offset_of(progress, batch, one) for batch in (one.batch - 1, one.batch))
        if one.log != log or one.batch > max(progress.offsets, default=-1):
            return False
        if one.batch not in progress.offsets:
            continue  # Spark has removed the offsets of this batch
        if end is None or one.last >= end or one.first < (begin or 0):
            return False
        known += 1
    return known > 0


def _offset_of(progress: Progress, batch: int, one: WrittenOffsets) -> int | None:
    offsets = progress.offsets.get(batch)
    found = offsets.get(one.log) if isinstance(offsets, Mapping) else None
    offset = found.get(str(one.partition)) if isinstance(found, Mapping) else None
    return offset if isinstance(offset, int) else None


def _check_marked(mark: JobMark, target: JobMark, checkpoint: JobMark | None) -> None:
    _check_log(mark, target, mark.target)
    if checkpoint is not None and checkpoint.id == target.id:
        return
    if checkpoint is None and target.checkpoint == mark.checkpoint:
        raise BadRequestError(
            f"{mark.target} was exported with the checkpoint {mark.checkpoint}, which was deleted "
            "since; export to an empty directory"
        )
    raise BadRequestError(
        f"{mark.target} was exported with the checkpoint {target.checkpoint}, which is not "
        f"{mark.checkpoint}; use that one, or export to an empty directory with a new one"
    )


def _check_log(mark: JobMark, found: JobMark, where: str) -> None:
    [(log, log_id)] = mark.logs.items()
    if log not in found.logs:
        raise BadRequestError(
            f"{where} belongs to the log {', '.join(found.logs)}; export {log} to another "
            "directory with a checkpoint of its own"
        )
    if found.logs[log] != log_id:
        raise BadRequestError(
            f"the log {log} was deleted and made anew since it was exported to {found.target}; "
            "export the new one to an empty directory with a new checkpoint"
        )


def _check_new(files: SmallFiles, mark: JobMark) -> None:
    """Refuse a target that has records, because the checkpoint is new."""
    if any(files.has_any(f"{mark.target}/{one}", ENDING) for one in DIRECTORIES):
        raise BadRequestError(
            f"{mark.target} holds records, and the checkpoint {mark.checkpoint} is new; use the "
            "one that they were exported with, or export to an empty directory"
        )


def _check_used(
    spark: SparkSession, mark: JobMark, checkpoint: JobMark | None, progress: Progress
) -> None:
    """Refuse an unmarked target, unless earlier runs with this checkpoint wrote the target.

    If the checkpoint has a mark, every unmarked target is refused.
    """
    if checkpoint is not None:
        raise BadRequestError(
            f"the checkpoint {mark.checkpoint} belongs to {checkpoint.target}, and {mark.target} "
            "has no part of it; use a new checkpoint, or add --take-over to export only what is new"
        )
    [log] = mark.logs
    written = _written(spark, mark.target)
    if written and not is_written_by(progress, log, written):
        raise BadRequestError(
            f"{mark.target} holds records that the checkpoint {mark.checkpoint} did not write; "
            "export to an empty directory with a new one, or add --take-over if both belong "
            "together"
        )
    if not written and progress.last_commit > 0:  # the first batch is always empty
        raise BadRequestError(
            f"the checkpoint {mark.checkpoint} has exported records, and {mark.target} has none; "
            "use a new checkpoint, or add --take-over to export only what is new"
        )


def _written(spark: SparkSession, target: str) -> list[WrittenOffsets]:
    """Return the first and the last offset of each partition in each batch of a target's files."""
    found: list[WrittenOffsets] = []
    for directory in DIRECTORIES:
        frame = load_if_there(spark, f"{target}/{directory}", "parquet", ENDING)
        if frame is None:
            continue
        origin = [_origin(frame, name).alias(name) for name in ("batch", "log", "partition")]
        rows = frame.select(*origin, _origin(frame, "offset").cast("long").alias("offset"))
        of_batches = rows.groupBy("batch", "log", "partition")
        found += [
            WrittenOffsets(_number(batch), log, _number(partition), first, last)
            for batch, log, partition, first, last in of_batches.agg(
                F.min("offset"), F.max("offset")
            ).collect()
        ]
    return found


def _number(text: int | str) -> int:
    """Parse the number of a batch or a partition; return -1 for an empty text."""
    return -1 if text == "" else int(text)


def _origin(frame: DataFrame, name: str) -> Column:
    """Return a row's log, partition, offset or batch, from a column or from the file's path."""
    for one in (f"_{name}", name):
        if one in frame.columns:
            return frame[one]
    return F.regexp_extract("_metadata.file_path", f"/_?{name}=([^/]+)/", 1)

"""Marks: small files in the target and the checkpoint of a job, which name the job.

Spark does not check that a target or a checkpoint belongs to a job. If a job used another job's
target directory, the job would replace the other job's batches. With another job's checkpoint, a
job would omit the rows that the other job has read. So a job marks its directories before it writes
a row, and refuses directories with another job's mark.

A mark is one line of JSON in a file below ``_bookie``. Spark's readers ignore names that begin with
an underscore.

A mark is replaced in two steps: the new mark is written to ``_bookie.next``, and then to
``_bookie``. If a crash interrupts the second step, ``_bookie`` is missing, and ``_bookie.next`` is
the mark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from bookie.errors import BadRequestError
from bookie.spark.connecting import SparkConnection
from bookie.spark.jobs.small_files import SmallFiles, small_files

MARK = "_bookie"
"""The name of the mark's directory, below the directory that is marked."""

NEXT = f"{MARK}.next"
"""The name of the directory to which a replacing mark is written first, before `MARK`."""


@dataclass(frozen=True, slots=True)
class JobMark:
    """The job that a directory belongs to."""

    job: str
    """The job's command: ``export``, ``ingest``, …"""
    id: str
    """A random id, equal in the checkpoint and target of a job; in a report, the cluster's id."""
    target: str = ""
    """The job's target, for people: a directory or a log. Empty if each topic has its own log."""
    checkpoint: str = ""
    """The job's checkpoint directory, for people."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """The id of each log, by the log's name; a later log of the same name has another id."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a query, as Spark's files in the checkpoint describe it."""

    query_id: str | None
    """The id of the query; None before its first start."""
    offsets: Mapping[int, Any]
    """By batch, the offset of the query's only source at the batch's end; Spark drops old ones."""
    last_commit: int
    """The number of the last finished batch; -1 if no batch was finished."""


def new_mark(job: str, target: str, checkpoint: str, logs: Mapping[str, str]) -> JobMark:
    """Return a mark with a new random id; if the job has an old mark, the old id is used."""
    return JobMark(job, str(uuid.uuid4()), target, checkpoint, logs)


def read_mark(files: SmallFiles, directory: str) -> JobMark | None:
    """Return the mark of a directory; None if the directory has no mark.

    Raises:
        BadRequestError: the mark cannot be read.
    """
    lines = list(
        (files.texts(f"{directory}/{MARK}") or files.texts(f"{directory}/{NEXT}")).values()
    )
    if not lines:
        return None
    try:
        [text] = lines
        return JobMark(**json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestError(
            f"{directory}/{MARK} does not say whose {directory} is; choose another directory"
        ) from error


def write_mark(files: SmallFiles, directory: str, mark: JobMark, *, replaces: bool = False) -> None:
    """Write a mark into a directory; create the directory if it does not exist.

    Raises:
        BadRequestError: another job wrote its mark into the directory at the same time.
    """
    text = json.dumps(asdict(mark))
    try:
        # If `MARK` is missing, an earlier job was killed at this point, and `NEXT` is the only
        # mark.
        if replaces and files.texts(f"{directory}/{MARK}"):
            files.write(f"{directory}/{NEXT}", text, replaces=True)
        files.write(f"{directory}/{MARK}", text, replaces=replaces)
        is_ours = read_mark(files, directory) == mark
    except FileExistsError:
        is_ours = False
    if not is_ours:
        raise BadRequestError(
            f"another job has just begun to use {directory}; choose another one, or delete "
            f"{directory}/{MARK} if the job was killed"
        )


def read_progress(files: SmallFiles, checkpoint: str) -> Progress:
    """Return the progress of a checkpoint's query, from the files that Spark wrote there."""
    ids = [json.loads(text)["id"] for text in files.texts(f"{checkpoint}/metadata").values()]
    if not ids:
        return Progress(None, {}, -1)
    commits = map(int, filter(str.isdigit, files.texts(f"{checkpoint}/commits")))
    offsets = files.texts(f"{checkpoint}/offsets")
    return Progress(
        str(ids[0]),
        {int(name): _only_offset(text) for name, text in offsets.items() if name.isdigit()},
        max(commits, default=-1),
    )


def claim_checkpoint(
    files: SmallFiles, mark: JobMark, *, is_proven: bool, takes_over: bool = False
) -> None:
    """Mark a checkpoint for a job that writes to logs, or check that it has the job's mark.

    Args:
        files: reads and writes small files.
        mark: the mark of the job; its id is used only if the checkpoint has no mark.
        is_proven: True if the checkpoint belongs to this job even if it has no mark. Older versions
            wrote no marks.
        takes_over: True also accepts a checkpoint without mark and proof, or a checkpoint of a log
            that was deleted and created again.

    Raises:
        BadRequestError: the checkpoint belongs to another job or to a deleted log, or there is no
            proof that it belongs to this job.
    """
    found = read_mark(files, mark.checkpoint)
    if found is None:
        if not is_proven and not takes_over:
            raise BadRequestError(
                f"the checkpoint {mark.checkpoint} did not write to {_target_of(mark)}; give the "
                "job a new checkpoint, or add --take-over to write only what is new to this one"
            )
        write_mark(files, mark.checkpoint, mark)
        return
    require_same_job(found, mark)
    if found.target != mark.target:
        raise BadRequestError(
            f"the checkpoint {mark.checkpoint} belongs to {_target_of(found)}; give "
            f"{_target_of(mark)} a new checkpoint"
        )
    for log, log_id in mark.logs.items():
        if found.logs.get(log, log_id) != log_id and not takes_over:
            raise BadRequestError(
                f"the log {log} was deleted and made anew since {mark.checkpoint} was used; give "
                "the job a new checkpoint to write all again, or add --take-over to write what "
                "is new"
            )
    logs = {**found.logs, **mark.logs}
    if logs != found.logs:
        write_mark(files, mark.checkpoint, replace(found, logs=logs), replaces=True)


def claim_report(spark: SparkSession, metadata: str, report: str, *, writes: bool) -> None:
    """Check that a report belongs to this cluster; mark a new report if `writes` is set.

    A report without a mark is accepted, because older versions wrote no marks.

    Raises:
        BadRequestError: the report belongs to another cluster.
    """
    files, cluster = small_files(spark), SparkConnection(metadata).client().instance_id
    found = read_mark(files, report)
    if found is None and writes:
        write_mark(files, report, JobMark("audit", cluster, report))
    if found is not None and found.id != cluster:
        raise BadRequestError(
            f"{report} is not a report of this cluster, which is {cluster}; name another directory"
        )


def require_same_job(found: JobMark, mark: JobMark) -> None:
    """Refuse a checkpoint that another command has marked.

    Raises:
        BadRequestError: another command has marked the checkpoint.
    """
    if found.job != mark.job:
        raise BadRequestError(
            f"the checkpoint {mark.checkpoint} belongs to bookie spark {found.job}; give bookie "
            f"spark {mark.job} a new one"
        )


def _target_of(mark: JobMark) -> str:
    return f"the log {mark.target}" if mark.target else "logs that have the names of topics"


def _only_offset(text: str) -> Any:
    """Return the offset in a file of Spark's offsets; None if the file has no offset or several.

    A file for one source has three lines: a version, data about the batch, and the offset as JSON.
    """
    lines = text.splitlines()
    try:
        return json.loads(lines[2]) if len(lines) == 3 else None
    except ValueError:
        return None

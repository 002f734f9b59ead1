"""The owner of a directory: a small file in a job's target, and in its checkpoint.

Spark binds neither to anything. A job with the directory of another one would replace its batches.
A job with the checkpoint of another one would leave out the rows of that one. So a job marks its
directories before it writes a row, and refuses those of others.

A mark is one line of JSON below ``_bookie``. Readers of data ignore such names.
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
"""The directory of the mark, below the one that it marks."""


@dataclass(frozen=True, slots=True)
class JobMark:
    """The job that a directory belongs to."""

    job: str
    """The command: ``export``, ``ingest``, …"""
    id: str
    """Random: the same in the checkpoint and in the target of one job."""
    target: str = ""
    """The job's target, for people: a directory or a log; empty for a log for each topic."""
    checkpoint: str = ""
    """Its checkpoint, for people."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """By log: the id, which a later log of its name does not have."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Spark's files in a checkpoint."""

    query_id: str | None
    """None before the first start."""
    offsets: Mapping[int, Any]
    """By batch: the offset of the only source at its end. Spark forgets old ones."""
    last_commit: int
    """The last batch that was finished; -1 before any."""


def new_mark(job: str, target: str, checkpoint: str, logs: Mapping[str, str]) -> JobMark:
    """The mark of a job that may be new."""
    return JobMark(job, str(uuid.uuid4()), target, checkpoint, logs)


def read_mark(files: SmallFiles, directory: str) -> JobMark | None:
    """The mark of a directory; None without one.

    Raises:
        BadRequestError: the mark cannot be read.
    """
    lines = list(files.texts(f"{directory}/{MARK}").values())
    if not lines:
        return None
    try:
        [text] = lines
        return JobMark(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise BadRequestError(
            f"{directory}/{MARK} does not say whose {directory} is; choose another directory"
        ) from error


def write_mark(files: SmallFiles, directory: str, mark: JobMark, *, replaces: bool = False) -> None:
    """Mark a directory, which is made if it does not exist.

    Raises:
        BadRequestError: another job has marked it at the same time.
    """
    try:
        files.write(f"{directory}/{MARK}", json.dumps(asdict(mark)), replaces=replaces)
        is_ours = read_mark(files, directory) == mark
    except FileExistsError:
        is_ours = False
    if not is_ours:
        raise BadRequestError(f"another job has just begun to use {directory}; choose another one")


def read_progress(files: SmallFiles, checkpoint: str) -> Progress:
    """The query of a checkpoint, as its files describe it."""
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
    """Mark a checkpoint for a job that writes to logs, or see that it is marked for it.

    Args:
        files: of the session.
        mark: of the job; its id counts only if the checkpoint has none.
        is_proven: whether a checkpoint without a mark is this job's. Older versions wrote none.
        takes_over: let it be this job's, also for a log that was made anew.

    Raises:
        BadRequestError: the checkpoint belongs to another job, or to a log that was deleted.
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
    """See that a report is one of this cluster; mark it if `writes` says that it is made now.

    Reports of older versions have no marks.

    Raises:
        BadRequestError: it is the report of another cluster.
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
    """Refuse the checkpoint of another command.

    Raises:
        BadRequestError: it is one.
    """
    if found.job != mark.job:
        raise BadRequestError(
            f"the checkpoint {mark.checkpoint} belongs to bookie spark {found.job}; give bookie "
            f"spark {mark.job} a new one"
        )


def _target_of(mark: JobMark) -> str:
    return f"the log {mark.target}" if mark.target else "logs that have the names of topics"


def _only_offset(text: str) -> Any:
    """The offset in a file of Spark's: a version, a line about the batch, and one per source."""
    lines = text.splitlines()
    try:
        return json.loads(lines[2]) if len(lines) == 3 else None
    except ValueError:
        return None

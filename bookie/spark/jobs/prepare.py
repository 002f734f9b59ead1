"""``bookie spark prepare``: run sample jobs, and archive the Java classes that the jobs load.

The sample jobs are an ingest, an export and the statistics of five lines of text. These jobs load
the classes that most jobs need. The caller must provide a cluster that nothing else uses.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from bookie.errors import CannotStartError, ConfigurationError
from bookie.spark.class_archive import archive_path, writing_options
from bookie.spark.jobs.export import ExportPlan, export_log
from bookie.spark.jobs.ingest import ingest_files
from bookie.spark.jobs.ingest_plan import IngestPlan
from bookie.spark.jobs.moving import MoveTarget
from bookie.spark.jobs.stats import stats
from bookie.spark.session import DRIVER_OPTIONS, local_settings, open_session

WRITE_SECONDS_MAX = 600.0
"""The longest time, in seconds, for Java to write the archive; an idle machine takes about 10 s."""

LOG = "prepare"


def prepare(metadata: str, scratch: Path) -> Path:
    """Write the class archive of this installation of Spark, or replace it; return its path.

    Jobs that run during this call continue to use the old archive.

    Args:
        metadata: the URI of an empty cluster.
        scratch: a directory for the jobs' files.

    Raises:
        ConfigurationError: the cache directory cannot be written.
        CannotStartError: Spark does not start, or Java has not written the archive.
    """
    path = archive_path()
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # other users must not replace the archive: Java runs it
        beside.touch(mode=0o600)
        beside.unlink()
    except OSError as error:
        raise ConfigurationError(f"{path.parent} cannot be written: {error.strerror}") from error
    options = " ".join(
        [local_settings(reads_archive=False)[DRIVER_OPTIONS], *writing_options(beside)]
    )
    try:
        with _until_java_ended():
            spark = open_session("prepare", "local[*]", {DRIVER_OPTIONS: options})
            try:
                _run_jobs(spark, metadata, scratch)
            finally:
                spark.stop()
        _sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _sync(written: Path) -> None:
    """Make the archive private, and durable by fsync, before the archive gets its final name."""
    try:
        descriptor = os.open(written, os.O_RDONLY)
    except FileNotFoundError:
        raise CannotStartError("Java has not written the archive of its classes") from None
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run_jobs(spark: SparkSession, metadata: str, scratch: Path) -> None:
    lines = scratch / "lines"
    lines.mkdir()
    (lines / "a.txt").write_text("".join(f"line {number}\n" for number in range(5)))
    ingested, exported = str(scratch / "ingested"), str(scratch / "exported")
    target = MoveTarget(metadata, LOG, ingested, create=True)
    ingest_files(spark, IngestPlan(str(lines), "text"), target)
    export_log(spark, metadata, LOG, ExportPlan(str(scratch / "out")), checkpoint=exported)
    stats(spark, metadata)


@contextmanager
def _until_java_ended() -> Iterator[None]:
    """At the end of the block, end the Java process of Spark, and wait until it has ended.

    Java writes the archive and ends when its standard input is closed.
    """
    yield
    gateway = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = gateway and gateway.proc
    if gateway is None or java is None or java.stdin is None:
        raise CannotStartError("Spark runs in a Java that this process did not start")
    gateway.shutdown()
    java.stdin.close()
    try:
        status = java.wait(WRITE_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
        raise CannotStartError(
            f"Java has not written the archive of its classes within {WRITE_SECONDS_MAX:.0f} s"
        ) from None
    finally:
        SparkContext._gateway = SparkContext._jvm = None
    if status != 0:
        raise CannotStartError(f"Java ended with status {status} and wrote no archive of classes")

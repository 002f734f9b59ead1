"""Open Spark sessions for jobs that the command line starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.errors import BadRequestError, BookieError, CannotStartError
from bookie.spark.collecting import is_socket_error
from bookie.spark.executors import check_executors, package_problem
from bookie.spark.source import BookKeeperSource

Session = SparkSession
"""The type `SparkSession`, for modules that may not import pyspark themselves."""

RECOMMENDED = {
    "spark.python.unix.domain.socket.enabled": "true",
    # On a busy machine, a process may need more than Spark's default of 15 s.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.speculation": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The job reports an error in one sentence at the end.
    "spark.log.level": "FATAL",
    # Jobs count the rows of all their batches. By default Spark remembers only the last 100.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
"""Spark's settings for jobs; ``--conf`` overrides them."""

LOCAL = {
    # Spark must not listen on other addresses.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Java's optimizing compiler takes half the time of a short job. A job of 1.5 million records,
    # which mostly runs Python, took as long without it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A shuffle of a job has one row for each bookie, log or damaged ledger.
    "spark.sql.shuffle.partitions": "8",
}
"""Spark's settings for a session in this process; ``--conf`` overrides them."""

JAVA_LEAST = 17


def open_session(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Open a session on `master` that knows the format ``bookkeeper``. The caller must stop it.

    A master ``sc://HOST:PORT`` is a Spark Connect server. Unless the master is ``local``, the
    session checks that its executors have this package.

    Raises:
        CannotStartError: Spark does not start, usually because Java is missing.
        BadRequestError: a Connect server does not let its clients change a setting.
        ConfigurationError: executors have no package bookie, or another version of it.
    """
    is_remote, is_local = master.startswith("sc://"), master.startswith("local")
    session = _open_remote(master, conf) if is_remote else _open_here(name, master, conf)
    try:
        if not is_local:
            check_executors(session)
        session.dataSource.register(BookKeeperSource)
    except BaseException:
        session.stop()
        raise
    return session


def _open_here(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    # By default Spark starts the first python3 of the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**RECOMMENDED, **(LOCAL if master.startswith("local") else {}), **conf}
    builder = SparkSession.builder.master(master).appName(f"bookie {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise CannotStartError(java_problem(str(error))) from error


def _open_remote(url: str, conf: Mapping[str, str]) -> SparkSession:
    try:
        session = SparkSession.builder.remote(url).getOrCreate()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise CannotStartError(f"the Spark Connect server did not answer: {reason}") from error
    wanted = {key: value for key, value in RECOMMENDED.items() if key.startswith("spark.sql.")}
    for key, value in {**wanted, **conf}.items():
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            session.stop()
            raise BadRequestError(
                f"a client of Spark Connect cannot set {key}; leave out --conf {key}=…, and set it "
                "where the server is started"
            ) from error
    return session


def java_problem(reason: str) -> str:
    """Return the reason why Spark did not start, in one sentence. `reason` is Spark's error."""
    needed = f"it needs Java {JAVA_LEAST} or newer, found by JAVA_HOME or the path"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return f"Spark did not start: {needed}, and there is no {java}"
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if version is not None and int(version[1]) < JAVA_LEAST:
        return f"Spark did not start: {needed}, and {java} is Java {version[1]}"
    return f"Spark did not start ({reason.strip().splitlines()[0]}); {needed}"


_OURS = re.compile(r"bookie\.errors\.\w+: (.+)")
_MISSING = re.compile(r"ModuleNotFoundError: (No module named .+)")


def plain_error(error: Exception) -> BookieError | None:
    """Return an error of Spark as a one-sentence error; None if the error is not Spark's.

    Spark passes an error of bookie in another process as the last line of a traceback.
    """
    if is_socket_error(error):
        return BookieError("Spark's driver got no connection: the machine is busy; run it again")
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    text = str(error).strip()
    if ours := _OURS.findall(text):
        return BookieError(ours[-1].strip())
    if missing := _MISSING.findall(text):
        return BookieError(package_problem("a process of Spark", missing[-1].strip()))
    lines = text.splitlines() or [type(error).__name__]
    return BookieError(f"Spark failed: {lines[0].strip()}")

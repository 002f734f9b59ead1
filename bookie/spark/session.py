"""Open Spark sessions for jobs that the command line starts."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.errors import BadRequestError, BookieError, CannotStartError
from bookie.spark.class_archive import reading_options
from bookie.spark.collecting import is_socket_error
from bookie.spark.executors import check_executors, package_problem
from bookie.spark.source import BookKeeperSource

Session = SparkSession
"""The type `SparkSession`, for modules that may not import pyspark themselves."""

RECOMMENDED = {
    "spark.python.unix.domain.socket.enabled": "true",
    # On a busy machine, a process may need more than Spark's default of 15 s to connect.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.speculation": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The job itself reports an error in one sentence at its end, so Spark need not log errors.
    "spark.log.level": "FATAL",
    # Jobs count the rows of all their batches. By default Spark reports only the last 100 batches.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
"""Spark's settings for jobs; ``--conf`` overrides them."""

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"

LOCAL = {
    # Spark must listen on the loopback address only.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # In a short job, half of the time goes to Java's optimizing compiler, which is off here. A job
    # of 1.5 million records, which mostly runs Python, was not slower without this compiler.
    DRIVER_OPTIONS: "-XX:TieredStopAtLevel=1",
    # A shuffle of a job has one row for each bookie, log or damaged ledger.
    "spark.sql.shuffle.partitions": "8",
}
"""Spark's settings for a session in this process; ``--conf`` overrides them."""

SERIAL = "-XX:+UseSerialGC"
"""The garbage collector of a local session; an 11 s job takes 0.7 s less than by Java's default."""

_OTHERS_SETTINGS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_CONF_DIR")
"""Environment variables that may choose a collector; Java does not start with two collectors."""

JAVA_LEAST = 17


def open_session(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Open a session on `master`, and register the format ``bookkeeper``.

    The caller must stop the session.

    A master ``sc://HOST:PORT`` is a Spark Connect server. If the master is not ``local``, the
    function checks that the executors have this version of bookie.

    Raises:
        CannotStartError: Spark does not start, usually because Java is missing.
        BadRequestError: a Connect server does not let its clients change a setting.
        ConfigurationError: an executor lacks bookie, or has another version of bookie.
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


def stop_last_session(session: SparkSession) -> None:
    """Stop a session at the end of the process, without PySpark's usual wait of a second.

    PySpark waits for its server of accumulators, and this server checks only once a second whether
    it must end. Here the server ends with the process, in a daemon thread.

    Source: ``UpdateRequestHandler`` in ``pyspark/accumulators.py`` of Spark 4.3.
    """
    context = getattr(session, "_sc", None)  # a session of Spark Connect has none
    server = getattr(context, "_accumulatorServer", None)
    if context is not None and server is not None:
        del context._accumulatorServer
        if isinstance(server.server_address, str):
            Path(server.server_address).unlink(missing_ok=True)
    session.stop()


def _open_here(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    is_local = master.startswith("local")
    settings = {**RECOMMENDED, **(local_settings() if is_local else {}), **conf}
    builder = SparkSession.builder.master(master).appName(f"bookie {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Every job needs the client. While Java starts, a core is idle, so a thread imports the client
    # at this time.
    Thread(target=import_module, args=["bookie.sync"], daemon=True).start()
    with _python_of_workers(is_local):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            raise CannotStartError(java_problem(str(error))) from error


def local_settings(*, reads_archive: bool = True) -> dict[str, str]:
    """Return the settings `LOCAL` plus Java options for the serial collector and the class archive.

    If an environment variable may choose another collector or another Spark, return `LOCAL` alone.

    Args:
        reads_archive: False for the session that writes the archive; Java cannot do both.
    """
    if any(name in os.environ for name in (*_OTHERS_SETTINGS, "SPARK_HOME")):
        return LOCAL
    options = [LOCAL[DRIVER_OPTIONS], SERIAL, *(reading_options() if reads_archive else [])]
    return {**LOCAL, DRIVER_OPTIONS: " ".join(options)}


@contextmanager
def _python_of_workers(is_local: bool) -> Iterator[None]:
    """Set PYSPARK_PYTHON, the Python that Spark's workers run, unless the user has set it.

    By default Spark runs the first python3 in PATH.
    """
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    # The Spark in SPARK_HOME may have another pyspark than this process.
    is_ours = is_local and "SPARK_HOME" not in os.environ
    os.environ["PYSPARK_PYTHON"] = local_python() if is_ours else sys.executable
    try:
        yield
    finally:
        # A later session may have workers on other machines, which do not have the script.
        os.environ["PYSPARK_PYTHON"] = sys.executable


_SCRIPT = """#!/bin/sh
PYTHONPATH=${PYTHONPATH##*/spark-core_*.jar}
export PYTHONPATH=${PYTHONPATH#:}
exec %s "$@"
"""


@cache
def local_python() -> str:
    """Return the path of a script that starts this Python, with the installed pyspark.

    Spark starts Python with ``SPARK_HOME/python/lib/pyspark.zip:…:spark-core_….jar`` before the
    user's ``PYTHONPATH``. Each process of a job would compile the modules in the zip again, and a
    job starts about ten processes, one after another. Without the zip, a job needs 4 to 6 s less
    processor time. Spark has no setting for these first parts of the path, so the script removes
    these parts. In one phase of a job, the path has these parts twice, and the script removes both.
    The script is deleted at the end of this process.

    If scripts in the directory of temporary files cannot run, the result is the path of this
    Python.

    Source: ``PythonUtils.sparkPythonPath`` and ``PythonWorkerFactory`` of Spark 4.3.
    """
    directory = tempfile.mkdtemp(prefix="bookie-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = Path(directory, "python")
    script.write_text(_SCRIPT % shlex.quote(sys.executable))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable


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
    """Return a sentence that says why Spark did not start; `reason` is Spark's error."""
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
    """Convert an error of Spark to an error with one sentence; return None for any other error.

    If bookie's code fails in another process, Spark's error contains bookie's error as the last
    line of a traceback.
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

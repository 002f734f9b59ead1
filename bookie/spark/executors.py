"""Count the executors' cores and check their version of bookie before a job starts."""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (programs for Spark say F)

import bookie
from bookie.errors import ConfigurationError
from bookie.spark.collecting import collected
from bookie.spark.connecting import package_differs


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at the same time; 2 if the number is unknown.

    Spark Connect does not report the number.
    """
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:  # noqa: BLE001  (Spark Connect raises errors of several types)
        return 2


def check_executors(spark: SparkSession) -> None:
    """Check the version of bookie on the executors, with as many tasks as there are cores.

    The check starts a Spark job, which takes about a second. An executor that starts after the
    check is not checked; if bookie is missing there, the executor's first task fails.

    Raises:
        ConfigurationError: an executor lacks bookie or a library, or has another version of bookie.
            The message names the executor.
    """
    tasks = cores(spark)
    # The function runs without Arrow, so an executor without pyarrow can report what is missing.
    asked = F.udf(_look(), "string", useArrow=False)
    frame = spark.range(0, tasks, 1, tasks).select(asked("id").alias("found")).distinct()
    rows = collected(frame)
    for host, version, problem in sorted((json.loads(row["found"]) for row in rows), key=repr):
        # Another version may need other libraries, so the version is reported first.
        if version not in (None, bookie.__version__):
            raise ConfigurationError(
                package_differs(f"executor {host}", version, bookie.__version__)
            )
        if problem is not None:
            raise ConfigurationError(package_problem(f"executor {host}", problem))


def package_problem(where: str, problem: str) -> str:
    """Return the message for a process that cannot import bookie; `problem` is Python's error."""
    if "'bookie'" in problem:
        return (
            f"{where} has no package bookie; pass --py-files with the zip of `bookie spark package`"
        )
    what = problem.partition(";")[0]
    return f"{where} cannot load bookie: {what}; install what `bookie spark package` lists"


def _look() -> Callable[[int], str]:
    def look(_number: int) -> str:
        # Spark sends the code of an inner function to the executor, which then needs no bookie to
        # run it.
        import json
        import socket

        host, version = socket.gethostname(), None
        try:
            import bookie

            version = bookie.__version__
            import bookie.spark.sinks  # imports the client
            import bookie.spark.source
            import bookie.spark.tables.reading
        except ImportError as error:
            return json.dumps([host, version, str(error)])
        return json.dumps([host, version, None])

    return look

"""A cluster of Spark by itself: a master and two workers, real processes on loopback.

PyPI's pyspark has no script that starts one, but its classes are all there.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.servers.ports import claimed_ports
from tests.servers.processes import ServerProcess, require_program, wait_until

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2


@dataclass(frozen=True, slots=True)
class StandaloneSpark:
    """A running cluster, each worker of which has one core."""

    master: str
    """For ``--master``."""
    web_port: int
    workers: Sequence[ServerProcess]

    def submit_command(self, *words: str) -> list[str]:
        """``spark-submit`` for a program and its arguments."""
        return [
            *_environment(),
            f"PYSPARK_PYTHON={sys.executable}",
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master),
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.executor.cores=1"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.ui.enabled=false"),
            *words,
        ]

    def live_workers(self) -> int:
        """Number of workers that the master counts as alive; 0 while it does not answer.

        A master that still starts has a server, and its page of state comes later: an empty answer.
        """
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/") as page:
                state = json.load(page)
        except (urllib.error.URLError, json.JSONDecodeError):
            return 0
        return int(state["aliveworkers"])


def _environment(home: Path = SPARK_HOME) -> list[str]:
    return [
        "env",
        f"SPARK_HOME={home}",
        "SPARK_LOCAL_IP=127.0.0.1",
        "SPARK_DAEMON_MEMORY=256m",
        # Without it the master takes jobs over HTTP from everybody on the machine.
        "SPARK_MASTER_OPTS=-Dspark.master.rest.enabled=false",
    ]


@contextmanager
def standalone_spark(
    directory: Path, *, home: Path = SPARK_HOME, path: str | None = None
) -> Iterator[StandaloneSpark]:
    """Start a cluster; all of its processes are killed at the end.

    `home` is the pyspark that it has, and `path` the variable PATH of its processes.
    """
    require_program("java", "openjdk-17-jre-headless")
    port, web_port, *ports = claimed_ports(2 + 2 * WORKERS)
    master_class = "org.apache.spark.deploy.master.Master"
    worker_class = "org.apache.spark.deploy.worker.Worker"
    searched = [] if path is None else [f"PATH={path}"]
    spark_class = [*_environment(home), *searched, str(home / "bin" / "spark-class")]
    address = ["--host", "127.0.0.1"]
    master = ServerProcess(
        "spark master",
        [*spark_class, master_class, *address, "--port", str(port), "--webui-port", str(web_port)],
        directory,
    )
    workers = [
        ServerProcess(
            f"spark worker {number}",
            [
                *(*spark_class, worker_class, *address),
                *("--port", str(ports[2 * number]), "--webui-port", str(ports[2 * number + 1])),
                *("--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory / f"work-{number}"), f"spark://127.0.0.1:{port}"),
            ],
            directory,
        )
        for number in range(WORKERS)
    ]
    cluster = StandaloneSpark(f"spark://127.0.0.1:{port}", web_port, workers)
    with ExitStack() as stack:
        for one in (master, *workers):
            stack.callback(one.kill)
            one.start()
        wait_until(lambda: cluster.live_workers() == WORKERS, "a cluster of Spark")
        yield cluster

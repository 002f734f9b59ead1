"""One Kafka broker on loopback, for the migration from it and for figures; its jars come by Maven.

Needs Java 17 and ``mvn``. The jars stay in the cache directory of the tests.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.fetch_zookeeper import jars_directory
from tests.servers.ports import claimed_ports
from tests.servers.processes import ServerProcess, require_program, wait_until

POM = Path(__file__).parent / "kafka" / "pom.xml"
CLUSTER_ID = "Ym9va2llLWJlc2lkZS1rYQ"
SYNCED = "log.flush.interval.messages=1\n"
OF_SPARK = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """A running broker."""

    address: str
    """For ``kafka.bootstrap.servers``."""
    spark_jars: str
    """For ``spark.jars``."""


def kafka_jars() -> Path:
    """The directory with all jars; fetched when they are missing."""
    directory = jars_directory().parent / "kafka-4.1.1"
    if not (directory / "complete").exists():
        require_program("mvn", "maven")
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={directory}"], check=True)
        (directory / "complete").touch()
    return directory


@contextmanager
def kafka_broker(
    directory: Path, partitions: int, *, is_synced: bool = False
) -> Iterator[KafkaBroker]:
    """Start a broker with empty logs; new topics have so many partitions.

    By default Kafka acknowledges what is in memory. With `is_synced` it syncs first, as bookies do.
    """
    java, jars = require_program("java", "openjdk-17-jre-headless"), kafka_jars()
    port, controller_port = claimed_ports(2)
    settings = directory / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={directory}/data\nnum.partitions={partitions}\n"
        f"offsets.topic.replication.factor=1\n{SYNCED if is_synced else ''}",
        encoding="utf-8",
    )
    run = [java, "-Xmx512m", "-cp", f"{jars}/*"]
    format_storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "--standalone"]
    subprocess.run([*run, *format_storage, "-c", settings], check=True, capture_output=True)
    broker = ServerProcess("kafka", [*run, "kafka.Kafka", str(settings)], directory)
    try:
        broker.start()
        wait_until(lambda: _answers(port), "a Kafka broker")
        found = [str(one) for one in sorted(jars.glob("*.jar")) if one.name.startswith(OF_SPARK)]
        yield KafkaBroker(f"127.0.0.1:{port}", ",".join(found))
    finally:
        broker.kill()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False

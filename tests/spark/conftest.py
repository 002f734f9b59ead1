"""One JVM with Spark, and one cluster of three bookies, for all tests of this folder."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bookie.sync
from bookie.sync import SyncBookKeeper
from tests.servers.ports import claimed_ports

READY = "The cluster is up"
CONNECT_TOKEN = secrets.token_hex(16)
_numbers = count(1)


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metadata of a cluster of three bookies, as `make run` starts it."""
    directory = tmp_path_factory.mktemp("cluster")
    with three_bookies(directory):
        yield f"local://{directory}/metadata"


@contextmanager
def three_bookies(directory: Path, *words: str) -> Iterator[None]:
    """Run a cluster as processes of their own; `words` are more options of ``bookie local``."""
    words = (sys.executable, "-m", "bookie", "local", "--restart", "--data", str(directory), *words)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            lines = [""]
            for line in supervisor.stdout:
                lines.append(line)
                if READY in line:
                    break
            assert READY in lines[-1], lines
            yield
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.communicate()
    assert supervisor.returncode == 0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, which tries a task again, as a cluster does.

    Its JVM is a Spark Connect server as well: another one would cost half a minute of a core.
    """
    [connect_port] = claimed_ports(1)
    directory = tmp_path_factory.mktemp("spark")
    # Spark starts the first python3 of the path otherwise, also to look for sources.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        # A worker may start slowly beside other tests.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", str(connect_port))
        .config("spark.connect.authenticate.token", CONNECT_TOKEN)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_address(spark: SparkSession) -> str:
    """The address of Spark Connect, with its token. Its clients are processes of their own."""
    port = spark.sparkContext.getConf().get("spark.connect.grpc.binding.port")
    # Clients send a token without TLS to this name alone.
    return f"sc://localhost:{port}/;token={CONNECT_TOKEN}"


@pytest.fixture
def bk(uri: str) -> Iterator[SyncBookKeeper]:
    """A client in this process."""
    with bookie.sync.connect(uri) as client:
        yield client


@pytest.fixture
def log() -> str:
    """A name that no other test has."""
    return f"log-{next(_numbers)}"

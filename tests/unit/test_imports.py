"""A process imports what it uses, and a library that is missing is named in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDLESS_FOR_CLIENTS = {
    *("aiohttp", "kazoo", "prometheus_client", "rich", "structlog", "typer", "uvloop"),
    *(
        "bookie.cli",
        "bookie.node",
        "bookie.daemon",
        "bookie.node.engine",
        "bookie.wire.grpc.server",
    ),
    *("bookie.metadata.etcd", "bookie.metadata.zookeeper", "bookie._pb.etcd_pb2"),
    *("grpc_health.v1", "grpc_reflection.v1alpha", "numpy.ma", "http.server"),
}

WITHOUT_SPARK = """
import sys
for name in ("pyspark", "pyarrow", "pandas"):
    sys.modules[name] = None
try:
    import bookie.spark.{module}
except ImportError as error:
    print(error, end="")
"""


@pytest.mark.parametrize("module", ["selection", "source", "jobs.audit"])
def test_without_spark_each_module_says_what_to_install(module: str) -> None:
    """Those too that would not need its libraries themselves."""
    said = _python(WITHOUT_SPARK.format(module=module))
    assert said == "No module named 'pyspark'; install it with `pip install 'bookie[spark]'`"


@pytest.mark.parametrize(
    ("statement", "needless"),
    [
        ("import bookie", {"bookie.api", "asyncio", "numpy", "grpc", "pydantic", "logging"}),
        ("from bookie import connect", NEEDLESS_FOR_CLIENTS),
        ("import bookie.sync", NEEDLESS_FOR_CLIENTS),
    ],
)
def test_a_client_imports_nothing_of_a_bookie_or_of_other_stores(
    statement: str, needless: set[str]
) -> None:
    """The backend of a store comes with its URI, telemetry with a bookie."""
    found = _python(f"{statement}; import sys; print(*sys.modules)").split()
    assert sorted(needless & set(found)) == []


def _python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout

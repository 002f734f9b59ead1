"""Faults of a machine or of options are errors before any task of the query runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import bookie
from bookie.errors import CannotStartError, ConfigurationError
from bookie.spark.connecting import SparkConnection
from bookie.spark.executors import check_executors
from bookie.spark.package import write_package
from bookie.spark.session import open_session
from bookie.sync import SyncBookKeeper

LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"


def python_of_a_machine(directory: Path, *packages: Path) -> str:
    """A Python that has Spark's library and these packages, and nothing else."""
    libraries = ":".join(map(str, [*packages, *sorted(LIBRARIES.glob("*.zip"))]))
    program = directory / "python"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    # The directory of this process has the package, and `python -m` would look there.
    program.write_text(f'#!/bin/sh\ncd {directory} && PYTHONPATH={libraries} exec {base} "$@"\n')
    program.chmod(0o755)
    return str(program)


def another_version(directory: Path) -> Path:
    """The zip of this package, which calls itself 0.0.9."""
    given, changed = write_package(directory / "given"), directory / "changed.zip"
    with zipfile.ZipFile(given) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "bookie/__init__.py":
                old = f'__version__ = "{bookie.__version__}"'.encode()
                assert old in data
                data = data.replace(old, b'__version__ = "0.0.9"')
            if name == "bookie/spark/source.py":  # what it needs is not there either
                data = b""
            target.writestr(name, data)
    return changed


def test_an_executor_without_the_package_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executors(spark)
    where = f"executor {socket.gethostname()}"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python_of_a_machine(tmp_path))
    with pytest.raises(ConfigurationError, match=f"{where} has no package bookie; pass --py-files"):
        check_executors(spark)


def test_an_executor_with_another_version_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = python_of_a_machine(tmp_path, another_version(tmp_path))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
    said = f"has bookie 0.0.9, and the driver has {bookie.__version__}; install one version"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        check_executors(spark)


def test_an_executor_that_lacks_a_library_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = python_of_a_machine(tmp_path, write_package(tmp_path))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
    with pytest.raises(ConfigurationError, match="cannot load bookie: No module named '"):
        check_executors(spark)


def test_a_task_of_another_version_refuses_the_query(uri: str) -> None:
    """For executors that came after the check."""
    with pytest.raises(
        ConfigurationError, match=f"has bookie {bookie.__version__}, and the driver"
    ):
        SparkConnection(uri, version="0.0.9").client()


def test_a_password_file_that_is_not_there_is_an_error_when_a_frame_is_made(
    spark: SparkSession, uri: str, bk: SyncBookKeeper, log: str
) -> None:
    bk.create_log(log, transactional=True)
    options = {"metadata": uri, "log": log, "passwordFile": "/nowhere/secret"}
    said = "the option passwordFile names /nowhere/secret, which cannot be read"
    with pytest.raises(AnalysisException, match=said):
        spark.read.format("bookkeeper").options(**options).load()
    with pytest.raises(AnalysisException, match=said):
        spark.readStream.format("bookkeeper").options(**options).load()
    rows = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(AnalysisException, match=said):
        rows.write.format("bookkeeper").options(**options).mode("append").save()
    assert list(bk.read_log(log)) == []


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ("", "Spark did not start: it needs Java 17 or newer, .* and there is no .*/bin/java"),
        ('openjdk version "11.0.2" 2019-01-15', "needs Java 17 or newer, .*/bin/java is Java 11$"),
        ('java version "1.8.0_292"', "needs Java 17 or newer, .*/bin/java is Java 8$"),
    ],
)
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str, said: str
) -> None:
    program = tmp_path / "bin" / "java"
    if java:
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{java}' >&2\nexit 1\n")
        program.chmod(0o755)
    code = f"""
from bookie.errors import {CannotStartError.__name__}
from bookie.spark.session import {open_session.__name__}
try:
    open_session("x", "local[1]", {{}})
except CannotStartError as error:
    print(error)
"""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert re.search(said, _python(code).strip())


def test_what_is_set_for_a_job_on_this_machine() -> None:
    """A short job is fast, a busy machine gets time, and the user's settings go before."""
    code = """
from bookie.spark.session import open_session
spark = open_session("x", "local[1]", {"spark.sql.shuffle.partitions": "3"})
flags = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print("FOUND", "-XX:TieredStopAtLevel=1" in list(flags))
print("FOUND", spark.conf.get("spark.sql.shuffle.partitions"))
print("FOUND", spark.conf.get("spark.python.authenticate.socketTimeout"))
spark.stop()
"""
    assert re.findall("FOUND (.*)", _python(code)) == ["True", "3", "120s"]


def test_local_workers_import_the_installed_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of Spark compiles each module of a zip. A later session has its own Python."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    code = """
import os
import sys
from bookie.spark.session import local_python, open_session
spark = open_session("x", "local[1]", {})
def look(_):
    import pyspark
    return pyspark.__file__
print("FOUND", spark.sparkContext.parallelize([0], 1).map(look).first())
print("FOUND", os.environ["PYSPARK_PYTHON"] == sys.executable)
spark.stop()
os.environ["PYSPARK_PYTHON"] = "/users/own/python"
spark = open_session("x", "local[1]", {})
print("FOUND", spark.sparkContext.pythonExec)
spark.stop()
"""
    found = re.findall("FOUND (.*)", _python(code))
    assert found == [pyspark.__file__, "True", "/users/own/python"]


def test_a_pyspark_that_is_too_old_is_named_and_harms_no_other_source() -> None:
    code = """
import pyspark.version
pyspark.version.__version__ = "4.1.2"
import pyspark_bookkeeper
assert pyspark_bookkeeper.DefaultSource.name() == "bookkeeper"
try:
    pyspark_bookkeeper.DefaultSource({})
except Exception as error:
    print(error)
import bookie.spark.source
"""
    said = "bookie needs PySpark 4.3 or newer, and 4.1.2 is installed"
    done = _python(code, status=1)
    assert done.startswith(f"bookie cannot be used from Spark: {said}")
    assert f"bookie.errors.ConfigurationError: {said}" in done


def _python(code: str, status: int = 0) -> str:
    """The output of a program, errors included."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if status else subprocess.DEVNULL,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == status, done.stdout
    return done.stdout

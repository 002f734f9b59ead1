"""The Python of the workers of a local session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bookie.spark.session import LOCAL, SERIAL, local_python, local_settings

SPARKS = "/s/python/lib/pyspark.zip:/s/python/lib/py4j-src.zip:/s/jars/spark-core_2.13-4.3.0.jar"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param(SPARKS, [], id="only-sparks"),
        pytest.param(f"{SPARKS}:/mine/a:/mine/b", ["/mine/a", "/mine/b"], id="the-users-too"),
        pytest.param(f"{SPARKS}:{SPARKS}:/mine/a", ["/mine/a"], id="sparks-twice"),
        pytest.param("/mine/a", ["/mine/a"], id="none-of-spark"),
    ],
)
def test_workers_import_what_is_installed(given: str, kept: list[str]) -> None:
    """Spark's zips are not on the path, and the user's directories are, in order."""
    code = "import json, sys; print(json.dumps([sys.executable, sys.path, sys.argv[1:]]))"
    environment = {**os.environ, "PYTHONPATH": given}
    program = [local_python(), "-c", code, "two words"]
    said = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    executable, path, arguments = json.loads(said.stdout)
    assert executable == sys.executable
    assert arguments == ["two words"]
    assert [one for one in path if one.startswith(("/s/", "/mine/"))] == kept
    assert not [one for one in path[1:] if not one]  # an empty entry is the working directory


def test_the_script_is_left_out_where_programs_may_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert local_python.__wrapped__() == sys.executable


NAMES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_CONF_DIR", "SPARK_HOME")


@pytest.mark.parametrize("chooser", [None, *NAMES])
def test_java_gets_one_collector(chooser: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java does not start with two."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if chooser is not None:
        monkeypatch.setenv(chooser, "-XX:+UseG1GC")
    options = local_settings()["spark.driver.extraJavaOptions"].split()
    assert (SERIAL in options) is (chooser is None)
    assert {*LOCAL["spark.driver.extraJavaOptions"].split()} <= {*options}

"""The guide of Spark, typed as it is printed where the package with `[spark]` is installed.

No environment is active: the first `python3` of the path is the system's, without the package.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed.environments import (
    ROOT,
    fresh_clone,
    install_into,
    run,
    running_cluster,
    variables,
)
from tests.installed.terminal import typed
from tests.installed.test_guide_of_logs import python_blocks
from tests.servers.standalone_spark import standalone_spark

GUIDE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
PYTHON = "PYSPARK_PYTHON"
HERE = "/opt/bookie/bin/"
"""Where the guide has installed the package."""

SALES = """
spark.sql("SELECT 'north' AS shop, id AS price FROM range(7)").createOrReplaceTempView("sales")
for statement in filter(None, map(str.strip, STATEMENTS.split(";"))):
    rows = spark.sql(statement).collect()
    print("rows", len(rows))
print("inserted", spark.table("orders").where("key = CAST('north' AS BINARY)").count())
"""
"""The statements of the guide, with rows to insert."""


@pytest.fixture(scope="module")
def home(with_spark: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the data of a running cluster, which has a log."""
    directory = tmp_path_factory.mktemp("guide")
    with running_cluster(with_spark, directory):
        write = "create orders && seq 1 100 | sed 's/^/order /' | BOOKIE log append orders"
        words = f"BOOKIE log {write}".replace("BOOKIE", f"{with_spark}/bookie")
        run(["bash", "-c", words], directory, variables(BOOKIE_METADATA=_metadata(directory)))
        yield directory


def _metadata(home: Path) -> str:
    return f"local://{home}/data/metadata"


def _page(home: Path, lake: str) -> str:
    """All programs of the guide as one, in its order, which writes into a directory of `home`."""
    page = "\n".join(python_blocks(GUIDE))
    for printed, here in {
        "local:///srv/data/metadata": _metadata(home),
        "/lake/": f"{home}/{lake}/",
    }.items():
        assert printed in page
        page = page.replace(printed, here)
    return page


def _check(said: str) -> None:
    """The frame shows rows, the lag is told, and the files of the stream show rows."""
    assert len(re.findall(r"^\| *order 1\|$", said, re.MULTILINE)) == 1
    assert re.search(r"^0 {.*orders.*: 0}$", said, re.MULTILINE)
    assert re.search(r"^\| *0\| *0\| *order 1\|$", said, re.MULTILINE)


def test_the_lines_that_install(wheel: Path, plain: Path, tmp_path: Path) -> None:
    """Those of the guide name the package and its extra; what it needs is left out here."""
    commands = [one.command for one in typed(GUIDE) if "install" in one.command]
    (clone, from_wheel) = commands
    assert wheel.name in from_wheel
    source = fresh_clone(tmp_path / "clone")
    run([str(plain / "python"), "-m", "venv", "--without-pip", str(tmp_path / "venv")], tmp_path)
    programs = tmp_path / "venv" / "bin"
    for command, directory in ((clone, source), (from_wheel, wheel.parent)):
        pip = " ".join([*install_into(programs), "--no-deps", "--force-reinstall"])
        printed = f"{HERE}pip install"
        assert printed in command
        said = run(["bash", "-c", command.replace(printed, pip)], directory)
        assert "extra" not in said  # a warning if the package has none of that name
        assert (programs / "bookie").exists()
        (programs / "bookie").unlink()


def test_every_example_of_the_guide(with_spark: Path, home: Path) -> None:
    """The command that the guide gives, which needs no active environment."""
    (statements,) = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)
    for printed, here in {
        "etcd://h1:2379/ledgers": _metadata(home),
        "log 'orders'": "log 'shop'",
    }.items():
        assert printed in statements
        statements = statements.replace(printed, here)
    user = variables(BOOKIE_METADATA=_metadata(home))
    run([str(with_spark / "bookie"), "log", "create", "shop", "--transactional"], home, user)
    page = f"{_page(home, 'lake')}\nSTATEMENTS = {statements!r}\n{SALES}"
    (home / "job.py").write_text(page, encoding="utf-8")
    command = f"{HERE}python job.py"
    assert f"`{command}`" in GUIDE
    said = run(["bash", "-c", command.replace(HERE, f"{with_spark}/")], home, variables())
    _check(said)
    # A bar that shows progress may stand before what is printed.
    assert len(re.findall(r"\brows \d+$", said, re.MULTILINE)) == statements.count(";")
    assert re.search(r"\binserted 7$", said, re.MULTILINE)


def test_the_command_for_a_cluster(with_spark: Path, home: Path, tmp_path: Path) -> None:
    """On a standalone cluster that has never heard of the environment."""
    (found,) = [one.command for one in typed(GUIDE) if "spark-submit" in one.command]
    (spark_home,) = with_spark.parent.glob("lib/python*/site-packages/pyspark")
    (home / "job.py").write_text(_page(home, "lake-of-a-cluster"), encoding="utf-8")
    with standalone_spark(tmp_path, home=spark_home, path=variables()["PATH"]) as cluster:
        command = found
        for printed, here in {HERE: f"{with_spark}/", "spark://HOST:7077": cluster.master}.items():
            assert printed in command
            command = command.replace(printed, here)
        _check(run(["bash", "-c", command], home, variables(SPARK_LOCAL_IP="127.0.0.1")))


def test_the_first_symptom_of_the_guide(with_spark: Path, home: Path) -> None:
    """A program without the line that names its Python."""
    first, *_ = re.findall(r"^\| `(\w+)`: bookkeeper \|", GUIDE, re.MULTILINE)
    page = "\n".join(line for line in _page(home, "none").splitlines() if PYTHON not in line)
    (home / "job.py").write_text(page, encoding="utf-8")
    done = subprocess.run(
        [str(with_spark / "python"), "job.py"],
        cwd=home,
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert first == "DATA_SOURCE_NOT_FOUND"
    assert f"[{first}]" in done.stderr

"""The guide of Spark, typed as it is printed where the package with `[spark]` is installed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.installed.environments import ROOT, run, running_cluster, variables
from tests.installed.terminal import typed
from tests.installed.test_guide_of_logs import python_blocks

GUIDE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")

FILES = """
lake = spark.read.parquet("/lake/orders").orderBy("offset")
print([row.text for row in lake.selectExpr("cast(value AS string) AS text").collect()])
"""
"""What the reader looks at next: the files of the stream."""


def test_every_example_of_the_guide(with_spark: Path, tmp_path: Path) -> None:
    """A log is written by the command line. All programs of the page run as one, in its order."""
    metadata = f"local://{tmp_path}/data/metadata"
    activated = f"{with_spark}{os.pathsep}{variables()['PATH']}"
    user = variables(BOOKIE_METADATA=metadata, PATH=activated)
    with running_cluster(with_spark, tmp_path):
        write = "bookie log create orders; seq 1 100 | sed 's/^/order /' | bookie log append orders"
        run(["bash", "-c", write], tmp_path, user)

        page = "\n".join(python_blocks(GUIDE)) + FILES
        for printed, here in {
            "local:///srv/data/metadata": metadata,
            "/lake/": f"{tmp_path}/lake/",
        }.items():
            assert printed in page
            page = page.replace(printed, here)
        program = tmp_path / "guide.py"
        program.write_text(page, encoding="utf-8")
        said = run([str(with_spark / "python"), str(program)], tmp_path, user)
        assert re.search(r"^\| *order 1\|$", said, re.MULTILINE)
        assert re.search(r"^0 {.*orders.*: 0}$", said, re.MULTILINE)
        assert str([f"order {number}" for number in range(1, 101)]) in said

        (entry,) = typed(GUIDE)
        command = entry.command
        for printed, here in {
            "spark://HOST:7077": "local-cluster[1,1,1024]",
            "/opt/bookie/bin": str(with_spark),
            "PROGRAM": str(program),
        }.items():
            assert printed in command
            command = command.replace(printed, here)
        program.write_text(page.replace("/lake/", "/lake-of-a-cluster/"), encoding="utf-8")
        said = run(["bash", "-c", command], tmp_path, user)
        assert str([f"order {number}" for number in range(1, 101)]) in said

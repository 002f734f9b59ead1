"""The imports of each Spark process before it has work."""

from __future__ import annotations

import subprocess
import sys

LOOK = "import sys, bookie.spark.source; print(*sorted({'pandas'} & sys.modules.keys()))"


def test_the_source_imports_no_pandas() -> None:
    """It takes half a second of each process, and the source does not use it."""
    said = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"

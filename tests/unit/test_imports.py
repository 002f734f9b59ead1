"""A process imports what it uses, and a library that is missing is named in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def _python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout

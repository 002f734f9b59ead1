"""Checks that the Spark libraries that this package needs are installed."""

from __future__ import annotations

import re
from importlib.util import find_spec

from bookie.errors import ConfigurationError

PYSPARK_LEAST = (4, 3)
"""The first PySpark version whose Python streams can have limits, and support ``availableNow``."""


def require_spark() -> None:
    """Check that Spark's libraries are installed, and that PySpark is new enough.

    Raises:
        ModuleNotFoundError: a library is missing; the message says how to install it.
        ConfigurationError: PySpark is too old; the message names both versions.
    """
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            advice = "install it with `pip install 'bookie[spark]'`"
            raise ModuleNotFoundError(f"No module named {name!r}; {advice}", name=name)
    from pyspark.version import __version__ as found

    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise ConfigurationError(
            f"bookie needs PySpark {least} or newer, and {found} is installed; "
            f"install it with `pip install 'pyspark>={least},<4.4'`, here and on the cluster"
        )

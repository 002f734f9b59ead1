"""Which Spark this package needs."""

from __future__ import annotations

import re
from importlib.util import find_spec

from bookie.errors import ConfigurationError

PYSPARK_LEAST = (4, 3)
"""The first one that tells streams what they need: limits, and the end of ``availableNow``."""


def require_pyspark() -> None:
    """Refuse a PySpark that is too old. One that is missing is no error here.

    Raises:
        ConfigurationError: it is; the message names both versions.
    """
    if find_spec("pyspark") is None:
        return
    from pyspark.version import __version__ as found

    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers < PYSPARK_LEAST:
        least = ".".join(map(str, PYSPARK_LEAST))
        raise ConfigurationError(
            f"bookie needs PySpark {least} or newer, and {found} is installed; "
            f"install it with `pip install 'pyspark>={least},<4.4'`, here and on the cluster"
        )

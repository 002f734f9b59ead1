"""The table of all parsers that meet bytes from outside."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from tests.fuzz import (
    access_targets,
    disk_targets,
    frames_targets,
    record_targets,
    server_targets,
    text_targets,
    wire_targets,
)
from tests.fuzz.target import Target

PARTS = [
    wire_targets,
    frames_targets,
    record_targets,
    disk_targets,
    text_targets,
    server_targets,
    access_targets,
]

HAS_SPARK = find_spec("pyspark") is not None
"""A soak may run without Spark, as `make soak` installs it."""

if HAS_SPARK:
    from tests.fuzz import spark_targets

    PARTS.append(spark_targets)

TARGETS: Mapping[str, Target] = {target.name: target for part in PARTS for target in part.TARGETS}

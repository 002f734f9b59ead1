"""Options of Spark's source and offsets in its checkpoints; they need `bookie[spark]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from bookie.errors import BadRequestError
from bookie.spark import read_bounds, selection, stream_offsets
from tests.fuzz.target import Target
from tests.fuzz.text_targets import by_text

REFUSED = (BadRequestError,)
OFFSETS = json.dumps({"orders": {"0": 17, "1": -2, "id": "abc"}}).encode()


def offsets(text: str) -> stream_offsets.StreamOffset:
    """Parse offsets; ids of logs without an offset do not matter, and are not written."""
    found = stream_offsets.parse_offsets("startingOffsets", text)
    logs = {log for log, _ in found.offsets}
    return replace(found, log_ids={k: v for k, v in found.log_ids.items() if k in logs})


TARGETS: Sequence[Target] = (
    Target(
        "spark.offsets",
        by_text(offsets),
        [OFFSETS],
        REFUSED,
        encode=lambda one: json.dumps(stream_offsets.as_json(one)).encode(),
    ),
    Target(
        "spark.time",
        by_text(lambda text: read_bounds._parse_time("startingTimestamp", text)),
        [b'{"orders": {"0": "2026-01-31T09:30:00Z", "1": 17}}', b"17"],
        REFUSED,
    ),
    Target("spark.ledgers", by_text(selection.parse_ledgers), [b"1,2,10-20", b" 7 "], REFUSED),
    Target(
        "spark.partitions",
        by_text(lambda text: selection._parse_partitions("partitions", text)),
        [b'{"orders": [0, 2], "shop/x": [1]}'],
        REFUSED,
    ),
)

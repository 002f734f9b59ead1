"""A stream's progress and its lag behind the logs, from Spark's report of the query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bookie.spark.stream_offsets import LogOffsets, from_json


@dataclass(frozen=True, slots=True)
class StreamLag:
    """The numbers of records between a query's offsets and the ends of its partitions."""

    min_offsets_behind_latest: int
    max_offsets_behind_latest: int
    avg_offsets_behind_latest: float
    by_partition: Mapping[tuple[str, int], int]


def stream_lag(progress: Any, source: int = 0) -> StreamLag | None:
    """Return the lag of a query, from ``query.lastProgress``; None if the lag is not known yet.

    `progress` is a ``StreamingQueryProgress`` or its dict; `source` is the number of the source in
    the query. The numbers have the same names and meanings as in Spark's source for Kafka.
    """
    given = json.loads(progress.json) if hasattr(progress, "json") else progress
    if not given:
        return None
    one = given["sources"][source]
    end, latest = _offsets(one.get("endOffset")), _offsets(one.get("latestOffset"))
    if not latest:
        return None
    behind = {key: max(0, offset - end.get(key, 0)) for key, offset in latest.items()}
    counts = behind.values()
    return StreamLag(min(counts), max(counts), sum(counts) / len(behind), behind)


def rows_read(query: Any) -> int:
    """Return the number of rows that a query has read in the batches that Spark remembers."""
    # In Spark Connect, `one["numInputRows"]` is empty, but the property has the number.
    return sum(int(one.numInputRows) for one in query.recentProgress)


def _offsets(given: Any) -> LogOffsets:
    """Parse offsets that are a JSON text, or JSON that Spark has already parsed."""
    return from_json(json.loads(given) if isinstance(given, str) else given or {}).offsets

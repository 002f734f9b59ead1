"""The rules for the rows of a sink: each once, in the order of the input in each partition.

Rows are written as ``query/file/row``. Files of a query are its batches, in the order of their
numbers; numbers have no fixed width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

Place = tuple[str, int]
"""A log and a partition of it."""


def row_text(query: str, file: int, row: int) -> str:
    """The text of a row."""
    return f"{query}/{file}/{row}"


def sink_problems(expected: Iterable[str], found: Mapping[Place, Sequence[str]]) -> list[str]:
    """The faults of the rows that were read from each partition; empty if there are none."""
    wanted = Counter(expected)
    read = Counter(row for rows in found.values() for row in rows)
    problems = [f"{row} is lost" for row in sorted(wanted - read)]
    problems += [f"{row} was never written" for row in sorted(read - wanted) if row not in wanted]
    problems += [f"{row} is doubled" for row in sorted(read - wanted) if row in wanted]
    for (log, partition), rows in sorted(found.items()):
        by_query: dict[str, list[tuple[int, int]]] = {}
        for row in rows:
            query, file, number = row.split("/")
            by_query.setdefault(query, []).append((int(file), int(number)))
        for query, places in sorted(by_query.items()):
            problems += [
                f"{query}: {later} comes after {earlier} in {log}#{partition}"
                for earlier, later in pairwise(places)
                if later < earlier
            ]
    return problems

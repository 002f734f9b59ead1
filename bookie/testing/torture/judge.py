"""Checks the records that all clients of a torture run got against the rules of a log.

============ =====================================================================================
rule         broken if
============ =====================================================================================
lost         an acknowledged record is not in the log, or not at its acknowledged offset
twice        the log has a record of a producer more than once
producer     the records of the producer are not in the order of their numbers
order        a reader got other records than the log has, or in another order
cursor       a cursor moved backward
consumed     a record is before the cursor, but no consumer got it
============ =====================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Seen = tuple[int, int]
"""A record's offset and its producer's number; -1 if no writer wrote the record's bytes."""

EXAMPLES_MAX = 5
"""The largest number of examples in the sentence about one broken rule."""


@dataclass(slots=True)
class PartitionHistory:
    """The acknowledgements, records and cursor offsets that clients saw in one partition."""

    acknowledged: dict[int, set[int]] = field(default_factory=dict)
    """The offsets reported to writers, by record number; more than one offset is an error."""
    log: list[Seen] = field(default_factory=list)
    """All records of the partition, read after all writers had ended."""
    readers: dict[str, list[Seen]] = field(default_factory=dict)
    """The records that each reader saw from the first record on, by the reader's name."""
    commits: dict[str, list[int]] = field(default_factory=dict)
    """The successive offsets of each cursor, by the cursor's name."""
    consumed: dict[str, set[int]] = field(default_factory=dict)
    """The offsets of records delivered to consumers, by the cursor's name."""


def judge(histories: Mapping[int, PartitionHistory]) -> list[str]:
    """Return one sentence for each broken rule; empty if no rule was broken."""
    return [
        f"{rule}: partition {number}: {sentence}"
        for number, history in sorted(histories.items())
        for rule, sentence in _findings(history)
    ]


def _findings(history: PartitionHistory) -> Iterator[tuple[str, str]]:
    offsets = {sequence: offset for offset, sequence in history.log}
    lost = [
        sequence
        for sequence, told in history.acknowledged.items()
        if told != {offsets.get(sequence)}
    ]
    if lost:
        yield "lost", f"{_some(lost)} were acknowledged and are not there"
    counts = Counter(sequence for _, sequence in history.log)
    twice = [sequence for sequence, count in counts.items() if count > 1]
    if twice:
        yield "twice", f"{_some(twice)} are in the log more than once"
    disordered = [
        after
        for before, after in pairwise(history.log)
        if after[0] <= before[0] or after[1] <= before[1]
    ]
    if disordered:
        yield "producer", f"{_some(disordered)} come after greater ones"
    for reader, seen in history.readers.items():
        if seen != history.log:
            wrong = [one for one, right in zip(seen, history.log, strict=False) if one != right]
            yield (
                "order",
                f"{reader} saw {len(seen)} of {len(history.log)} records; {_some(wrong)} differ",
            )
    yield from _cursor_findings(history)


def _cursor_findings(history: PartitionHistory) -> Iterator[tuple[str, str]]:
    for cursor, commits in history.commits.items():
        back = [after for before, after in pairwise(commits) if after < before]
        if back:
            yield "cursor", f"the cursor {cursor} went back to {_some(back)}"
        given = history.consumed.get(cursor, set())
        end = commits[-1] if commits else 0
        missed = [offset for offset, _ in history.log if offset < end and offset not in given]
        if missed:
            yield "consumed", f"{_some(missed)} are before the cursor {cursor}, and nobody got them"


def _some(found: Sequence[object]) -> str:
    words = ", ".join(map(str, found[:EXAMPLES_MAX]))
    more = len(found) - EXAMPLES_MAX
    return f"{words} and {more} more" if more > 0 else words or "none"

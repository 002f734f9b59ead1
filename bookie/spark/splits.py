"""Divide a read into few large tasks of about the same size.

Spark needs about 50 ms for each task, so a task should have at least a second of work. With too few
tasks, however, cores are idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.log.read.survey import LogSpan


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Consecutive records of one partition, for one task."""

    log: str
    partition: int
    start: int
    end: int
    """The offset after the last record of the slice."""


def task_bytes(total_bytes: int, bytes_max: int, tasks_min: int | None) -> int:
    """Return the number of bytes that one task should read, at most `bytes_max`.

    With `tasks_min`, the bytes are divided among about that many tasks or more, even if the tasks
    become small. Without `tasks_min`, there are as few tasks as possible.
    """
    tasks = tasks_min or -(-total_bytes // bytes_max)
    share = -(-total_bytes // max(1, tasks))
    if tasks_min is None:
        share += share // 64  # else the remainder would need one more task
    return max(1, min(bytes_max, share))


def cut(log: str, partition: int, spans: Sequence[LogSpan], size_bytes: int) -> list[LogSlice]:
    """Divide consecutive spans of a partition into slices of about `size_bytes` each."""
    if not spans:
        return []
    found: list[LogSlice] = []
    start, room = spans[0].offset, float(size_bytes)
    for span in spans:
        at, count = span.offset, span.end_offset - span.offset
        mean = span.size_bytes / count if count else 0.0
        while at < span.end_offset:
            taken = span.end_offset - at
            if mean > 0 and taken * mean > room:
                taken = max(1 if at == start else 0, int(room / mean))
            at += taken
            room -= taken * mean
            if at < span.end_offset:
                found.append(LogSlice(log, partition, start, at))
                start, room = at, float(size_bytes)
    if start < spans[-1].end_offset:
        found.append(LogSlice(log, partition, start, spans[-1].end_offset))
    return found


def cut_ids(first: int, last: int, size_bytes: int, task_size_bytes: int) -> Iterable[range]:
    """Divide the entries ``first … last`` of a ledger into parts of about `task_size_bytes`."""
    count = last - first + 1
    parts = max(1, min(count, -(-size_bytes // task_size_bytes)))
    step = -(-count // parts)
    for begin in range(first, last + 1, step):
        yield range(begin, min(begin + step, last + 1))

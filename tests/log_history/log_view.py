"""One partition's part of a history, indexed for the rules; and where they put what they find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    AnyLogEvent,
    BatchPublished,
    FinalPartition,
    LogEvent,
    LogTruncated,
    RecordedLogs,
    RecordsAppended,
    RecordsRead,
    SeenRecord,
)

E = TypeVar("E", bound=LogEvent)

VIOLATIONS_OF_A_RULE_MAX = 20


@dataclass(frozen=True, slots=True, order=True)
class LogViolation:
    """A rule that the history breaks."""

    rule: str
    """L1 to L9."""
    where: str
    """A partition, a cursor or a log."""
    message: str


@dataclass(slots=True)
class LogFindings:
    """What the rules found."""

    violations: list[LogViolation] = field(default_factory=list)
    _counts: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, rule: str, where: str, message: str) -> None:
        """Record a violation; of many alike, the first ones."""
        self._counts[rule, where] += 1
        if self._counts[rule, where] <= VIOLATIONS_OF_A_RULE_MAX:
            self.violations.append(LogViolation(rule, where, message))


class PartitionView:
    """One partition of a history."""

    def __init__(self, final: FinalPartition, events: list[AnyLogEvent]) -> None:
        """`events` are those of the partition, in the order of their calls."""
        self.name = final.partition
        self.final = final
        self.events = events
        self.appends = [one for one in events if isinstance(one, RecordsAppended)]
        self.batches = [one for one in events if isinstance(one, RecordsRead)]

    def of(self, kind: type[E]) -> Iterator[E]:
        """The events of a kind."""
        return (one for one in self.events if isinstance(one, kind))

    @property
    def seen(self) -> Iterator[tuple[str, SeenRecord]]:
        """Everything that anybody read, and who."""
        for one in self.final.records:
            yield "the end", one
        for batch in self.batches:
            for one in batch.records:
                yield batch.handle, one

    @cached_property
    def final_offsets(self) -> dict[str, int]:
        """Where each value is at the end."""
        return {one.value: one.offset for one in self.final.records}

    @cached_property
    def known(self) -> dict[int, str]:
        """The value of each offset that somebody read or was told."""
        found = {one.offset: one.value for _, one in self.seen}
        for append in self.appends:
            if append.is_ok:
                found.update(zip(append.offsets, append.values, strict=False))
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        """The offset of each value in `known`."""
        return {value: offset for offset, value in self.known.items()}

    @cached_property
    def truncated_before(self) -> int:
        """The greatest offset that a truncation may have reached."""
        asked = (one for one in self.of(LogTruncated) if one.outcome is not EventOutcome.FAIL)
        return max((one.before for one in asked), default=0)


def views_of_logs(history: RecordedLogs) -> list[PartitionView]:
    """One view for each partition that was read at the end."""
    by_partition: defaultdict[str, list[AnyLogEvent]] = defaultdict(list)
    for event in sorted(history.events, key=lambda one: one.called):
        if not isinstance(event, BatchPublished):
            by_partition[event.partition].append(event)
    return [PartitionView(one, by_partition[one.partition]) for one in history.final]

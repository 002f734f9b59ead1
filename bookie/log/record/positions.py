"""The positions of records that were appended together, stored as runs of positions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, overload

from bookie.log.record.log_record import LogPosition


class PositionRun(NamedTuple):
    """The positions of consecutive entries of one ledger."""

    ledger_id: int
    first_entry_id: int
    first_offset: int
    entries: int
    partition: int = 0

    @property
    def first(self) -> LogPosition:
        return LogPosition(self.ledger_id, self.first_entry_id, self.first_offset, self.partition)


class LogPositions(Sequence[LogPosition]):
    """The positions of records that were appended together, in order: usually one run."""

    __slots__ = ("_starts", "runs")

    def __init__(self, runs: Iterable[PositionRun]) -> None:
        self.runs = [run for run in runs if run.entries]
        self._starts = list(accumulate((run.entries for run in self.runs), initial=0))

    @classmethod
    def of(cls, positions: Iterable[LogPosition]) -> LogPositions:
        """Return `positions`, which may be in several partitions, as `LogPositions`."""
        return cls(PositionRun(*one[:3], 1, one.partition) for one in positions)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> LogPosition: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LogPosition]: ...

    def __getitem__(self, index: int | slice) -> LogPosition | Sequence[LogPosition]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"there are {len(self)} positions, and none has the index {index}")
        which = bisect_right(self._starts, at) - 1
        run, behind = self.runs[which], at - self._starts[which]
        return LogPosition(
            run.ledger_id, run.first_entry_id + behind, run.first_offset + behind, run.partition
        )

    def __repr__(self) -> str:
        if not self:
            return "<LogPositions, none>"
        return f"<LogPositions {self[0]} to {self[-1]}>"

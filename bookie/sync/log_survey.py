"""A survey of a log without an event loop."""

from __future__ import annotations

from collections.abc import Sequence

from bookie.env import Moment
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.log.read.places import LogStart
from bookie.log.read.survey import LogSpan, LogSurvey
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import LoopThread


class SyncLogSurvey(SyncHandle):
    """`bookie.log.read.survey.LogSurvey`; made by `SyncBookKeeper.survey_log`."""

    def __init__(self, home: LoopThread, handle: LogSurvey) -> None:
        super().__init__(home)
        self._handle = handle

    @property
    def definition(self) -> LogDefinition:
        """What the log is."""
        return self._handle.definition

    def bounds(self, *, timeout: float | None = None) -> Sequence[tuple[int, int]]:
        """By partition: the earliest offset and the end; see `LogSurvey.bounds`."""
        return self._run(self._handle.bounds(), timeout)

    def locate(self, partition: int, start: LogStart = None, *, time: Moment | None = None) -> int:
        """The offset of a place in a partition; see `LogSurvey.locate`."""
        return self._run(self._handle.locate(partition, start, time=time))

    def spans(self, partition: int, start: int, end: int) -> Sequence[LogSpan]:
        """What is to be read between two offsets; see `LogSurvey.spans`."""
        return self._run(self._handle.spans(partition, start, end))

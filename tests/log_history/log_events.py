"""What writers, readers, consumers and publishers did to logs: the material of the checker.

Each event tells when it was called and when it returned, in ns of one clock that never goes back.
All processes of a machine share that clock (CLOCK_MONOTONIC), so their events can be compared.

Record FAIL only if the operation cannot have had an effect, now or later. An append that was
cancelled, or that ended with LogTakenOverError, is INFO: its outcome is unknown. Values have to be
unique in a history. A producer that sends a record again sends the same value and number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

from tests.ledger_history.ledger_events import EventOutcome

NEVER = 2**62
"""When an operation returned that never did."""


class SeenRecord(NamedTuple):
    """A record as somebody read it."""

    offset: int
    value: str
    key: str | None = None
    ledger_id: int = 0
    entry_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One operation of one client on one partition."""

    partition: str
    """Its text, such as ``orders#0``."""
    handle: str = ""
    """The writer, reader, consumer or publisher. Unique in a history."""
    called: int = 0
    returned: int = NEVER
    outcome: EventOutcome = EventOutcome.INFO
    error: str = ""
    """The name of the error, for messages."""

    @property
    def is_ok(self) -> bool:
        """Whether the caller was told that it succeeded."""
        return self.outcome is EventOutcome.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAppended(LogEvent):
    """A writer's append. `handle` is the writer in one epoch."""

    values: tuple[str, ...]
    keys: tuple[str | None, ...] = ()
    """One for each value; none at all if no record has a key."""
    epoch: int = 0
    producer: str = ""
    """The id of an idempotent producer; empty without one."""
    sequence: int = -1
    """The number of the first value."""
    is_spread: bool = False
    """Whether the log chose the partition by the key."""
    offsets: tuple[int, ...] = ()
    """Result: one for each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingBegan(LogEvent):
    """A reader starts, or a consumer does at its cursor. `handle` is this reading."""

    offset: int
    """The first record has this offset or a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRead(LogEvent):
    """One batch, in the order of delivery."""

    records: tuple[SeenRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingEnded(LogEvent):
    """A reading has come to `next_offset`, with everything before it."""

    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorTaken(LogEvent):
    """A consumer holds a cursor from now on. `handle` is this consumer."""

    cursor: str
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorCommitted(LogEvent):
    """A commit in an epoch."""

    cursor: str
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorReset(LogEvent):
    """A reset. Its epoch is behind `after_epoch`, and at most `until_epoch`."""

    cursor: str
    after_epoch: int
    until_epoch: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSeen(LogEvent):
    """The record of a cursor as a read showed it, which was called at `called`."""

    cursor: str
    version: int
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished(LogEvent):
    """A publication. `partition` is the log's name; a batch may touch several partitions."""

    application: str
    batch: int
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """By partition, what its ranges contain, in order."""
    was_new: bool = True
    """Result: whether this call published it; False if it, or a later one, was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncated(LogEvent):
    """A truncation before `before`."""

    before: int


AnyLogEvent: TypeAlias = (
    RecordsAppended
    | ReadingBegan
    | RecordsRead
    | ReadingEnded
    | CursorTaken
    | CursorCommitted
    | CursorReset
    | CursorSeen
    | BatchPublished
    | LogTruncated
)

KINDS: dict[str, type[AnyLogEvent]] = {
    kind.__name__: kind
    for kind in (
        RecordsAppended,
        ReadingBegan,
        RecordsRead,
        ReadingEnded,
        CursorTaken,
        CursorCommitted,
        CursorReset,
        CursorSeen,
        BatchPublished,
        LogTruncated,
    )
}


@dataclass(frozen=True, slots=True)
class FinalPartition:
    """What a new client found when all was calm."""

    partition: str
    start_offset: int
    end_offset: int
    records: tuple[SeenRecord, ...]
    controls: frozenset[int] = frozenset()
    """The offsets of control records."""
    is_transactional: bool = False
    is_compacted: bool = False
    """Records may have been copied to other ledgers; their offsets stay."""


@dataclass(frozen=True, slots=True)
class RecordedLogs:
    """A whole history."""

    events: tuple[AnyLogEvent, ...] = ()
    final: tuple[FinalPartition, ...] = ()
    troubles: tuple[str, ...] = ()
    """Why the harness could not see everything."""


class LogRecorder:
    """Collects events; those of a process of their own arrive as lines.

    Record an operation when it is called, and again when it has returned: of two events with the
    same handle and call, the second one counts.
    """

    def __init__(self) -> None:
        self._events: dict[tuple[str, str, int], AnyLogEvent] = {}

    def add(self, event: AnyLogEvent) -> None:
        """Record an event."""
        self._events[type(event).__name__, event.handle, event.called] = event

    def add_line(self, line: str) -> None:
        """Record the event of a line."""
        self.add(event_of(line))

    def history(self, *final: FinalPartition) -> RecordedLogs:
        """All that was recorded."""
        return RecordedLogs(tuple(self._events.values()), final)


def line_of(event: AnyLogEvent) -> str:
    """An event as one line of text, for a pipe."""
    fields = {**asdict(event), "outcome": event.outcome.value}
    return json.dumps([type(event).__name__, fields])


def event_of(line: str) -> AnyLogEvent:
    """The event of a line."""
    kind, fields = json.loads(line)
    outcome = EventOutcome(fields.pop("outcome"))
    values: dict[str, Any] = {name: _tuples(value) for name, value in fields.items()}
    if kind == RecordsRead.__name__:
        values["records"] = tuple(SeenRecord(*one) for one in values["records"])
    return KINDS[kind](outcome=outcome, **values)


def _tuples(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_tuples, value))
    return value

"""What clients and bookies did to ledgers, as a harness saw it: the material of `ledger_checker`.

A `HistoryRecorder` numbers everything in one order: each call, each return and each event of a
bookie takes the next number. The checker compares only these numbers. Times are for messages.

Record an operation before it is sent. Record FAIL only if the operation cannot have had an effect.
An append that ended with a timeout, a cancellation, a broken connection or `LedgerFencedError` is
INFO: its outcome is unknown. Payloads must be unique in a history: begin each with its producer
and a counter.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

NO_ENTRY = -1
"""The last entry id of an empty ledger, and the LAC before the first acknowledgement."""


class PayloadDigest(NamedTuple):
    """What stands for a payload in a history: its size in bytes, and a hash."""

    size: int
    hash: str


def digest_of(payload: bytes | memoryview) -> PayloadDigest:
    """The digest of one payload."""
    return PayloadDigest(len(payload), hashlib.blake2b(payload, digest_size=8).hexdigest())


class EntryCopy(NamedTuple):
    """One entry as somebody read it. Its packet was verified."""

    entry_id: int
    digest: PayloadDigest


class EventOutcome(enum.Enum):
    """How an operation ended for its caller."""

    OK = "ok"
    FAIL = "fail"
    """It has no effect, now or later."""
    INFO = "info"
    """Unknown: it may have had its effect, or get it later."""


# ---- operations of clients


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvent:
    """One operation of one client on one ledger."""

    process: str
    """The client."""
    ledger_id: int
    handle: str = ""
    """The writer, reader or tail that the client used. Unique in a history."""
    index: int = -1
    """The number of the call in the order of everything. The recorder sets it."""
    end_index: int | None = None
    """The number of the return. None: it never returned. The recorder sets it."""
    invoked: float = 0.0
    """Seconds of the harness's clock, likewise `returned`."""
    returned: float | None = None
    outcome: EventOutcome = EventOutcome.INFO
    error: str = ""
    """The name of the error, for messages."""

    @property
    def is_ok(self) -> bool:
        """True if the caller was told that it succeeded."""
        return self.outcome is EventOutcome.OK

    @property
    def ended(self) -> float:
        """The number of the return; infinite if it never returned."""
        return float("inf") if self.end_index is None else self.end_index


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEvent(LedgerEvent):
    """A writer's append of one or more payloads. `handle` is the writer."""

    digests: tuple[PayloadDigest, ...]
    is_deferred: bool = False
    """The ledger has deferred sync: an acknowledged entry may be lost until a force covers it."""
    entry_ids: tuple[int, ...] = ()
    """Result: one id for each payload, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceEvent(LedgerEvent):
    """The writer `handle` made durable what it had been acknowledged before the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEvent(LedgerEvent):
    """A confirmed read of `first` to `last`, both included. `handle` is the reader."""

    first: int
    last: int
    entries: tuple[EntryCopy, ...] = ()
    """Result: what was returned, in the order of delivery. May be set for a read that failed."""
    denied: int | None = None
    """Result of a failed read: the entry of which `NoSuchEntryError` spoke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedReadEvent(LedgerEvent):
    """A read that asks for entries beyond the LAC, too."""

    first: int
    last: int
    entries: tuple[EntryCopy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TailEvent(LedgerEvent):
    """One delivery of a tail: record one event for each batch that `tail` yielded."""

    start: int
    """The entry id at which this tail (`handle`) began. The same in each event of a handle."""
    entries: tuple[EntryCopy, ...] = ()
    denied: int | None = None
    """Result of a tail that failed: the entry of which `NoSuchEntryError` spoke. A tail asks only
    for what it knows to be confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLacEvent(LedgerEvent):
    """A reader asked for the LAC."""

    last_entry_id: int = NO_ENTRY


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEvent(LedgerEvent):
    """A client opened the ledger; `is_recovery` says that it fenced, recovered and closed it."""

    is_recovery: bool = False
    is_closed: bool = False
    """Result: the metadata said CLOSED. Always so after a recovery."""
    last_entry_id: int = NO_ENTRY
    """Result: the last entry of a closed ledger, the LAC of an open one."""
    length: int = 0
    """Result: bytes of all payloads, for a closed ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEvent(LedgerEvent):
    """The writer `handle` closed its ledger."""

    last_entry_id: int = NO_ENTRY
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEvent(LedgerEvent):
    """A client deleted the ledger."""


# ---- events of bookies


class BookieEventKind(enum.Enum):
    """What happened at a bookie. Kinds about one entry are recorded once for each entry."""

    START = "start"
    """The process began; `epoch` rises."""
    ACCEPT = "accept"
    """The entry entered the memtable and the journal's queue (plain and recovery adds)."""
    SYNC_BEGIN = "sync begin"
    """A sync of the journal began: it covers all that was accepted before."""
    SYNC_END = "sync end"
    """The sync that began last succeeded."""
    SYNC_ERROR = "sync error"
    ADD_ACK = "add ack"
    """A plain add of this entry was answered with OK."""
    DEFERRED_ADD_ACK = "deferred add ack"
    """Likewise, of a ledger with deferred sync: the entry is written, and not synced by this."""
    FORCE_ACK = "force ack"
    """A force was answered with OK: what was acknowledged before `began` is durable."""
    RECOVERY_ADD_ACK = "recovery add ack"
    FENCE_ACK = "fence ack"
    """A fence, or a fencing read, was answered: the fence is durable."""
    NO_SUCH_ENTRY = "no such entry"
    """A plain read of this entry was answered with NO_SUCH_ENTRY or NO_SUCH_LEDGER."""
    NO_SUCH_ENTRY_FENCING = "no such entry fencing"
    """A fencing read was answered so."""
    LEDGER_DELETED = "ledger deleted"
    """The bookie removed the ledger, which the metadata does not know any more. A crash at once may
    undo that."""
    DISK_DESTROYED = "disk destroyed"
    """The harness destroyed data of this bookie, or put an older state in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieEvent:
    """One event of one bookie."""

    bookie_id: str
    kind: BookieEventKind
    epoch: int = 0
    """Which life of the process: rises with each start."""
    ledger_id: int | None = None
    entry_id: int | None = None
    digest: PayloadDigest | None = None
    """Of an ACCEPT, an ADD_ACK or a RECOVERY_ADD_ACK, if the harness knows it."""
    began: int = -1
    """Of a FORCE_ACK or a NO_SUCH_ENTRY: the number of the moment at which the bookie was asked."""
    index: int = -1
    """The place in the order of everything. The recorder sets it."""
    time: float = 0.0


# ---- the end


class FinalLedgerState(enum.Enum):
    """What the metadata says at the end."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class FinalFragment:
    """A fragment of the metadata at the end: `bookies` by slot."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalLedger:
    """One ledger at the end, when everything has healed."""

    ledger_id: int
    state: FinalLedgerState
    ensemble_size: int = 1
    write_quorum_size: int = 1
    ack_quorum_size: int = 1
    last_entry_id: int = NO_ENTRY
    length: int = 0
    fragments: tuple[FinalFragment, ...] = ()
    entries: tuple[EntryCopy, ...] | None = None
    """What a fresh client read from 0 to the end, in order. None: it was not read."""
    copies: Mapping[str, Mapping[int, PayloadDigest]] | None = field(default=None, hash=False)
    """Verified copies: bookie → entry id → digest. None: bookies were not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """All ledgers at the end."""

    ledgers: tuple[FinalLedger, ...]
    destroyed: frozenset[str] = frozenset()
    """Bookies whose data was destroyed, in whole or in part, at any time."""
    is_repaired: bool = False
    """True if repair had time to bring each entry back to its write quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHistory:
    """All that a checker gets."""

    events: tuple[LedgerEvent, ...]
    """In the order of `index`."""
    final: FinalState
    bookie_events: tuple[BookieEvent, ...] = ()
    """In the order of `index`; empty if the harness cannot see into its bookies."""
    deletion_grace_seconds: float = 0.0
    """How long bookies may go on to acknowledge appends to a deleted ledger: until they list."""
    troubles: tuple[str, ...] = ()
    """Failures of the harness: they make a verdict unknown, unless the history is invalid."""


# ---- recording

E = TypeVar("E", bound=LedgerEvent)


class Invocation(Generic[E]):
    """An operation that was called. Say how it ended, at most once; otherwise it is INFO."""

    __slots__ = ("_recorder", "event")

    def __init__(self, recorder: HistoryRecorder, event: E) -> None:
        self._recorder = recorder
        self.event = event
        """The operation as it is known now."""

    def ok(self, **result: Any) -> None:
        """It returned: `result` are the fields of the event that are results."""
        self._end(EventOutcome.OK, result)

    def fail(self, error: BaseException | None = None, **result: Any) -> None:
        """It ended, and it cannot have had an effect."""
        self._end(EventOutcome.FAIL, {"error": _name_of(error), **result})

    def info(self, error: BaseException | None = None, **result: Any) -> None:
        """It ended, and nobody knows whether it had its effect."""
        self._end(EventOutcome.INFO, {"error": _name_of(error), **result})

    def _end(self, outcome: EventOutcome, result: dict[str, Any]) -> None:
        assert self.event.end_index is None, "it ended before"
        number, now = self._recorder.stamp()
        self.event = replace(self.event, outcome=outcome, end_index=number, returned=now, **result)


def _name_of(error: BaseException | None) -> str:
    return "" if error is None else type(error).__name__


class HistoryRecorder:
    """Collects a history. `clock` returns seconds; only one thread may record."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = 0
        self._operations: list[Invocation[Any]] = []
        self._bookie_events: list[BookieEvent] = []
        self._troubles: list[str] = []

    def stamp(self) -> tuple[int, float]:
        """The next number of the order of everything, and the time."""
        number = self._next
        self._next += 1
        return number, self._clock()

    def invoke(self, event: E) -> Invocation[E]:
        """An operation begins. Call this before anything is sent."""
        number, now = self.stamp()
        invocation = Invocation(self, replace(event, index=number, invoked=now))
        self._operations.append(invocation)
        return invocation

    def bookie(self, event: BookieEvent) -> None:
        """Something happened at a bookie."""
        number, now = self.stamp()
        self._bookie_events.append(replace(event, index=number, time=now))

    def trouble(self, message: str) -> None:
        """The harness itself failed: the history may lack something."""
        self._troubles.append(message)

    def history(self, final: FinalState, *, deletion_grace_seconds: float = 0.0) -> LedgerHistory:
        """All that was recorded so far. Operations that did not end are INFO."""
        return LedgerHistory(
            deletion_grace_seconds=deletion_grace_seconds,
            events=tuple(one.event for one in self._operations),
            bookie_events=tuple(self._bookie_events),
            final=final,
            troubles=tuple(self._troubles),
        )


def copies_of(entries: Iterable[tuple[int, bytes]]) -> tuple[EntryCopy, ...]:
    """The copies that stand for pairs of entry id and payload."""
    return tuple(EntryCopy(entry_id, digest_of(payload)) for entry_id, payload in entries)

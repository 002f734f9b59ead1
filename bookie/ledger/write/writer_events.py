"""Events and effects of the writer's state machine; `writer` says when and why they occur.

An event about a slot carries the slot's epoch. The epoch of a slot increases when the slot gets
another bookie, or when its bookie lost its data.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from bookie.errors import BookieError
from bookie.ids import Status
from bookie.ledger.exchange import (
    CancelTimer,
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.policy import AckDomains


class WriterState(enum.Enum):
    """The states of a writer; a table in `writer` explains them."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"
    STUCK = "stuck"
    CLOSED = "closed"


FATAL_STATUSES = frozenset(
    {
        Status.UNAUTHORIZED,
        Status.NOT_PERMITTED,
        Status.WRONG_CLUSTER,
        Status.BAD_REQUEST,
        Status.CONFLICT,
        Status.NO_SUCH_LEDGER,
    }
)
"""The answers to an add that end the writer, because they concern the ledger and not one bookie.

`Status.FENCED` ends the writer, too, but only after the metadata has confirmed that the ledger was
taken.
"""


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """The driver has a new batch; send this event only if `LedgerWriter.may_append` allows it."""

    count: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class AddAnswered:
    """A bookie answered an add of a batch."""

    batch: int
    slot: int
    epoch: int
    status: Status
    message: str = ""
    retry_after_seconds: float = 0.0
    """With TOO_MANY_REQUESTS: the pause that the bookie asks for; 0 if it asks for none."""


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """A bookie answered an explicit LAC."""

    slot: int
    epoch: int
    status: Status
    message: str = ""
    retry_after_seconds: float = 0.0
    """With TOO_MANY_REQUESTS: the pause that the bookie asks for; 0 if it asks for none."""


@dataclass(frozen=True, slots=True)
class ForceAnswered:
    """A bookie answered a force, or the request failed."""

    force: int
    slot: int
    status: Status
    message: str = ""


@dataclass(frozen=True, slots=True)
class SlotConnected:
    """The slot's stream is open; requests sent on an earlier stream will not be answered."""

    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SlotDisconnected:
    """The stream to the slot's bookie broke, or could not be opened.

    The bookie may have stored the entries of requests without an answer.
    """

    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SlotSilent:
    """Another ledger of this client found that the slot's bookie did not answer in time."""

    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The slot's bookie has another incarnation, and may have lost all acknowledged entries."""

    slot: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SpanDomains:
    """From now on, acknowledgements must also span enough failure domains; None: no such rule.

    The driver sends this event at the start, and after each `ReplaceBookies`, before a newcomer is
    connected.
    """

    domains: AckDomains | None


@dataclass(frozen=True, slots=True)
class Idle:
    """The driver has no append in its queue."""


@dataclass(frozen=True, slots=True)
class Force:
    """Make all entries confirmed so far durable (deferred sync).

    If a force is already running, this event does nothing; the driver repeats it when this force
    has ended.
    """


@dataclass(frozen=True, slots=True)
class Close:
    """Confirm the pending batches, then close the ledger."""


WriterEvent = (
    Append
    | AddAnswered
    | LacAnswered
    | ForceAnswered
    | SlotConnected
    | SlotDisconnected
    | SlotLost
    | SlotSilent
    | SpanDomains
    | Idle
    | Force
    | Close
    | NewcomersChosen
    | TimerFired
    | MetadataRead
    | MetadataWritten
    | MetadataConflict
    | MetadataFailed
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Pack the last appended batch, keep its bytes, and send it to the slots in `slots`.

    Each slot gets the entries of its stripe. If `slots` is empty, a `Resend` of the batch follows
    later.
    """

    batch: int
    first_entry_id: int
    count: int
    last_add_confirmed: int
    length_before: int
    slots: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the kept bytes of a batch to one slot, even if it did not get them before."""

    batch: int
    slot: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The batch has its ack quorum, so its appends return; batches are confirmed in id order."""

    batch: int


@dataclass(frozen=True, slots=True)
class Release:
    """Drop the bytes of a batch."""

    batch: int


@dataclass(frozen=True, slots=True)
class ReplaceBookies:
    """Leave the lanes (streams) of replaced bookies; join the lanes of `bookies`, by slot."""

    bookies: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SendLac:
    """Send an explicit LAC to the slots in `slots`."""

    last_add_confirmed: int
    slots: int


@dataclass(frozen=True, slots=True)
class SendForce:
    """Ask the bookies of `slots` to make accepted entries durable; each sends a `ForceAnswered`."""

    force: int
    slots: int


@dataclass(frozen=True, slots=True)
class ForceDone:
    """The force ended; without an error, all entries confirmed before the force are durable."""

    error: BookieError | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The writer ends: all pending appends get this error and have an unknown outcome."""

    error: BookieError


@dataclass(frozen=True, slots=True)
class WriterClosed:
    """The ledger is CLOSED at this writer's LAC and length."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """This writer could not close the ledger; a retryable error allows another `Close`."""

    error: BookieError


WriterEffect = (
    SendBatch
    | Resend
    | Confirmed
    | Release
    | SendLac
    | SendForce
    | ForceDone
    | Failed
    | WriterClosed
    | CloseFailed
    | ChooseNewcomers
    | ReplaceBookies
    | StartTimer
    | CancelTimer
    | ReadMetadata
    | WriteMetadata
)

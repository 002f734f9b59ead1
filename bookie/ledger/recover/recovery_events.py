"""Events and effects of the recovery's state machine; `recovery` says when and why they occur.

Every send carries the number of its **round**; an answer to an earlier round is ignored. The driver
answers each send exactly once. If a call fails or times out, its answer has the status of the
error.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.entry.batch import EntryBatch
from bookie.errors import BookieError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
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
from bookie.ledger.quorum import Stripe

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin to recover the ledger."""


@dataclass(frozen=True, slots=True)
class FenceAnswered:
    """A bookie fenced the ledger and proved its LAC, or the bookie failed.

    The driver has verified the digest of each packet. If one digest is wrong, the status is
    `Status.BAD_CHECKSUM`.
    """

    round: int
    slot: int
    status: Status
    last_add_confirmed: int = NO_ENTRY
    last_entry_id: int = NO_ENTRY
    last_length: int = 0
    """Accumulated length of the ledger up to `last_entry_id`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryReadAnswered:
    """A bookie answered a read; the driver has verified all digests in `batch`.

    If an entry's digest fails, `batch` ends before this entry, `next_entry_id` is its id, and
    `stopped_by` is `Status.BAD_CHECKSUM`.
    """

    round: int
    slot: int
    status: Status
    batch: EntryBatch | None = None
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK
    message: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryAddAnswered:
    """A bookie answered a recovery add."""

    round: int
    slot: int
    status: Status
    message: str = ""


@dataclass(frozen=True, slots=True)
class NewcomersLost:
    """Some newcomers have new incarnations, and may have lost entries; no metadata was written."""

    bookies: tuple[str, ...]


RecoveryEvent = (
    Start
    | FenceAnswered
    | RecoveryReadAnswered
    | RecoveryAddAnswered
    | NewcomersChosen
    | NewcomersLost
    | TimerFired
    | MetadataRead
    | MetadataWritten
    | MetadataConflict
    | MetadataFailed
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendFence:
    """Fence the ledger on a bookie, and request its last entry and explicit LAC."""

    round: int
    slot: int
    bookie_id: str


@dataclass(frozen=True, slots=True)
class SendRecoveryRead:
    """Read the ids of `stripe` from `first_entry_id` to `last_entry_id` (inclusive)."""

    round: int
    slot: int
    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    stripe: Stripe
    fence: bool


@dataclass(frozen=True, slots=True)
class SendAdd:
    """Store these packets unchanged, with an add that has the recovery flag."""

    round: int
    slot: int
    bookie_id: str
    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class PublishNewcomers:
    """Do `WriteMetadata`, on condition that no newcomer has lost acknowledged entries.

    The write must fail if a newcomer's incarnation has changed since the newcomer was chosen. The
    check of incarnations and the write must be one step of the store. A bookie that may have lost
    data first gets a new incarnation. Then it puts in limbo every ledger whose metadata names this
    bookie. But the metadata names a newcomer only after this write. So a separate check before the
    write would miss a newcomer that loses its data between the check and the write. A check after
    the write would find the loss too late, because the write cannot be undone.

    The answer is `NewcomersLost`, or one of the answers to `WriteMetadata`.
    """

    metadata: LedgerMetadata
    version: int
    newcomers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger is CLOSED with this metadata, by this recovery or by another client."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """The recovery failed; the ledger may stay IN_RECOVERY, and another recovery may start."""

    error: BookieError


RecoveryEffect = (
    SendFence
    | SendRecoveryRead
    | SendAdd
    | ChooseNewcomers
    | PublishNewcomers
    | Recovered
    | RecoveryFailed
    | StartTimer
    | ReadMetadata
    | WriteMetadata
)

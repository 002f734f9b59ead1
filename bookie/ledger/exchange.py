"""Events and effects that several state machines share: for timers, metadata and new bookies.

A state machine starts a timer with `StartTimer` and later gets `TimerFired`. A second `StartTimer`
restarts a running timer. A state machine requests only one metadata operation at a time. The answer
is a `MetadataRead`, `MetadataWritten`, `MetadataConflict` or `MetadataFailed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookie.errors import BookieError
from bookie.ledger.metadata import LedgerMetadata

TimerId = tuple[str, int]
"""Purpose and number of a timer; this pair is unique within its state machine."""


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Send ``TimerFired(timer)`` after `seconds`, unless the timer is cancelled or restarted."""

    timer: TimerId
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer, even if the timer is not running."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's metadata: `MetadataRead` or `MetadataFailed` follows.

    The store is synced first, so the metadata is no older than this request.
    """


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the metadata.

    The answer is `MetadataWritten`, `MetadataConflict` or `MetadataFailed`.
    """

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ChooseNewcomers:
    """Find new bookies for some slots of the ensemble; the answer is `NewcomersChosen`."""

    bookies: tuple[str, ...]
    """The present ensemble; only the bookies in `slots` will change."""
    slots: int
    """The slots that need other bookies, as a bit mask."""


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer ran out."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The ledger's metadata as it was read, and its version."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set succeeded; the metadata now has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataConflict:
    """The compare-and-set failed: the metadata had another version."""


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The metadata operation failed; a failed write may still have changed the store."""

    error: BookieError


@dataclass(frozen=True, slots=True)
class NewcomersChosen:
    """The new bookies, by slot; a slot for which no bookie was found is not in the map."""

    bookies: Mapping[int, str]

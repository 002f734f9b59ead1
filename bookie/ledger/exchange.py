"""Events and effects that several machines share: timers, the metadata store, newcomers.

A machine asks for a timer with `StartTimer` and hears `TimerFired`; starting a running timer
restarts it. It asks for one metadata operation at a time and hears one of the answers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookie.errors import BookieError
from bookie.ledger.metadata import LedgerMetadata

TimerId = tuple[str, int]
"""Purpose and number of a timer; unique within its machine."""


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Feed ``TimerFired(timer)`` after `seconds`, unless it is cancelled or restarted."""

    timer: TimerId
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer; it need not be running."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's metadata: `MetadataRead` or `MetadataFailed` follows.

    The store is synced first, so that what is read is no older than this request.
    """


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set: `MetadataWritten`, `MetadataConflict` or `MetadataFailed` follows."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ChooseNewcomers:
    """Find bookies that could stand in these slots instead: `NewcomersChosen` follows."""

    bookies: tuple[str, ...]
    """The present ensemble; its other slots stay as they are."""
    slots: int
    """A mask."""


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer ran out."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The ledger's metadata as it stands, and its version."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set won; the metadata now has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class MetadataConflict:
    """The compare-and-set lost: the version was another."""


@dataclass(frozen=True, slots=True)
class MetadataFailed:
    """The operation failed; a write may or may not have been done."""

    error: BookieError


@dataclass(frozen=True, slots=True)
class NewcomersChosen:
    """By slot: the bookie that could stand there. Slots may be missing; empty means none."""

    bookies: Mapping[int, str]

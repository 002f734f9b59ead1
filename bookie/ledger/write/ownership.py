"""Runs a writer's operations on the metadata of its ledger, one operation at a time.

========= ==========================================================================================
operation what happens, and what ends it
========= ==========================================================================================
check     read the metadata, to find the ledger's owner -> StillOurs, LedgerTaken or CheckFailed
change    compare-and-set an ensemble change; after a conflict or without an answer, read the
          metadata, and repeat the same change if the metadata still has the former version
          -> Changed, Overtaken or LedgerTaken
close     compare-and-set CLOSED; after a conflict, read the metadata, and try again while the
          ledger is OPEN -> CloseDone or CloseRefused
========= ==========================================================================================

The store is synced before every read. Before a read that follows a conflict, or an operation
without an answer, there is a pause.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from bookie.env.backoff import Backoff
from bookie.errors import (
    BadRequestError,
    BookieError,
    ForeignEnsembleError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from bookie.ledger.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.write.closing import id_given_away, refusal_to_close
from bookie.ledger.write.ensemble_change import ChangeOutcome, EnsembleChange
from bookie.ledger.write.pending import WriterLimits

REREAD = ("reread", 0)
"""The timer before a read; when the timer fires, the writer calls `LedgerOwnership.on_timer`."""

MetadataAnswer: TypeAlias = MetadataRead | MetadataWritten | MetadataConflict | MetadataFailed
MetadataEffect: TypeAlias = ReadMetadata | WriteMetadata | StartTimer


# -- outcomes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StillOurs:
    """No other client has taken the ledger."""


@dataclass(frozen=True, slots=True)
class LedgerTaken:
    """The writer has ended.

    Another client has taken the ledger, the ledger does not exist, or its metadata is too large for
    another change.
    """

    error: BookieError


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """The store did not answer, so the owner of the ledger is unknown."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The ensemble change succeeded: the metadata in the store contains it."""

    change: EnsembleChange


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The ensemble change failed, but the writer still owns the ledger.

    Newer metadata excludes this change for ever.
    """


@dataclass(frozen=True, slots=True)
class CloseDone:
    """The close succeeded: the ledger is CLOSED at the writer's LAC and its length at the LAC."""


@dataclass(frozen=True, slots=True)
class CloseRefused:
    """The close failed: another client took or closed the ledger, or its state is unknown."""

    error: BookieError


Outcome: TypeAlias = (
    StillOurs | LedgerTaken | CheckFailed | Changed | Overtaken | CloseDone | CloseRefused
)


class _Operation(enum.Enum):
    CHECK = "check"
    CHANGE = "change"
    CLOSE = "close"


class LedgerOwnership:
    """The metadata as a writer last knew it, and the change of it that the writer is making."""

    def __init__(self, metadata: LedgerMetadata, version: int, limits: WriterLimits) -> None:
        self.metadata = metadata
        """The newest metadata in the store that this writer knows and accepts."""
        self.version = version
        self.change: EnsembleChange | None = None
        """The ensemble change under way; the store may already hold the changed metadata."""
        self.silence: BookieError | None = None
        """The metadata store's last error during the ensemble change under way."""
        self._limits = limits
        self._operation: _Operation | None = None
        self._end = (-1, 0)
        self._conflicts = 0

    @property
    def is_busy(self) -> bool:
        return self._operation is not None

    def check(self) -> list[MetadataEffect]:
        """Read the metadata, to check that no other client has taken the ledger."""
        self._begin(_Operation.CHECK)
        return [ReadMetadata()]

    def propose(self, change: EnsembleChange) -> list[MetadataEffect]:
        """Propose an ensemble change, with other bookies in some slots."""
        self._begin(_Operation.CHANGE)
        self.change = change
        return [WriteMetadata(change.proposal, change.version)]

    def close(self, last_entry_id: int, length: int) -> list[MetadataEffect]:
        """Close the ledger at `last_entry_id`, with `length` payload bytes."""
        self._begin(_Operation.CLOSE)
        self._end = last_entry_id, length
        return self._write_closed()

    def on_timer(self) -> list[MetadataEffect]:
        is_reading = self._operation in (_Operation.CHANGE, _Operation.CLOSE)
        return [ReadMetadata()] if is_reading else []

    def step(self, event: MetadataAnswer) -> tuple[list[MetadataEffect], Outcome | None]:
        """Handle the store's answer; return the next effects, and the outcome if it is known."""
        match self._operation:
            case _Operation.CHECK:
                effects, outcome = self._on_check(event)
            case _Operation.CHANGE:
                effects, outcome = self._on_change(event)
            case _Operation.CLOSE:
                effects, outcome = self._on_close(event)
            case _:
                raise AssertionError("no operation is under way")
        if outcome is not None:
            self._operation = self.change = self.silence = None
        return effects, outcome

    def _begin(self, operation: _Operation) -> None:
        assert self._operation is None
        self._operation = operation
        self._conflicts = 0

    def _read_later(self) -> list[MetadataEffect]:
        pauses = Backoff(self._limits.reread_seconds, self._limits.reread_seconds_max)
        self._conflicts += 1
        return [StartTimer(REREAD, pauses.after(self._conflicts - 1))]

    # -- check

    def _on_check(self, event: MetadataAnswer) -> tuple[list[MetadataEffect], Outcome | None]:
        match event:
            case MetadataRead(metadata, version):
                if metadata.c_token != self.metadata.c_token:
                    return [], LedgerTaken(id_given_away(metadata.ledger_id))
                if metadata.state is LedgerState.OPEN:
                    if metadata.last_fragment != self.metadata.last_fragment:
                        return [], LedgerTaken(self._foreign())
                    self.metadata, self.version = metadata, version
                    return [], StillOurs()
                return [], LedgerTaken(self._fenced(metadata))
            case MetadataFailed(NoSuchLedgerError() as error):
                return [], LedgerTaken(error)
            case MetadataFailed():
                return [], CheckFailed()
            case _:
                raise AssertionError("a read is not answered like a write")

    def _fenced(self, found: LedgerMetadata) -> BookieError:
        return LedgerFencedError(
            f"another client took ledger {self.metadata.ledger_id} over: "
            f"it is {found.state.name} now"
        )

    def _foreign(self) -> BookieError:
        return ForeignEnsembleError(
            f"somebody else changed the bookies of ledger {self.metadata.ledger_id} under its "
            "writer"
        )

    # -- change

    def _on_change(self, event: MetadataAnswer) -> tuple[list[MetadataEffect], Outcome | None]:
        change = self.change
        assert change is not None
        match event:
            case MetadataWritten(version):
                self.metadata, self.version = change.proposal, version
                return [], Changed(change)
            # A BadRequestError means that nothing was sent: the metadata has become too large.
            case MetadataFailed((NoSuchLedgerError() | BadRequestError()) as error):
                return [], LedgerTaken(error)
            case MetadataFailed(error):
                self.silence = error
                return self._read_later(), None
            case MetadataConflict():
                self.silence = None
                return self._read_later(), None
            case MetadataRead(metadata, version):
                self.silence = None
                return self._on_change_read(change, metadata, version)

    def _on_change_read(
        self, change: EnsembleChange, found: LedgerMetadata, version: int
    ) -> tuple[list[MetadataEffect], Outcome | None]:
        if found.c_token != self.metadata.c_token:
            return [], LedgerTaken(id_given_away(found.ledger_id))
        match change.outcome(found, version):
            case ChangeOutcome.UNDECIDED:
                # Repeat the same proposal, because it may still reach the store. If the writer made
                # another proposal, its bookies could acknowledge entries, but the store could then
                # accept the first proposal, which does not name these bookies.
                return [WriteMetadata(change.proposal, change.version)], None
            case ChangeOutcome.DONE:
                self.metadata, self.version = found, version
                return [], Changed(change)
            case ChangeOutcome.OVERTAKEN:
                self.metadata, self.version = found, version
                return [], Overtaken()
            case ChangeOutcome.TAKEN:
                return [], LedgerTaken(self._fenced(found))
            case ChangeOutcome.FOREIGN:
                return [], LedgerTaken(self._foreign())

    # -- close

    def _write_closed(self) -> list[MetadataEffect]:
        return [WriteMetadata(self.metadata.closed(*self._end), self.version)]

    def _on_close(self, event: MetadataAnswer) -> tuple[list[MetadataEffect], Outcome | None]:
        match event:
            case MetadataWritten(version):
                self.metadata, self.version = self.metadata.closed(*self._end), version
                return [], CloseDone()
            case MetadataConflict():
                return self._read_later(), None
            case MetadataFailed(error):
                return [], CloseRefused(error)
            case MetadataRead(metadata, version):
                if metadata.c_token != self.metadata.c_token:
                    return [], CloseRefused(id_given_away(metadata.ledger_id))
                if metadata.state is LedgerState.OPEN:
                    if metadata.last_fragment != self.metadata.last_fragment:
                        return [], CloseRefused(self._foreign())
                    self.metadata, self.version = metadata, version
                    return self._write_closed(), None
                refusal = refusal_to_close(metadata, *self._end)
                if refusal is not None:
                    return [], CloseRefused(refusal)
                self.metadata, self.version = metadata, version
                return [], CloseDone()

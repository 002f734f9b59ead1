"""Recovery machines brought to a state, and the answers of bookies in short."""

from __future__ import annotations

from typing import TypeVar

from bookie.entry.batch import EntryBatch
from bookie.errors import BookieError
from bookie.ids import Status
from bookie.ledger.exchange import MetadataWritten, WriteMetadata
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover.recovery import LedgerRecovery, RecoveryState
from bookie.ledger.recover.recovery_events import (
    FenceAnswered,
    RecoveryAddAnswered,
    RecoveryEffect,
    RecoveryFailed,
    RecoveryReadAnswered,
    SendFence,
    Start,
)
from tests.unit.ledger.ledgers import ledger

T = TypeVar("T")
NO = Status.NO_SUCH_ENTRY


def of_type(effects: list[RecoveryEffect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def fencing(metadata: LedgerMetadata | None = None) -> LedgerRecovery:
    """A recovery that has marked the ledger."""
    recovery = LedgerRecovery(metadata or ledger(), 0)
    (mark,) = recovery.step(Start())
    assert isinstance(mark, WriteMetadata)
    assert mark.metadata.state is LedgerState.IN_RECOVERY
    assert (
        len(of_type(recovery.step(MetadataWritten(1)), SendFence)) == recovery.quorum.ensemble_size
    )
    return recovery


def fence_all(recovery: LedgerRecovery, lac: int = -1) -> list[RecoveryEffect]:
    """Bookies answer the fence until they cover; what is asked then."""
    for slot in range(recovery.quorum.ensemble_size):
        effects = recovery.step(FenceAnswered(recovery.round, slot, Status.OK, lac))
        if effects:
            return effects
    raise AssertionError("not covered")


def reading(lac: int = -1, metadata: LedgerMetadata | None = None) -> LedgerRecovery:
    recovery = fencing(metadata)
    fence_all(recovery, lac)
    assert recovery.state is RecoveryState.READING
    return recovery


def found(recovery: LedgerRecovery, slot: int, batch: EntryBatch) -> list[RecoveryEffect]:
    """The slot has exactly these entries."""
    after = batch.last_entry_id + 1
    return recovery.step(RecoveryReadAnswered(recovery.round, slot, Status.OK, batch, after, NO))


def refuse(recovery: LedgerRecovery, slot: int, status: Status = NO) -> list[RecoveryEffect]:
    return recovery.step(RecoveryReadAnswered(recovery.round, slot, status))


def stored(recovery: LedgerRecovery, slot: int, status: Status = Status.OK) -> list[RecoveryEffect]:
    return recovery.step(RecoveryAddAnswered(recovery.round, slot, status))


def error_of(effects: list[RecoveryEffect]) -> BookieError:
    (failed,) = of_type(effects, RecoveryFailed)
    return failed.error

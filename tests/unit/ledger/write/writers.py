"""A writer machine with all streams open, and shorthands for its events and effects."""

from __future__ import annotations

from bookie.errors import (
    BookieError,
)
from bookie.ids import Status
from bookie.ledger.exchange import CancelTimer, StartTimer
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import AddAnswered, Failed, SlotConnected, WriterEffect
from tests.unit.ledger.ledgers import ledger

ALL = 0b111


def connected(
    sizes: tuple[int, int, int] = (3, 3, 2),
    limits: WriterLimits | None = None,
    *,
    deferred_sync: bool = False,
) -> LedgerWriter:
    """A writer with all streams open. It replaces bookies only if `limits` say so."""
    limits = limits or WriterLimits(changes_per_minute_max=0)
    writer = LedgerWriter(ledger(sizes), 0, limits, deferred_sync=deferred_sync)
    for slot in range(sizes[0]):
        effects = writer.step(SlotConnected(slot))
        assert all(isinstance(effect, CancelTimer) for effect in effects)
    return writer


def ack(
    writer: LedgerWriter, batch: int, slot: int, status: Status = Status.OK
) -> list[WriterEffect]:
    return writer.step(AddAnswered(batch, slot, 0, status))


def kinds(effects: list[WriterEffect]) -> list[type]:
    """The types of the effects, timers left out."""
    return [type(e) for e in effects if not isinstance(e, (StartTimer, CancelTimer))]


def failed_with(effects: list[WriterEffect]) -> BookieError:
    """The error of the `Failed` effect."""
    return next(effect.error for effect in effects if isinstance(effect, Failed))

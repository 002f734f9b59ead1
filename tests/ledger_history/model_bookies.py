"""The bookies of the model of ledgers: what they hold, and what a crash takes from them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.ledger_history.ledger_events import (
    NO_ENTRY,
    BookieEvent,
    BookieEventKind,
    HistoryRecorder,
    PayloadDigest,
)


@dataclass(slots=True)
class ModelShare:
    """What one bookie has of one ledger."""

    entries: dict[int, PayloadDigest] = field(default_factory=dict)
    lac: int = NO_ENTRY
    is_fenced: bool = False
    is_in_limbo: bool = False
    """It lost data: it answers "unknown", and refuses adds."""


class ModelBookie:
    """A bookie with one journal. What is in `unsynced` may be lost by a crash."""

    def __init__(self, name: str, recorder: HistoryRecorder, rng: random.Random) -> None:
        self.name = name
        self.epoch = 1
        self.shares: dict[int, ModelShare] = {}
        self.unsynced: list[tuple[int, int]] = []
        self.fences: list[int] = []
        """Ledgers whose fence is not synced."""
        self.was_destroyed = False
        self._recorder = recorder
        self._rng = rng
        self.say(BookieEventKind.START)

    def say(
        self,
        kind: BookieEventKind,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        digest: PayloadDigest | None = None,
    ) -> None:
        """Record an event."""
        self._recorder.bookie(
            BookieEvent(
                bookie_id=self.name,
                kind=kind,
                epoch=self.epoch,
                ledger_id=ledger_id,
                entry_id=entry_id,
                digest=digest,
            )
        )

    def share(self, ledger_id: int) -> ModelShare:
        """What it has of a ledger."""
        return self.shares.setdefault(ledger_id, ModelShare())

    def accept(self, ledger_id: int, entry_id: int, digest: PayloadDigest, lac: int) -> None:
        """An add that is not refused; the same entry may come again."""
        share = self.share(ledger_id)
        share.lac = max(share.lac, lac)
        if entry_id not in share.entries:
            share.entries[entry_id] = digest
            self.unsynced.append((ledger_id, entry_id))
            self.say(BookieEventKind.ACCEPT, ledger_id, entry_id, digest)

    def is_durable(self, ledger_id: int, entry_id: int) -> bool:
        """True if the entry survives a crash."""
        return entry_id in self.share(ledger_id).entries and (
            (ledger_id, entry_id) not in self.unsynced
        )

    def sync(self) -> None:
        """All that was accepted is durable."""
        self.say(BookieEventKind.SYNC_BEGIN)
        self.say(BookieEventKind.SYNC_END)
        self.unsynced.clear()
        self.fences.clear()

    def crash(self) -> None:
        """Each entry that was not synced is lost, or stays."""
        for ledger_id, entry_id in self.unsynced:
            if self._rng.random() < 0.5:
                self.share(ledger_id).entries.pop(entry_id, None)
        for ledger_id in self.fences:
            self.share(ledger_id).is_fenced = False
        self.unsynced.clear()
        self.fences.clear()
        self.epoch += 1
        self.say(BookieEventKind.START)

    def destroy(self) -> None:
        """Its disk is lost. It keeps away from every ledger that exists."""
        self.crash()
        self.was_destroyed = True
        self.say(BookieEventKind.DISK_DESTROYED)
        for share in self.shares.values():
            share.entries.clear()
            share.lac = NO_ENTRY
            share.is_fenced = share.is_in_limbo = True

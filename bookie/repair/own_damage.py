"""Marks ledgers whose entries are missing or unreadable on this bookie.

The bookie's integrity check finds such ledgers after a loss or damage. The auditor also finds
missing entries, but only the bookie itself knows which of its entries are unreadable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NoReturn

from bookie.env import Backoff, jitter
from bookie.errors import BookieError, FormatError, MetadataClosedError
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

_log = event_log(__name__)


class OwnDamage:
    """The ledgers that have missing or unreadable entries on this bookie and no mark yet."""

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        self._marks = UnderreplicationManager(store, bookie_id)
        self._bookie_id = bookie_id
        self._ledgers: set[int] = set()
        self._noted = asyncio.Event()

    def note(self, ledger_ids: Iterable[int]) -> None:
        """Remember ledgers with missing or unreadable entries, so that `run` marks the ledgers."""
        self._ledgers |= set(ledger_ids)
        if self._ledgers:
            self._noted.set()

    async def run(self) -> NoReturn:
        """Mark the ledgers that `note` remembered; retry after errors; run until cancelled.

        Raises:
            MetadataClosedError: the store was closed.
        """
        pauses = Backoff(1.0, 60.0, jitter)
        while True:
            await self._noted.wait()
            reason = ""
            for ledger_id in sorted(self._ledgers):
                try:
                    await self._marks.mark(ledger_id, [self._bookie_id])
                except MetadataClosedError:
                    raise
                except FormatError as error:
                    reason = str(error)  # only the record of this ledger is damaged
                except BookieError as error:
                    reason = str(error)
                    break
                else:
                    self._ledgers.discard(ledger_id)
            if reason:
                _log.warning("own_damage_not_marked", reason=reason)
                await asyncio.sleep(pauses.next())
            elif not self._ledgers:
                self._noted.clear()
                pauses.reset()

"""When the ledgers of a log were created: what the times of records are compared with.

Records are appended after their ledger was created, and before the next ledger of the partition is
added. The first keeps records for longer, so any time of creation will do. The second lets them go,
so it takes a ledger with a tag: its creator's clock was compared with those of bookies
(:mod:`bookie.log.clock_check`). A ledger that a compaction wrote has the latest tag of those that
it was copied from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bookie.errors import NoSuchLedgerError
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.log_client import CREATED_TAG, LogClient
from bookie.log.tidy.retention import AHEAD_MS_MAX, plausible_end_ms


@dataclass(frozen=True, slots=True)
class Creation:
    """When a ledger was made, in ms since 1970."""

    ms: int
    is_compared: bool
    """Whether the clock was compared with others."""


class LedgerTimes:
    """Reads each ledger once."""

    def __init__(self, client: LogClient) -> None:
        self._ledgers = client.ledgers.ledgers
        self._created: dict[int, Creation | None] = {}

    async def created(self, ledger_id: int) -> Creation | None:
        """When the ledger of a range was created; None if it is gone or does not say it.

        Raises:
            MetadataError: the metadata store failed.
            FormatError: the ledger cannot be read.
        """
        if ledger_id not in self._created:
            try:
                found = await self._ledgers.read(ledger_id)
            except NoSuchLedgerError:
                self._created[ledger_id] = None
            else:
                self._created[ledger_id] = _creation(found.value)
        return self._created[ledger_id]

    async def latest_ms(self, ranges: Iterable[LogRange]) -> int:
        """When the newest ledger of `ranges` was created; -1 if one does not say it for sure."""
        found = [await self.created(one.ledger_id) for one in ranges]
        if any(one is None or not one.is_compared for one in found):
            return -1
        return max(one.ms for one in found if one is not None)

    async def end_ms(self, one: LogRange, after: Sequence[LogRange], keep_from_ms: int) -> int:
        """When a closed range ended, as far as that decides whether it is kept.

        `after` are ranges that follow it. Raises what `created` does.
        """
        end_ms = one.end_ms
        assert end_ms is not None, "the range is closed"
        if keep_from_ms <= end_ms < keep_from_ms + AHEAD_MS_MAX:
            return end_ms  # it is kept, whatever the ledgers say
        created = await self.created(one.ledger_id)
        earliest = None if created is None else created.ms
        if end_ms < keep_from_ms:
            return plausible_end_ms(end_ms, earliest, None)
        for each in after:
            following = await self.created(each.ledger_id)
            if following is not None and following.is_compared:
                return plausible_end_ms(end_ms, earliest, following.ms)
        return end_ms


def _creation(ledger: LedgerMetadata) -> Creation | None:
    said = ledger.custom_metadata.get(CREATED_TAG, b"")
    if said.isdigit():
        return Creation(int(said), is_compared=True)
    return Creation(ledger.ctime_ms, is_compared=False) if ledger.ctime_ms >= 0 else None

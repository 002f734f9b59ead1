"""The creation times of a log's ledgers, which limit the possible times of its records.

A record is appended after its ledger was created, and before the next ledger of the partition is
added. So the creation time of the record's ledger is a lower bound of the record's time. The
creation time of the next ledger is an upper bound of the record's time.

A wrong lower bound only keeps records for longer, so every creation time serves as a lower bound. A
wrong upper bound would delete records too early, so only a tagged creation time serves as an upper
bound. A tag shows that the creator of the ledger compared its clock with clocks of bookies
(:mod:`bookie.log.clock_check`). A ledger made by a compaction has the latest tag of the ledgers
that the compaction copied.
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
    """The time at which a ledger was created."""

    ms: int
    """The time in ms since 1970."""
    is_compared: bool
    """True if the creator had compared its clock with clocks of bookies."""


class LedgerTimes:
    """The creation times of ledgers. The metadata of each ledger is read only once."""

    def __init__(self, client: LogClient) -> None:
        self._ledgers = client.ledgers.ledgers
        self._created: dict[int, Creation | None] = {}

    async def created(self, ledger_id: int) -> Creation | None:
        """Return the creation time of a ledger; None if it is unknown or the ledger was deleted.

        Raises:
            MetadataError: the metadata store failed.
            FormatError: the metadata of the ledger cannot be read.
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
        """Return the newest creation time of the ranges' ledgers, in ms since 1970.

        The result is -1 if the creation time of any of these ledgers is unknown or has no tag.
        """
        found = [await self.created(one.ledger_id) for one in ranges]
        if any(one is None or not one.is_compared for one in found):
            return -1
        return max(one.ms for one in found if one is not None)

    async def end_ms(self, one: LogRange, after: Sequence[LogRange], keep_from_ms: int) -> int:
        """Return the end time of the closed range `one`, corrected by creation times of ledgers.

        The call reads only those creation times that may move the end time past `keep_from_ms`.
        `after` has later ranges of the partition, in order. Raises the errors of `created`.
        """
        end_ms = one.end_ms
        assert end_ms is not None, "the range is closed"
        if keep_from_ms <= end_ms < keep_from_ms + AHEAD_MS_MAX:
            return end_ms  # the range is kept in any case
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

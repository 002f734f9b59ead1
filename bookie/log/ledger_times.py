"""When the ledgers of a log were created: what the times of records are compared with.

A ledger's time of creation is its creator's, whose clock was compared with those of bookies
(:mod:`bookie.log.clock_check`). Records are appended after it, and before the next ledger of the
partition is added. A ledger that a compaction wrote has a tag with the latest of the ledgers that
it was copied from.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.errors import NoSuchLedgerError
from bookie.formats.ledger_metadata import LedgerMetadata
from bookie.formats.log_metadata import LogRange
from bookie.log.log_client import LogClient
from bookie.protocol.retention import AHEAD_MS_MAX, plausible_end_ms

CREATED_TAG = "bookie.log.created_ms"
"""Key in the custom metadata of a ledger of copies: when the newest of its originals was made."""


class LedgerTimes:
    """Reads each ledger once."""

    def __init__(self, client: LogClient) -> None:
        self._ledgers = client.ledgers.ledgers
        self._created: dict[int, int | None] = {}

    async def created_ms(self, ledger_id: int) -> int | None:
        """When the ledger of a range was created; None if it is gone, or does not say it.

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
                self._created[ledger_id] = time_of_creation(found.value)
        return self._created[ledger_id]

    async def latest_ms(self, ranges: Iterable[LogRange]) -> int:
        """When the newest ledger of `ranges` was created; -1 if none says it."""
        found = [await self.created_ms(one.ledger_id) for one in ranges]
        return max((one for one in found if one is not None), default=-1)

    async def end_ms(self, one: LogRange, after: LogRange | None, keep_from_ms: int) -> int:
        """When a closed range ended, as far as that decides whether it is kept.

        Raises what `created_ms` does.
        """
        end_ms = one.end_ms
        assert end_ms is not None, "the range is closed"
        if keep_from_ms <= end_ms < keep_from_ms + AHEAD_MS_MAX:
            return end_ms  # it is kept, whatever the ledgers say
        created = await self.created_ms(one.ledger_id)
        if end_ms < keep_from_ms or after is None:
            return plausible_end_ms(end_ms, created, None)
        return plausible_end_ms(end_ms, created, await self.created_ms(after.ledger_id))


def time_of_creation(ledger: LedgerMetadata) -> int | None:
    """In ms since 1970; None if the ledger does not say it."""
    said = ledger.custom_metadata.get(CREATED_TAG, b"")
    found = int(said) if said.isdigit() else ledger.ctime_ms
    return found if found >= 0 else None

"""Find the ledgers of a selection, and their sizes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie.errors import NoSuchLedgerError
from bookie.spark.selection import CALLS_AT_A_TIME, LedgerSelection

if TYPE_CHECKING:
    from bookie.sync import SyncBookKeeper, SyncReader

SAMPLE_ENTRIES = 64
"""The number of entries used to estimate the mean entry size of an open ledger."""


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger that has entries."""

    ledger_id: int
    last_entry_id: int
    size_bytes: int
    """The ledger's payload bytes; an estimate if the ledger is open."""


def find_ledgers(
    client: SyncBookKeeper, selection: LedgerSelection, password: bytes
) -> list[FoundLedger]:
    """Return the ledgers of a selection that have entries, in the order of ids.

    The function fences no ledger.

    Raises:
        NoSuchLedgerError: the selection names a single ledger by its id, and this ledger does not
            exist.
        BookieError: a ledger cannot be opened.
    """
    named = _named(selection)

    def look(ledger_id: int) -> FoundLedger | None:
        try:
            ledger = client.open_ledger(ledger_id, password=password)
        except NoSuchLedgerError:
            if ledger_id in named:
                raise
            return None  # the ledger was deleted after it was listed
        last = ledger.last_entry_id
        return FoundLedger(ledger_id, last, _size_of(ledger)) if last >= 0 else None

    with ThreadPoolExecutor(CALLS_AT_A_TIME) as threads:
        looks = list(threads.map(look, _ids(client, selection, named)))
    return [one for one in looks if one is not None]


def require_named(client: SyncBookKeeper, selection: LedgerSelection) -> None:
    """Refuse a selection that names a single ledger by its id, if this ledger does not exist.

    Raises:
        NoSuchLedgerError: a ledger that the selection names by its id does not exist.
    """
    with ThreadPoolExecutor(CALLS_AT_A_TIME) as threads:
        list(threads.map(client.ledger_metadata, sorted(_named(selection))))


def _named(selection: LedgerSelection) -> set[int]:
    """Return the ids of those ranges that contain only one id, such as 7 in ``7,10-20``."""
    return {first for first, last in selection.ranges if first == last}


def _ids(client: SyncBookKeeper, selection: LedgerSelection, named: set[int]) -> list[int]:
    """Return the ids of a selection.

    The cluster's ledgers are listed at most once, for all ranges together.
    """
    wide = [one for one in selection.ranges if one[0] < one[1]]
    found = set(named)
    if wide:
        first, last = min(wide)[0], max(last for _, last in wide)
        for ledger_id in client.list_ledgers(after=first - 1):
            if ledger_id > last:
                break
            if ledger_id in selection:
                found.add(ledger_id)
    return sorted(found)


def _size_of(ledger: SyncReader) -> int:
    if ledger.is_closed:
        return max(1, ledger.metadata.length)
    count = ledger.last_entry_id + 1
    sizes = [len(one.payload) for one in ledger.read(0, min(count, SAMPLE_ENTRIES) - 1)]
    return max(1, count * sum(sizes) // len(sizes))

"""Ledger metadata and packets for the tests of the machines."""

from __future__ import annotations

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState

LEDGER_ID = 5
DIGESTER = digester_for_key(DigestType.CRC32C, b"")


def ledger(
    sizes: tuple[int, int, int] = (3, 3, 2),
    state: LedgerState = LedgerState.OPEN,
    fragments: tuple[Fragment, ...] | None = None,
) -> LedgerMetadata:
    """Metadata of a ledger on bookies b0, b1, …"""
    ensemble = tuple(f"b{slot}" for slot in range(sizes[0]))
    return LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=sizes[0],
        write_quorum_size=sizes[1],
        ack_quorum_size=sizes[2],
        state=state,
        fragments=fragments or (Fragment(0, ensemble),),
        digest_type=DigestType.CRC32C,
    )


def packed(first_entry_id: int, count: int, lac: int | None = None) -> EntryBatch:
    """Entries of 10 payload bytes each, as their writer would pack them."""
    carried = first_entry_id - 1 if lac is None else lac
    payloads = [b"%010d" % entry_id for entry_id in range(first_entry_id, first_entry_id + count)]
    return pack_batch(LEDGER_ID, first_entry_id, carried, 10 * first_entry_id, payloads, DIGESTER)

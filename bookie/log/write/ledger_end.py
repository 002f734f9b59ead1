"""The end of a log's ledger, and the state that can be read from its last records."""

from __future__ import annotations

from contextlib import aclosing

from bookie.ids import NO_ENTRY
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.head.chain import LedgerEnd
from bookie.log.record.log_record import (
    decode_log_record,
    follows_control,
    greatest_timestamp_ms,
    is_control,
)
from bookie.log.record.producers import ProducerWindows, decode_producers

READ_BACK_ENTRIES = 4096
"""The number of entries per backward step of the search for a snapshot of producers."""


async def end_of(ledgers: LedgerClient, metadata: LedgerMetadata, password: bytes) -> LedgerEnd:
    """Read the last entry of a closed ledger, and return the ledger's end.

    Raises:
        NoSuchLedgerError, UnavailableError, CorruptionError: the entry could not be read.
        FormatError: the entry is too short for a record.
    """
    last = metadata.last_entry_id
    if last == NO_ENTRY:
        return LedgerEnd(metadata.ledger_id, last, None, metadata.length)
    payload = await _payload(ledgers, metadata.ledger_id, last, password)
    return LedgerEnd(
        metadata.ledger_id,
        last,
        greatest_timestamp_ms(payload),
        metadata.length,
        has_producers=follows_control(payload),
    )


async def check_last_record(
    ledgers: LedgerClient, ledger_id: int, base_offset: int, password: bytes
) -> bool:
    """Check the last known entry of a ledger, without fencing; False if no entry is known.

    Raises:
        FormatError: the entry is no record, or a record of a newer version.
        NoSuchLedgerError, UnavailableError, CorruptionError: the entry could not be read.
    """
    reader = await ledgers.open(ledger_id, password)
    last = reader.last_entry_id
    if last == NO_ENTRY:
        return False
    payload = await _payload(ledgers, ledger_id, last, password)
    decode_log_record(payload, ledger_id, last, base_offset + last)
    return True


async def producers_of(
    ledgers: LedgerClient, end: LedgerEnd, base_offset: int, password: bytes
) -> ProducerWindows:
    """Return the producers that the writer of a closed ledger knew.

    The call reads the ledger backwards to its last snapshot of producers. If the last entry shows
    that the ledger has no snapshot, the call reads only the last entry.

    Raises:
        NoSuchLedgerError, UnavailableError, CorruptionError: an entry could not be read.
        FormatError: an entry is no record.
    """
    if end.last_entry_id == NO_ENTRY:
        return ProducerWindows()
    reader = await ledgers.open(end.ledger_id, password)
    behind: list[tuple[int, bytes]] = []
    stop = end.last_entry_id
    while stop != NO_ENTRY:
        start = max(0, stop - READ_BACK_ENTRIES + 1) if behind else stop
        found: list[tuple[int, bytes]] = []
        async with aclosing(reader.read_batches(start, stop)) as batches:
            async for batch in batches:
                found += [(entry.entry_id, entry.payload) for entry in batch]
        behind = found + behind
        stop = start - 1
        if not follows_control(found[0][1]) or any(is_control(one) for _, one in found):
            break
    return _replayed(behind, end.ledger_id, base_offset)


def _replayed(
    entries: list[tuple[int, bytes]], ledger_id: int, base_offset: int
) -> ProducerWindows:
    windows = ProducerWindows()
    for entry_id, payload in entries:
        record = decode_log_record(payload, ledger_id, entry_id, base_offset + entry_id)
        if is_control(payload):
            windows = ProducerWindows(decode_producers(record.value))
        elif record.producer is not None:
            windows.add(record.producer, record.position)
    return windows


async def _payload(ledgers: LedgerClient, ledger_id: int, entry_id: int, password: bytes) -> bytes:
    reader = await ledgers.open(ledger_id, password)
    async with aclosing(reader.read(entry_id, entry_id)) as entries:
        async for entry in entries:
            return entry.payload
    raise AssertionError("a read of one entry yields it or raises")

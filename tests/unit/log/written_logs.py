"""The contents of a log, read ledger by ledger by its head, without the reader of logs."""

from __future__ import annotations

from bookie.api import BookKeeper
from bookie.log.catalog.log_metadata import LogHead
from bookie.log.catalog.logs import LogManager, LogName, LogPartition
from bookie.log.record.log_record import LogRecord, decode_log_record, is_control
from bookie.metadata.store import MetadataStore


async def head_of(store: MetadataStore, name: str, partition: int = 0) -> LogHead:
    """The head of a partition."""
    logs = LogManager(store)
    found = LogName.parse(name)
    definition = await logs.read(found)
    return (await logs.read_head(LogPartition(found, partition), definition.value.log_id)).value


async def records_of(
    bk: BookKeeper, store: MetadataStore, name: str, partition: int = 0
) -> list[LogRecord]:
    """All confirmed records, in order, with their offsets; control records are left out."""
    records = []
    offset = 0
    for one in (await head_of(store, name, partition)).ranges:
        assert one.base_offset in (None, offset)
        reader = await bk.open_ledger(one.ledger_id)
        assert one.last_entry_id in (None, reader.last_entry_id)
        async for entry in reader.read():
            if not is_control(entry.payload):
                records.append(
                    decode_log_record(
                        entry.payload, one.ledger_id, entry.entry_id, offset, partition
                    )
                )
            offset += 1
    return records


async def values_of(
    bk: BookKeeper, store: MetadataStore, name: str, partition: int = 0
) -> list[bytes]:
    """The values of `records_of`."""
    return [record.value for record in await records_of(bk, store, name, partition)]


async def left_over(bk: BookKeeper, store: MetadataStore, *names: str) -> set[int]:
    """The ledgers that no head of these logs names; each of one partition."""
    named = {one.ledger_id for name in names for one in (await head_of(store, name)).ranges}
    return {ledger_id async for ledger_id in bk.list_ledgers()} - named

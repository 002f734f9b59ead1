"""What a new client finds in a partition when all is calm: the last word of a history."""

from __future__ import annotations

from bookie.api import BookKeeper
from bookie.log.catalog.log_metadata import LogHead, LogMode, LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.chain import end_offset
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import is_control
from tests.fault.log_actors import logs_of, seen
from tests.log_history.log_events import FinalPartition


async def read_final(client: BookKeeper, partition: LogPartition) -> FinalPartition:
    """The records by a reader, the control records by ledgers."""
    logs = logs_of(client)
    definition = await logs.definition(partition.name)
    head = (await logs.logs.read_latest_head(partition, definition.log_id)).value
    reader = LogReader(logs, partition, definition, start=head.start_offset)
    records = [record async for record in reader]
    is_transactional = definition.mode is LogMode.TRANSACTIONAL
    controls: set[int] = set()
    # Publishers write no control records, and may have left their ledgers open.
    for one in () if is_transactional else await _ranges(client, partition, head):
        assert one.base_offset is not None
        ledger = await client.open_ledger(one.ledger_id)
        async for entry in ledger.read(one.first_entry_id, one.last_entry_id):
            if is_control(entry.payload):
                controls.add(one.base_offset + entry.entry_id - one.first_entry_id)
    return FinalPartition(
        str(partition),
        head.start_offset,
        end_offset(head),
        seen(records),
        frozenset(one for one in controls if one >= head.start_offset),
        is_transactional=is_transactional,
    )


async def _ranges(client: BookKeeper, partition: LogPartition, head: LogHead) -> list[LogRange]:
    found: list[LogRange] = []
    for number in range(head.first_chunk, head.next_chunk):
        chunk = await logs_of(client).logs.read_chunk(partition, number)
        assert chunk is not None
        found += chunk.ranges
    return [*found, *head.ranges]


def end_of_records(final: FinalPartition) -> int:
    """The offset behind the last record."""
    return final.records[-1].offset + 1 if final.records else final.start_offset

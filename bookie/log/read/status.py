"""Read the state and the extent of a log, without fencing or writing anything."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from bookie.errors import NoSuchLedgerError
from bookie.log.catalog.log_metadata import LogDefinition, LogOwner
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head.chain import live_bytes
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.read.start_position import find_end

UNPUBLISHED_MAX = 1000
"""The number of entries at which `unpublished_entries` stops counting."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """The offsets and the size of a partition at one moment."""

    earliest_offset: int
    """Offset of the first record that was not truncated."""
    end_offset: int
    """The offset after the last confirmed record."""
    size_bytes: int
    """Payload bytes of the closed ranges that can be read."""
    ranges: int
    """The number of ranges in the head. The chunks contain further ranges."""
    chunks: int


async def log_extent(
    client: LogClient, partition: LogPartition, definition: LogDefinition, password: bytes = b""
) -> LogExtent:
    """Return the present extent of a partition.

    Raises:
        NoSuchLogError: the log was deleted.
        NotEnoughBookiesError: too few bookies answered, so the end of the partition is unknown.
        MetadataError: the metadata store failed.
    """
    ranges = LogRanges(client.logs, partition, definition.log_id)
    await ranges.refresh()
    return await extent_of(ranges, LedgerReaders(client.ledgers, password))


async def unpublished_entries(
    client: LogClient, partition: LogPartition, definition: LogDefinition, password: bytes = b""
) -> int:
    """Count the entries that bookies store after the confirmed end, up to `UNPUBLISHED_MAX`.

    A live writer soon confirms these entries. If the writer was killed, the recovery by the next
    owner keeps or drops these entries.

    Raises:
        NoSuchLogError, NotEnoughBookiesError, MetadataError: see `log_extent`.
    """
    ranges = LogRanges(client.logs, partition, definition.log_id)
    await ranges.refresh()
    readers = LedgerReaders(client.ledgers, password)
    found = 0
    for one in ranges.head.open_ranges:
        try:
            handle = await readers.open(one.ledger_id)
            first = await handle.refresh() + 1
            if handle.is_closed:
                continue
            async with aclosing(handle.read_unconfirmed(first)) as entries:
                async for _ in entries:
                    found += 1
                    if found == UNPUBLISHED_MAX:
                        return found
        except NoSuchLedgerError:  # the log continued in another ledger meanwhile
            continue
    return found


async def extent_of(ranges: LogRanges, readers: LedgerReaders) -> LogExtent:
    """Return the extent of a partition. Raises the errors of `log_extent`.

    The caller must have called `ranges.refresh`.
    """
    end = await find_end(ranges, readers)
    head = ranges.head
    return LogExtent(
        head.start_offset,
        max(end, head.start_offset),
        live_bytes(head),
        len(head.ranges),
        head.next_chunk - head.first_chunk,
    )


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of one partition at one moment."""

    number: int
    epoch: int
    """The fencing token of the last owner; 0 before the first owner."""
    owner: LogOwner | None
    """The owner that the head names. The owner's process may be dead."""
    extent: LogExtent
    open_ledgers: tuple[int, ...]
    """The ledgers of open ranges; usually one ledger, which is being written."""


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The state of a log. The partitions are read one after another, not at one moment."""

    name: str
    definition: LogDefinition
    policy: LogPolicy
    """The log's complete policy, with fields inherited from its namespace and from the defaults."""
    partitions: tuple[PartitionStatus, ...]


async def log_status(client: LogClient, name: LogName, password: bytes = b"") -> LogStatus:
    """Read the definition of a log, its policy, and the state of each partition.

    Raises:
        NoSuchLogError: there is no such log.
        NotEnoughBookiesError: too few bookies answered, so the end of a partition is unknown.
    """
    definition = await client.definition(name)
    readers = LedgerReaders(client.ledgers, password)
    partitions = []
    for number in range(definition.partitions):
        ranges = LogRanges(client.logs, LogPartition(name, number), definition.log_id)
        await ranges.refresh()
        head = ranges.head
        opened = tuple(one.ledger_id for one in head.open_ranges)
        extent = await extent_of(ranges, readers)
        partitions.append(PartitionStatus(number, head.epoch, head.owner, extent, opened))
    return LogStatus(str(name), definition, await client.policy(name), tuple(partitions))

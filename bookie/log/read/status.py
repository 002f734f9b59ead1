"""What a log is and holds, for people and for tools. Nothing is fenced or written."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.log.catalog.log_metadata import LogDefinition, LogOwner
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.ranges import LogRanges
from bookie.log.read.seek import LogExtent, extent_of


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition as of now."""

    number: int
    epoch: int
    """The fencing token of the last owner; 0 before the first one."""
    owner: LogOwner | None
    """The present owner, which may be dead; None without one."""
    extent: LogExtent
    open_ledgers: tuple[int, ...]
    """The ledgers whose ranges are open: mostly the one that is written."""


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log as of now, as far as one moment can be seen."""

    name: str
    definition: LogDefinition
    policy: LogPolicy
    """The whole policy: the log's own, over its namespace's, over the defaults."""
    partitions: tuple[PartitionStatus, ...]


async def log_status(client: LogClient, name: LogName, password: bytes = b"") -> LogStatus:
    """What a log is, and how far each of its partitions goes.

    Raises:
        NoSuchLogError: there is no such log.
        NotEnoughBookiesError: too few bookies answered to tell where a partition ends.
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

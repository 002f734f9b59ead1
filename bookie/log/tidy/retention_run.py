"""Retention: truncate what a log's policy does not keep and no protected cursor needs.

The rule is in :mod:`bookie.log.tidy.retention`. The owner of a partition applies it now and then. A
sweep applies it to all partitions, because many have no owner.
"""

from __future__ import annotations

from functools import partial

from bookie.log.catalog.log_metadata import LogHead
from bookie.log.catalog.logs import LogPartition
from bookie.log.log_client import LogClient
from bookie.log.tidy.ledger_times import LedgerTimes
from bookie.log.tidy.retention import limits_of
from bookie.log.tidy.truncation import expired_offset, truncate_as


async def apply_retention(client: LogClient, partition: LogPartition) -> int:
    """Truncate what need not be kept; returns the partition's first offset.

    Raises:
        NoSuchLogError: there is no such log.
        MetadataError: the metadata store failed; it may be truncated.
        FormatError: the chain or a cursor cannot be read; nothing was truncated.
        NotEnoughBookiesError: too few bookies tell the time; nothing was truncated.
    """
    definition = await client.definition(partition.name)

    choose = partial(retention_offset, client, partition)
    return await truncate_as(client, partition, definition.log_id, choose)


async def retention_offset(client: LogClient, partition: LogPartition, head: LogHead) -> int:
    """Before which offset nothing has to be kept, now; `start_offset` if all has to be.

    Raises what `apply_retention` does, and BadVersionError if the head has changed meanwhile.
    """
    policy = await client.policy(partition.name)
    cursors = await client.logs.cursors(partition)
    now_ms = await client.clocks.deletion_ms() if policy.retention_seconds else 0
    limits = limits_of(policy, now_ms, [found.value for found in cursors.values()])
    if limits is None:
        return head.start_offset
    return await expired_offset(client, partition, head, limits, times=LedgerTimes(client))

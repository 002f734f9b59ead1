"""Delete a log: mark it so that nobody can open it, then delete its ledgers and its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from bookie.env import gather
from bookie.errors import BadVersionError, BookieError, LogExistsError, NoSuchLedgerError
from bookie.log.catalog.log_metadata import LogDefinition, LogHead
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.tidy.unnamed_ledgers import READS_AT_ONCE
from bookie.telemetry import event_log

FENCE_SECONDS_MAX = 10.0
"""The longest time to wait for the bookies of one open ledger."""

_log = event_log(__name__)


async def delete_log(client: LogClient, name: LogName) -> None:
    """Delete a log with all its ledgers, its cursors, its policy and its applications' records.

    The first step marks the log as deleted: from then on, nobody can open the log. The owner and
    readers of the log get NoSuchLogError, at the latest when the metadata is deleted. After an
    error or a crash, a repeated call or a sweep continues the deletion. A sweep also deletes the
    log's ledgers that no head names.

    Raises:
        NoSuchLogError: there is no such log, or it was deleted completely.
        MetadataError: the metadata store failed.
    """
    definition = await client.logs.mark_deleted(name)
    for number in range(definition.partitions):
        await _delete_ledgers(client, LogPartition(name, number), definition)
    await _clear_policy(client, name, definition.log_id)
    with suppress(LogExistsError):  # another process removed the log, and a new log has the name
        await client.logs.remove(name)
    _log.info("log_deleted", log=str(name), log_id=definition.log_id)


async def _clear_policy(client: LogClient, name: LogName, log_id: str) -> None:
    """Remove the policy of the log, which a later log of this name must not inherit.

    If another process has completed the deletion, the policy may be that of a later log. So the
    version of the policy is read first, and only the policy of this version is removed.
    """
    namespace, log = name.namespace, name.log
    while (version := await client.namespaces.log_policy_version(namespace, log)) is not None:
        if not await client.logs.is_being_deleted(name, log_id):
            return
        with suppress(BadVersionError):
            await client.namespaces.clear_log_policy(namespace, log, version)


async def _delete_ledgers(
    client: LogClient, partition: LogPartition, definition: LogDefinition
) -> None:
    """Delete the ledgers that the chain names; repeat this until the head no longer changes.

    Open ledgers are closed first, so that the owner cannot append to a deleted ledger.
    """
    version: int | None = None
    while True:
        found = await client.logs.read_latest_head(partition, definition.log_id)
        if found.version == version:
            return
        version = found.version
        for one in found.value.open_ranges:
            await _end_writer(client, one.ledger_id)
        async with aclosing(_named(client, partition, found.value)) as groups:
            async for ledger_ids in groups:
                await _delete(client, ledger_ids)


async def _end_writer(client: LogClient, ledger_id: int) -> None:
    """Fence and close a ledger, for at most `FENCE_SECONDS_MAX`. Ignore a failure."""
    with suppress(BookieError, TimeoutError):
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            await client.ledgers.close_for_deletion(ledger_id)


async def _named(
    client: LogClient, partition: LogPartition, head: LogHead
) -> AsyncGenerator[set[int], None]:
    for number in range(head.first_chunk, head.next_chunk):
        chunk = await client.logs.read_chunk(partition, number)
        # If a chunk is missing, an interrupted removal has deleted it, after the chunk's ledgers.
        if chunk is not None:
            yield {one.ledger_id for one in chunk.ranges}
    yield {one.ledger_id for one in head.ranges}


async def _delete(client: LogClient, ledger_ids: Iterable[int]) -> None:
    async def delete(ledger_id: int) -> None:
        try:
            await client.ledgers.ledgers.delete(ledger_id)
        except NoSuchLedgerError:
            return

    ids = sorted(ledger_ids)
    for start in range(0, len(ids), READS_AT_ONCE):
        await gather(map(delete, ids[start : start + READS_AT_ONCE]))

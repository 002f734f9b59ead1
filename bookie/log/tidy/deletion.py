"""Delete a log: nobody can open it any more, then its ledgers go, last its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from bookie.env import gather
from bookie.errors import BookieError, LogExistsError, NoSuchLedgerError
from bookie.log.catalog.log_metadata import LogDefinition, LogHead
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import LogClient
from bookie.log.tidy.unnamed_ledgers import READS_AT_ONCE
from bookie.telemetry import event_log

FENCE_SECONDS_MAX = 10.0
"""A deletion waits for bookies no longer than this, ledger by ledger."""

_log = event_log(__name__)


async def delete_log(client: LogClient, name: LogName) -> None:
    """Delete a log with all its ledgers, cursors, its policy and its record of applications.

    From the first step on nobody can open it. Its owner and its readers get NoSuchLogError at the
    latest when the metadata goes. After an error or a crash, call it again to continue; a sweep
    does so, too. Ledgers that no head names yet are left to a sweep.

    Raises:
        NoSuchLogError: there is no such log, or it was deleted completely.
        MetadataError: the metadata store failed.
    """
    definition = await client.logs.mark_deleted(name)
    for number in range(definition.partitions):
        await _delete_ledgers(client, LogPartition(name, number), definition)
    # The next log of this name does not inherit the policy of this one.
    await client.namespaces.clear_log_policy(name.namespace, name.log)
    with suppress(LogExistsError):  # another process removed it, and it was made anew
        await client.logs.remove(name)
    _log.info("log_deleted", log=str(name), log_id=definition.log_id)


async def _delete_ledgers(
    client: LogClient, partition: LogPartition, definition: LogDefinition
) -> None:
    """Delete the ledgers that the chain names; again if a writer has added one meanwhile.

    Ledgers that are open are closed first: an owner must not append into nothing.
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
    """Take a ledger from its writer. Without enough bookies it goes all the same."""
    with suppress(BookieError, TimeoutError):
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            await client.ledgers.close_for_deletion(ledger_id)


async def _named(
    client: LogClient, partition: LogPartition, head: LogHead
) -> AsyncGenerator[set[int], None]:
    for number in range(head.first_chunk, head.next_chunk):
        chunk = await client.logs.read_chunk(partition, number)
        # A removal that was cut off has deleted chunks. Their ledgers were deleted before.
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

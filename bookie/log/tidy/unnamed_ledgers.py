"""Delete ledgers of a partition that no range of the partition names.

A process may delete a ledger while another process publishes a range in that ledger. The deletion
and the publication may even take effect after their callers have stopped waiting. Two rules ensure
that no head names a deleted ledger:

1. The transaction that deletes a ledger also writes the unchanged head, which gets a new version.
   The transaction fails if the head has changed since the process looked for ranges that name the
   ledger.
2. A publication reads the head first, and then checks that its ledgers exist.

So a publication that read the head before the deletion fails, because the head has a new version. A
publication that read the head after the deletion sees that the ledger does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookie.env import gather
from bookie.errors import (
    BadVersionError,
    FormatError,
    MetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.attempts import Attempts
from bookie.log.catalog.log_metadata import LogChunk, LogHead, LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.log_client import LogClient
from bookie.metadata.model import Operation
from bookie.metadata.versioned import Versioned

DELETIONS_AT_ONCE = 40
"""The most ledgers that one transaction deletes; each deletion takes two operations."""

READS_AT_ONCE = 64
"""The most reads of the metadata store that run at the same time."""


async def delete_unnamed(
    client: LogClient,
    partition: LogPartition,
    log_id: str,
    ledger_ids: Iterable[int],
    *,
    may_go: Callable[[LedgerMetadata], bool],
) -> list[int]:
    """Delete those `ledger_ids` that no range of the partition names and that `may_go` accepts.

    Return the deleted ledgers. Ledgers that do not exist are no error. After an error, some of the
    ledgers may be deleted; call again.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataError: the metadata store failed.
        FormatError: the chain cannot be read.
    """
    wanted = set(ledger_ids)
    deleted: list[int] = []
    attempts = Attempts()
    while wanted:
        try:
            found = await client.logs.read_latest_head(partition, log_id)
            there = await read_ledgers(client, wanted)
            going = {one: state for one, state in there.items() if may_go(state.value)}
            named = await named_among(client, partition, found.value, going)
            await _delete_all(
                client,
                partition,
                found,
                [state for one, state in sorted(going.items()) if one not in named],
                deleted,
            )
        except NoSuchKeyError:
            continue  # another process deletes the same ledgers
        except MetadataError as error:
            await attempts.pause_after(error)
        else:
            break
    return deleted


async def _delete_all(
    client: LogClient,
    partition: LogPartition,
    found: Versioned[LogHead],
    going: list[Versioned[LedgerMetadata]],
    deleted: list[int],
) -> None:
    version = found.version
    for start in range(0, len(going), DELETIONS_AT_ONCE):
        some = going[start : start + DELETIONS_AT_ONCE]
        operations: list[Operation] = []
        for one in some:
            operations += await client.ledgers.ledgers.deletion(one.value.ledger_id, one.version)
        change = (partition, found.value, version, ())
        (version,) = await client.logs.commit_heads([change], operations)
        deleted += [one.value.ledger_id for one in some]


async def delete_ended(
    client: LogClient, partition: LogPartition, log_id: str, gone: Iterable[LogRange]
) -> list[int]:
    """Delete the ledgers of closed ranges that left the chain; return the deleted ledger ids.

    A ledger stays if another range names it, or if it is open. A ledger also stays if it has
    entries after the removed ranges, because a publisher may still publish these entries. If a
    ledger stays, a later sweep deletes the ledger when no range names it.

    Raises the errors of `delete_unnamed`.
    """
    ends: dict[int, int] = {}
    for one in gone:
        assert one.last_entry_id is not None, "a range that went is closed"
        ends[one.ledger_id] = max(ends.get(one.ledger_id, -1), one.last_entry_id)

    def is_over(ledger: LedgerMetadata) -> bool:
        return ledger.is_closed and ledger.last_entry_id <= ends[ledger.ledger_id]

    return await delete_unnamed(client, partition, log_id, ends, may_go=is_over)


async def named_among(
    client: LogClient, partition: LogPartition, head: LogHead, wanted: Iterable[int]
) -> set[int]:
    """Return those ledgers in `wanted` that are named by any range of the partition.

    The call may read all chunks.

    Raises:
        BadVersionError: a chunk was removed, because the head has changed.
        FormatError: a chunk is damaged or missing.
    """
    looked_for = set(wanted)
    named = looked_for.intersection(one.ledger_id for one in head.ranges)
    for start in range(head.first_chunk, head.next_chunk, READS_AT_ONCE):
        if named == looked_for:
            break
        numbers = range(start, min(start + READS_AT_ONCE, head.next_chunk))
        for chunk in await gather([read_chunk(client, partition, head, n) for n in numbers]):
            named |= looked_for.intersection(one.ledger_id for one in chunk.ranges)
    return named


async def read_chunk(
    client: LogClient, partition: LogPartition, head: LogHead, number: int
) -> LogChunk:
    """Read a chunk that `head` names.

    Raises:
        BadVersionError: the chunk was removed, because the head has changed; read the head again.
        FormatError: the chunk is damaged, or is missing although the newest head names it.
    """
    chunk = await client.logs.read_chunk(partition, number)
    if chunk is not None:
        return chunk
    latest = await client.logs.read_latest_head(partition, head.log_id)
    if latest.value.first_chunk <= number < latest.value.next_chunk:
        raise FormatError(f"chunk {number} of {partition} is missing, and its head names it")
    raise BadVersionError(f"chunk {number} of {partition} was removed meanwhile")


async def read_chain(
    client: LogClient, partition: LogPartition, log_id: str
) -> tuple[Versioned[LogHead], list[LogChunk]]:
    """Read the newest head of a partition, and all chunks that the head names.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataError: the metadata store failed.
        FormatError: a chunk is damaged or missing.
    """
    while True:
        found = await client.logs.read_latest_head(partition, log_id)
        head = found.value
        chunks: list[LogChunk] = []
        try:
            for start in range(head.first_chunk, head.next_chunk, READS_AT_ONCE):
                numbers = range(start, min(start + READS_AT_ONCE, head.next_chunk))
                chunks += await gather([read_chunk(client, partition, head, n) for n in numbers])
        except BadVersionError:
            continue  # the chain was truncated or compacted meanwhile
        return found, chunks


async def read_ledgers(
    client: LogClient, ledger_ids: Iterable[int]
) -> dict[int, Versioned[LedgerMetadata]]:
    """Read the metadata of those `ledger_ids` that exist."""

    async def read(ledger_id: int) -> Versioned[LedgerMetadata] | None:
        try:
            return await client.ledgers.ledgers.read(ledger_id)
        except NoSuchLedgerError:
            return None

    found: dict[int, Versioned[LedgerMetadata]] = {}
    ids = sorted(set(ledger_ids))
    for start in range(0, len(ids), READS_AT_ONCE):
        for state in await gather(map(read, ids[start : start + READS_AT_ONCE])):
            if state is not None:
                found[state.value.ledger_id] = state
    return found

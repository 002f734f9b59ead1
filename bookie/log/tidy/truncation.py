"""Truncate a partition: before an offset or a time, or as far as the retention allows.

A truncation changes the head first, then deletes ledgers, and deletes chunks last. A crash between
these steps leaves ledgers and chunks that no head names. A later sweep deletes such ledgers and
chunks (:mod:`bookie.log.tidy.sweep`).

Any process may truncate, because the head changes by compare-and-set. A truncation does not change
the owner of the partition. The owner makes its next change on the truncated head.

The owner of a partition applies the retention from time to time. A sweep applies the retention to
all partitions, because many partitions have no owner. The rule of retention is in
:mod:`bookie.log.tidy.retention`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from bookie.errors import BadRequestError, MetadataError
from bookie.log.attempts import Attempts
from bookie.log.catalog.log_metadata import LogChunk, LogHead, LogRange
from bookie.log.catalog.logs import LogPartition, checked_partition
from bookie.log.head import chain
from bookie.log.head.chain import live_bytes, live_ranges
from bookie.log.log_client import LogClient
from bookie.log.read.start_position import addressed_partition
from bookie.log.record.log_record import LogPosition
from bookie.log.tidy.ledger_times import LedgerTimes
from bookie.log.tidy.retention import RetentionLimits, expired_count, limits_of
from bookie.log.tidy.unnamed_ledgers import delete_ended, read_chunk

Choose = Callable[[LogHead], Awaitable[int]]
"""A function that returns the offset before which a partition with this head is truncated."""


async def truncate(
    client: LogClient,
    partition: LogPartition,
    *,
    before: int | LogPosition | None = None,
    before_ms: int | None = None,
) -> int:
    """Truncate a partition before an offset, a position or a time; return the earliest offset.

    After this call, a new iteration of a reader yields no truncated entry. A running iteration may
    still yield truncated entries until it reads the head again. A ledger is deleted only as a
    whole, so a ledger with a later entry stays. `before_ms` is in ms since 1970: a range at the
    beginning of the partition is removed if all its records are older. An offset that was already
    truncated is no error.

    Raises:
        NoSuchLogError: there is no such log.
        BadRequestError: `before` and `before_ms` are both given, or both None. BadRequestError is
            also raised if the position is in another partition, or if the offset is after the last
            closed range: roll the log first.
        MetadataError: the metadata store failed; truncate again, because the outcome is unknown.
    """
    if (before is None) == (before_ms is None):
        raise BadRequestError("truncate before one of an offset, a position and a time")
    addressed_partition(before, partition.number)
    definition = await client.definition(partition.name)
    checked_partition(partition.name, partition.number, definition.partitions)
    offset = before.offset if isinstance(before, LogPosition) else before

    async def choose(head: LogHead) -> int:
        if offset is not None:
            return offset
        assert before_ms is not None
        limits = RetentionLimits(keep_from_ms=before_ms)
        return await expired_offset(client, partition, head, limits)

    return await truncate_as(client, partition, definition.log_id, choose)


async def apply_retention(client: LogClient, partition: LogPartition) -> int:
    """Truncate as far as the policy and protected cursors allow; return the earliest offset.

    Raises:
        NoSuchLogError: there is no such log.
        MetadataError: the metadata store failed; the partition may have been truncated.
        FormatError: the chain or a cursor cannot be read. If only a later chunk cannot be read, the
            head may be truncated although the ledgers of the removed ranges remain.
        NotEnoughBookiesError: too few bookies told their time; nothing was truncated.
    """
    definition = await client.definition(partition.name)
    choose = partial(retention_offset, client, partition)
    return await truncate_as(client, partition, definition.log_id, choose)


async def retention_offset(client: LogClient, partition: LogPartition, head: LogHead) -> int:
    """Return the first offset that retention keeps now; `start_offset` if it keeps all records.

    Raises the errors of `apply_retention`, and BadVersionError if a chunk of `head` was removed.
    """
    policy = await client.policy(partition.name)
    cursors = await client.logs.cursors(partition)
    now_ms = await client.clocks.deletion_ms() if policy.retention_seconds else 0
    limits = limits_of(policy, now_ms, [found.value for found in cursors.values()])
    if limits is None:
        return head.start_offset
    return await expired_offset(client, partition, head, limits, times=LedgerTimes(client))


async def truncate_as(
    client: LogClient, partition: LogPartition, log_id: str, choose: Choose
) -> int:
    """Truncate a partition before the offset that `choose` returns for its newest head.

    Return the earliest offset. Raises the errors of `choose` and of `truncate`.
    """
    gone: list[LogRange] = []
    chunks: list[LogChunk] = []
    head = await _truncate_head(client, partition, log_id, choose, gone, chunks)
    if gone:
        await delete_ended(client, partition, log_id, gone)
    numbers = {chunk.number for chunk in chunks if chunk.number < head.first_chunk}
    await client.logs.delete_chunks(partition, sorted(numbers))
    return head.start_offset


async def _truncate_head(
    client: LogClient,
    partition: LogPartition,
    log_id: str,
    choose: Choose,
    gone: list[LogRange],
    chunks: list[LogChunk],
) -> LogHead:
    """Truncate the head and return it; add the removed ranges and chunks to `gone` and `chunks`.

    An attempt whose outcome is unknown also adds its ranges and chunks, although the head may still
    name them.
    """
    attempts = Attempts()
    while True:
        try:
            found = await client.logs.read_latest_head(partition, log_id)
            offset = await choose(found.value)
            # Even if the offset stays, a range that was kept for its producers may be removed now.
            is_later = offset > found.value.start_offset
            whole = await _chunks_before(client, partition, found.value, offset) if is_later else []
            head, went = chain.truncated(found.value, offset, whole)
            if head == found.value:
                return head
            gone += went
            chunks += whole
            with attempts.proposing():
                await client.logs.write_head(partition, head, found.version)
        except MetadataError as error:
            await attempts.pause_after(error)
        else:
            return head


async def expired_offset(
    client: LogClient,
    partition: LogPartition,
    head: LogHead,
    limits: RetentionLimits,
    *,
    times: LedgerTimes | None = None,
) -> int:
    """Return the first offset that `limits` keep.

    The call reads the chunks that may be deleted, and the next chunk. With `times`, creation times
    of ledgers limit the end time of a range. Without `times`, the end time of a range is the
    greatest timestamp of its records.

    Raises:
        BadVersionError: a chunk was removed, because the head has changed.
        FormatError: a chunk is damaged or missing.
    """
    left = live_bytes(head)
    offset = head.start_offset
    async with aclosing(_neighbours(client, partition, head)) as neighbours:
        async for one, after in neighbours:
            dated = one
            if times is not None and limits.has_time:
                dated = await _dated(one, after, left, limits, times)
            if not expired_count((dated,), left, limits):
                break
            left -= one.size_bytes or 0
            offset = one.end_offset or offset
    return offset


async def _dated(
    one: LogRange,
    after: Sequence[LogRange],
    left: int,
    limits: RetentionLimits,
    times: LedgerTimes,
) -> LogRange:
    """Return a range with its end time corrected by creation times of ledgers.

    If another limit keeps the range, return the range unchanged.
    """
    if one.end_ms is None or not expired_count((one,), left, limits.without_time()):
        return one
    return replace(one, end_ms=await times.end_ms(one, after, limits.keep_from_ms))


async def _neighbours(
    client: LogClient, partition: LogPartition, head: LogHead
) -> AsyncGenerator[tuple[LogRange, Sequence[LogRange]], None]:
    """Yield each range of a chain in order, together with some of the ranges that follow it."""
    last: LogRange | None = None
    async with aclosing(_links(client, partition, head)) as links:
        async for ranges in links:
            if last is not None and ranges:
                yield last, ranges
            for index, one in enumerate(ranges[:-1]):
                yield one, ranges[index + 1 :]
            last = ranges[-1] if ranges else last
    if last is not None:
        yield last, ()


async def _links(
    client: LogClient, partition: LogPartition, head: LogHead
) -> AsyncGenerator[tuple[LogRange, ...], None]:
    """Yield the ranges of each chunk, and then the ranges of the head, all in order."""
    for number in range(head.first_chunk, head.next_chunk):
        yield (await read_chunk(client, partition, head, number)).ranges
    yield live_ranges(head)


async def _chunks_before(
    client: LogClient, partition: LogPartition, head: LogHead, offset: int
) -> list[LogChunk]:
    """Return the oldest chunks, up to the last chunk that ends at or before `offset`."""
    whole: list[LogChunk] = []
    for number in range(head.first_chunk, head.next_chunk):
        chunk = await read_chunk(client, partition, head, number)
        end = chunk.ranges[-1].end_offset
        assert end is not None, "the ranges of chunks are closed"
        if end > offset:
            break
        whole.append(chunk)
    return whole

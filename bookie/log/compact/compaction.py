"""Compacts a log: copies many small ledgers of a partition into few, and changes the head.

=========================== ======================================================================
step                        work, and the leftovers after a crash
=========================== ======================================================================
`plan_compaction`           one process reads the chains; a crash leaves no leftovers
`copy_group`                any number of processes: each writes and closes a new ledger. A crash
                            leaves a ledger that no range names; a sweep deletes it a day later
`publish_compaction`        one process for each partition puts the new ledgers into the head by
                            one compare-and-set, then deletes the old ledgers and chunks. A crash
                            leaves ledgers and chunks that no head names; a sweep deletes them
=========================== ======================================================================

Entries keep their offsets. Control records are copied, too. An entry is copied byte for byte,
except for one field of its record: the *greatest timestamp so far*. After several publishers, the
field may be less than in an earlier record. The copy then gets the greater value. Searches for a
time use this field; readers do not see this field.

A compaction does not change the owner of a partition. If another process changes the head during a
compaction, the compaction is applied to the newest head. If another process truncated or joined
ranges that were copied, the copy is deleted. So any number of compactions may run at the same time.

**Old ledgers are deleted at once**, as after a truncation. A reader that does not find a ledger or
chunk reads the newest head, and continues at the offset that it has reached. A delayed deletion
would not help readers, because at any time a sweep may delete ledgers that no range names. With a
delayed deletion, the original ledgers would also take space next to their copies until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from bookie.errors import BadRequestError, BookieError, MetadataError
from bookie.ledger.write.append_queue import NewEntries
from bookie.ledger.write.handle import WriterHandle
from bookie.log.attempts import Attempts
from bookie.log.background import ignore_error
from bookie.log.catalog.log_metadata import (
    NO_TIME_MS,
    LogChunk,
    LogDefinition,
    LogHead,
    LogMode,
    LogRange,
)
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.plan import CompactionLimits, runs_to_join
from bookie.log.head import chain
from bookie.log.head.chain import (
    CHUNK_RANGES,
    CHUNKS_REWRITTEN_MAX,
    JoinedRanges,
    place_of,
    size_of,
)
from bookie.log.head.log_ranges import runs_from
from bookie.log.log_client import CREATED_TAG, LogClient
from bookie.log.publish.publisher import head_ranges_max
from bookie.log.read.ledger_runs import LedgerReaders, RunEntries, read_runs
from bookie.log.record.log_record import greatest_timestamp_ms, with_greatest
from bookie.log.tidy.ledger_times import LedgerTimes
from bookie.log.tidy.unnamed_ledgers import delete_ended, delete_unnamed, read_chain, read_ledgers
from bookie.log.write.takeover import discard
from bookie.telemetry import event_log

UNCONFIRMED_BYTES_MAX = 8 * 1024 * 1024
"""The most payload bytes that a copy may have sent to bookies before they are durable."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Consecutive ranges of one partition that a compaction joins to one range.

    One process copies the whole group.
    """

    partition: LogPartition
    log_id: str
    ranges: tuple[LogRange, ...]

    @property
    def entries(self) -> int:
        return sum(one.count or 0 for one in self.ranges)

    @property
    def size_bytes(self) -> int:
        return size_of(self.ranges)

    @property
    def ledgers(self) -> int:
        """The number of ledgers that must be read to copy the group."""
        return len({one.ledger_id for one in self.ranges})


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The work of one compaction."""

    groups: tuple[CompactionGroup, ...]
    """The groups, ordered by partition, then by offset."""
    ledgers: int
    left: Mapping[int, str]
    """For each partition number: the reason why some small ranges are not joined."""

    def by_partition(self) -> Mapping[LogPartition, Sequence[CompactionGroup]]:
        """Return the groups of each partition; partitions without groups are left out."""
        found: dict[LogPartition, list[CompactionGroup]] = {}
        for one in self.groups:
            found.setdefault(one.partition, []).append(one)
        return found


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """The result of copying a group."""

    group: CompactionGroup
    after: LogRange | None
    """The range of the new, closed ledger; None if the ledger could not be written."""
    reason: str = ""
    """The reason why the copy failed; empty if the copy succeeded."""


@dataclass(frozen=True, slots=True)
class PublishedCompaction:
    """The result of publishing the copied groups of one partition."""

    joined: int = 0
    """The number of groups that became one range each."""
    size_bytes: int = 0
    """Payload bytes of the new ranges."""
    overtaken: int = 0
    """The number of groups that another process truncated or joined first."""
    failures: tuple[str, ...] = ()
    """The reasons why other groups were not joined; a later compaction may join these groups."""


async def plan_compaction(
    client: LogClient, name: LogName, limits: CompactionLimits
) -> CompactionPlan:
    """Find the groups of ranges that may be joined under the limits and the log's policy.

    No bookie is asked.

    Raises:
        BadRequestError: the limits are not valid.
        NoSuchLogError: there is no such log.
        MetadataError: the metadata store failed.
        FormatError: metadata of the log is damaged or of a newer version, or a chunk is missing.
    """
    limits.validate()
    definition = await client.definition(name)
    limits = limits.within(await client.policy(name))
    groups: list[CompactionGroup] = []
    ledgers: set[int] = set()
    left: dict[int, str] = {}
    for number in range(definition.partitions):
        partition = LogPartition(name, number)
        found, chunks = await read_chain(client, partition, definition.log_id)
        ranges = _ranges(found.value, chunks)
        ledgers.update(one.ledger_id for one in ranges)
        runs = runs_to_join(ranges, found.value.start_offset, limits)
        remaining = len(ranges) - sum(len(run) - 1 for run in runs)
        most = _ranges_max(definition) + CHUNKS_REWRITTEN_MAX * CHUNK_RANGES
        if chunks and remaining > most:
            first = len(ranges) - len(found.value.ranges)
            in_head = [run for run in runs if place_of(ranges, run) >= first]
            if len(in_head) < len(runs):
                left[number] = (
                    f"{remaining} ranges would be left in {partition}, and one change writes at "
                    f"most {most}; so only the newest ranges are joined"
                )
            runs = in_head
        groups += [CompactionGroup(partition, definition.log_id, run) for run in runs]
    return CompactionPlan(tuple(groups), len(ledgers), left)


async def copy_group(
    client: LogClient, group: CompactionGroup, password: bytes = b""
) -> CopiedGroup:
    """Copy a group into a new ledger, verify the digests of all entries, and close the ledger.

    After a failure, the result contains the reason. The new ledger of a failed copy is deleted, by
    this call or by a later sweep.
    """
    try:
        after = await _copy(client, group, password)
    except BookieError as error:
        _log.warning("log_not_copied", partition=str(group.partition), reason=str(error))
        return CopiedGroup(group, None, str(error))
    return CopiedGroup(group, after)


async def _copy(client: LogClient, group: CompactionGroup, password: bytes) -> LogRange:
    policy = await client.policy(group.partition.name)
    tags = client.tags(group.partition, group.log_id)
    tags = {**tags, CREATED_TAG: str(await LedgerTimes(client).latest_ms(group.ranges)).encode()}
    writer = await client.create_ledger(client.shape(policy, password), tags)
    try:
        runs = runs_from(group.ranges, group.ranges[0].base_offset or 0)
        async with aclosing(read_runs(runs, LedgerReaders(client.ledgers, password))) as found:
            await _write(writer, found)
        ledger = await writer.close()
        if ledger.last_entry_id + 1 != group.entries:
            raise BadRequestError(
                f"{ledger.last_entry_id + 1} entries of {group.partition} were copied, and its "
                f"ranges have {group.entries}"
            )
    except BookieError:
        await discard(client, writer, None)
        raise
    except BaseException:
        writer.abandon()
        raise
    first, last = group.ranges[0], group.ranges[-1]
    return LogRange(
        ledger.ledger_id, 0, ledger.last_entry_id, first.base_offset, last.end_ms, ledger.length
    )


async def _write(writer: WriterHandle, found: AsyncGenerator[RunEntries, None]) -> None:
    """Append the entries, with a limit of bytes in flight; return when all entries are durable."""
    greatest_ms = NO_TIME_MS
    unconfirmed: deque[tuple[int, asyncio.Future[range]]] = deque()
    unconfirmed_bytes = 0
    async for run in found:
        payloads = []
        for entry in run.entries:
            payload = with_greatest(entry.payload, greatest_ms)
            greatest_ms = greatest_timestamp_ms(payload)
            payloads.append(payload)
        new = NewEntries.of(payloads)
        future = writer.submit(new)
        future.add_done_callback(ignore_error)  # after an error, nobody awaits the other futures
        unconfirmed.append((new.total_bytes, future))
        unconfirmed_bytes += new.total_bytes
        while unconfirmed_bytes > UNCONFIRMED_BYTES_MAX:
            size, future = unconfirmed.popleft()
            await future
            unconfirmed_bytes -= size
    for _, future in unconfirmed:
        await future


async def publish_compaction(
    client: LogClient, partition: LogPartition, copies: Sequence[CopiedGroup]
) -> PublishedCompaction:
    """Replace ledgers of a partition by their copies in the head, and delete the originals.

    One compare-and-set publishes all copies. Copies that cannot be published are deleted. After a
    MetadataError, the outcome of the compare-and-set is unknown. A later sweep then deletes the
    ledgers that no range names.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataError: the metadata store failed.
        FormatError: the chain cannot be read; nothing was published.
    """
    definition = await client.definition(partition.name)
    return await _Publication(client, partition, definition, copies).run()


class _Publication:
    """The publication of copies in one partition."""

    def __init__(
        self,
        client: LogClient,
        partition: LogPartition,
        definition: LogDefinition,
        copies: Sequence[CopiedGroup],
    ) -> None:
        self._client = client
        self._partition = partition
        self._log_id = definition.log_id
        self._ranges_max = _ranges_max(definition)
        self._copies = copies
        self._joined = [
            JoinedRanges(one.group.ranges, one.after) for one in copies if one.after is not None
        ]
        self._gone: list[LogRange] = []
        """The replaced ranges. After a write of unknown outcome, the head may still name them."""
        self._chunks: set[int] = set()
        """The replaced chunks. After a write of unknown outcome, the head may still name them."""
        self._refused: dict[int, str] = {}
        """For each new ledger that cannot be published: the reason."""

    async def run(self) -> PublishedCompaction:
        client, partition, log_id = self._client, self._partition, self._log_id
        head, ranges = await self._publish()
        named = set(ranges)
        done = [one.after for one in self._joined if one.after in named]
        await delete_ended(client, partition, log_id, self._gone)
        lost = {one.after.ledger_id for one in self._joined if one.after not in named}
        if lost:
            await delete_unnamed(client, partition, log_id, lost, may_go=lambda _: True)
        numbers = sorted(number for number in self._chunks if number < head.first_chunk)
        await client.logs.delete_chunks(partition, numbers)
        failures = [*self._refused.values()]
        # If the head no longer names the ranges of a failed copy, another process was first: the
        # group counts as overtaken, not as failed.
        failures += [
            one.reason
            for one in self._copies
            if one.after is None and place_of(ranges, one.group.ranges) >= 0
        ]
        overtaken = len(self._copies) - len(done) - len(failures)
        return PublishedCompaction(len(done), size_of(done), overtaken, tuple(failures))

    async def _publish(self) -> tuple[LogHead, list[LogRange]]:
        """Replace the copied ranges in the newest head and chunks; return head and all ranges."""
        client, partition = self._client, self._partition
        attempts = Attempts()
        while True:
            try:
                # The ledgers are read after the head, as the module `unnamed_ledgers` requires.
                found, chunks = await read_chain(client, partition, self._log_id)
                ranges = _ranges(found.value, chunks)
                step = self._step(found.value, chunks, await self._publishable(ranges))
                if step is None:
                    return found.value, ranges
                head, sealed, gone = step
                self._gone += gone
                self._chunks.update(range(found.value.first_chunk, head.first_chunk))
                with attempts.proposing():
                    await client.logs.write_head(partition, head, found.version, sealed=sealed)
            except MetadataError as error:
                await attempts.pause_after(error)
            else:
                is_anew = head.first_chunk != found.value.first_chunk
                return head, _ranges(head, sealed if is_anew else chunks)

    def _step(
        self, head: LogHead, chunks: Sequence[LogChunk], waiting: Sequence[JoinedRanges]
    ) -> tuple[LogHead, tuple[LogChunk, ...], list[LogRange]] | None:
        """Return the new head, its new chunks and the replaced ranges; None if there is no change.

        There is no change if `waiting` is empty, or if `chain.compacted` refuses the change.
        """
        if not waiting:
            return None
        try:
            return chain.compacted(head, chunks, waiting, ranges_max=self._ranges_max)
        except BadRequestError as error:
            self._refused |= {one.after.ledger_id: str(error) for one in waiting}
            return None

    async def _publishable(self, ranges: Sequence[LogRange]) -> list[JoinedRanges]:
        """Return the unpublished copies whose old ranges and new ledger still exist."""
        named = set(ranges)
        waiting = [
            one
            for one in self._joined
            if one.after not in named and place_of(ranges, one.before) >= 0
        ]
        ledgers = await read_ledgers(self._client, [one.after.ledger_id for one in waiting])
        for ledger_id in {one.after.ledger_id for one in waiting} - ledgers.keys():
            self._refused[ledger_id] = (
                f"ledger {ledger_id}, a copy of ranges of {self._partition}, was deleted before it "
                "was published; a sweep keeps it for a day"
            )
        return [one for one in waiting if one.after.ledger_id not in self._refused]


def _ranges(head: LogHead, chunks: Sequence[LogChunk]) -> list[LogRange]:
    return [*(one for chunk in chunks for one in chunk.ranges), *head.ranges]


def _ranges_max(definition: LogDefinition) -> int:
    if definition.mode is LogMode.TRANSACTIONAL:
        return head_ranges_max(definition.partitions)
    return chain.HEAD_RANGES_MAX

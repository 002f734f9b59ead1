"""Publish ranges of a transactional log: all ranges of a batch in one transaction, or none.

The transaction replaces the head of each partition that the batch touches, and the record of the
application's last batch. The transaction fails if another process has changed a head or the
application's record. After a failed transaction, the publisher reads the heads and the record
again. Each batch of an application has a greater number than the batch before. So at most one
attempt publishes a batch, even if the reply of that attempt is lost.

================================ =================================================================
limit of one transaction         limit of one batch
================================ =================================================================
100 operations                   a batch has ranges of at most 98 partitions
                                 (`PARTITIONS_TOUCHED_MAX`)
768 KiB                          the new heads of these partitions have together about 4 000
                                 ranges; if a log has many partitions, each head keeps fewer ranges
================================ =================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from bookie.entry.digest import derive_key, digester_for_key
from bookie.entry.entry import HEADER_SIZE_BYTES
from bookie.env.checked import checked
from bookie.errors import BadRequestError, InvalidKeyError, LogFullError, MetadataError
from bookie.ids import ENTRY_SIZE_BYTES_MAX
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.attempts import Attempts
from bookie.log.catalog.log_metadata import LogChunk, LogDefinition, LogHead, LogRange
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.head import chain
from bookie.log.log_client import LogClient
from bookie.log.publish.range_writer import (
    APPLICATION_TAG,
    PendingRange,
    publisher_tags,
    require_transactional,
)
from bookie.log.tidy.unnamed_ledgers import delete_unnamed, read_chunk, read_ledgers
from bookie.metadata.model import TRANSACTION_OPERATIONS_MAX, TRANSACTION_SIZE_BYTES_MAX, Check
from bookie.metadata.versioned import Versioned

PARTITIONS_TOUCHED_MAX = TRANSACTION_OPERATIONS_MAX - 2
"""The most partitions that one batch may change.

Two operations of the transaction are for the records of the application and of the log.
"""

_HEADS_RANGES_MAX = 4000
"""The most ranges in all heads of one transaction together; a range takes up to 120 bytes."""

_HEAD_RANGES_MIN = 16


def head_ranges_max(partitions: int) -> int:
    """Return the greatest number of ranges in each head of a transactional log."""
    most = min(chain.HEAD_RANGES_MAX, _HEADS_RANGES_MAX // partitions)
    return max(_HEAD_RANGES_MIN, most)


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """The limits of one record of a log."""

    size_bytes_max: int
    """The greatest size of an encoded record: its fixed part, key, headers and value."""
    ahead_seconds: int
    """The most seconds that a record's time may be ahead of the clock; 0 means no limit."""


class LogPublisher:
    """Publishes batches to one log. A publisher has no state, so a log may have many publishers."""

    def __init__(self, client: LogClient, name: LogName) -> None:
        self._client = client
        self._name = name

    async def definition(self) -> LogDefinition:
        """Read the definition of the log, and check that the log is transactional.

        Raises:
            NoSuchLogError: there is no such log.
            BadRequestError: the log is not transactional.
        """
        definition = await self._client.definition(self._name)
        require_transactional(LogPartition(self._name), definition)
        return definition

    @checked
    async def bounds(self) -> RecordBounds:
        """Return the limits of a record under the log's present policy. The log need not exist.

        Raises:
            NoSuchKeyError: there is no such namespace.
        """
        self._client.require_here()
        policy = await self._client.policy(self._name)
        digester = digester_for_key(self._client.shape(policy).digest_type, derive_key(b""))
        overhead = HEADER_SIZE_BYTES + digester.size_bytes
        return RecordBounds(ENTRY_SIZE_BYTES_MAX - overhead, policy.ahead_seconds or 0)

    @checked
    async def last_batch(self, application_id: str) -> int:
        """Read the number of an application's last published batch; -1 if there is none."""
        self._client.require_here()
        await self._client.store.sync()
        return (await self._client.logs.last_batch(self._name, application_id)).value

    @checked
    async def publish(
        self, application_id: str, batch: int, ranges: Iterable[PendingRange]
    ) -> bool:
        """Publish a batch; False if this batch or a newer batch was published before.

        A batch may be empty. The ranges of a partition are published in the given order. When the
        call returns, the newest heads name all ranges of the batch. A later call with an equal or
        smaller batch number of the application publishes nothing. After NoSuchLogError,
        LogFullError or BadRequestError, nothing was published, except perhaps in a log that was
        deleted meanwhile. After another error or a cancellation, or if the client was closed, the
        outcome may be unknown: publish the same batch again.

        Raises:
            NoSuchLogError: there is no such log.
            LogFullError: a partition has reached the quota of the log's policy.
            BadRequestError: the log is not transactional, a range is invalid, or the batch is too
                large for one transaction (see the module's table of limits). A range is invalid if
                it is reversed, or if it was published before and a head still names it. A range is
                also invalid if its ledger was deleted, or was not written by this application for
                this partition.
            MetadataError: the metadata store failed.
        """
        self._client.require_here()
        wanted = _checked(self._name, batch, ranges)
        attempts = Attempts()
        first_look: _Look | None = None
        while True:
            try:
                look = await self._look(application_id, wanted)
                if batch <= look.last.value:
                    return first_look is not None and await self._is_ours(
                        batch, wanted, look, first_look
                    )
                if first_look is None:
                    await self._check_quota(look)
                try:
                    await self._check_ledgers(application_id, look.definition, wanted)
                except BadRequestError:
                    if await self._has_moved(application_id, look):
                        continue
                    raise
                changes = _changes(look, wanted)
                put = self._client.logs.put_batch(
                    self._name, application_id, batch, look.last.version
                )
                first_look = first_look or look
                with attempts.proposing():
                    await self._client.logs.commit_heads(changes, [put, look.condition])
                return True
            except InvalidKeyError as error:
                raise _too_large(self._name, len(wanted), str(error)) from error
            except MetadataError as error:
                if not attempts.is_in_doubt:
                    first_look = None
                await attempts.pause_after(error)

    @checked
    async def forget(self, application_id: str) -> None:
        """Delete the record of an application that will publish nothing more.

        Call `forget` after the application's last `publish` has returned. If a late request of this
        `publish` arrives, the request fails, because the heads have newer versions. Published
        ranges stay. An unknown application is no error.

        Raises:
            MetadataError: the metadata store failed; the record may remain, and does no harm.
        """
        self._client.require_here()
        await self._client.logs.forget_application(self._name, application_id)

    @checked
    async def abort(self, ranges: Iterable[PendingRange]) -> list[int]:
        """Delete the ledgers of ranges that will not be published; return the deleted ledger ids.

        A ledger stays if a published range names it, or if it belongs to another log. After this
        call, no `publish` can publish a range of a deleted ledger.

        Raises:
            NoSuchLogError: there is no such log.
            MetadataError: the metadata store failed; a sweep deletes the ledgers that remain.
        """
        definition = await self._client.definition(self._name)
        by_partition: dict[int, set[int]] = {}
        for one in ranges:
            by_partition.setdefault(one.partition, set()).add(one.ledger_id)
        deleted = []
        for number, ledger_ids in sorted(by_partition.items()):
            partition = LogPartition(self._name, number)
            require_transactional(partition, definition)
            tags = self._client.tags(partition, definition.log_id)
            may_go = partial(_has_tags, tags)
            deleted += await delete_unnamed(
                self._client, partition, definition.log_id, ledger_ids, may_go=may_go
            )
        return deleted

    async def _look(self, application_id: str, wanted: _Wanted) -> _Look:
        """Read the state from which the new heads are computed.

        The caller must read the metadata of ledgers only after this call. This call reads the
        application's record after the heads. So if a head already contains the batch, the record
        has the number of this batch or of a newer batch.
        """
        logs = self._client.logs
        await self._client.store.sync()
        definition = await logs.read(self._name)
        condition = await logs.condition(self._name, definition.value.log_id)
        heads = {}
        for partition in wanted:
            require_transactional(partition, definition.value)
            heads[partition] = await logs.read_head(partition, definition.value.log_id)
        last = await logs.last_batch(self._name, application_id)
        return _Look(last, definition.value, condition, heads)

    async def _has_moved(self, application_id: str, look: _Look) -> bool:
        """True if the record of the application has changed since `look`.

        A late request may have published this batch, and a truncation may have deleted its ledgers.
        """
        await self._client.store.sync()
        last = await self._client.logs.last_batch(self._name, application_id)
        return last.version != look.last.version

    async def _check_quota(self, look: _Look) -> None:
        quota = (await self._client.policy(self._name)).quota_bytes
        for partition, head in look.heads.items():
            used = chain.live_bytes(head.value)
            if quota and used >= quota:
                raise LogFullError(
                    f"{partition} has reached its quota of {quota} bytes; truncate it, or raise "
                    "quota_bytes"
                )

    async def _check_ledgers(
        self, application_id: str, definition: LogDefinition, wanted: _Wanted
    ) -> None:
        ids = {one.ledger_id for ranges in wanted.values() for one in ranges}
        ledgers = await read_ledgers(self._client, ids)
        for partition, ranges in wanted.items():
            tags = publisher_tags(partition, definition.log_id, application_id)
            for one in ranges:
                _check_ledger(partition, one, ledgers.get(one.ledger_id), tags)

    async def _is_ours(self, batch: int, wanted: _Wanted, look: _Look, before: _Look) -> bool:
        """True if an earlier attempt of this call published the batch, after `before` was read.

        One transaction changed all partitions or none, so one partition shows the outcome. But a
        truncation or a compaction may have removed the ranges from a head. If all partitions may
        have lost their ranges in this way, the outcome cannot be known. The result is then True.
        """
        if not wanted:
            return look.last.value == batch
        for partition, ranges in wanted.items():
            then = before.heads[partition].value
            now = (await self._client.logs.read_head(partition, then.log_id)).value
            found = list(now.ranges)
            for number in range(max(then.next_chunk, now.first_chunk), now.next_chunk):
                found += (await read_chunk(self._client, partition, now, number)).ranges
            named = {(one.ledger_id, one.first_entry_id) for one in found}
            if any((one.ledger_id, one.first_entry_id) in named for one in ranges):
                return True
            begin = chain.end_offset(then)
            # If the ranges of this call were published, the last of them ended at this offset or
            # later.
            end = begin + sum(one.count or 0 for one in ranges)
            later = [one.ledger_id for one in found if (one.end_offset or 0) > begin]
            if now.start_offset < end and not await self._has_copy(later):
                return False
        return True

    async def _has_copy(self, ledger_ids: Iterable[int]) -> bool:
        """True if one of these ledgers is a copy that a compaction made, or is gone already."""
        ids = set(ledger_ids)
        ledgers = await read_ledgers(self._client, ids)
        return len(ledgers) < len(ids) or any(
            APPLICATION_TAG not in one.value.custom_metadata for one in ledgers.values()
        )


_Wanted = Mapping[LogPartition, Sequence[LogRange]]


@dataclass(frozen=True, slots=True)
class _Look:
    """The state from which the new heads of a batch are computed."""

    last: Versioned[int]
    definition: LogDefinition
    condition: Check
    heads: Mapping[LogPartition, Versioned[LogHead]]


def _checked(name: LogName, batch: int, ranges: Iterable[PendingRange]) -> _Wanted:
    """Check the ranges; return them by partition, in the given order.

    Raises:
        BadRequestError: a range is reversed or given twice, or there are too many partitions.
    """
    if batch < 0:
        raise BadRequestError(f"batches are numbered from 0 on, not {batch}")
    wanted: dict[LogPartition, list[LogRange]] = {}
    for one in ranges:
        if not 0 <= one.first_entry_id <= one.last_entry_id or one.size_bytes < 0:
            raise BadRequestError(f"{one} is reversed or empty, or has a negative number")
        wanted.setdefault(LogPartition(name, one.partition), []).append(one.as_log_range())
    for partition, given in wanted.items():
        _refuse_overlap(partition, given, ())
    if len(wanted) > PARTITIONS_TOUCHED_MAX:
        raise _too_large(name, len(wanted), f"the most is {PARTITIONS_TOUCHED_MAX} partitions")
    return wanted


def _refuse_overlap(
    partition: LogPartition, given: Sequence[LogRange], published: Iterable[LogRange]
) -> None:
    """Raise BadRequestError if two of the ranges in `given` and `published` share an entry."""
    ledgers = {one.ledger_id for one in given}
    rows = [(one.ledger_id, one.first_entry_id, one.last_entry_id or 0) for one in given]
    rows += [
        (one.ledger_id, one.first_entry_id, one.last_entry_id or 0)
        for one in published
        if one.ledger_id in ledgers
    ]
    rows.sort()
    for (ledger_id, _, last), (next_id, first, _) in pairwise(rows):
        if ledger_id == next_id and first <= last:
            raise BadRequestError(
                f"entry {first} of ledger {ledger_id} would be in {partition} twice"
            )


def _check_ledger(
    partition: LogPartition,
    one: LogRange,
    found: Versioned[LedgerMetadata] | None,
    tags: Mapping[str, bytes],
) -> None:
    if found is None:
        raise BadRequestError(
            f"ledger {one.ledger_id} does not exist; write the batch of {partition} again"
        )
    ledger = found.value
    if not _has_tags(tags, ledger):
        raise BadRequestError(
            f"ledger {one.ledger_id} was not written for {partition} by this application"
        )
    if ledger.is_closed and (one.last_entry_id or 0) > ledger.last_entry_id:
        raise BadRequestError(
            f"ledger {one.ledger_id} ends with entry {ledger.last_entry_id}, and has no "
            f"{one.last_entry_id}"
        )


def _has_tags(tags: Mapping[str, bytes], ledger: LedgerMetadata) -> bool:
    return all(ledger.custom_metadata.get(key) == value for key, value in tags.items())


def _changes(
    look: _Look, wanted: _Wanted
) -> list[tuple[LogPartition, LogHead, int, Sequence[LogChunk]]]:
    """Return the new heads. If the transaction has room, move the oldest ranges to chunks."""
    room = TRANSACTION_OPERATIONS_MAX - len(wanted) - 2
    ranges_max = head_ranges_max(look.definition.partitions)
    chunk_ranges = min(chain.CHUNK_RANGES, ranges_max // 2)
    changes: list[tuple[LogPartition, LogHead, int, Sequence[LogChunk]]] = []
    by_size = sorted(wanted, key=lambda partition: -len(look.heads[partition].value.ranges))
    for partition in by_size:
        found = look.heads[partition]
        _refuse_overlap(partition, wanted[partition], found.value.ranges)
        head = chain.with_published(found.value, wanted[partition])
        sealed, chunks = chain.seal(head, ranges_max=ranges_max, chunk_ranges=chunk_ranges)
        if len(chunks) > room:
            sealed, chunks = head, ()
        room -= len(chunks)
        changes.append((partition, sealed, found.version, chunks))
    return changes


def _too_large(name: LogName, partitions: int, reason: str) -> BadRequestError:
    return BadRequestError(
        f"a batch of {partitions} partitions of {name} is too large for one transaction, which has "
        f"{TRANSACTION_OPERATIONS_MAX} operations and {TRANSACTION_SIZE_BYTES_MAX} bytes; publish "
        f"fewer partitions or ranges in a batch: {reason}"
    )

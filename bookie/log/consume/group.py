"""A group of consumers that share the partitions of logs: one member consumes each partition.

::

    async with GroupMember(client, "workers", reading, pattern="orders-*") as member:
        async for record in member:
            ...
            await member.commit(record)

The group's leader assigns partitions to members (`group_leader`), and each member consumes the
partitions that are assigned to it. A member keeps the partition of the record on which the
application works until the application asks for the next record. The next member waits for the
partition's lock, and then takes the partition's cursor in a new epoch. The cursor's name is the
group's name. The new epoch fences the former member. So even if two members act as leader, at most
one member can commit for a partition.

When the session of a dead member ends, the leader assigns the partitions of this member to other
members. If a member loses the cursor of an assigned partition, for example by a reset, the member
takes the cursor again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from bookie.coordination.locks import LockManager
from bookie.coordination.membership import Group
from bookie.coordination.participant import Participant
from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    CursorLostError,
    LogClosedError,
    MetadataClosedError,
    NoSuchCursorError,
    NoSuchKeyError,
    NoSuchLogError,
)
from bookie.log.catalog.group_metadata import GroupAssignment, MemberProfile, encode_member_profile
from bookie.log.catalog.groups import ConsumerGroup
from bookie.log.catalog.logs import LogName, LogPartition, checked_name
from bookie.log.consume.commit import AutoCommit, HeldCursor
from bookie.log.consume.consumer import RecordFlow, commit_by_time
from bookie.log.consume.cursors import CursorRecord, CursorStatus
from bookie.log.consume.group_leader import GroupLeader, read_profile, split_pattern
from bookie.log.consume.partition_consumer import ConsumedBatch, PartitionConsumer
from bookie.log.log_client import LogClient
from bookie.log.read.reading import LogReading, locate_cursor
from bookie.log.read.start_position import LogStart, checked_place
from bookie.log.record.log_record import LogPosition, LogRecord, Producer
from bookie.metadata.mirror import follow
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

_log = event_log(__name__)


class GroupRecord(NamedTuple):
    """A record with the name of its `log`; it also has all attributes of a `LogRecord`."""

    log_partition: LogPartition
    """The log, and the number of the partition."""
    token: int
    """The epoch of the cursor: a fencing token for results that are computed from the record."""
    record: LogRecord
    """The record itself, without the name of its log."""

    @property
    def log(self) -> str:
        return str(self.log_partition.name)

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def value(self) -> bytes:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        return self.record.headers

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp_ms

    @property
    def producer(self) -> Producer | None:
        """The producer that appended the record, and the number that it gave to the record."""
        return self.record.producer

    @property
    def ledger_id(self) -> int:
        return self.record.ledger_id

    @property
    def entry_id(self) -> int:
        return self.record.entry_id

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def position(self) -> LogPosition:
        return self.record.position


class GroupMember:
    """One member of a group: an async context manager, and an async iterator of records.

    Use a member from one task at a time. If a call is cancelled, no record is lost: a later call
    returns the same record. The records of one partition come in order.
    """

    def __init__(
        self,
        client: LogClient,
        group: str,
        reading: LogReading,
        *,
        logs: Iterable[str] = (),
        pattern: str = "",
        member: str = "",
        start: LogStart = None,
        start_time: Moment | None = None,
        auto_commit: AutoCommit | None = None,
        on_change: Callable[[frozenset[LogPartition]], object] = lambda _: None,
    ) -> None:
        """The arguments are those of `BookKeeper.join_group`.

        Raises:
            BadRequestError: a name or the start is invalid, or neither logs nor a pattern are
                given.
        """
        names = tuple(sorted({str(LogName.parse(log)) for log in logs}))
        if not names and not pattern:
            raise BadRequestError("a group needs the names of logs or a pattern")
        split_pattern(pattern)
        self.name = checked_name(member, "a member") if member else _random_name()
        self._client = client
        self._group = ConsumerGroup(client.store, group)
        self._profile = MemberProfile(client.identity, names, pattern)
        self._reading = reading
        if isinstance(start, tuple | list):
            raise BadRequestError(
                f"a group has many partitions, and {start} is in one: begin at an offset or a time"
            )
        self._start = checked_place(start, start_time)
        self._auto_commit = auto_commit
        self._on_change = on_change
        self._flow = RecordFlow(self._poll, auto_commit, self._stir)
        self._assigned = GroupAssignment()
        self._wanted: frozenset[LogPartition] = frozenset()
        self._serving: dict[LogPartition, asyncio.Task[None]] = {}
        """For each partition that is assigned or not yet released: the task that consumes it."""
        self._consumers: dict[LogPartition, PartitionConsumer] = {}
        self._turns: deque[LogPartition] = deque()
        """The partitions of `_consumers`, in the order in which `_poll` asks them for a batch."""
        self._cursors: dict[LogPartition, HeldCursor] = {}
        """For each partition: the cursor under which this member last gave out records."""
        self._changed = asyncio.Event()
        self._is_entered = self._is_leaving = False
        self._error: BookieError | None = None
        self._participant: Participant | None = None
        self._tasks = asyncio.TaskGroup()
        self._background: list[asyncio.Task[None]] = []
        self._resources = AsyncExitStack()

    @property
    def assignment(self) -> frozenset[LogPartition]:
        """The partitions whose cursors this member holds now."""
        return frozenset(self._consumers)

    @property
    def generation(self) -> int:
        """The number of the newest assignment of the group that this member has seen."""
        return self._assigned.generation

    @property
    def tokens(self) -> Mapping[LogPartition, int]:
        """The epoch of the cursor in each partition that this member consumes."""
        return {one: consumer.cursor.token for one, consumer in self._consumers.items()}

    # ---- consuming

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupRecord:
        """Wait for the next record of any partition and return it.

        Raises:
            LogTruncatedError: the group's next record in a partition was truncated; reset the
                partition's cursor.
            CorruptionError: a record cannot be read.
        """
        self._require_entered()
        consumer, token, record = await self._flow.next_record()
        return GroupRecord(consumer.partition, token, record)

    def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Yield batches, each of one partition. Batches are faster than single records."""
        return self._batches()

    async def _batches(self) -> AsyncIterator[ConsumedBatch]:
        while True:
            yield await self.next_batch()

    async def next_batch(self) -> ConsumedBatch:
        """Wait for the next batch and return it. Raises the errors of `__anext__`."""
        self._require_entered()
        return await self._flow.next_batch()

    @checked
    async def commit(self, up_to: GroupRecord | ConsumedBatch | None = None) -> None:
        """Mark all given-out records as consumed, or all records up to and including `up_to`.

        With `up_to`, only records in the same partition as `up_to` are marked. Without `up_to`, the
        call silently skips records of partitions that this member no longer consumes. The commit is
        durable when the call returns.

        Raises:
            CursorLostError: another member has the cursor of a partition, or the cursor was reset
                or deleted. The uncommitted records of this partition are delivered again. The
                records of the other partitions are marked.
            MetadataUnavailableError, SessionLostError: the store did not answer; commit again,
                because the outcome is unknown.
        """
        self._require_entered()
        if up_to is not None:
            await self._commit_one(up_to)
            return
        failed: BookieError | None = None
        for consumer in list(self._consumers.values()):
            try:
                await consumer.commit_up_to(None)
            except BookieError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _commit_one(self, up_to: GroupRecord | ConsumedBatch) -> None:
        if isinstance(up_to, GroupRecord):
            partition, last = up_to.log_partition, up_to.record
        else:
            partition, last = up_to.partition, up_to.records[-1]
        consumer = self._consumers.get(partition)
        if consumer is None or consumer.cursor.token != up_to.token:
            raise CursorLostError(f"this member does not consume {partition} any more")
        await consumer.commit_up_to(last)

    @checked
    def has_committed(self, record: GroupRecord) -> bool:
        """True if `record` was certainly committed in epoch `record.token`, which may have ended.

        The result is also False if this member has given out records of the partition in a later
        epoch, because the member remembers only one epoch of each partition.
        """
        cursor = self._cursors.get(record.log_partition)
        return (
            cursor is not None and cursor.token == record.token and record.offset < cursor.committed
        )

    def _require_entered(self) -> None:
        """Check that the caller is inside the member's `async with` block.

        Raises:
            BadRequestError: the block was not entered.
            LogClosedError: the block was left.
        """
        self._client.require_here()
        if not self._is_entered:
            raise BadRequestError("enter the member with `async with` first")
        if self._is_leaving:
            raise LogClosedError(f"the member {self.name} has left its group")

    def _poll(self) -> tuple[PartitionConsumer, ConsumedBatch] | None:
        self._client.require_here()
        if self._error is not None:
            raise self._error
        for _ in range(len(self._turns)):
            consumer = self._consumers[self._turns[0]]
            self._turns.rotate(-1)
            batch = None if consumer.is_over else consumer.take()
            if batch is not None:
                self._cursors[batch.partition] = consumer.cursor
                return consumer, batch
        return None

    # ---- following the assignment

    def _follow(self, found: Versioned[GroupAssignment]) -> None:
        self._assigned = found.value
        self._want(map(LogPartition.parse, found.value.shares.get(self.name, ())))

    def _want(self, partitions: Iterable[LogPartition]) -> None:
        """Begin to consume new `partitions`; release each partition that is not in `partitions`."""
        self._wanted = frozenset(partitions)
        for partition, task in self._serving.items():
            if partition not in self._wanted and partition not in self._consumers:
                task.cancel()  # the task still waits for the lock
        for partition in sorted(self._wanted - self._serving.keys()):
            self._serve_soon(partition)
        self._stir()

    def _serve_soon(self, partition: LogPartition) -> None:
        task = self._tasks.create_task(self._serve(partition))
        self._serving[partition] = task
        task.add_done_callback(partial(self._on_served, partition))

    def _on_served(self, partition: LogPartition, _: asyncio.Task[None]) -> None:
        self._serving.pop(partition)
        if partition in self._wanted and self._error is None and not self._is_leaving:
            self._serve_soon(partition)  # the partition was assigned again meanwhile

    def _stir(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._flow.news.set()

    async def _serve(self, partition: LogPartition) -> None:
        """Consume a partition while it is assigned to this member.

        If this member loses the cursor meanwhile, take the cursor again.
        """
        assert self._participant is not None
        attempt = 0
        while partition in self._wanted:
            record = CursorRecord(self._client, partition, self._group.name)
            consumer = PartitionConsumer(
                self._client, self._participant, record, self._reading, self._stir
            )
            try:
                await consumer.hold(partial(locate_cursor, self._reading, partition, self._start))
            except MetadataClosedError:
                self._fail(ClientClosedError("the client was closed"))
                return
            except BadRequestError as error:
                self._fail(error)  # the caller gave a wrong start
                return
            except BookieError as error:
                _log.warning("partition_not_taken", partition=str(partition), reason=str(error))
                await self._participant.pause(attempt)
                attempt += 1
                continue
            attempt = 0
            await self._keep(partition, consumer)
            if isinstance(consumer.error, NoSuchLogError):
                await self._participant.pause(attempt)  # until the leader unassigns the log
            elif not isinstance(consumer.error, CursorLostError | None):
                self._fail(consumer.error)
                return

    def _fail(self, error: BookieError) -> None:
        self._error = error
        self._stir()

    async def _keep(self, partition: LogPartition, consumer: PartitionConsumer) -> None:
        """Give out a partition's records until the cursor is lost or the assignment ends.

        Before the partition is released, wait until the application has finished the record that it
        works on.
        """
        self._consumers[partition] = consumer
        self._turns.append(partition)
        self._on_change(self.assignment)
        try:
            while partition in self._wanted and not consumer.is_over:
                await self._changed.wait()
            consumer.stop()
            while self._flow.in_hand is consumer and not (consumer.error or self._is_leaving):
                await self._changed.wait()
            if self._auto_commit is not None and consumer.error is None:
                await consumer.commit_finished()
        finally:
            self._consumers.pop(partition)
            self._turns.remove(partition)
            await consumer.close()
            self._on_change(self.assignment)

    # ---- joining and leaving

    async def __aenter__(self) -> Self:
        if self._is_entered or self._is_leaving:
            raise BadRequestError("the member was entered before; join the group again")
        participant = self._participant = await self._client.participant()
        joined = Group(participant, self._group.members_key).join(
            self.name, encode_member_profile(self._profile)
        )
        await self._resources.enter_async_context(joined)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        leader = GroupLeader(self._client, participant, self._group, self.name)
        store, key = self._client.store, self._group.assignment_key
        work = [leader.run(), follow(store, key, self._group.read_assignment, self._follow)]
        if self._auto_commit is not None:
            work.append(commit_by_time(self._auto_commit, self._consumers.values))
        self._background = [self._tasks.create_task(one) for one in work]
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_leaving = True
        for task in self._background:
            task.cancel()
        self._want(())
        try:
            # Do not pass the error of the `async with` body to the task group, which would wrap it.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._resources.aclose()


def _random_name() -> str:
    return f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a group. The fields are read one after another, so two fields may disagree."""

    name: str
    members: Mapping[str, MemberProfile]
    leader: str
    """The name of the member that leads; empty if no member leads."""
    assignment: GroupAssignment
    cursors: tuple[CursorStatus, ...]
    """The group's cursors in the assigned partitions, if they exist."""

    @property
    def lag(self) -> int:
        """The number of entries that the group has not consumed, over all assigned partitions.

        The number includes control records.
        """
        return sum(one.lag for one in self.cursors)


async def group_status(client: LogClient, group: str, reading: LogReading) -> GroupStatus:
    """Read the members and the leader of a group, its assignment, and its cursors.

    Raises:
        NoSuchKeyError: the group has no member, and never had an assignment.
        UnavailableError: too few bookies answered, so the end of a partition is unknown.
    """
    found = ConsumerGroup(client.store, group)
    assignment = (await found.read_assignment()).value
    members = {
        record.name: read_profile(record)
        async for record in client.store.scan_children(found.members_key)
    }
    if not members and not assignment.generation:
        raise NoSuchKeyError(f"there is no group {group}")
    leader = await LockManager(await client.participant()).read(found.leader_key)
    cursors = []
    for text in sorted({one for share in assignment.shares.values() for one in share}):
        partition = LogPartition.parse(text)
        with suppress(NoSuchCursorError, NoSuchLogError):
            cursor = await client.logs.read_cursor(partition, group)
            bounds = await reading.bounds(partition)
            cursors.append(CursorStatus(partition, group, cursor.value, *bounds))
    return GroupStatus(
        group, members, "" if leader is None else leader.owner, assignment, tuple(cursors)
    )

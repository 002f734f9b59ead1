"""Consumers and members of groups, for callers without an event loop.

The event loop passes whole batches to the caller's thread. A record counts as given out when the
caller has received it, and `commit` commits only such records. With automatic commits, a record
counts as consumed when the caller asks for the next record. So with automatic commits, the loop
passes one record at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

from bookie.errors import BookieError, CursorLostError
from bookie.log.catalog.logs import LogPartition
from bookie.log.consume.consumer import LogConsumer
from bookie.log.consume.group import GroupMember, GroupRecord
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.sync.forwarding import Shown, shown
from bookie.sync.given_records import GivenRecords
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import Closing, LoopThread, Resident, check_timeout

R = TypeVar("R", LogRecord, GroupRecord)


class _Consuming(SyncHandle, Closing, Generic[R]):
    """Base class of consumers and group members; only one thread may use an object at a time."""

    def __init__(
        self,
        home: LoopThread,
        manager: AbstractAsyncContextManager[Any],
        *,
        by_record: bool,
        timeout: float | None,
    ) -> None:
        """`timeout` limits each wait; `by_record` makes the loop pass one record at a time."""
        super().__init__(home)
        check_timeout(timeout)
        self._resident = Resident(home, manager)
        self._by_record = by_record
        self._timeout = timeout
        self._given: GivenRecords[R] = GivenRecords(self._fetch)
        self._arrived: Sequence[R] = ()
        """Records that the loop has passed, and that this thread has not taken yet."""

    @abstractmethod
    async def _next_record(self) -> R: ...

    @abstractmethod
    async def _next_records(self) -> Sequence[R]: ...

    def __enter__(self) -> Self:
        return self.open()

    def open(self, *, timeout: float | None = None) -> Self:
        """Begin to consume, as a `with` statement does; call `close` to stop."""
        self._resident.open(timeout)
        return self

    def close(self, *, timeout: float | None = None) -> None:
        """Stop consuming, as the end of a `with` block does; a second call does nothing."""
        self._resident.close(timeout)

    def __iter__(self) -> Iterator[R]:
        """Yield the records one by one; wait for new records until an error occurs.

        With a timeout, `next` raises OperationTimeoutError if no record came within that time. A
        new loop over the object then waits again.
        """
        return iter(self._given)

    def _fetch(self) -> Sequence[R]:
        self._run(self._arrive(), self._timeout)
        arrived, self._arrived = self._arrived, ()
        return arrived

    async def _arrive(self) -> None:
        # An earlier wait may have timed out and still have fetched records; these records come
        # first.
        if not self._arrived:
            self._arrived = (
                [await self._next_record()] if self._by_record else await self._next_records()
            )


class SyncLogConsumer(_Consuming[LogRecord]):
    """`bookie.api.LogConsumer` without an event loop; made by `SyncBookKeeper.consume`."""

    def __init__(
        self, home: LoopThread, handle: LogConsumer, *, by_record: bool, timeout: float | None
    ) -> None:
        super().__init__(home, handle, by_record=by_record, timeout=timeout)
        self._handle = handle

    partition: Shown[LogPartition] = shown(LogConsumer.partition)
    token: Shown[int] = shown(LogConsumer.token)
    committed: Shown[int] = shown(LogConsumer.committed)

    @property
    def position(self) -> int:
        """The offset after the last record that was given out; ``commit()`` commits this offset."""
        last = self._given.last
        return self._handle.committed if last is None else last.offset + 1

    def lag(self, *, timeout: float | None = None) -> int:
        """Count the partition's entries that were not given out; see `LogConsumer.lag`."""
        return self._run(self._handle.lag(), timeout) + len(self._given.rest)

    def commit(
        self,
        up_to: LogRecord | LogPosition | int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit all records that were given out, or all records up to and including `up_to`.

        See `LogConsumer.commit`.
        """
        wanted = self.position if up_to is None else up_to
        self._run(self._handle.commit(wanted), timeout)

    def batches(self) -> Iterator[Sequence[LogRecord]]:
        """Yield the records in batches, which is faster than one by one; no batch is empty."""
        return self._given.batches()

    async def _next_record(self) -> LogRecord:
        return await anext(self._handle)

    async def _next_records(self) -> Sequence[LogRecord]:
        return (await self._handle.next_batch()).records


class SyncGroupMember(_Consuming[GroupRecord]):
    """`bookie.api.GroupMember` without an event loop; made by `SyncBookKeeper.join_group`."""

    def __init__(
        self, home: LoopThread, handle: GroupMember, *, by_record: bool, timeout: float | None
    ) -> None:
        super().__init__(home, handle, by_record=by_record, timeout=timeout)
        self._handle = handle
        self._uncommitted: dict[LogPartition, GroupRecord] = {}
        """For each partition, the last noted record that was given out; ``commit()`` removes it."""
        self._noted: GroupRecord | None = None
        """The record that was added last to `_uncommitted`."""

    @property
    def name(self) -> str:
        return self._handle.name

    assignment: Shown[frozenset[LogPartition]] = shown(GroupMember.assignment)
    generation: Shown[int] = shown(GroupMember.generation)
    tokens: Shown[Mapping[LogPartition, int]] = shown(GroupMember.tokens)

    def commit(self, up_to: GroupRecord | None = None, *, timeout: float | None = None) -> None:
        """Commit all records that were given out, or all records up to and including `up_to`.

        See `GroupMember.commit`. Without `up_to`, the call commits the records that were given out
        since the last ``commit()``. If this member no longer consumes the partition of such a
        record, the call raises CursorLostError, unless the record was committed before. Even then,
        the records of the other partitions are committed.
        """
        work = self._commit_given() if up_to is None else self._handle.commit(up_to)
        self._run(work, timeout)

    def batches(self) -> Iterator[Sequence[GroupRecord]]:
        """Yield batches, each with records of one partition; faster than single records."""
        return self._given.batches()

    async def _commit_given(self) -> None:
        self._note_last()
        failed: BookieError | None = None
        for record in list(self._uncommitted.values()):
            try:
                await self._handle.commit(record)
            except CursorLostError as error:
                if not self._handle.has_committed(record):
                    failed = error
            del self._uncommitted[record.log_partition]
        if failed is not None:
            raise failed

    def _fetch(self) -> Sequence[GroupRecord]:
        self._note_last()
        return super()._fetch()

    def _note_last(self) -> None:
        last = self._given.last
        if last is not None and last is not self._noted:
            self._uncommitted[last.log_partition] = self._noted = last

    async def _next_record(self) -> GroupRecord:
        return await anext(self._handle)

    async def _next_records(self) -> Sequence[GroupRecord]:
        batch = await self._handle.next_batch()
        return [GroupRecord(batch.partition, batch.token, record) for record in batch.records]

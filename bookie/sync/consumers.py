"""Consumers and members of groups without an event loop.

Records cross the threads in whole batches. Only records that the caller was given count as given
out: `commit` commits those. With automatic commits a record is finished when the caller asks for
the next one, so records cross one by one.
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
from bookie.sync.given_records import GivenRecords
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import Closing, LoopThread, Resident, check_timeout

R = TypeVar("R", LogRecord, GroupRecord)


class _Consuming(SyncHandle, Closing, Generic[R]):
    """Base of consumers and members. Use one from one thread at a time."""

    def __init__(
        self,
        home: LoopThread,
        manager: AbstractAsyncContextManager[Any],
        *,
        by_record: bool,
        timeout: float | None,
    ) -> None:
        """`timeout` bounds each wait for records. With `by_record` they cross one at a time."""
        super().__init__(home)
        check_timeout(timeout)
        self._resident = Resident(home, manager)
        self._by_record = by_record
        self._timeout = timeout
        self._given: GivenRecords[R] = GivenRecords(self._fetch)
        self._arrived: Sequence[R] = ()
        """Records that the loop has handed over, and this thread has not taken."""

    @abstractmethod
    async def _next_record(self) -> R: ...

    @abstractmethod
    async def _next_records(self) -> Sequence[R]: ...

    def __enter__(self) -> Self:
        return self.open()

    def open(self, *, timeout: float | None = None) -> Self:
        """Enter it, as `with` does. End it with `close`."""
        self._resident.open(timeout)
        return self

    def close(self, *, timeout: float | None = None) -> None:
        """Leave it. Twice is no error."""
        self._resident.close(timeout)

    def __iter__(self) -> Iterator[R]:
        """The records one by one. It waits for them, and ends only with an error.

        With a timeout, OperationTimeoutError says that no record came for so long. The next loop
        waits again.
        """
        return iter(self._given)

    def _fetch(self) -> Sequence[R]:
        self._run(self._arrive(), self._timeout)
        arrived, self._arrived = self._arrived, ()
        return arrived

    async def _arrive(self) -> None:
        # A wait that was given up may have ended just before. Its records come first.
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

    @property
    def partition(self) -> LogPartition:
        """The consumed partition."""
        return self._handle.partition

    @property
    def token(self) -> int:
        """The epoch of the cursor: a fencing token, greater than that of every consumer before."""
        return self._handle.token

    @property
    def committed(self) -> int:
        """The offset that was committed last."""
        return self._handle.committed

    @property
    def position(self) -> int:
        """The offset after the last record that was given out; `commit` commits it."""
        last = self._given.last
        return self._handle.committed if last is None else last.offset + 1

    def lag(self, *, timeout: float | None = None) -> int:
        """Entries of the partition that were not given out yet; see `LogConsumer.lag`."""
        return self._run(self._handle.lag(), timeout) + len(self._given.rest)

    def commit(
        self,
        up_to: LogRecord | LogPosition | int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Mark records as consumed: all that were given out, or all up to `up_to`, included.

        See `LogConsumer.commit`.
        """
        wanted = self._given.last if up_to is None else up_to
        self._run(self._handle.commit(wanted), timeout)

    def batches(self) -> Iterator[Sequence[LogRecord]]:
        """The records in batches, which is faster; no batch is empty."""
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
        """The last record of each partition that was fetched before the batch in hand."""

    @property
    def name(self) -> str:
        """This member's name in the group."""
        return self._handle.name

    @property
    def assignment(self) -> frozenset[LogPartition]:
        """The partitions that this member consumes now."""
        return self._handle.assignment

    @property
    def generation(self) -> int:
        """The number of the group's last assignment that this member has seen."""
        return self._handle.generation

    @property
    def tokens(self) -> Mapping[LogPartition, int]:
        """The epoch of each partition's cursor."""
        return self._handle.tokens

    def commit(self, up_to: GroupRecord | None = None, *, timeout: float | None = None) -> None:
        """Mark records as consumed: all that were given out, or all up to `up_to`, included.

        See `GroupMember.commit`.
        """
        work = self._commit_given() if up_to is None else self._handle.commit(up_to)
        self._run(work, timeout)

    def batches(self) -> Iterator[Sequence[GroupRecord]]:
        """The records in batches, each of one partition, which is faster."""
        return self._given.batches()

    async def _commit_given(self) -> None:
        last = self._given.last
        if last is not None:
            self._uncommitted[last.log_partition] = last
        failed: BookieError | None = None
        for record in list(self._uncommitted.values()):
            try:
                await self._handle.commit(record)
            except CursorLostError as error:
                failed = error
            del self._uncommitted[record.log_partition]
        if failed is not None:
            raise failed

    def _fetch(self) -> Sequence[GroupRecord]:
        last = self._given.last
        if last is not None:
            self._uncommitted[last.log_partition] = last
        return super()._fetch()

    async def _next_record(self) -> GroupRecord:
        return await anext(self._handle)

    async def _next_records(self) -> Sequence[GroupRecord]:
        batch = await self._handle.next_batch()
        return [GroupRecord(batch.partition, batch.token, record) for record in batch.records]

"""The cursors of a log on all its partitions: create, commit, reset, list and delete them.

The metadata store keeps one record of a cursor for each partition of the log. A reset or a deletion
of a cursor needs no lock. A reset raises the epoch, so the holder of the former epoch can no longer
commit. A reset or a deletion also deletes the claim by which the holder has the cursor's lock. So
the holder notices the loss of the cursor before its next commit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from bookie.coordination.wait_queue import WaitQueue
from bookie.env import Moment
from bookie.env.checked import checked
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    KeyExistsError,
    NoSuchCursorError,
    NoSuchKeyError,
)
from bookie.log.attempts import UNANSWERED, patiently
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.logs import LogName, LogPartition, checked_partition
from bookie.log.log_client import LogClient
from bookie.log.read.reading import LogReading, locate_cursor
from bookie.log.read.start_position import AtEntry, LogStart, addressed_partition, checked_place
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.versioned import Versioned

CursorStep = Callable[[LogCursor], LogCursor]
"""A function that computes the next value of a cursor from the present value."""


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """One cursor of one partition, with the partition's earliest offset and end offset."""

    partition: LogPartition
    name: str
    cursor: LogCursor
    earliest_offset: int
    """The offset of the first record that was not truncated."""
    end_offset: int
    """The offset after the last confirmed entry."""

    @property
    def lag(self) -> int:
        """The number of entries that were not consumed.

        The number includes control records, but not truncated entries.
        """
        return max(0, self.end_offset - max(self.cursor.offset, self.earliest_offset))


class CursorRecord:
    """Reads and changes the stored cursor of one partition.

    Each change is made at most once, even if the store does not answer.

    ============================ =================================================================
    outcome of a write           reaction
    ============================ =================================================================
    written                      the change is made
    another version is stored    read the stored cursor: either it is the proposal, or another
                                 process changed the cursor first
    unknown                      read until the store answers, then react as above. If the old
                                 version is still stored, write the *same* proposal again
    ============================ =================================================================

    If the stored cursor equals the proposal, the proposal counts as written. So two proposals must
    never be equal. Therefore each call that takes or resets a cursor writes an owner name that no
    other call writes (`unique_owner`).
    """

    def __init__(self, client: LogClient, partition: LogPartition, name: str) -> None:
        """`name` is the name of the cursor.

        Raises:
            BadRequestError: the name is not valid.
        """
        self.partition = partition
        self.name = name
        self.key = partition.cursor_key(name)
        self._client = client

    def __str__(self) -> str:
        return f"the cursor {self.name} of {self.partition}"

    async def read(self) -> Versioned[LogCursor]:
        """Read the cursor, with every change that was finished before this call.

        Raises:
            NoSuchCursorError: the cursor does not exist.
            MetadataUnavailableError, SessionLostError: the store did not answer within the session
                timeout.
        """

        async def read() -> Versioned[LogCursor]:
            await self._client.store.sync()
            return await self._client.logs.read_cursor(self.partition, self.name)

        return await patiently(read, deadline=self._deadline(), retried=UNANSWERED)

    async def propose(self, value: LogCursor, version: int) -> Versioned[LogCursor]:
        """Replace version `version` of the cursor by `value`; return the cursor that is stored now.

        If another process changed the cursor first, the result is the cursor of that process. If
        `version` is `NOT_EXISTS`, and another process creates and deletes the cursor meanwhile, the
        proposal is repeated.

        Raises:
            NoSuchCursorError: the cursor was deleted.
            NoSuchLogError: the cursor did not exist yet, and the log was deleted.
            MetadataUnavailableError, SessionLostError: the store did not answer; the change may
                have been made.
        """

        async def write() -> Versioned[LogCursor]:
            try:
                return await self._client.logs.write_cursor(
                    self.partition, self.name, value, version
                )
            except BadVersionError:
                return await self.read()
            except UNANSWERED:
                with suppress(NoSuchCursorError):
                    found = await self.read()
                    if found.version != version:
                        return found
                raise

        is_new = version == NOT_EXISTS
        retried = (*UNANSWERED, NoSuchCursorError) if is_new else UNANSWERED
        return await patiently(write, deadline=self._deadline(), retried=retried)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._client.store.session_timeout_seconds

    async def change(self, step: CursorStep) -> Versioned[LogCursor]:
        """Replace the cursor by `step(cursor)`; return the cursor that is stored now.

        If another process changes the cursor first, `step` is applied again, to the new cursor. If
        `step` changes nothing, nothing is written.

        Raises:
            NoSuchCursorError: the cursor does not exist.
            MetadataUnavailableError, SessionLostError: the store did not answer; the change may
                have been made.
        """
        found = await self.read()
        while True:
            wanted = step(found.value)
            if wanted == found.value:
                return found
            wanted = replace(wanted, committed_ms=self._client.clock.now_ms())
            found = await self.propose(wanted, found.version)
            if found.value == wanted:
                return found


class Cursors:
    """Creates, moves, reads and deletes the cursors of one log."""

    def __init__(self, client: LogClient, name: LogName, reading: LogReading) -> None:
        self._client = client
        self._name = name
        self._reading = reading
        self._bounds = reading.bounds

    @checked
    async def create(
        self,
        cursor: str,
        start: LogStart = None,
        *,
        time: Moment | None = None,
        protected: bool = True,
    ) -> None:
        """Create a cursor on each partition. If the call is interrupted, call `create` again.

        The cursor begins at `start` or, if `time` is given, at the first record of `time` or later.
        Without `start` and `time`, the cursor begins at the earliest record. Retention keeps the
        records that a `protected` cursor has not consumed.

        Raises:
            KeyExistsError: the cursor already exists on all partitions.
            NoSuchLogError: there is no such log.
            BadRequestError: the name or the start is wrong, or the start is after the end of the
                partition. BadRequestError is also raised if the start is a position in another
                partition, or if the log has several partitions and the start is in only one of
                them.
        """
        place = checked_place(start, time)
        records = await self._records(cursor)
        if len(records) > 1 and isinstance(start, tuple | list):
            raise BadRequestError(
                f"a cursor begins in each of the {len(records)} partitions of {self._name}, and "
                f"{start} is in one: reset the cursor to this place after its creation"
            )
        addressed_partition(start, records[0].partition.number)
        missing = [record for record in records if not await self._exists(record)]
        if not missing:
            raise KeyExistsError(f"the cursor {cursor} of the log {self._name} exists")
        for record in missing:
            offset = await locate_cursor(self._reading, record.partition, place)
            value = LogCursor(
                offset,
                owner=unique_owner(self._client),
                committed_ms=self._client.clock.now_ms(),
                is_protected=protected,
            )
            await record.propose(value, NOT_EXISTS)

    @checked
    async def commit(self, cursor: str, offset: int, *, partition: int = 0) -> None:
        """Move a cursor to `offset`, so that the next consumer continues there.

        An offset below the committed offset is ignored: a commit never moves a cursor back.
        `Cursors.commit` is for programs that read without a `LogConsumer`. Several programs may
        commit at the same time.

        Raises:
            NoSuchCursorError, NoSuchLogError: the cursor or the log does not exist.
            BadRequestError: the offset is after the end of the partition.
            UnavailableError: too few bookies answered, so the end of the partition is unknown.
            MetadataUnavailableError, SessionLostError: the store did not answer; the change may
                have been made.
        """
        place = checked_place(offset)
        (record,) = await self._records(cursor, partition)
        offset = await locate_cursor(self._reading, record.partition, place)
        await record.change(lambda found: replace(found, offset=max(offset, found.offset)))

    @checked
    async def reset(
        self,
        cursor: str,
        start: LogStart = None,
        *,
        time: Moment | None = None,
        partition: int | None = None,
    ) -> Mapping[int, int]:
        """Move a cursor to any place, in one partition or all; return each partition's new offset.

        The cursor moves to `start` or, if `time` is given, to the first record of `time` or later.
        Without `start` and `time`, the cursor moves to the earliest record. A `LogPosition` moves
        the cursor only in the partition of this position. A consumer that holds
        the cursor gets CursorLostError.

        Raises:
            NoSuchCursorError, NoSuchLogError: the cursor or the log does not exist.
            BadRequestError: one offset is given for several partitions, an offset is after the
                end, or `start` is a position in another partition than `partition`.
            UnavailableError, CorruptionError: a read failed while the place was searched.
            MetadataUnavailableError, SessionLostError: the store did not answer; the cursor may
                have been reset in some partitions.
        """
        place = checked_place(start, time)
        records = await self._records(cursor, addressed_partition(start, partition))
        if len(records) > 1 and isinstance(place, int | AtEntry):
            raise BadRequestError(
                f"name the partition of {self._name} whose cursor goes to {start}"
            )
        offsets = {}
        for record in records:
            offset = await locate_cursor(self._reading, record.partition, place)
            revision = await self._client.logs.cursor_revision(record.partition, record.name)
            await record.change(partial(_reset, offset, unique_owner(self._client), revision))
            await self._evict(record)
            offsets[record.partition.number] = offset
        return offsets

    @checked
    async def protect(self, cursor: str, *, protected: bool = True) -> None:
        """Set or remove the protection of a cursor.

        Retention keeps the records that a protected cursor has not consumed. A consumer that holds
        the cursor keeps the cursor.

        Raises:
            NoSuchCursorError, NoSuchLogError: the cursor or the log does not exist.
        """
        for record in await self._records(cursor):
            await record.change(lambda found: replace(found, is_protected=protected))

    @checked
    async def delete(self, cursor: str) -> None:
        """Delete a cursor on all partitions. A consumer that holds the cursor gets CursorLostError.

        Raises:
            NoSuchCursorError, NoSuchLogError: the cursor or the log does not exist.
        """
        deleted = 0
        for record in await self._records(cursor):
            try:
                await self._client.logs.delete_cursor(record.partition, cursor)
            except NoSuchCursorError:
                continue
            deleted += 1
            await self._evict(record)
        if not deleted:
            raise NoSuchCursorError(f"there is no cursor {cursor} on {self._name}")

    async def all(self) -> Mapping[str, Mapping[int, LogCursor]]:
        """Return the cursors of the log: for each name, the cursor of each partition number."""
        found: dict[str, dict[int, LogCursor]] = {}
        for partition in await self._partitions():
            for name, cursor in (await self._client.logs.cursors(partition)).items():
                found.setdefault(name, {})[partition.number] = cursor.value
        return dict(sorted(found.items()))

    @checked
    async def status(self, cursor: str | None = None) -> list[CursorStatus]:
        """Return the status of one cursor or of all cursors, ordered by name and partition.

        Raises:
            NoSuchCursorError: there is no such cursor.
            UnavailableError: too few bookies answered, so the end of a partition is unknown.
        """
        cursors = await self.all()
        if cursor is not None:
            if cursor not in cursors:
                raise NoSuchCursorError(f"there is no cursor {cursor} on {self._name}")
            cursors = {cursor: cursors[cursor]}
        numbers = sorted({number for found in cursors.values() for number in found})
        partitions = {number: LogPartition(self._name, number) for number in numbers}
        bounds = {number: await self._bounds(one) for number, one in partitions.items()}
        return [
            CursorStatus(partitions[number], name, value, *bounds[number])
            for name, found in cursors.items()
            for number, value in sorted(found.items())
        ]

    @checked
    async def lag(self, cursor: str) -> int:
        """Return the sum of a cursor's lags in all partitions. Raises the errors of `status`."""
        return sum(one.lag for one in await self.status(cursor))

    # ---- inside

    async def _partitions(self) -> list[LogPartition]:
        definition = await self._client.definition(self._name)
        return [LogPartition(self._name, number) for number in range(definition.partitions)]

    async def _records(self, cursor: str, partition: int | None = None) -> list[CursorRecord]:
        found = await self._partitions()
        if partition is not None:
            found = [checked_partition(self._name, partition, len(found))]
        return [CursorRecord(self._client, one, cursor) for one in found]

    async def _exists(self, record: CursorRecord) -> bool:
        try:
            await record.read()
        except NoSuchCursorError:
            return False
        return True

    async def _evict(self, record: CursorRecord) -> None:
        """Delete the holder's claim, so that the holder notices the loss of the cursor at once."""
        queue = WaitQueue(
            await self._client.participant(), record.partition.holder_key(record.name)
        )
        with suppress(*UNANSWERED, NoSuchKeyError):
            first = await queue.first()
            if first is not None:
                await self._client.store.delete(first.record.key)


def _reset(offset: int, owner: str, revision: int, found: LogCursor) -> LogCursor:
    return replace(found, offset=offset, epoch=next_epoch(found, revision), owner=owner)


def next_epoch(found: LogCursor, revision: int) -> int:
    """Return the cursor's next epoch. The first epoch of a cursor is `revision`, but at least 1.

    Each epoch begins with a write, and each write has a greater revision than the write before. So
    no epoch is greater than the revision of the write that began the epoch.
    """
    return found.epoch + 1 if found.epoch else max(1, revision)


def unique_owner(client: LogClient) -> str:
    """Return an owner name for one take or reset of a cursor; no other call returns this name."""
    return f"{client.identity} {secrets.token_hex(4)}"

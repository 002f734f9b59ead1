"""The commits of a consumer: take a cursor in a new epoch, and move it within that epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bookie.errors import BadRequestError, CursorLostError, NoSuchCursorError, NoSuchLogError
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.consume.cursors import CursorRecord, next_epoch, unique_owner
from bookie.log.log_client import LogClient
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.versioned import Versioned

TAKE_TRIES_MAX = 5
"""The number of deletions of a cursor that make one call of `take_cursor` give up."""


@dataclass(frozen=True, slots=True)
class AutoCommit:
    """The time or the number of records after which finished records are committed."""

    every_seconds: float = 5.0
    every_records: int = 1000

    def __post_init__(self) -> None:
        if self.every_seconds <= 0 or self.every_records < 1:
            raise BadRequestError("automatic commits need a time above 0 and a count of at least 1")


class HeldCursor:
    """A cursor that this process took by `take_cursor`. Commits run one after another.

    The epoch of the cursor is a fencing token. When another process takes or resets the cursor, a
    new epoch begins. In the new epoch, the former holder cannot change the cursor.
    """

    def __init__(
        self, client: LogClient, record: CursorRecord, taken: Versioned[LogCursor]
    ) -> None:
        self._client = client
        self._record = record
        self._found = taken
        self._epoch = taken.value.epoch
        self._owner = taken.value.owner
        self._serial = asyncio.Lock()
        self._lost: CursorLostError | NoSuchLogError | None = None
        """The error that later calls raise; set when this holder learns of the end of its epoch."""

    @property
    def token(self) -> int:
        """The epoch of this holder. Every former holder of this cursor name had a smaller epoch."""
        return self._epoch

    @property
    def committed(self) -> int:
        """The committed offset, as this holder last read or wrote it."""
        return self._found.value.offset

    async def commit(self, offset: int) -> None:
        """Move the cursor to `offset`, so that the next consumer continues there.

        An offset below the committed offset is ignored: a commit never moves a cursor back. The
        commit is durable when the call returns.

        Raises:
            CursorLostError: the cursor belongs to another consumer, was reset, or was deleted.
            NoSuchLogError: the log was deleted.
            MetadataUnavailableError, SessionLostError: the store did not answer; commit again,
                because the outcome is unknown.
        """
        async with self._serial:
            if self._lost is not None:
                raise self._lost
            while offset > self.committed:
                value = replace(
                    self._found.value, offset=offset, committed_ms=self._client.clock.now_ms()
                )
                await self._adopt(self._record.propose(value, self._found.version))

    async def check(self) -> None:
        """Read the cursor; check that this holder still has it. Raises the errors of `commit`."""
        async with self._serial:
            await self._adopt(self._record.read())

    async def _adopt(self, asked: Awaitable[Versioned[LogCursor]]) -> None:
        try:
            found = await asked
        except NoSuchCursorError as error:
            self._lost = await self._why_deleted()
            raise self._lost from error
        if (found.value.epoch, found.value.owner) != (self._epoch, self._owner):
            self._lost = CursorLostError(
                f"this consumer lost {self._record}: the last to take or reset it was "
                f"{found.value.owner}"
            )
            raise self._lost
        self._found = found

    async def _why_deleted(self) -> CursorLostError | NoSuchLogError:
        """Return NoSuchLogError if the log was also deleted; otherwise return CursorLostError."""
        try:
            await self._client.definition(self._record.partition.name)
        except NoSuchLogError as error:
            return error
        return CursorLostError(f"{self._record} was deleted")


async def take_cursor(
    client: LogClient, record: CursorRecord, start: Callable[[], Awaitable[int]] | None = None
) -> HeldCursor:
    """Take a cursor in a new epoch, and return it.

    If the cursor does not exist, or is deleted during this call, it is created at the offset that
    `start` returns.

    Raises:
        NoSuchCursorError: the cursor does not exist and `start` is None, or other processes deleted
            the cursor `TAKE_TRIES_MAX` times during this call.
        NoSuchLogError: the log was deleted.
        MetadataUnavailableError, SessionLostError: the store did not answer; the cursor may have
            been taken.
        BookieError: the errors of `start`.
    """
    tries = TAKE_TRIES_MAX
    while True:
        try:
            return await _take(client, record, start)
        except NoSuchCursorError:
            tries -= 1
            if start is None or not tries:
                raise


async def _take(
    client: LogClient, record: CursorRecord, start: Callable[[], Awaitable[int]] | None
) -> HeldCursor:
    owner = unique_owner(client)
    while True:
        try:
            found = await record.read()
        except NoSuchCursorError:
            if start is None:
                raise
            new = LogCursor(await start(), owner=owner, committed_ms=client.clock.now_ms())
            found = await record.propose(new, NOT_EXISTS)
        # A deleted cursor of this name may have had epochs. Each epoch was at most the revision of
        # the write that began it. The revision of the new cursor is greater, so it becomes the
        # first epoch of the new cursor.
        revision = await client.logs.cursor_revision(record.partition, record.name)
        taken = replace(
            found.value,
            epoch=next_epoch(found.value, revision),
            owner=owner,
            committed_ms=client.clock.now_ms(),
        )
        written = await record.propose(taken, found.version)
        if written.value == taken:
            return HeldCursor(client, record, written)

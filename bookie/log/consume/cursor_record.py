"""The record of one cursor, as it is changed: one proposal at a time, each with one outcome.

============================ =====================================================================
what a write comes to        what follows
============================ =====================================================================
written                      the change is made
another version is there     it is read: either it is the proposal, or another change came first
unknown                      likewise, as soon as the store answers. If the old version is still
                             there, the *same* proposal is written again
============================ =====================================================================

A proposal is recognised by its value. So two proposals that could be confused must differ: whoever
takes or resets a cursor writes an owner that nobody else writes (`unique_owner`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bookie.coordination.participant import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN
from bookie.env import Backoff, jitter
from bookie.env.backoff import AROUND
from bookie.errors import (
    BadVersionError,
    CursorLostError,
    MetadataUnavailableError,
    NoSuchCursorError,
    NoSuchLogError,
    SessionLostError,
)
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.logs import LogPartition
from bookie.log.log_client import LogClient
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.versioned import Versioned

CursorStep = Callable[[LogCursor], LogCursor]
"""From one value of a cursor to the next."""


class CursorRecord:
    """One cursor of one partition."""

    def __init__(self, client: LogClient, partition: LogPartition, name: str) -> None:
        """`name` is the cursor's.

        Raises:
            BadRequestError: it cannot name a cursor.
        """
        self.partition = partition
        self.name = name
        self.key = partition.cursor_key(name)
        self._client = client

    def __str__(self) -> str:
        return f"the cursor {self.name} of {self.partition}"

    async def read(self) -> Versioned[LogCursor]:
        """The cursor, with every change that was finished before this call.

        Raises:
            NoSuchCursorError: it does not exist.
            MetadataUnavailableError: the store did not answer for the timeout of its session.
        """
        store = self._client.store
        deadline = _now() + store.session_timeout_seconds
        pauses = _pauses()
        while True:
            try:
                await store.sync()
                return await self._client.logs.read_cursor(self.partition, self.name)
            except (MetadataUnavailableError, SessionLostError):
                if _now() >= deadline:
                    raise
            await asyncio.sleep(pauses.next())

    async def propose(self, value: LogCursor, version: int) -> Versioned[LogCursor]:
        """Replace the cursor of `version`; returns what is there now: `value`, or another change.

        Raises:
            NoSuchCursorError: it was deleted.
            NoSuchLogError: it is a new cursor, and the log was deleted.
            MetadataUnavailableError, SessionLostError: unknown whether it was written.
        """
        deadline = _now() + self._client.store.session_timeout_seconds
        while True:
            try:
                return await self._client.logs.write_cursor(
                    self.partition, self.name, value, version
                )
            except BadVersionError:
                return await self.read()
            except (MetadataUnavailableError, SessionLostError):
                found = await self._find()
                if found is not None and found.version != version:
                    return found
                if _now() >= deadline:
                    raise
            await asyncio.sleep(_pauses().next())

    async def _find(self) -> Versioned[LogCursor] | None:
        try:
            return await self.read()
        except NoSuchCursorError:
            return None

    async def change(self, step: CursorStep) -> Versioned[LogCursor]:
        """Take `step` on the newest value; a step that changes nothing is not written.

        Raises:
            NoSuchCursorError: it does not exist.
            MetadataUnavailableError, SessionLostError: unknown whether it was changed.
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


class HeldCursor:
    """A cursor in the epoch of one holder, made by `take_cursor`. Commits go one after the other.

    The epoch is a fencing token. Once another process takes or resets the cursor, nothing that this
    holder does can change it.
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
        """Set for good as soon as it is known that another epoch has begun."""

    @property
    def token(self) -> int:
        """The epoch: greater than that of every holder before, also of a deleted cursor."""
        return self._epoch

    @property
    def committed(self) -> int:
        """The offset that was committed last, as far as this holder knows."""
        return self._found.value.offset

    async def commit(self, offset: int) -> None:
        """The next consumer begins at `offset`. A cursor never goes back: a lower one is ignored.

        It is durable when this returns.

        Raises:
            CursorLostError: the cursor belongs to another consumer, was reset, or was deleted.
            NoSuchLogError: the log was deleted.
            MetadataUnavailableError, SessionLostError: unknown whether it was committed. A later
                commit decides.
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
        """Read the cursor and make sure that it is still this holder's; raises as `commit`."""
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
        """A log takes its cursors with it."""
        try:
            await self._client.definition(self._record.partition.name)
        except NoSuchLogError as error:
            return error
        return CursorLostError(f"{self._record} was deleted")


async def take_cursor(
    client: LogClient, record: CursorRecord, start: Callable[[], Awaitable[int]] | None = None
) -> HeldCursor:
    """Become the holder of a cursor, in a new epoch. `start` says where a new cursor begins.

    Raises:
        NoSuchCursorError: it does not exist, and there is no `start`.
        NoSuchLogError: the log was deleted.
        MetadataUnavailableError, SessionLostError: unknown whether it was taken.
    """
    owner = unique_owner(client)
    while True:
        try:
            found = await record.read()
        except NoSuchCursorError:
            if start is None:
                raise
            new = LogCursor(await start(), owner=owner, committed_ms=client.clock.now_ms())
            found = await record.propose(new, NOT_EXISTS)
        # A cursor of this name may have been deleted, and its last epoch with it. No epoch is
        # greater than the revision of the write that began it.
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


def next_epoch(found: LogCursor, revision: int) -> int:
    """The epoch after that of `found`; the first one is the `revision` of what made the cursor.

    Each epoch takes a write, so no epoch is greater than the revision of the write that began it.
    """
    return found.epoch + 1 if found.epoch else max(1, revision)


def unique_owner(client: LogClient) -> str:
    """A name for one who takes or resets a cursor; nobody has it a second time."""
    return f"{client.identity} {secrets.token_hex(4)}"


def _pauses() -> Backoff:
    return Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The live members of a group: each member has one leased record.

A member's record ``PATH/NAME`` exists while the member's context is open. After a lost session or a
deletion, the record is written again. If a record of the same name belongs to another session, the
member waits: that session may belong to an earlier run of the process. If that record is not
deleted in time, the member assumes that another live process uses the name.

Source: the group membership recipe of ZooKeeper; PIP-57 for the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Self

from bookie.coordination.claim import Claim, ClaimMode, encode_claim
from bookie.coordination.participant import Participant
from bookie.coordination.takeover import take_over
from bookie.coordination.wait_queue import is_gone, read_claim
from bookie.env.checked import checked
from bookie.errors import (
    BadVersionError,
    BookieError,
    LockBusyError,
    MetadataClosedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.metadata.mirror import Mirror
from bookie.metadata.model import NOT_EXISTS, Change, Record, check_key
from bookie.metadata.session import SessionEvent

WAIT_TIMEOUTS = 1.5
"""The longest wait until another session's record is deleted, in session timeouts."""


class Member:
    """One membership in a group: an async context manager.

    Entering the context waits until the record is written. Leaving the context deletes the record.

    Raises:
        LockBusyError: (on entering) another session has a record of this name, and does not end.
        MetadataUnavailableError: (on entering) the store does not answer.
    """

    def __init__(self, participant: Participant, key: str, value: bytes) -> None:
        self._participant = participant
        self._store = participant.store
        self._key = check_key(key)
        self._claim = Claim(participant.new_name(), ClaimMode.SHARED, "", value)
        self._doubt = asyncio.Event()
        self._serial = asyncio.Lock()
        self._watch = AsyncExitStack()
        self._follower: asyncio.Task[None] | None = None
        self._is_over = False
        """True when the membership has ended.

        After its end, the member writes nothing, and only deletes its record.
        """
        self._in_doubt = False
        """True if the store did not answer a write, so that the write may still happen."""
        self.is_member = False
        """True from a successful write until the session is lost, or a new write fails."""

    @property
    def key(self) -> str:
        return self._key

    async def update(self, value: bytes) -> None:
        """Replace the member's value.

        Raises:
            LockBusyError: another session has a record of this name.
            MetadataClosedError: the membership has ended.
            MetadataUnavailableError, SessionLostError: the write failed; a background task repeats
                the write.
        """
        self._claim = Claim(self._claim.guid, ClaimMode.SHARED, "", value)
        try:
            if not await self._try_write():
                raise self._taken()
        except (MetadataUnavailableError, SessionLostError):
            self._doubt.set()
            raise

    async def __aenter__(self) -> Self:
        changes = await self._watch.enter_async_context(self._store.watch(self._key))
        try:
            wait_seconds = self._store.session_timeout_seconds * WAIT_TIMEOUTS
            if not await take_over(self._try_write, changes, wait_seconds):
                raise self._taken()
        except BaseException:
            await self._watch.aclose()
            # A write without an answer may still happen, so delete the record in the background.
            self._is_over = self._in_doubt = True
            self._participant.sweep(self._delete)
            raise
        self._participant.on_session(self._on_session)
        self._follower = self._participant.spawn(self._follow(changes))
        self._participant.spawn(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._participant.forget(self._on_session)
        self._is_over = True
        self._doubt.set()  # makes `_keep` end
        if self._follower is not None:
            self._follower.cancel()
        try:
            await self._participant.finish(self._leave())
        except MetadataClosedError:
            # The participant was closed before this membership and starts no more work, so try to
            # delete the record directly.
            await self._leave()

    async def _leave(self) -> None:
        """Delete the record; if the store does not answer, delete it in the background."""
        await self._watch.aclose()
        async with self._serial:
            self.is_member = False
            try:
                await self._delete()
            except MetadataClosedError:
                return  # the record ended with the session
            except BookieError:
                self._in_doubt = True
        if self._in_doubt:
            self._participant.sweep(self._delete)

    async def _delete(self) -> None:
        if self._in_doubt:
            await self._store.sync()
        record = await self._store.get(self._key)
        if record is not None and self._is_ours(record):
            with suppress(NoSuchKeyError):
                await self._store.delete(self._key, version=record.version)

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.is_member = False
        elif event is SessionEvent.SESSION_REESTABLISHED:
            self._doubt.set()

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        try:
            async for change in changes:
                if is_gone(change):
                    self._doubt.set()
        except MetadataClosedError:
            self.is_member = False

    async def _keep(self) -> None:
        attempt = 0
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            try:
                written = await self._try_write()
            except MetadataClosedError:
                return  # the store is closed, or the membership is over
            except BookieError:
                written = False
            if written:
                attempt = 0
                continue
            # Another session has the record, or the store does not answer. Try the write again
            # later.
            self.is_member = False
            await self._participant.pause(attempt)
            attempt += 1
            self._doubt.set()

    async def _try_write(self) -> bool:
        """Ensure that the member's record exists; return False if another member has the key.

        The record is written if it is missing or outdated, or if a former session owns it.

        Raises:
            MetadataClosedError: the membership has ended.
        """
        async with self._serial:
            while True:
                if self._is_over:
                    raise MetadataClosedError(f"the membership {self._key} is over")
                record = await self._store.get(self._key)
                if record is not None and not self._is_ours(record):
                    return False
                value = encode_claim(self._claim)
                if record is None or record.value != value or not record.created_by_self:
                    version = NOT_EXISTS if record is None else record.version
                    try:
                        await self._store.put(self._key, value, version=version, ephemeral=True)
                    except (BadVersionError, NoSuchKeyError):
                        continue  # another write came first, perhaps a late write of this member
                    except (MetadataUnavailableError, asyncio.CancelledError):
                        self._in_doubt = True
                        raise
                self.is_member = True
                return True

    def _is_ours(self, record: Record) -> bool:
        claim = read_claim(record)
        return record.ephemeral and claim is not None and claim.guid == self._claim.guid

    def _taken(self) -> LockBusyError:
        return LockBusyError(f"another process has the record {self._key}")


class Group:
    """The group whose members' records are below `path`."""

    @checked
    def __init__(self, participant: Participant, path: str) -> None:
        self._participant = participant
        self._path = check_key(path)

    @checked
    def join(self, name: str, value: bytes = b"") -> Member:
        """Return a context that keeps `name` in the group while it is open: a `Member`."""
        return Member(self._participant, f"{self._path}/{name}", value)

    async def members(self) -> dict[str, bytes]:
        """Read the members from the store; return the value of each member by its name."""
        records = self._participant.store.scan_children(self._path)
        return {record.name: _content(record) async for record in records}

    def view(self) -> GroupView:
        """Return a view of the members; while the view is open, a watch updates it."""
        return GroupView(self._participant, self._path)


class GroupView(Mirror[bytes]):
    """A view of a group's members in memory; a watch updates the view while it is open."""

    def __init__(self, participant: Participant, path: str) -> None:
        super().__init__(participant.store, path, (path,), _content)

    @property
    def members(self) -> Mapping[str, bytes]:
        """The value of each member by its name, as the view knows them now."""
        return {key.rpartition("/")[2]: value for key, value in self.values.items()}


def _content(record: Record) -> bytes:
    claim = read_claim(record)
    return record.value if claim is None else claim.content

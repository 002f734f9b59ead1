"""Who belongs to a group, and lives: one leased record per member.

A member's record ``PATH/NAME`` is kept for as long as its context is open: written again after a
lost session, or when somebody deleted it. A record of the same name that another session owns is
waited for, because it may be an earlier life of this process whose lease is about to end; if it
stays, the name is taken.

Source: the group membership recipe of ZooKeeper; PIP-57 for the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from types import MappingProxyType, TracebackType
from typing import Self

from bookie.errors import (
    BadVersionError,
    BookieError,
    FormatError,
    LockBusyError,
    MetadataClosedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.formats.claim import Claim, ClaimMode, decode_claim, encode_claim
from bookie.metadata.coordination.line import is_gone
from bookie.metadata.coordination.participant import Participant
from bookie.metadata.coordination.succession import succeed
from bookie.metadata.keeping_up import keep_up
from bookie.metadata.store import (
    NOT_EXISTS,
    Change,
    Record,
    Resync,
    SessionEvent,
    check_key,
    is_under,
)
from bookie.telemetry import event_log

WAIT_TIMEOUTS = 1.5
"""How long another session's record is waited for, in session timeouts."""

_log = event_log(__name__)


class Member:
    """One membership; an async context manager that lasts as long as it.

    Entering waits until the record stands; leaving deletes it.

    Raises:
        LockBusyError: (on entering) another session has the name and keeps it.
        MetadataUnavailableError: (on entering) the store does not answer.
    """

    def __init__(self, participant: Participant, key: str, value: bytes) -> None:
        self._participant = participant
        self._store = participant.store
        self._key = check_key(key)
        self._claim = Claim(participant.new_guid(), ClaimMode.SHARED, "", value)
        self._doubt = asyncio.Event()
        self._serial = asyncio.Lock()
        self._watch = AsyncExitStack()
        self._follower: asyncio.Task[None] | None = None
        self._is_over = False
        """Nothing is written any more."""
        self._in_doubt = False
        """A write that was not answered may happen yet."""
        self.is_member = False
        """False from the moment a lost session or record is noticed until it is written again."""

    @property
    def key(self) -> str:
        """The key of the record."""
        return self._key

    async def update(self, value: bytes) -> None:
        """Replace the value; if this raises a retryable error it is written later all the same.

        Raises:
            LockBusyError: another session took the name.
            MetadataClosedError: the membership is over.
            MetadataUnavailableError, SessionLostError: the store did not take it yet.
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
            if not await succeed(self._try_write, changes, wait_seconds):
                raise self._taken()
        except BaseException:
            await self._watch.aclose()
            # The last write may still happen.
            self._is_over = self._in_doubt = True
            self._participant.sweep(self._delete)
            raise
        self._participant.on_session(self._on_session)
        self._follower = self._participant.spawn(self._follow(changes))
        self._participant.spawn(self._keep())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._participant.forget(self._on_session)
        self._is_over = True
        self._doubt.set()  # lets `_keep` see it
        if self._follower is not None:
            self._follower.cancel()
        try:
            await self._participant.finish(self._leave())
        except MetadataClosedError:
            await self._leave()  # the participant has left before: nothing goes on behind it

    async def _leave(self) -> None:
        """Delete the record; if the store does not answer, that goes on in the background."""
        await self._watch.aclose()
        async with self._serial:
            self.is_member = False
            try:
                await self._delete()
            except MetadataClosedError:
                return  # it ended with the session
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
                return  # or the membership is over
            except BookieError:
                written = False
            if written:
                attempt = 0
                continue
            # Another session's record, or no answer: its end, or the store's return, is waited for.
            self.is_member = False
            await self._participant.pause(attempt)
            attempt += 1
            self._doubt.set()

    async def _try_write(self) -> bool:
        """Bring the record to the wanted state; False if another session's is in the way.

        Raises:
            MetadataClosedError: the membership is over.
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
                        continue  # somebody was between, or a write of ours that was not answered
                    except (MetadataUnavailableError, asyncio.CancelledError):
                        self._in_doubt = True
                        raise
                self.is_member = True
                return True

    def _is_ours(self, record: Record) -> bool:
        claim = _read(record)
        return record.ephemeral and claim is not None and claim.guid == self._claim.guid

    def _taken(self) -> LockBusyError:
        return LockBusyError(f"another process has the record {self._key}")


class Group:
    """The group of members below `path`."""

    def __init__(self, participant: Participant, path: str) -> None:
        self._participant = participant
        self._path = check_key(path)

    def join(self, name: str, value: bytes = b"") -> Member:
        """Belong to the group as `name` for as long as the context is open; see `Member`."""
        return Member(self._participant, f"{self._path}/{name}", value)

    async def members(self) -> dict[str, bytes]:
        """The members and their values, by a listing of the store."""
        records = self._participant.store.scan_children(self._path)
        return {record.name: _content(record) async for record in records}

    def view(self) -> GroupView:
        """A watched view of the members; see `GroupView`."""
        return GroupView(self._participant, self._path)


class GroupView:
    """The members of a group, kept up to date while its context is open.

    When it is entered the view is complete; it says what the last complete listing and the changes
    since said. A listing that fails changes nothing.
    """

    def __init__(self, participant: Participant, path: str) -> None:
        self._participant = participant
        self._path = path
        self._members: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._watch = AsyncExitStack()
        self._follower: asyncio.Task[None] | None = None

    @property
    def members(self) -> Mapping[str, bytes]:
        """Name and value of each member. A snapshot."""
        return MappingProxyType(self._members)

    async def wait_for_change(self) -> None:
        """Return after the next change of the view."""
        await self._changed.wait()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            changes = await stack.enter_async_context(self._participant.store.watch(self._path))
            await self._load()
            self._follower = self._participant.spawn(
                keep_up(changes, self._apply, self._participant.pause)
            )
            self._watch = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._follower is not None:
            self._follower.cancel()
        await self._watch.aclose()

    async def _apply(self, change: Change) -> bool:
        try:
            if isinstance(change, Resync):
                await self._load()
                return True
            members = dict(self._members)
            for event in change.events:
                name = event.key.removeprefix(self._path + "/")
                if not is_under(self._path, event.key) or "/" in name or event.key == self._path:
                    continue
                record = await self._participant.store.get(event.key)
                if record is None:
                    members.pop(name, None)
                else:
                    members[name] = _content(record)
        except MetadataClosedError:
            raise
        except BookieError:
            return False
        self._publish(members)
        return True

    async def _load(self) -> None:
        self._publish(await Group(self._participant, self._path).members())

    def _publish(self, members: dict[str, bytes]) -> None:
        if members == self._members:
            return
        self._members = members
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _read(record: Record) -> Claim | None:
    try:
        return decode_claim(record.value)
    except FormatError:
        return None


def _content(record: Record) -> bytes:
    claim = _read(record)
    return record.value if claim is None else claim.content

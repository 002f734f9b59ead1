"""Claims that stand in line below one key, each waiting for one other claim and for nothing else.

A claim is an ephemeral record ``PATH/claim-0000000042``. Its number grows with every claim that is
ever made there and no name is used twice, so the order of the line is the order of its claims, a
deleted name is gone for good, and to delete by name never hits somebody else's claim.

An exclusive claim has its turn when no claim is before it; it waits for the one just before it. A
shared claim waits for the last exclusive claim before it. So a claim that goes wakes the one behind
it, or the readers behind a writer, and nobody else: no herd.

A claim whose creation was not answered may exist, or come to exist later. It carries a guid, and
who is in doubt lists the line and looks before trying again. When it stands, other records of its
guid are deleted in the background, and none of them is ever in its way; what nobody wants goes
likewise.

Source: the lock recipe of ZooKeeper, with the protection by a GUID of Apache Curator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from bookie.errors import (
    FormatError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from bookie.formats.claim import Claim, ClaimMode, decode_claim, encode_claim
from bookie.metadata.coordination.participant import Participant
from bookie.metadata.store import (
    Change,
    ChangeKind,
    Delete,
    Operation,
    Put,
    Record,
    Resync,
    Stat,
    check_key,
)

PREFIX = "claim-"
ATTEMPTS_MAX = 3
"""How often a claim is tried to be made when the store does not answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a claim stands: its record, as last known."""

    key: str
    guid: str
    number: int
    token: int
    """Order number of the write that made it: greater than that of every claim before it."""
    version: int
    in_doubt: bool = False
    """A write that was not answered may have made another record of the claim, or may yet."""

    @property
    def name(self) -> str:
        """The last segment of the key."""
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Standing:
    """A record in line and its claim; None if it cannot be read."""

    record: Record
    claim: Claim | None


class PlaceLostError(MetadataError):
    """The claim is not in line any more: its session ended, or somebody deleted it."""


class Line:
    """The claims below `path`."""

    def __init__(self, participant: Participant, path: str) -> None:
        self.path = check_key(path)
        self._participant = participant
        self._store = participant.store

    # ---- looking

    async def names(self) -> list[str]:
        """The names of all claims, in the order of the line."""
        names = await self._store.get_children(self.path)
        return sorted((name for name in names if _number(name) >= 0), key=_number)

    async def standing(self) -> list[Standing]:
        """All claims with their records, in the order of the line."""
        found = [
            Standing(record, _read(record))
            async for record in self._store.scan_children(self.path)
            if _number(record.name) >= 0
        ]
        return sorted(found, key=lambda standing: _number(standing.record.name))

    async def first(self) -> Standing | None:
        """The claim whose turn it is; None if nobody is there."""
        while True:
            names = await self.names()
            if not names:
                return None
            record = await self._store.get(f"{self.path}/{names[0]}")
            if record is not None:
                return Standing(record, _read(record))

    async def blocker(self, place: Place | None, mode: ClaimMode) -> str | None:
        """The name of the claim that `place` (None: one that would come now) has to wait for.

        Raises:
            PlaceLostError: `place` is not in line.
        """
        names = await self.names()
        if place is not None:
            if place.name not in names:
                raise PlaceLostError(f"the claim {place.key} is gone")
            names = names[: names.index(place.name)]
            if place.in_doubt and names:
                ours = {record.name for record in await self._find(place.guid)}
                names = [name for name in names if name not in ours]
        if not names or mode is ClaimMode.EXCLUSIVE:
            return names[-1] if names else None
        before = set(names)
        for standing in reversed(await self.standing()):
            # A claim that cannot be read may be exclusive.
            is_shared = standing.claim is not None and standing.claim.mode is ClaimMode.SHARED
            if standing.record.name in before and not is_shared:
                return standing.record.name
        return None

    async def clear_leftovers(self) -> None:
        """Delete claims that this participant made and nobody wants any more."""
        for standing in await self.standing():
            claim = standing.claim
            if claim is not None and self._participant.is_leftover(claim.guid):
                with suppress(NoSuchKeyError):
                    await self._store.delete(standing.record.key)

    # ---- coming and going

    async def enter(self, claim: Claim, *, instead_of: Record | None = None) -> Place:
        """Put `claim` at the end of the line, in one step with the deletion of `instead_of`.

        When the caller is cancelled, or the outcome stays unknown, a record that came of it is
        deleted behind its back.

        Raises:
            MetadataUnavailableError: the store did not answer.
            SessionLostError: the session ended; there is no such claim.
            BadVersionError, NoSuchKeyError: `instead_of` is not what it was.
        """

        async def undo(place: Place) -> None:
            await self.leave(place)

        return await self._participant.finish(self._enter(claim, instead_of), undo)

    async def _enter(self, claim: Claim, instead_of: Record | None) -> Place:
        operations: list[Operation] = [
            Put(f"{self.path}/{PREFIX}", encode_claim(claim), ephemeral=True, sequential=True)
        ]
        if instead_of is not None:
            operations.append(Delete(instead_of.key, instead_of.version))
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._participant.pause(attempt - 1)
            try:
                place = await self._try_to_enter(operations, claim.guid, again=attempt > 0)
            except MetadataUnavailableError:
                continue
            except BaseException:
                if attempt:
                    self._sweep_soon(claim.guid)
                raise
            if place.in_doubt:
                self._sweep_soon(claim.guid, but=place)
            return place
        self._sweep_soon(claim.guid)
        raise MetadataUnavailableError(
            f"the metadata store did not answer when a claim was made below {self.path}"
        )

    async def _try_to_enter(self, operations: list[Operation], guid: str, *, again: bool) -> Place:
        """Make the claim; not `again` before a listing said that it does not stand already."""
        if again:
            await self._store.sync()
            for record in await self._find(guid):
                # What a former lease of the store made is about to go.
                if record.created_by_self:
                    return _place(record.stat, guid, in_doubt=True)
        stat = (await self._store.transaction(operations))[0]
        assert stat is not None
        return _place(stat, guid, in_doubt=again)

    async def leave(self, place: Place) -> None:
        """Delete the claim; if the store does not answer, that goes on in the background."""
        self._participant.abandon(place.guid)
        await self._participant.finish(self._leave(place))

    async def _leave(self, place: Place) -> None:
        try:
            # Names are never used twice: whatever its version, it is ours.
            await self._store.delete(place.key)
        except (NoSuchKeyError, MetadataClosedError):
            pass
        except MetadataError:
            self._sweep_soon(place.guid)
            return
        if place.in_doubt:
            self._sweep_soon(place.guid)

    async def _find(self, guid: str) -> list[Record]:
        return [
            standing.record
            for standing in await self.standing()
            if standing.claim is not None and standing.claim.guid == guid
        ]

    def _sweep_soon(self, guid: str, but: Place | None = None) -> None:
        """Delete all records of a claim in the background, `but` one; nobody wants it if None."""
        if but is None:
            self._participant.abandon(guid)
        keep = None if but is None else but.key
        self._participant.sweep(partial(self._delete_all, guid, keep))

    async def _delete_all(self, guid: str, keep: str | None) -> None:
        await self._store.sync()
        for record in await self._find(guid):
            if record.key != keep:
                with suppress(NoSuchKeyError):
                    await self._store.delete(record.key)

    # ---- waiting

    async def wait_turn(
        self,
        place: Place,
        mode: ClaimMode,
        wake: asyncio.Event,
        in_line: Callable[[], object] = lambda: None,
    ) -> None:
        """Return when it is the claim's turn; `wake` makes it look again.

        `in_line` is called whenever the claim was seen to stand behind another one.

        Raises:
            PlaceLostError: the claim is not in line any more.
            MetadataUnavailableError: the store did not answer; the claim stands where it stood.
        """
        while True:
            wake.clear()
            blocker = await self.blocker(place, mode)
            if blocker is None:
                return
            in_line()
            await self._wait_until_gone(f"{self.path}/{blocker}", wake)

    async def _wait_until_gone(self, key: str, wake: asyncio.Event) -> None:
        async with self._store.watch(key) as changes:
            ringing = self._participant.spawn(_ring(changes, wake))
            try:
                if await self._store.exists(key):
                    await wake.wait()
            finally:
                ringing.cancel()


async def _ring(changes: AsyncIterator[Change], wake: asyncio.Event) -> None:
    try:
        async for change in changes:
            if is_gone(change):
                wake.set()
    except MetadataClosedError:
        wake.set()


def is_gone(change: Change) -> bool:
    """Whether what is watched was deleted, or may have been."""
    return isinstance(change, Resync) or any(
        event.kind is ChangeKind.DELETED for event in change.events
    )


def with_stat(place: Place, stat: Stat) -> Place:
    """The same claim after its record was written again."""
    return replace(place, version=stat.version)


def _place(stat: Stat, guid: str, *, in_doubt: bool) -> Place:
    number = _number(stat.key.rpartition("/")[2])
    # A backend without global order numbers still orders the claims of one line.
    return Place(stat.key, guid, number, stat.revision or number, stat.version, in_doubt)


def _number(name: str) -> int:
    """The number of a claim's name, -1 if it is none."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else -1


def _read(record: Record) -> Claim | None:
    try:
        return decode_claim(record.value)
    except FormatError:
        return None

"""Claims that wait in a queue below one key; each claim waits for at most one other claim.

A claim is an ephemeral record ``PATH/claim-<guid>-0000000042``. The number of a new claim is
greater than the numbers of all claims in the queue, so the numbers give the order. Numbers may
begin again when the queue is empty, but the guid makes each name unique. So a read, check or
deletion by name never touches a different claim by mistake.

An exclusive claim waits for the claim directly before it. A shared claim waits for the last
exclusive claim before it. So the deletion of a claim wakes only the claims that waited for it.

If the store did not answer the creation of a claim, the claim may exist, or may appear later. So
the process searches the queue for the guid before it creates the claim again. The queue can then
have several records with the guid: the process uses one record, and deletes the other records in
the background. The other records do not block the used record. The process also deletes the records
of claims that it no longer uses.

Source: the lock recipe of ZooKeeper; the protection of a creation by a GUID, from Apache Curator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from bookie.coordination.claim import Claim, ClaimMode, decode_claim, encode_claim
from bookie.coordination.participant import Participant
from bookie.errors import (
    FormatError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from bookie.metadata.model import (
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
"""The most attempts to create the record of one claim, if the store does not answer."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """This process's claim in a queue: its key, its numbers, and its last known version."""

    key: str
    guid: str
    number: int
    token: int
    """The number of the write that made the claim. All earlier claims have smaller numbers."""
    version: int
    in_doubt: bool = False
    """True if an unanswered write may have created, or may yet create, a second record."""

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Contender:
    """A record in the queue and its decoded claim; `claim` is None if the record is unreadable."""

    record: Record
    claim: Claim | None


class ClaimLostError(MetadataError):
    """The claim is no longer in the queue: its session ended, or its record was deleted."""


class WaitQueue:
    """The queue of claims whose records are below `path`."""

    def __init__(self, participant: Participant, path: str) -> None:
        self.path = check_key(path)
        self._participant = participant
        self._store = participant.store

    # ---- reading

    async def names(self) -> list[str]:
        """Return the names of all claims in the queue, in order."""
        names = await self._store.get_children(self.path)
        return sorted((name for name in names if _number(name) >= 0), key=_number)

    async def contenders(self) -> list[Contender]:
        """Return all claims in the queue with their records, in order."""
        found = [
            Contender(record, read_claim(record))
            async for record in self._store.scan_children(self.path)
            if _number(record.name) >= 0
        ]
        return sorted(found, key=lambda contender: _number(contender.record.name))

    async def first(self) -> Contender | None:
        while True:
            names = await self.names()
            if not names:
                return None
            record = await self._store.get(f"{self.path}/{names[0]}")
            if record is not None:
                return Contender(record, read_claim(record))

    async def blocker(self, ticket: Ticket | None, mode: ClaimMode) -> str | None:
        """Return the name of the claim that blocks `ticket`, or None if no claim blocks it.

        If `ticket` is None, the result is for a new claim with this `mode`.

        Raises:
            ClaimLostError: the claim of `ticket` is not in the queue.
        """
        names = await self.names()
        if ticket is not None:
            if ticket.name not in names:
                raise ClaimLostError(f"the claim {ticket.key} is gone")
            names = names[: names.index(ticket.name)]
            if ticket.in_doubt and names:
                # A second record of this same claim, or a record that was deleted meanwhile, does
                # not block it.
                others = {
                    one.record.name
                    for one in await self.contenders()
                    if one.claim is None or one.claim.guid != ticket.guid
                }
                names = [name for name in names if name in others]
        if not names or mode is ClaimMode.EXCLUSIVE:
            return names[-1] if names else None
        before = set(names)
        for contender in reversed(await self.contenders()):
            # An unreadable claim may be exclusive, so it blocks.
            is_shared = contender.claim is not None and contender.claim.mode is ClaimMode.SHARED
            if contender.record.name in before and not is_shared:
                return contender.record.name
        return None

    async def clear_leftovers(self) -> None:
        """Delete all claims that this participant made and no longer uses."""
        for contender in await self.contenders():
            claim = contender.claim
            if claim is not None and self._participant.is_leftover(claim.guid):
                with suppress(NoSuchKeyError):
                    await self._store.delete(contender.record.key)

    # ---- entering and leaving

    async def enter(self, claim: Claim, *, instead_of: Record | None = None) -> Ticket:
        """Add `claim` to the end of the queue; the same transaction deletes `instead_of`, if given.

        If the caller is cancelled, or if it stays unknown whether the record was created, the
        record is deleted in the background.

        Raises:
            MetadataUnavailableError: the store did not answer.
            SessionLostError: the session ended; the claim does not exist.
            BadVersionError, NoSuchKeyError: `instead_of` was changed or deleted.
        """

        async def undo(ticket: Ticket) -> None:
            await self.leave(ticket)

        return await self._participant.finish(self._enter(claim, instead_of), undo)

    async def _enter(self, claim: Claim, instead_of: Record | None) -> Ticket:
        operations: list[Operation] = [
            Put(
                f"{self.path}/{PREFIX}{claim.guid}-",
                encode_claim(claim),
                ephemeral=True,
                sequential=True,
            )
        ]
        if instead_of is not None:
            operations.append(Delete(instead_of.key, instead_of.version))
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._participant.pause(attempt - 1)
            try:
                ticket = await self._try_to_enter(operations, claim.guid, again=attempt > 0)
            except MetadataUnavailableError:
                continue
            except BaseException:
                if attempt:
                    self._sweep_soon(claim.guid)
                raise
            if ticket.in_doubt:
                self._sweep_soon(claim.guid, but=ticket)
            return ticket
        self._sweep_soon(claim.guid)
        raise MetadataUnavailableError(
            f"the metadata store did not answer when a claim was made below {self.path}"
        )

    async def _try_to_enter(self, operations: list[Operation], guid: str, *, again: bool) -> Ticket:
        """Create the claim; with `again`, first search the queue: it may exist already."""
        if again:
            await self._store.sync()
            for record in await self._find(guid):
                # A record of a former session does not count, because the store will soon delete
                # it.
                if record.created_by_self:
                    return _ticket(record.stat, guid, in_doubt=True)
        stat = (await self._store.transaction(operations))[0]
        assert stat is not None
        return _ticket(stat, guid, in_doubt=again)

    async def leave(self, ticket: Ticket) -> None:
        """Delete the claim; if the store does not answer, delete it in the background."""
        self._participant.abandon(ticket.guid)
        await self._participant.finish(self._leave(ticket))

    async def _leave(self, ticket: Ticket) -> None:
        try:
            # The name contains our guid, so no other process wrote this record: delete any version.
            await self._store.delete(ticket.key)
        except (NoSuchKeyError, MetadataClosedError):
            pass
        except MetadataError:
            self._sweep_soon(ticket.guid)
            return
        if ticket.in_doubt:
            self._sweep_soon(ticket.guid)

    async def _find(self, guid: str) -> list[Record]:
        return [
            contender.record
            for contender in await self.contenders()
            if contender.claim is not None and contender.claim.guid == guid
        ]

    def _sweep_soon(self, guid: str, but: Ticket | None = None) -> None:
        """Delete the records of the claim `guid` in the background, except the record of `but`.

        If `but` is None, also mark the claim as no longer used.
        """
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
        ticket: Ticket,
        mode: ClaimMode,
        wake: asyncio.Event,
        in_line: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until no other claim blocks the claim of `ticket`.

        When `wake` is set, the queue is read again. `in_line` is called after each read of the
        queue that finds a blocking claim.

        Raises:
            ClaimLostError: the claim is no longer in the queue.
            MetadataUnavailableError: the store did not answer; the claim keeps its place in the
                queue.
        """
        while True:
            wake.clear()
            blocker = await self.blocker(ticket, mode)
            if blocker is None:
                return
            in_line()
            await self._wait_until_gone(f"{self.path}/{blocker}", wake)

    async def _wait_until_gone(self, key: str, wake: asyncio.Event) -> None:
        async with self._store.watch(key) as changes:
            waking = self._participant.spawn(_wake_on_deletion(changes, wake))
            try:
                if await self._store.exists(key):
                    await wake.wait()
            finally:
                waking.cancel()


async def _wake_on_deletion(changes: AsyncIterator[Change], wake: asyncio.Event) -> None:
    try:
        async for change in changes:
            if is_gone(change):
                wake.set()
    except MetadataClosedError:
        wake.set()


def is_gone(change: Change) -> bool:
    """True if the watched record was deleted, or may have been deleted."""
    return isinstance(change, Resync) or any(
        event.kind is ChangeKind.DELETED for event in change.events
    )


def with_stat(ticket: Ticket, stat: Stat) -> Ticket:
    """Return a copy of `ticket` with the newer record version that `stat` contains."""
    return replace(ticket, version=stat.version)


def _ticket(stat: Stat, guid: str, *, in_doubt: bool) -> Ticket:
    number = _number(stat.key.rpartition("/")[2])
    # Without revisions, the token is the number at the end of the name, which orders the claims
    # that are in the queue at the same time.
    return Ticket(stat.key, guid, number, stat.revision or number, stat.version, in_doubt)


def _number(name: str) -> int:
    """Return the number in the name of a claim; -1 if `name` is not the name of a claim."""
    digits = name.rpartition("-")[2]
    is_claim = name.startswith(PREFIX) and digits.isascii() and digits.isdecimal()
    return int(digits) if is_claim else -1


def read_claim(record: Record) -> Claim | None:
    """Decode the claim in a record; return None if the record is not a readable claim."""
    try:
        return decode_claim(record.value)
    except FormatError:
        return None

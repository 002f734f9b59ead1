"""A double barrier: a fixed number of processes begin together, and end together.

================= ================================================================================
key               meaning
================= ================================================================================
``members/<name>`` leased: a process that waits at the entry, or is inside
``ready``         leased: enough processes have arrived, and all of them may begin
================= ================================================================================

The last process to arrive opens the barrier for all processes. At the end, the process whose name
sorts first waits until all other processes have left, and then closes the barrier. Every other
process deletes its own record, and waits until that first process has left. A process whose session
ends inside the barrier counts as a process that has left.

Source: the double barrier recipe of ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Self

from bookie.coordination.membership import Member
from bookie.coordination.participant import Participant
from bookie.env.checked import checked
from bookie.errors import BadVersionError, NoSuchKeyError, OperationTimeoutError
from bookie.metadata.model import Change, ChangeKind, Resync, check_key


class DoubleBarrier:
    """One process at a barrier: an async context manager.

    Entering the context waits until `count` processes have arrived. Leaving the context waits until
    all processes at the barrier leave. If one of these waits takes longer than `timeout_seconds`,
    OperationTimeoutError is raised.

    Args:
        participant: the participant of this process.
        path: the key of the barrier.
        name: the name of this process, which no other process at the barrier may have.
        count: the number of processes that must arrive before any process begins.
        timeout_seconds: the longest wait when the context is entered, and again when it is left;
            None means no limit.
    """

    @checked
    def __init__(
        self,
        participant: Participant,
        path: str,
        name: str,
        count: int,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        self._store = participant.store
        self._path = check_key(path)
        self._members = f"{path}/members"
        self._ready = f"{path}/ready"
        self._count = count
        self._timeout_seconds = timeout_seconds
        self._name = name
        self._member = Member(participant, f"{self._members}/{name}", b"")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            opening = await stack.enter_async_context(self._store.watch(self._ready))
            if not await self._store.get_children(self._members):
                # If processes of an earlier use of the barrier died inside it, `ready` may still
                # exist.
                with suppress(NoSuchKeyError):
                    await self._store.delete(self._ready)
            inside = AsyncExitStack()
            try:
                await inside.enter_async_context(self._member)
                async with asyncio.timeout(self._timeout_seconds):
                    await self._wait_until_open(opening)
            except TimeoutError as error:
                await inside.aclose()
                raise OperationTimeoutError(
                    f"fewer than {self._count} came to the barrier {self._path} within"
                    f" {self._timeout_seconds} seconds"
                ) from error
            except BaseException:
                await inside.aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._leave()
        except TimeoutError as error:
            raise OperationTimeoutError(
                f"another process did not leave the barrier {self._path} within"
                f" {self._timeout_seconds} seconds"
            ) from error
        finally:
            await self._member.__aexit__(None, None, None)

    async def _wait_until_open(self, opening: AsyncIterator[Change]) -> None:
        while True:
            members = await self._store.get_children(self._members)
            if len(members) >= self._count:
                with suppress(BadVersionError):  # another process opened the barrier
                    await self._store.put(self._ready, b"", ephemeral=True)
                return
            if await self._store.exists(self._ready):
                return
            change = await anext(opening)
            if not isinstance(change, Resync) and any(
                event.kind is ChangeKind.CREATED for event in change.events
            ):
                return

    async def _leave(self) -> None:
        before = await self._inside()
        while True:
            now = await self._inside()
            # A process that left may already have entered again: with the same name, but a new
            # record. So compare the versions, too.
            members = sorted(name for name in before if now.get(name) == before[name])
            if not members or members == [self._name]:
                with suppress(NoSuchKeyError):
                    await self._store.delete(self._ready)
                return
            if members[0] == self._name:
                await self._wait_until_gone(members[-1], before)
            else:
                await self._member.__aexit__(None, None, None)
                await self._wait_until_gone(members[0], before)

    async def _inside(self) -> dict[str, int]:
        """Return the names of the members, each with the version of the member's record."""
        return {r.name: r.version async for r in self._store.scan_children(self._members)}

    async def _wait_until_gone(self, name: str, before: dict[str, int]) -> None:
        key = f"{self._members}/{name}"
        async with self._store.watch(key) as changes:
            while (record := await self._store.get(key)) and record.version == before[name]:
                await anext(changes)

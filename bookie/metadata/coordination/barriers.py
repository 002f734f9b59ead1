"""A double barrier: so many processes begin together, and end together.

================= ================================================================================
key               meaning
================= ================================================================================
``members/<name>`` leased: who is inside, or waits to be
``ready``         leased: enough came; everybody may begin
================= ================================================================================

Who comes last opens the barrier for all. On the way out everybody but the first (by name) gives its
place up and waits for the first, which waits for one other after the other and closes the barrier
behind itself. A process that dies inside counts as gone.

Source: the double barrier recipe of ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

from bookie.errors import BadVersionError, NoSuchKeyError, OperationTimeoutError
from bookie.metadata.coordination.line import is_gone
from bookie.metadata.coordination.membership import Member
from bookie.metadata.coordination.participant import Participant
from bookie.metadata.store import Change, ChangeKind, Resync, check_key


class DoubleBarrier:
    """One process's passage; an async context manager: entering waits for all, leaving too.

    Args:
        participant: whose.
        path: the key that stands for the barrier.
        name: of this process, unique among those who pass.
        count: how many must come before any begins.
        timeout_seconds: for each of the two waits; None waits for ever.
    """

    def __init__(
        self,
        participant: Participant,
        path: str,
        name: str,
        count: int,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        self._participant = participant
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
                # Those who passed before may all have died inside, with nobody to close it.
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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._leave()
        except TimeoutError as error:
            raise OperationTimeoutError(
                f"somebody did not leave the barrier {self._path} within"
                f" {self._timeout_seconds} seconds"
            ) from error
        finally:
            await self._member.__aexit__(None, None, None)

    async def _wait_until_open(self, opening: AsyncIterator[Change]) -> None:
        while True:
            members = await self._store.get_children(self._members)
            if len(members) >= self._count:
                with suppress(BadVersionError):  # another one opened it
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
        while True:
            members = sorted(await self._store.get_children(self._members))
            if not members or members == [self._name]:
                with suppress(NoSuchKeyError):
                    await self._store.delete(self._ready)
                return
            if members[0] == self._name:
                await self._wait_until_gone(f"{self._members}/{members[-1]}")
            else:
                await self._member.__aexit__(None, None, None)
                await self._wait_until_gone(f"{self._members}/{members[0]}")

    async def _wait_until_gone(self, key: str) -> None:
        async with self._store.watch(key) as changes:
            while await self._store.exists(key):
                while not is_gone(await anext(changes)):
                    pass

"""Clients of the recipes in tests: each with a session, faults at will, and locks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore


@dataclass
class Client:
    """One process."""

    session: MetadataStore
    """The store itself, for looking past the recipes and past the faults."""
    store: FaultyStore
    """The store as the recipes see it."""
    participant: Participant
    locks: LockManager

    async def claims(self, path: str) -> list[str]:
        """The keys of all claims on the lock `path`, in the order of the line."""
        await self.session.sync()
        names = await self.session.get_children(path)
        return [f"{path}/{name}" for name in sorted(names, key=lambda n: int(n.rpartition("-")[2]))]


NewClient = Callable[..., Awaitable[Client]]
"""(owner="", session_timeout_seconds=10.0)."""


def client_maker(backend: Backend, stack: AsyncExitStack) -> NewClient:
    """Makes clients that end with `stack`."""

    async def make(owner: str = "", session_timeout_seconds: float = 10.0) -> Client:
        session = await backend.open(session_timeout_seconds=session_timeout_seconds)
        store = FaultyStore(session)
        participant = await stack.enter_async_context(Participant(store))
        return Client(session, store, participant, LockManager(participant, owner=owner))

    return make

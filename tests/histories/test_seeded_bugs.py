"""Stores with one bug each: their histories under faults are found out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from bookie.errors import BadVersionError
from bookie.metadata.model import Change, Commit, Operation, Put, Record, Stat
from bookie.metadata.store import MetadataStore
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import simulated_loop
from tests.histories.checker import check
from tests.histories.workload import Faults, record_history

SEEDS = 6


class StaleReads(FaultyMemoryStore):
    """Now and then a read shows the state before the newest."""

    async def get(self, key: str) -> Record | None:
        record = await super().get(key)
        history = self.__dict__.setdefault("seen", {}).setdefault(key, [])
        history.append(record)
        return history[-2] if len(history) % 5 == 0 else record


class LostUpdates(FaultyMemoryStore):
    """Now and then a version that is not the newest is good enough."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        try:
            return await super().transaction(operations)
        except BadVersionError:
            # What is created still has to be new, or nothing would work at all.
            if any(isinstance(o, Put) and (o.version or 0) < 0 for o in operations):
                raise
            return await super().transaction(
                [replace(o, version=None) if isinstance(o, Put) else o for o in operations]
            )


class ConflictWithItself(FaultyMemoryStore):
    """A reply that was lost is asked for again, and the write's own effect refuses it."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        answer = await super().transaction(operations)
        count = self.__dict__["count"] = self.__dict__.get("count", 0) + 1
        if count % 7 == 0 and all(o.key[:4] in ("/h/a", "/h/b") for o in operations):
            raise BadVersionError("the second attempt of a write that had happened")
        return answer


class AcknowledgedNothing(FaultyMemoryStore):
    """Now and then a write is answered, and forgotten."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        answer = await super().transaction(operations)
        count = self.__dict__["count"] = self.__dict__.get("count", 0) + 1
        if count % 9 == 0:
            for operation in operations:
                if operation.key.startswith("/h/") and isinstance(operation, Put):
                    await super().delete(operation.key)
        return answer


class DeafWatches(FaultyMemoryStore):
    """A watch overhears a commit now and then, and does not say so."""

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        async with super().watch(prefix) as changes:
            yield self._overhear(changes)

    async def _overhear(self, changes: AsyncIterator[Change]) -> AsyncIterator[Change]:
        count = 0
        async for change in changes:
            count += 1
            is_fence = isinstance(change, Commit) and change.events[0].key == "/h/fence"
            if count % 11 or is_fence or not isinstance(change, Commit):
                yield change


class SlowWatches(FaultyMemoryStore):
    """Commits come in pairs, the later one first."""

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        async with super().watch(prefix) as changes:
            yield self._turn(changes) if prefix == "/h" else changes

    async def _turn(self, changes: AsyncIterator[Change]) -> AsyncIterator[Change]:
        held: Change | None = None
        async for change in changes:
            if held is None and isinstance(change, Commit) and "fence" not in str(change):
                held = change
                continue
            yield change
            if held is not None:
                yield held
                held = None


class UndeadLeases(FaultyMemoryStore):
    """The records of a lost session stay."""

    async def revive(self, records: list[Record]) -> None:
        for record in records:
            await super().transaction([Put(record.key, record.value)])


class TakenOverInVain(FaultyMemoryStore):
    """A take-over changes the value, and the record stays with the former session."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        return await super().transaction(
            [
                replace(o, ephemeral=False)
                if isinstance(o, Put) and o.key.startswith("/h/") and (o.version or 0) > 0
                else o
                for o in operations
            ]
        )


class ForgetsOwnWrites(FaultyMemoryStore):
    """Now and then a read comes from before the own write, unless a sync went before."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        stale = self.__dict__.setdefault("stale", {})
        for operation in operations:
            stale[operation.key] = await super().get(operation.key)
        return await super().transaction(operations)

    async def sync(self) -> None:
        self.__dict__["stale"] = {}
        await super().sync()

    async def get(self, key: str) -> Record | None:
        stale = self.__dict__.setdefault("stale", {})
        return stale.pop(key) if key in stale else await super().get(key)


BUGS = {
    StaleReads: {"M2", "M9", "M5", "M6"},
    LostUpdates: {"M1"},
    ConflictWithItself: {"M4"},
    AcknowledgedNothing: {"M1", "M6", "M4", "M8"},
    DeafWatches: {"M8"},
    SlowWatches: {"M8"},
    UndeadLeases: {"M1", "M3", "M4", "M5", "M8"},
    TakenOverInVain: {"M5", "M6"},
    ForgetsOwnWrites: {"M9"},
}


@pytest.mark.parametrize("kind", BUGS, ids=lambda kind: str(kind.__name__))
def test_a_store_with_a_bug_is_found_out(kind: type[FaultyMemoryStore]) -> None:
    found: set[str] = set()
    for seed in range(SEEDS):
        found |= {offence.partition(":")[0] for offence in _offences(kind, seed)}
    assert found & BUGS[kind]


def _offences(kind: type[FaultyMemoryStore], seed: int) -> list[str]:
    async def main() -> list[str]:
        async with AsyncExitStack() as stack:

            async def open_session() -> MetadataStore:
                store = kind(f"bugs-{kind.__name__}-{seed}", session_timeout_seconds=5.0)
                return await stack.enter_async_context(store)

            async def expire(store: MetadataStore) -> None:
                assert isinstance(store, FaultyMemoryStore)
                owned: list[Record] = []
                if isinstance(store, UndeadLeases):
                    records = [record async for record in store.scan_children("/h")]
                    owned = [record for record in records if record.created_by_self]
                store.expire_session()
                if isinstance(store, UndeadLeases):
                    await store.revive(owned)

            is_current = kind is not ForgetsOwnWrites
            history, _ = await record_history(
                open_session, Faults(expire), seed, is_current=is_current
            )
            return check(history)

    return simulated_loop(seed).run(main())

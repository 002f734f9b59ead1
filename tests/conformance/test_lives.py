"""Versions of records that others deleted and created anew, unknown to who writes by them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie.errors import BadVersionError
from bookie.metadata.model import NOT_EXISTS, Check, Delete, Operation, Put
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend, Difference

WAY_SECONDS = 0.1
"""Long enough for a request to reach its server; one that is late has an easier task."""


async def refusal_of(
    backend: Backend, store: MetadataStore, operations: Sequence[Operation]
) -> Exception | None:
    """The outcome of operations that `store` sends before it hears anything.

    Where a version may fit a life that its writer has not heard of, it hears of it first.
    """
    if backend.differs(Difference.LATE_VERSIONS):
        await backend.reconnect(store)
        await store.sync()
    failures: list[Exception] = []

    async def send() -> None:
        try:
            await store.transaction(operations)
        except BadVersionError as error:
            failures.append(error)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        await asyncio.sleep(WAY_SECONDS)
        await backend.reconnect(store)
    return failures[0] if failures else None


@pytest.mark.parametrize("writes", [0, 2])
@pytest.mark.parametrize("act", ["put", "put below", "delete", "check"])
async def test_a_version_never_fits_another_life(backend: Backend, act: str, writes: int) -> None:
    """Cases 5, 6: however often either was written, and though the writer knows the old one only.

    The key below ends in digits like one that the store has numbered.
    """
    key = "/a/b-0123456789" if act == "put below" else "/k"
    late, other = await backend.open(), await backend.open()
    stat = await late.put(key, b"old")
    for _ in range(writes):
        stat = await late.put(key, b"old")
    await other.sync()
    await backend.delay(late)
    await other.delete(key)
    new = await other.put(key, b"new", version=NOT_EXISTS)
    for _ in range(writes):
        new = await other.put(key, b"new")
    operations: dict[str, list[Operation]] = {
        "put": [Put(key, b"stolen", stat.version)],
        "put below": [Put(key, b"stolen", stat.version)],
        "delete": [Delete(key, stat.version)],
        "check": [Check(key, stat.version), Put("/effect", b"")],
    }
    assert await refusal_of(backend, late, operations[act]) is not None
    record = await late.get(key)
    assert record is not None
    assert (record.value, record.version) == (b"new", new.version)
    assert not await late.exists("/effect")


@pytest.mark.parametrize("act", ["put", "delete"])
async def test_a_version_never_fits_the_next_owner(backend: Backend, act: str) -> None:
    """Cases 46, 156: the lease of one holder ends, another one follows, and a third is late."""
    late, holder, other = [await backend.open() for _ in range(3)]
    stat = await holder.put("/lock", b"old", ephemeral=True)
    await late.sync()
    assert await late.get("/lock") is not None
    await other.sync()
    await backend.delay(late)
    await backend.expire(holder)
    new = await other.put("/lock", b"new", ephemeral=True)
    operations: dict[str, Operation] = {
        "put": Put("/lock", b"stolen", stat.version),
        "delete": Delete("/lock", stat.version),
    }
    assert await refusal_of(backend, late, [operations[act]]) is not None
    record = await other.get("/lock")
    assert record is not None
    assert (record.value, record.version) == (b"new", new.version)
    assert record.created_by_self

"""Locks whose holder is cancelled, paused or not answered at the worst moment: no claim remains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie.errors import MetadataUnavailableError
from bookie.metadata.coordination.lock import LockState
from bookie.metadata.store import Operation
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import cancel_in, settle, until, until_found

PATH = "/locks/a"


async def has_claims(client: Client, count: int) -> bool:
    """Whether so many claims stand in line."""
    return len(await client.claims(PATH)) == count


# ---- cancelled


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_as_the_claim_is_made_leaves_none(
    client: Client, turns: int
) -> None:
    """So many turns of the loop later: also in the turn in which the answer is handed over."""
    async with asyncio.TaskGroup() as group:
        acquiring = group.create_task(client.locks.acquire(PATH))

        def claimed(_: Sequence[Operation]) -> None:
            client.store.after_write = lambda _: None
            cancel_in(turns, acquiring)

        client.store.after_write = claimed
    if not acquiring.cancelled():
        await acquiring.result().release()
    await until_found(lambda: has_claims(client, 0))


async def test_a_cancelled_release_releases(client: Client) -> None:
    """It waits for a look at the claim, and its caller is cancelled meanwhile."""
    lock = await client.locks.acquire(PATH)
    client.store.hold_writes.clear()
    writes = client.store.counts["transaction"]
    await client.session.delete(lock.check().key)
    await until(lambda: client.store.counts["transaction"] > writes)
    async with asyncio.TaskGroup() as group:
        releasing = group.create_task(lock.release())
        await settle()
        releasing.cancel()
    assert releasing.cancelled()
    client.store.hold_writes.set()
    await until_found(lambda: has_claims(client, 0))
    assert lock.state is LockState.RELEASED
    await settle()
    assert await client.claims(PATH) == []


# ---- not watched


async def test_a_holder_hears_of_its_end_although_its_watch_failed(new_client: NewClient) -> None:
    """The store fails between the claim and its watch: that claim does not count."""
    first, second = await new_client("me"), await new_client("me")
    first.store.lost_watches = 1
    lock = await first.locks.acquire(PATH)
    await until_found(lambda: has_claims(first, 1))
    await second.session.sync()
    taken = await second.locks.try_acquire(PATH, take_over=True)
    async with asyncio.timeout(10):
        await lock.lost.wait()
    assert taken.is_held
    await taken.release()


async def test_a_claim_that_cannot_be_watched_is_none(client: Client) -> None:
    client.store.lost_watches = 1
    with pytest.raises(MetadataUnavailableError):
        await client.locks.try_acquire(PATH)
    await until_found(lambda: has_claims(client, 0))
    async with await client.locks.try_acquire(PATH) as lock:
        assert lock.is_held

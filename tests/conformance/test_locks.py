"""Locks: acquired, read, listed, updated, released, waited for in line, lost and found again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from bookie.coordination.claim import Claim, encode_claim
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.errors import (
    BadVersionError,
    LockBusyError,
    LockLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    OperationTimeoutError,
)
from bookie.metadata.model import Put
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.faulty_store import FaultyStore
from tests.conformance.waiting import settle, until, until_found

PATH = "/locks/a"


# ---- alone


async def test_a_lock_from_acquiring_to_releasing(client: Client) -> None:
    """Case 44."""
    locks = client.locks
    assert await locks.list("/locks") == []
    assert await locks.read(PATH) is None
    lock = await locks.try_acquire(PATH, b"me")
    assert (lock.path, lock.content, lock.state) == (PATH, b"me", LockState.HELD)
    assert not lock.lost.is_set()
    assert await locks.list("/locks") == ["a"]
    held = await locks.read(PATH)
    assert held is not None
    assert held.content == b"me"
    await lock.release()
    await lock.release()
    assert lock.state is LockState.RELEASED
    assert not lock.lost.is_set()
    assert await locks.read(PATH) is None
    assert await locks.list("/locks") == []
    async with await locks.try_acquire(PATH, b"again") as again:
        assert again.token > lock.token
    assert await client.claims(PATH) == []


async def test_closing_releases_everything(new_client: NewClient) -> None:
    """Case 45."""
    observer, other = await new_client(), await new_client()
    async with Participant(other.store) as participant:
        locks = LockManager(participant)
        held = [await locks.try_acquire(f"/locks/{name}") for name in "abc"]
        assert locks.held == tuple(held)
        await observer.session.sync()
        assert await observer.locks.list("/locks") == ["a", "b", "c"]
    assert [lock.state for lock in held] == [LockState.RELEASED] * 3
    await observer.session.sync()
    assert await observer.locks.list("/locks") == []


async def test_the_content_may_change(client: Client) -> None:
    """Case 46."""
    async with await client.locks.try_acquire(PATH, b"1") as lock:
        token = lock.token
        await lock.update(b"2")
        assert (lock.content, lock.token) == (b"2", token)
        held = await client.locks.read(PATH)
        assert held is not None
        assert held.content == b"2"
    with pytest.raises(LockLostError):
        await lock.update(b"3")


async def test_the_content_may_change_after_somebody_wrote_the_claim(client: Client) -> None:
    """Case 47."""
    async with await client.locks.try_acquire(PATH, b"1") as lock:
        await client.session.put(lock.check().key, b"by hand")
        await lock.update(b"2")
        held = await client.locks.read(PATH)
        assert held is not None
        assert held.content == b"2"
        assert lock.is_held


async def test_the_content_may_change_after_somebody_deleted_the_claim(client: Client) -> None:
    """Case 48."""
    async with await client.locks.try_acquire(PATH, b"1") as lock:
        await client.session.delete(lock.check().key)
        await lock.update(b"2")
        held = await client.locks.read(PATH)
        assert held is not None
        assert held.content == b"2"
        record = await client.session.get(lock.check().key)
        assert record is not None
        assert record.ephemeral, "it ends with the session"
    assert await client.claims(PATH) == []


async def test_a_leftover_of_its_own_is_replaced(client: Client) -> None:
    """Case 49: with whatever content. A claim of unknown content belongs to another one."""
    abandoned = client.participant.new_guid()
    client.participant.abandon(abandoned)
    await client.session.put(
        f"{PATH}/claim-", encode_claim(Claim(abandoned)), ephemeral=True, sequential=True
    )
    async with await client.locks.try_acquire(PATH, b"mine") as lock:
        assert lock.is_held
        assert await client.claims(PATH) == [lock.check().key]
    await client.session.put(f"{PATH}/claim-", b"?", ephemeral=True, sequential=True)
    with pytest.raises(LockBusyError):
        await client.locks.try_acquire(PATH)


async def test_a_deleted_claim_is_made_again(client: Client) -> None:
    """Case 53."""
    async with await client.locks.try_acquire(PATH) as lock:
        token = lock.token
        await client.session.delete(lock.check().key)
        await until(lambda: lock.token > token)
        await until(lambda: lock.is_held)
        assert not lock.lost.is_set()
        assert await client.claims(PATH) == [lock.check().key]


async def test_two_holders_of_one_process_exclude_each_other(client: Client) -> None:
    async with await client.locks.try_acquire(PATH):
        with pytest.raises(LockBusyError):
            await client.locks.try_acquire(PATH)
    async with await client.locks.try_acquire(PATH):
        pass


async def test_an_effect_in_the_store_is_guarded_by_the_claim(new_client: NewClient) -> None:
    first, second = await new_client(), await new_client()
    lock = await first.locks.try_acquire(PATH)
    guard = lock.check()
    await first.session.transaction([guard, Put("/effect", b"1")])
    await lock.release()
    with pytest.raises(LockLostError):
        lock.check()
    async with await second.locks.acquire(PATH) as later:
        # What the first one still has under way comes too late.
        with pytest.raises(BadVersionError):
            await first.session.transaction([guard, Put("/effect", b"2")])
        await second.session.transaction([later.check(), Put("/effect", b"3")])


# ---- against others


async def test_a_lock_that_is_held_is_busy(new_client: NewClient) -> None:
    """Case 50: at once, and the holder does not notice."""
    first, second = await new_client(), await new_client()
    async with await first.locks.try_acquire(PATH, b"first") as lock:
        await second.session.sync()
        for take_over in (False, True):
            with pytest.raises(LockBusyError):
                await second.locks.try_acquire(PATH, b"second", take_over=take_over)
        assert lock.is_held
        held = await second.locks.read(PATH)
        assert held is not None
        assert held.content == b"first"
        assert await first.claims(PATH) == [lock.check().key]


async def test_a_lock_is_taken_from_the_same_owner_if_that_is_wanted(
    new_client: NewClient,
) -> None:
    """Cases 51, 52: one of two who say that they are the same has it, and the other knows."""
    first, second = await new_client("broker-1"), await new_client("broker-1")
    lock = await first.locks.try_acquire(PATH)
    await second.session.sync()
    with pytest.raises(LockBusyError):
        await second.locks.try_acquire(PATH)
    taken = await second.locks.try_acquire(PATH, take_over=True)
    assert taken.token > lock.token
    async with asyncio.timeout(60):
        await lock.lost.wait()
    assert lock.state is LockState.LOST
    assert first.locks.held == ()
    assert taken.is_held
    assert not taken.lost.is_set()
    await until_found(lambda: _is_line(second, [taken]))
    await taken.release()


async def _is_line(client: Client, locks: list[Lock]) -> bool:
    return await client.claims(PATH) == [lock.check().key for lock in locks]


async def test_waiting_is_first_come_first_served(new_client: NewClient) -> None:
    clients = [await new_client() for _ in range(4)]
    held = await clients[0].locks.try_acquire(PATH)
    order: list[int] = []
    tokens = [held.token]

    async def work(number: int) -> None:
        async with await clients[number].locks.acquire(PATH, timeout_seconds=20) as lock:
            order.append(number)
            tokens.append(lock.token)

    async with asyncio.TaskGroup() as group:
        for number in (2, 3, 1):
            standing = len(await clients[0].claims(PATH))
            group.create_task(work(number))
            await until_found(partial(_has_claims, clients[0], standing + 1))
        await held.release()
    assert order == [2, 3, 1]
    assert tokens == sorted(set(tokens))
    assert await clients[0].claims(PATH) == []


async def _has_claims(client: Client, count: int) -> bool:
    return len(await client.claims(PATH)) == count


async def test_a_release_wakes_exactly_one_of_fifty(new_client: NewClient) -> None:
    """No herd: only the next in line asks the store anything."""
    holder = await new_client()
    waiters = [await new_client() for _ in range(5)]
    held = await holder.locks.try_acquire(PATH)
    acquired: asyncio.Queue[Lock] = asyncio.Queue()
    stores: list[FaultyStore] = []

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

        async def wait(participant: Participant) -> None:
            acquired.put_nowait(await LockManager(participant).acquire(PATH))

        for number in range(50):
            # Each with a store of its own to count by; ten of them share a session.
            stores.append(FaultyStore(waiters[number % 5].session))
            participant = await stack.enter_async_context(Participant(stores[-1]))
            group.create_task(wait(participant))
            await until(lambda: stores[-1].counts["exists"] == 1)
        assert await _has_claims(holder, 51)
        for turn in range(3):
            before = [store.reads for store in stores]
            await held.release()
            async with asyncio.timeout(60):
                held = await acquired.get()
            await settle()
            woken = [i for i, store in enumerate(stores) if store.reads > before[i]]
            assert woken == [turn]
            assert stores[turn].reads - before[turn] == 1
        for _ in range(47):
            await held.release()
            held = await acquired.get()
        await held.release()


async def test_who_waits_too_long_leaves_the_line(new_client: NewClient) -> None:
    holder, waiter, last = await new_client(), await new_client(), await new_client()
    held = await holder.locks.try_acquire(PATH)
    with pytest.raises(OperationTimeoutError):
        await waiter.locks.acquire(PATH, timeout_seconds=0.05)
    # Soon: on a slow machine the claim may not even have been answered by then.
    await until_found(lambda: _has_claims(holder, 1))
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(waiter.locks.acquire(PATH))
        await until_found(lambda: _has_claims(holder, 2))
        behind = group.create_task(last.locks.acquire(PATH, timeout_seconds=20))
        await until_found(lambda: _has_claims(holder, 3))
        patient.cancel()
        await until_found(lambda: _has_claims(holder, 2))
        await held.release()
        await (await behind).release()
    assert await holder.claims(PATH) == []


# ---- lost replies


async def test_a_lost_reply_leaves_no_orphan(client: Client) -> None:
    """Case 157: the claim that was made is found by its guid."""
    client.store.lost_replies = 1
    async with await client.locks.try_acquire(PATH) as lock:
        assert await client.claims(PATH) == [lock.check().key]
    assert await client.claims(PATH) == []


async def test_a_lost_request_is_sent_again(client: Client) -> None:
    client.store.lost_requests = 2
    async with await client.locks.try_acquire(PATH) as lock:
        assert await client.claims(PATH) == [lock.check().key]


async def test_what_nobody_knows_is_cleaned_up_later(client: Client) -> None:
    """The reply is lost and the store stays away: the claim goes when it is back."""
    client.store.lost_replies = 1

    def vanish() -> None:
        client.store.before_write = lambda: None
        asyncio.get_running_loop().call_soon(setattr, client.store, "is_down", True)

    client.store.before_write = vanish
    await client.session.sync()
    with pytest.raises(MetadataUnavailableError):
        await client.locks.try_acquire(PATH)
    assert len(await client.claims(PATH)) == 1
    client.store.is_down = False
    await until_found(lambda: _has_claims(client, 0))


async def test_a_cancelled_caller_leaves_no_orphan(client: Client) -> None:
    """Its write may still happen: then it is undone."""
    client.store.hold_writes.clear()
    async with asyncio.TaskGroup() as group:
        caller = group.create_task(client.locks.try_acquire(PATH))
        await until(lambda: client.store.counts["transaction"] == 1)
        caller.cancel()
    client.store.hold_writes.set()
    await until(lambda: client.store.counts["transaction"] == 2)
    await until_found(lambda: _has_claims(client, 0))


async def test_a_release_that_is_not_answered_goes_on(client: Client) -> None:
    lock = await client.locks.try_acquire(PATH)
    client.store.is_down = True
    await lock.release()
    assert lock.state is LockState.RELEASED
    assert len(await client.claims(PATH)) == 1
    client.store.is_down = False
    await until_found(lambda: _has_claims(client, 0))
    assert not lock.lost.is_set()


# ---- lost sessions


async def test_a_lock_survives_its_session_if_nobody_else_wants_it(
    backend: Backend, new_client: NewClient
) -> None:
    """Case 65: claimed again with a greater token, uncertain in between, never lost."""
    client = await new_client(session_timeout_seconds=3.0)
    async with await client.locks.try_acquire(PATH, b"me") as lock:
        token = lock.token
        await backend.expire(client.session)
        await until(lambda: lock.token > token)
        await until(lambda: lock.is_held)
        assert not lock.lost.is_set()
        held = await client.locks.read(PATH)
        assert held is not None
        assert held.content == b"me"
    assert await client.claims(PATH) == []


async def test_a_lock_is_lost_with_its_session_if_somebody_waits(
    backend: Backend, new_client: NewClient
) -> None:
    client, heir = await new_client(session_timeout_seconds=3.0), await new_client()
    lock = await client.locks.try_acquire(PATH)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(heir.locks.acquire(PATH))
        await until_found(lambda: _has_claims(client, 2))
        await backend.expire(client.session)
        inherited = await waiting
    assert inherited.token > lock.token
    async with asyncio.timeout(60):
        await lock.lost.wait()
    assert inherited.is_held
    await until_found(lambda: _is_line(heir, [inherited]))
    await inherited.release()


async def test_waiting_outlives_a_lost_session(backend: Backend, new_client: NewClient) -> None:
    holder, waiter = await new_client(), await new_client(session_timeout_seconds=3.0)
    held = await holder.locks.try_acquire(PATH)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(waiter.locks.acquire(PATH))
        await until_found(lambda: _has_claims(holder, 2))
        before = await holder.claims(PATH)
        await backend.expire(waiter.session)
        await until_found(lambda: _is_renewed(holder, before[1]))
        assert not waiting.done()
        await held.release()
        await (await waiting).release()


async def _is_renewed(client: Client, key: str) -> bool:
    claims = await client.claims(PATH)
    return len(claims) == 2 and key not in claims


async def test_a_short_outage_makes_a_lock_uncertain_and_nothing_else(
    backend: Backend, new_client: NewClient
) -> None:
    if not backend.can_disconnect:
        return
    client = await new_client()
    async with await client.locks.try_acquire(PATH) as lock:
        token = lock.token
        await backend.disconnect(client.session)
        await until(lambda: lock.state is LockState.UNCERTAIN)
        await backend.reconnect(client.session)
        await until(lambda: lock.is_held)
        assert lock.token == token


async def test_a_release_ends_what_a_revalidation_began(client: Client) -> None:
    """Case 54: the claim is being made again when its holder lets go; nothing remains."""
    lock = await client.locks.try_acquire(PATH)
    client.store.hold_writes.clear()
    writes = client.store.counts["transaction"]
    await client.session.delete(lock.check().key)
    await until(lambda: client.store.counts["transaction"] > writes)
    async with asyncio.TaskGroup() as group:
        group.create_task(lock.release())
        await settle()
        client.store.hold_writes.set()
    assert lock.state is LockState.RELEASED
    await until_found(lambda: _has_claims(client, 0))
    assert not lock.lost.is_set()
    await settle()
    assert await client.claims(PATH) == []


async def test_only_its_own_claim_is_ever_deleted(new_client: NewClient) -> None:
    """A holder that lost its claim and lets go late does not hit the next one's."""
    first, second = await new_client(), await new_client()
    lock = await first.locks.try_acquire(PATH)
    key = lock.check().key
    first.store.is_down = True
    await second.session.delete(key)
    async with await second.locks.acquire(PATH) as later:
        await lock.release()
        first.store.is_down = False
        with pytest.raises(NoSuchKeyError):
            await second.session.delete(key)
        await settle()
        assert await second.claims(PATH) == [later.check().key]

"""Locks whose holder is cancelled, paused or left without answer: its claim still goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from bookie.coordination.election import Election, LeaderState
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.locks import LockManager
from bookie.coordination.membership import Member
from bookie.coordination.queues import Queue
from bookie.errors import (
    BadVersionError,
    LockBusyError,
    LockLostError,
    MetadataUnavailableError,
)
from bookie.metadata.model import Operation, Put, Record
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import cancel_in, settle, until, until_found

PATH = "/locks/a"


async def has_claims(client: Client, count: int) -> bool:
    """True if so many claims stand in line."""
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
    # The claim that was being made again, and its end.
    await until(lambda: client.store.counts["transaction"] >= writes + 2)
    await until_found(lambda: has_claims(client, 0))
    assert lock.state is LockState.RELEASED


# ---- paused


async def test_a_process_that_was_stopped_holds_nothing_for_certain(
    backend: Backend, new_client: NewClient
) -> None:
    """It asks before anybody else had a turn: its clock says that the lease may be gone."""
    if not backend.can_stop:
        return
    client = await new_client(session_timeout_seconds=10.0)
    lock = await client.locks.acquire(PATH)
    async with Election(client.participant, "/leader") as election:
        assert await election.elect() is LeaderState.LEADING
        assert (lock.is_held, client.participant.is_certain) == (True, True)
        backend.stop(client.session, 30.0)
        assert (lock.is_held, client.participant.is_certain) == (False, False)
        assert lock.state is LockState.UNCERTAIN
        assert election.state is LeaderState.UNKNOWN
        with pytest.raises(LockLostError):
            _ = election.lock
        # And then it asks the store.
        await until(lambda: lock.is_held and election.state is LeaderState.LEADING)
    await lock.release()


# ---- not watched


async def test_a_holder_hears_of_its_end_although_its_watch_failed(new_client: NewClient) -> None:
    """The store fails between the claim and its watch: that claim does not count."""
    first, second = await new_client("me"), await new_client("me")
    first.store.lost_watches = 1
    lock = await first.locks.acquire(PATH)
    await until_found(lambda: has_claims(first, 1))
    await second.session.sync()
    taken = await second.locks.try_acquire(PATH, take_over=True)
    async with asyncio.timeout(60):
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


# ---- behind


async def test_a_holder_whose_server_is_late_still_hears_of_its_end(client: Client) -> None:
    """It hears that its claim is gone, and asks a server that still has it (ZooKeeper's may)."""
    lock = await client.locks.acquire(PATH)
    former, token = lock.check().key, lock.token
    gets = client.store.counts["get"]
    await client.store.fall_behind()
    await client.session.delete(former)
    await until(lambda: client.store.counts["get"] > gets and lock.is_held)
    assert lock.check().key != former
    assert lock.token > token
    assert await client.claims(PATH) == [lock.check().key]


async def test_a_claim_that_was_not_answered_is_looked_for_on_a_server_that_has_it(
    client: Client,
) -> None:
    """Otherwise the second attempt would make another claim."""
    made: list[str] = []
    client.store.lost_replies = 1
    client.store.after_write = lambda operations: made.append(operations[0].key)
    await client.store.fall_behind()
    async with await client.locks.acquire(PATH, timeout_seconds=10) as lock:
        assert await client.claims(PATH) == [lock.check().key]
        assert len(made) == 1


async def test_a_claim_of_the_session_before_is_no_claim(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ended between two attempts, and the first one's record goes a moment later."""
    seen: list[str] = []
    scan = client.store.scan_children

    async def scan_as_another_session(key: str, *, after: str = "") -> AsyncIterator[Record]:
        async for record in scan(key, after=after):
            seen.append(record.key)
            yield replace(record, stat=replace(record.stat, created_by_self=False))

    client.store.lost_replies = 1
    with monkeypatch.context() as lingering:
        lingering.setattr(client.store, "scan_children", scan_as_another_session)
        lock = await client.locks.acquire(PATH, timeout_seconds=10)
    assert lock.check().key not in seen[:1]
    await lock.release()


async def test_a_lock_that_is_claimed_anew_is_lost_to_a_faster_one(new_client: NewClient) -> None:
    """Nobody is in the queue when the holder looks, and somebody when its new claim is made."""
    first, second = await new_client(), await new_client()
    late = await first.locks.acquire(PATH)
    await second.session.sync()
    first.store.hold_writes.clear()
    writes = first.store.counts["transaction"]
    await second.session.delete(late.check().key)
    await until(lambda: first.store.counts["transaction"] > writes)
    async with await second.locks.acquire(PATH, timeout_seconds=10) as lock:
        first.store.hold_writes.set()
        await until(lambda: late.state in (LockState.HELD, LockState.LOST))
        assert late.state is LockState.LOST
        assert lock.is_held
    await until_found(lambda: has_claims(second, 0))


# ---- not answered


@pytest.mark.parametrize("lost_listings", [0, 1])
async def test_two_attempts_are_one_claim(client: Client, lost_listings: int) -> None:
    """The first attempt took effect without an answer. The check for it stays unanswered, too."""
    client.store.lost_replies = 1
    client.store.lost_listings = lost_listings
    async with await client.locks.acquire(PATH, timeout_seconds=10) as lock:
        assert await client.claims(PATH) == [lock.check().key]
    await until_found(lambda: has_claims(client, 0))


async def test_a_take_over_that_was_not_answered_is_found(new_client: NewClient) -> None:
    first, second = await new_client("me"), await new_client("me")
    held = await first.locks.acquire(PATH)
    await second.session.sync()
    second.store.lost_replies = second.store.lost_listings = 1
    taken = await second.locks.try_acquire(PATH, take_over=True)
    async with asyncio.timeout(60):
        await held.lost.wait()
    assert taken.is_held
    await until_found(lambda: has_claims(second, 1))
    await taken.release()


async def let_the_first_be_late(client: Client) -> None:
    """The first attempt of a claim, which was lost, happens just before the second."""
    await until(lambda: client.store.lost)
    client.store.hold_writes.clear()
    await until(lambda: client.store.counts["transaction"] == 2)
    await client.session.transaction(client.store.lost[0])
    client.store.hold_writes.set()


async def test_a_claim_is_not_behind_its_own_first_attempt(new_client: NewClient) -> None:
    """Which arrives after the look for it; it is in nobody's way, and goes."""
    client, other = await new_client(session_timeout_seconds=3.0), await new_client()
    client.store.lost_requests = 1
    async with asyncio.TaskGroup() as group:
        acquiring = group.create_task(client.locks.acquire(PATH, timeout_seconds=10))
        await let_the_first_be_late(client)
    lock = acquiring.result()
    await until_found(lambda: has_claims(client, 1))
    assert await client.claims(PATH) == [lock.check().key]
    assert lock.is_held
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.locks.acquire(PATH, timeout_seconds=10))
        await until_found(lambda: has_claims(other, 2))
        await lock.release()
    await waiting.result().release()


async def test_a_first_attempt_that_is_very_late_goes_too(client: Client) -> None:
    """After the second was made, and even after the lock was released."""
    client.store.lost_requests = 1
    lock = await client.locks.acquire(PATH)
    await lock.release()
    await settle()
    await client.session.transaction(client.store.lost[0])
    await until_found(lambda: has_claims(client, 0))


async def test_a_first_attempt_that_comes_behind_the_lock_goes_too(new_client: NewClient) -> None:
    """The lock was held for longer than its maker looks for what may come late."""
    client = await new_client(session_timeout_seconds=3.0)
    client.store.lost_requests = 1
    lock = await client.locks.acquire(PATH)
    await until(lambda: not client.participant._sweeping)
    await lock.release()
    await client.session.transaction(client.store.lost[0])
    await until_found(lambda: has_claims(client, 0))


async def test_a_lock_is_not_busy_with_its_own_first_attempt(client: Client) -> None:
    """A caller that does not wait still gets the lock."""
    client.store.lost_requests = 1
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(client.locks.try_acquire(PATH))
        await let_the_first_be_late(client)
    assert trying.result().is_held
    await until_found(lambda: has_claims(client, 1))


async def test_a_take_over_that_fails_because_it_was_done_leaves_no_claim(
    new_client: NewClient,
) -> None:
    """The late first attempt replaced the old claim, so the second finds none to replace."""
    first, second = await new_client("me"), await new_client("me")
    held = await first.locks.acquire(PATH)
    await second.session.sync()
    second.store.lost_requests = 1
    async with asyncio.TaskGroup() as group:
        acquiring = group.create_task(refused(second))
        await let_the_first_be_late(second)
    assert acquiring.result()
    # The holder either saw the other claim and lost the lock, or was slow and claimed it anew.
    await until_found(lambda: only_the_holders(second, held))


async def only_the_holders(client: Client, lock: Lock) -> bool:
    """True if the only claim is that of `lock`, if it is held, and there is none if it is lost."""
    claims = await client.claims(PATH)
    if lock.lost.is_set():
        return claims == []
    return lock.is_held and claims == [lock.check().key]


async def refused(client: Client) -> bool:
    """True if taking the lock over is refused."""
    try:
        await client.locks.try_acquire(PATH, take_over=True)
    except LockBusyError:
        return True
    return False


# ---- outlived


async def let_it_hang_past_its_end(
    backend: Backend, holder: Client, other: Client, key: str
) -> None:
    """Its session ends, and the recipes of `holder` hear nothing from the store until they may."""
    epoch = holder.participant.session_epoch
    holder.store.is_down = True
    await backend.expire(holder.session)
    await until(lambda: holder.participant.session_epoch > epoch)

    async def is_gone() -> bool:
        await other.session.sync()
        return await other.session.get(key) is None

    await until_found(is_gone)


async def test_a_dead_holder_takes_no_live_lock_back(
    backend: Backend, new_client: NewClient
) -> None:
    """Although the numbers of claims begin anew when the record above them does."""
    dead, middle, alive = (
        await new_client(session_timeout_seconds=3.0),
        *[await new_client() for _ in range(2)],
    )
    late = await dead.locks.try_acquire(PATH)
    check = late.check()
    await let_it_hang_past_its_end(backend, dead, middle, check.key)
    async with await middle.locks.acquire(PATH):
        pass
    await middle.session.delete_recursive("/locks")
    await alive.session.sync()
    async with await alive.locks.acquire(PATH) as lock:
        dead.store.is_down = False
        await until(lambda: late.state in (LockState.HELD, LockState.LOST))
        assert late.state is LockState.LOST
        await until(lambda: dead.participant.is_certain)
        with pytest.raises(BadVersionError):
            await dead.session.transaction([check, Put("/effect", b"dead")])
        await alive.session.transaction([lock.check(), Put("/effect", b"alive")])
        assert lock.is_held
        assert await alive.claims(PATH) == [lock.check().key]


async def test_a_dead_leader_takes_no_election_back(
    backend: Backend, new_client: NewClient
) -> None:
    dead, alive = await new_client(session_timeout_seconds=3.0), await new_client()
    async with Election(dead.participant, PATH) as late, Election(alive.participant, PATH) as other:
        assert await late.elect() is LeaderState.LEADING
        check = late.lock.check()
        await let_it_hang_past_its_end(backend, dead, alive, check.key)
        await alive.session.delete_recursive("/locks")
        assert await other.elect() is LeaderState.LEADING
        dead.store.is_down = False
        await until(lambda: late.state in (LeaderState.LEADING, LeaderState.FOLLOWING))
        assert late.state is LeaderState.FOLLOWING
        assert other.state is LeaderState.LEADING
        with pytest.raises(BadVersionError):
            await dead.session.transaction([check])
        await alive.session.transaction([other.lock.check()])


# ---- left behind


async def test_used_locks_leave_nothing_in_the_process(client: Client) -> None:
    participant = client.participant
    for number in range(3):
        manager = LockManager(participant)
        async with await manager.acquire(f"/locks/{number}"):
            pass
        async with Election(participant, "/election") as election:
            await election.elect()
            await election.leader()
        queue = Queue(participant, "/queue")
        await queue.put(b"")
        await (await queue.take()).done()
        async with Member(participant, "/members/me", b""):
            pass
    await until(lambda: not participant._listeners)
    assert (participant._closers, participant._live) == ({}, set())

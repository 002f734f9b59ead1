"""Read-write locks: readers together, a writer alone, and nobody starves."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from bookie.coordination.lock import Lock
from bookie.coordination.locks import ReadWriteLocks
from bookie.errors import LockBusyError, OperationTimeoutError
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import settle, until_found

PATH = "/rw/a"


@pytest.fixture
def locks(client: Client) -> ReadWriteLocks:
    """The shared locks of one client."""
    return ReadWriteLocks(client.participant)


async def test_readers_share_and_writers_do_not(new_client: NewClient) -> None:
    first, second = [ReadWriteLocks((await new_client()).participant) for _ in range(2)]
    async with await first.read(PATH), await second.read(PATH), await second.try_read(PATH):
        with pytest.raises(LockBusyError):
            await first.try_write(PATH)
    async with await first.write(PATH):
        with pytest.raises(LockBusyError):
            await second.try_read(PATH)
        with pytest.raises(LockBusyError):
            await second.try_write(PATH)
        with pytest.raises(OperationTimeoutError):
            await second.read(PATH, timeout_seconds=0.05)


async def test_the_line_is_kept_by_readers_and_writers(
    client: Client, locks: ReadWriteLocks
) -> None:
    """A writer is not passed by readers who came later; readers behind it come in together."""
    inside: list[str] = []
    leave = {name: asyncio.Event() for name in ("r1", "r2", "w1", "r3", "r4", "w2")}

    async def pass_through(name: str) -> None:
        lock: Lock = await (locks.read(PATH) if name[0] == "r" else locks.write(PATH))
        async with lock:
            inside.append(name)
            await leave[name].wait()
            inside.remove(name)

    async with asyncio.TaskGroup() as group:
        for count, name in enumerate(leave, 1):
            group.create_task(pass_through(name))
            await until_found(partial(_has_claims, client, count))
        stages = [["r1", "r2"], ["w1"], ["r3", "r4"], ["w2"]]
        for names in stages:
            await until_found(partial(_are_inside, inside, names))
            await settle()
            assert sorted(inside) == names
            for name in names:
                leave[name].set()
    assert await client.claims(PATH) == []


async def _has_claims(client: Client, count: int) -> bool:
    return len(await client.claims(PATH)) == count


async def _are_inside(inside: list[str], names: list[str]) -> bool:
    await asyncio.sleep(0)
    return sorted(inside) == names


async def test_a_writer_waits_only_for_the_last_reader_before_it(
    client: Client, new_client: NewClient
) -> None:
    """No herd: when the first of two readers goes, the writer sleeps on."""
    readers = ReadWriteLocks(client.participant)
    other = await new_client()
    first, second = await readers.read(PATH), await readers.read(PATH)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(ReadWriteLocks(other.participant).write(PATH))
        await until_found(partial(_has_claims, client, 3))
        await until_found(partial(_has_asked, other))
        before = other.store.reads
        await first.release()
        await settle()
        assert other.store.reads == before
        await second.release()
        await (await writing).release()


async def _has_asked(client: Client) -> bool:
    await asyncio.sleep(0)
    return client.store.counts["exists"] == 1


async def test_a_claim_that_cannot_be_read_keeps_readers_out(
    client: Client, locks: ReadWriteLocks
) -> None:
    """It may be that of a writer of a newer version."""
    key = f"{PATH}/claim-{32 * '0'}-"
    unreadable = await client.session.put(key, b"of a newer version", sequential=True)
    with pytest.raises(LockBusyError):
        await locks.try_read(PATH)
    with pytest.raises(OperationTimeoutError):
        await locks.read(PATH, timeout_seconds=0.05)
    await client.session.delete(unreadable.key)
    async with await locks.read(PATH, timeout_seconds=10) as lock:
        assert lock.is_held

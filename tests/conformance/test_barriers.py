"""Double barriers: all begin when all have come, and all leave when all have finished."""

from __future__ import annotations

import asyncio

import pytest

from bookie.coordination.barriers import DoubleBarrier
from bookie.errors import MetadataUnavailableError, OperationTimeoutError
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import settle, until_found


async def test_all_begin_together_and_end_together(new_client: NewClient) -> None:
    """Several times over the same key."""
    clients = [await new_client() for _ in range(4)]
    for _ in range(3):
        came: list[int] = []
        done: list[int] = []

        async def work(number: int, came: list[int] = came, done: list[int] = done) -> None:
            barrier = DoubleBarrier(
                clients[number].participant, "/barrier", f"p{number}", 4, timeout_seconds=20
            )
            came.append(number)
            async with barrier:
                assert len(came) == 4
                await asyncio.sleep(0.001 * number)
                done.append(number)
            assert len(done) == 4

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                await settle()
                assert done == []
                group.create_task(work(number))
        await clients[0].session.sync()
        assert await clients[0].session.get_children("/barrier") == []


async def test_too_few_give_up_in_time(new_client: NewClient) -> None:
    client = await new_client()
    with pytest.raises(OperationTimeoutError, match="fewer than 2 came"):
        async with DoubleBarrier(client.participant, "/barrier", "a", 2, timeout_seconds=0.05):
            pass
    assert await client.session.get_children("/barrier") == []


async def test_who_leaves_while_the_store_is_away_holds_nobody_up(new_client: NewClient) -> None:
    first, second = await new_client(), await new_client()

    async def fail() -> None:
        async with DoubleBarrier(first.participant, "/barrier", "a", 2):
            first.store.is_down = True

    async def work() -> None:
        with pytest.raises(MetadataUnavailableError):
            await fail()
        first.store.is_down = False

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(work())
        async with DoubleBarrier(second.participant, "/barrier", "b", 2):
            pass


async def test_the_dead_hold_nobody_up(backend: Backend, new_client: NewClient) -> None:
    alive, observer = await new_client(), await new_client()
    async with asyncio.timeout(60):
        async with backend.session(session_timeout_seconds=3.0) as session:
            from bookie.coordination.participant import Participant

            async with Participant(session) as participant, asyncio.TaskGroup() as group:
                dead = DoubleBarrier(participant, "/barrier", "z", 2)
                entering = group.create_task(dead.__aenter__())
                barrier = DoubleBarrier(alive.participant, "/barrier", "a", 2)
                await barrier.__aenter__()
                await entering
        await barrier.__aexit__(None, None, None)
    await observer.session.sync()
    assert await observer.session.get_children("/barrier/members") == []


async def test_who_comes_again_at_once_holds_nobody_up(new_client: NewClient) -> None:
    """Its new membership has the name of the one that a slow process waits for."""
    quick, slow = await new_client(), await new_client()

    def barrier(client: Client, name: str) -> DoubleBarrier:
        return DoubleBarrier(client.participant, "/barrier", name, 2, timeout_seconds=20)

    async def pass_through(client: Client, name: str) -> None:
        async with barrier(client, name):
            pass

    async def has_come_again() -> bool:
        await slow.session.sync()
        return again is not None and await slow.session.get_children("/barrier/members") == ["a"]

    first, second = barrier(quick, "a"), barrier(slow, "b")
    again: asyncio.Task[None] | None = None
    async with asyncio.TaskGroup() as group:
        entering = group.create_task(first.__aenter__())
        await second.__aenter__()
        await entering
        slow.store.hold_changes.clear()
        leaving = group.create_task(second.__aexit__(None, None, None))
        await first.__aexit__(None, None, None)
        again = group.create_task(pass_through(quick, "a"))
        await until_found(has_come_again)
        slow.store.hold_changes.set()
        async with asyncio.timeout(60):
            await leaving
        await pass_through(slow, "b")

"""A bookie without its metadata store: how long it goes on, and with which sentence it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bookie.config.sections import SessionSettings
from bookie.errors import SessionGivenUpError
from bookie.server.session_policy import obey_session_policy
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import simulated_loop

TIMEOUT = 10.0


def run(
    settings: SessionSettings, life: Callable[[FaultyMemoryStore], Coroutine[Any, Any, None]]
) -> float:
    """Live under a policy in virtual time; when it ended."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with (
            FaultyMemoryStore("session-policy", session_timeout_seconds=TIMEOUT) as store,
            asyncio.TaskGroup() as group,
        ):
            follower = group.create_task(obey_session_policy(store, settings, clock=loop.time))
            try:
                await life(store)
            finally:
                follower.cancel()

    loop = simulated_loop()
    try:
        loop.run(main())
    except* SessionGivenUpError as group:
        raise group.exceptions[0] from None
    return loop.time()


async def outage(store: FaultyMemoryStore, seconds: float) -> None:
    await asyncio.sleep(1.0)
    store.disconnect()
    store.expire_session()
    await asyncio.sleep(seconds)
    store.reconnect()
    await asyncio.sleep(1.0)


def test_reconnect_outlives_lost_sessions() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        for _ in range(5):
            await outage(store, 9.9 * TIMEOUT)

    assert run(SessionSettings(), life) == pytest.approx(5 * 101.0)


def test_reconnect_gives_up_at_its_limit() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        await outage(store, 10.1 * TIMEOUT)

    with pytest.raises(SessionGivenUpError, match="for 100 seconds, 10 session timeouts"):
        run(SessionSettings(), life)


def test_shutdown_ends_with_the_session_and_not_with_the_connection() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        await asyncio.sleep(1.0)
        store.disconnect()
        await asyncio.sleep(1.0)
        store.reconnect()
        await asyncio.sleep(1.0)
        await outage(store, 1.0)

    with pytest.raises(SessionGivenUpError, match=r"session\.policy is shutdown"):
        run(SessionSettings(policy="shutdown"), life)

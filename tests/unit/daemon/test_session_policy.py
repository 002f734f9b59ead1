"""A bookie without its metadata store: how long it goes on, and with which sentence it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pydantic import ValidationError

from bookie.config.sections import SessionSettings
from bookie.daemon.readiness import Part, Readiness
from bookie.daemon.session_policy import after_outages, obey_session_policy
from bookie.errors import SessionGivenUpError
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import simulated_loop

TIMEOUT = 10.0


def run(
    settings: SessionSettings,
    life: Callable[[FaultyMemoryStore], Coroutine[Any, Any, None]],
    metrics: Metrics | None = None,
    readiness: Readiness | None = None,
) -> float:
    """Live under a policy in virtual time; when it ended."""
    shown = metrics or Metrics(), readiness or Readiness()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with (
            FaultyMemoryStore("session-policy", session_timeout_seconds=TIMEOUT) as store,
            asyncio.TaskGroup() as group,
        ):
            policy = obey_session_policy(store, settings, *shown, clock=loop.time)
            follower = group.create_task(policy)
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


LONG = 100 * TIMEOUT
GIVES_UP = SessionSettings(give_up_after_timeouts=10.0)


def test_by_default_no_outage_ends_a_bookie() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        await outage(store, LONG)

    assert run(SessionSettings(), life) == pytest.approx(LONG + 2.0)


def test_an_outage_is_seen_while_it_lasts() -> None:
    """The metric counts its seconds, and a remark says so although the bookie is ready."""
    metrics, readiness = Metrics(), Readiness()
    readiness.clear(Part.BOOT)

    def seen() -> tuple[float | None, object, bool]:
        away = metrics.registry.get_sample_value("bookie_metadata_away_seconds")
        return away, readiness.report()["remarks"], readiness.is_ready

    async def life(store: FaultyMemoryStore) -> None:
        await asyncio.sleep(1.0)
        assert seen() == (0.0, [], True)
        store.disconnect()
        await asyncio.sleep(500.0)
        away, remarks, is_ready = seen()
        assert away == pytest.approx(500.0)
        assert remarks == [
            "the metadata store does not answer: reads and appends to open ledgers go on"
        ]
        assert is_ready
        store.reconnect()
        await asyncio.sleep(1.0)
        assert seen() == (0.0, [], True)

    run(SessionSettings(), life, metrics, readiness)


def test_a_limit_counts_each_outage_by_itself() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        for _ in range(5):
            await outage(store, 9.9 * TIMEOUT)

    assert run(GIVES_UP, life) == pytest.approx(5 * 101.0)


def test_a_bookie_gives_up_at_its_limit() -> None:
    async def life(store: FaultyMemoryStore) -> None:
        await outage(store, 10.1 * TIMEOUT)

    with pytest.raises(SessionGivenUpError, match="for 100 seconds, 10 session timeouts"):
        run(GIVES_UP, life)


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


def test_a_limit_within_a_session_is_refused() -> None:
    """The bookie would end before its session is lost."""
    with pytest.raises(ValidationError, match="must be 0 or at least 1"):
        SessionSettings(give_up_after_timeouts=0.5)


async def test_the_store_is_looked_at_when_a_session_begins_anew() -> None:
    """A restored store ends sessions; a connection that breaks and comes back does not."""
    looks = asyncio.Queue[None]()
    async with FaultyMemoryStore("outages") as store, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(after_outages(store, lambda: looks.put_nowait(None)))
        await asyncio.sleep(0)
        store.disconnect()
        store.reconnect()
        store.expire_session()
        async with asyncio.timeout(30):
            await looks.get()
        await asyncio.sleep(0)
        assert looks.empty()
        task.cancel()

"""The store in memory as a model: sessions end by the clock, and faults are as real ones are."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator

import pytest

from bookie.env import SystemClock
from bookie.errors import MetadataUnavailableError, SessionLostError
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.memory.tree import forget_tree
from bookie.metadata.model import Change, Commit, Resync
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.testing.faulty_memory import FaultyMemoryStore

_names = itertools.count()

TIMEOUT_SECONDS = 30.0


class HandClock(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        """The seconds that were set."""
        return self.seconds

    def now_ms(self) -> int:
        """The same, as a wall clock shows them."""
        return round(self.seconds * 1000)


@pytest.fixture
def name() -> str:
    return f"faults-{next(_names)}"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def store(name: str, clock: HandClock) -> AsyncIterator[FaultyMemoryStore]:
    async with FaultyMemoryStore(
        name, session_timeout_seconds=TIMEOUT_SECONDS, clock=clock
    ) as opened:
        yield opened


@pytest.fixture
async def observer(name: str, clock: HandClock) -> AsyncIterator[FaultyMemoryStore]:
    async with FaultyMemoryStore(name, clock=clock) as opened:
        yield opened


async def _ready(stream: AsyncIterator[SessionEvent]) -> list[SessionEvent]:
    """The events that are there already."""
    found = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                found.append(await anext(stream))
        except TimeoutError:
            return found


async def test_a_session_that_is_cut_off_is_lost_and_then_ends(
    store: FaultyMemoryStore, observer: FaultyMemoryStore, clock: HandClock
) -> None:
    """Cases 64, 68."""
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, observer.watch("/") as changes:
        store.disconnect()
        store.disconnect()
        assert await _ready(events) == [SessionEvent.CONNECTION_LOST]
        clock.seconds += TIMEOUT_SECONDS * 5 / 6 - 0.01
        store.let_time_pass()
        assert await _ready(events) == []
        clock.seconds += 0.02
        store.let_time_pass()
        assert await _ready(events) == [SessionEvent.SESSION_LOST]
        assert await observer.exists("/e"), "the server is later than its client"
        clock.seconds += TIMEOUT_SECONDS / 6
        assert not await observer.exists("/e")
        commit = await anext(changes)
        assert isinstance(commit, Commit)
        store.reconnect()
        assert await _ready(events) == list(EXPIRY_EVENTS[2:])
    assert not await store.exists("/e")
    assert (await store.put("/e", b"", ephemeral=True)).created_by_self


async def test_a_session_that_comes_back_in_time_keeps_its_records(
    store: FaultyMemoryStore, observer: FaultyMemoryStore, clock: HandClock
) -> None:
    """Case 63."""
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events, store.watch("/") as changes:
        store.disconnect()
        await observer.put("/missed", b"")
        clock.seconds += TIMEOUT_SECONDS / 2
        store.reconnect()
        assert await _ready(events) == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
        assert isinstance(await anext(changes), Resync)
    clock.seconds += TIMEOUT_SECONDS
    record = await store.get("/e")
    assert record is not None
    assert record.created_by_self


async def test_a_session_lost_by_the_clock_may_come_back_alive(
    store: FaultyMemoryStore, clock: HandClock
) -> None:
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events:
        store.disconnect()
        clock.seconds += TIMEOUT_SECONDS * 0.9
        store.reconnect()
        assert await _ready(events) == list(EXPIRY_EVENTS)
    record = await store.get("/e")
    assert record is not None
    assert record.created_by_self


async def test_an_expiry_during_an_outage_is_learned_at_its_end(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    """Case 65."""
    await store.put("/e", b"", ephemeral=True)
    async with store.session_events() as events:
        store.disconnect()
        store.expire_session()
        assert not await observer.exists("/e")
        assert await _ready(events) == [SessionEvent.CONNECTION_LOST]
        store.reconnect()
        assert await _ready(events) == list(EXPIRY_EVENTS[1:])


async def test_the_real_clock_ends_a_session_unasked(name: str) -> None:
    async with (
        FaultyMemoryStore(name, session_timeout_seconds=0.1) as store,
        FaultyMemoryStore(name) as observer,
        observer.watch("/") as changes,
    ):
        await store.put("/e", b"", ephemeral=True)
        await anext(changes)
        store.disconnect()
        async with asyncio.timeout(60):
            assert isinstance(await anext(changes), Commit)


async def test_a_wall_clock_that_jumps_ends_no_session(
    store: FaultyMemoryStore, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 162."""
    await store.put("/e", b"", ephemeral=True)
    store.disconnect()
    for hours in (1, -1):
        now_ms = clock.now_ms() + hours * 3_600_000
        monkeypatch.setattr(HandClock, "now_ms", lambda _, now_ms=now_ms: now_ms)
        store.let_time_pass()
    store.reconnect()
    assert await store.exists("/e")


async def test_a_lost_request_has_no_effect_and_a_lost_reply_has(store: FaultyMemoryStore) -> None:
    """Case 157."""
    store.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await store.put("/a", b"")
    assert not await store.exists("/a")
    store.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await store.put("/a", b"")
    assert await store.exists("/a")
    await store.put("/a", b"again")


async def test_a_slow_store_answers_late(store: FaultyMemoryStore) -> None:
    store.latency_seconds = 30.0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await store.exists("/a")
    store.latency_seconds = 0.0
    assert not await store.exists("/a")


async def test_held_events_come_in_order_when_they_are_released(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with observer.watch("/") as changes:
        observer.hold_watches()
        for i in range(3):
            await store.put(f"/{i}", b"")
        async with observer.watch("/") as later:
            observer.release_watches()
            await store.put("/3", b"")
            seen: list[Change] = [await anext(changes) for _ in range(4)]
            assert [e.key for c in seen if isinstance(c, Commit) for e in c.events] == [
                "/0",
                "/1",
                "/2",
                "/3",
            ]
            first = await anext(later)
            assert isinstance(first, Commit)
            assert first.events[0].key == "/3", "a watch begins when it is entered"


async def test_events_arrive_in_the_loop_of_their_consumer(
    name: str, store: FaultyMemoryStore
) -> None:
    """Case 16."""
    seen_in: list[int] = []

    async def write() -> None:
        async with FaultyMemoryStore(name) as other:
            await other.put("/from-a-thread", b"")

    async with store.watch("/") as changes:
        thread = threading.Thread(target=asyncio.run, args=(write(),))
        thread.start()
        async with asyncio.timeout(60):
            async for change in changes:
                seen_in.append(threading.get_ident())
                assert isinstance(change, Commit)
                break
        thread.join()
    assert seen_in == [threading.get_ident()]


async def test_a_write_under_an_ended_session_is_refused(store: FaultyMemoryStore) -> None:
    with store._tree.lock:
        store._tree.end_session(store._session)
    with pytest.raises(SessionLostError):
        await store.put("/a", b"")
    assert await store.get("/a") is None


async def test_times_are_those_of_the_clock(store: FaultyMemoryStore, clock: HandClock) -> None:
    created = await store.put("/a", b"")
    clock.seconds += 5
    written = await store.put("/a", b"")
    assert (created.created_ms, created.modified_ms) == (1_000_000, 1_000_000)
    assert (written.created_ms, written.modified_ms) == (1_000_000, 1_005_000)


async def test_a_tree_that_is_forgotten_begins_anew() -> None:
    """Stores that are open keep their records to themselves."""
    name = "test-forgotten"
    async with MemoryStore(name) as before:
        await before.put("/key", b"value")
        forget_tree(name)
        async with MemoryStore(name) as after:
            assert await after.get("/key") is None
        assert await before.get("/key") is not None
    forget_tree(name)
    forget_tree(name)

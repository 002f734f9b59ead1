"""Bookies that come, go, change sides and lose their sessions, and who sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import initialize_cluster, read_status
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration, encode_registration
from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    IdentityError,
    MetadataUnavailableError,
)
from bookie.ledger.catalog.removal import registered_bookies
from bookie.metadata.model import Commit
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore
from tests.conformance.streams import CREATED, DELETED, next_item

WRITABLE = keys.registration("b1", read_only=False)
READ_ONLY = keys.registration("b1", read_only=True)


def _bookie(bookie_id: str = "b1", *, port: int = 3181, read_only: bool = False) -> Registration:
    return Registration(
        bookie_id,
        (Endpoint("bookie", "host", port, "grpc"), Endpoint("http", "host", 8000, "http")),
        labels={"rack": "r1"},
        total_bytes=100,
        free_bytes=50,
        load=0.25,
        read_only=read_only,
    )


def _register(store: MetadataStore, registration: Registration) -> BookieRegistration:
    return BookieRegistration(store, registration)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  (another session's doing, which no event tells)
            await asyncio.sleep(0.01)


async def _seen(directory: BookieDirectory, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await directory.wait_for_change()


async def _is_ours(store: MetadataStore, key: str, registration: Registration) -> bool:
    record = await store.get(key)
    return (
        record is not None
        and record.created_by_self
        and record.value == encode_registration(registration)
    )


# ---- who is there


async def test_bookies_are_counted_by_what_they_take(backend: Backend) -> None:
    """Case 106."""
    store, other = await backend.open(), await backend.open()
    await initialize_cluster(store)
    for i in range(10):
        cookie = Cookie(f"b{i}", ("/j",), ("/l",), "instance", f"{i}", CookieState.NEW)
        await CookieManager(store).create(cookie)
        if i < 7:
            key = keys.registration(f"b{i}", read_only=i >= 4)
            await other.put(key, encode_registration(_bookie(f"b{i}")), ephemeral=True)
    await store.sync()
    status = await read_status(store)
    assert status.writable == ("b0", "b1", "b2", "b3")
    assert status.read_only == ("b4", "b5", "b6")
    assert status.known == tuple(f"b{i}" for i in range(10))
    await other.delete(keys.registration("b0", read_only=False))
    await store.sync()
    status = await read_status(store)
    assert status.writable == ("b1", "b2", "b3")
    assert len(status.known) == 10


async def test_what_a_bookie_says_of_itself_arrives_whole(backend: Backend) -> None:
    """Case 107."""
    store, observer = await backend.open(), await backend.open()
    async with BookieDirectory(observer) as directory:
        with pytest.raises(BookieUnreachableError):
            directory.resolve("b1")
        async with _register(store, _bookie()):
            await _seen(directory, lambda: "b1" in directory.bookies())
            assert directory.bookies()["b1"] == _bookie()
            assert directory.resolve("b1") == Endpoint("bookie", "host", 3181, "grpc")
        await _seen(directory, lambda: not directory.all())
        async with _register(store, _bookie(port=4000, read_only=True)) as handle:
            await _seen(directory, lambda: "b1" in directory.read_only())
            assert directory.resolve("b1").port == 4000
            await handle.update(_bookie(port=5000))
            await _seen(directory, lambda: "b1" in directory.bookies())
            await _seen(directory, lambda: not directory.read_only())
            assert directory.resolve("b1").port == 5000


async def test_a_directory_sees_all_that_come(backend: Backend) -> None:
    """Case 108."""
    observer, store = await backend.open(), await backend.open()
    async with BookieDirectory(observer) as directory:
        async with asyncio.TaskGroup() as tasks:
            for i in range(10):
                key = keys.registration(f"b{i}", read_only=i % 2 == 0)
                value = encode_registration(_bookie(f"b{i}", read_only=i % 2 == 0))
                tasks.create_task(store.put(key, value, ephemeral=True))
        await _seen(directory, lambda: len(directory.all()) == 10)
        assert sorted(directory.bookies()) == [f"b{i}" for i in (1, 3, 5, 7, 9)]
        assert sorted(directory.read_only()) == [f"b{i}" for i in (0, 2, 4, 6, 8)]


async def test_changing_sides_leaves_no_gap(backend: Backend) -> None:
    """Case 109."""
    store, observer = await backend.open(), await backend.open()
    async with (
        _register(store, _bookie()) as handle,
        BookieDirectory(observer) as directory,
        observer.watch(keys.AVAILABLE) as changes,
    ):
        present = {WRITABLE}
        for read_only in (True, False, True):
            await handle.update(_bookie(read_only=read_only))
            events = 0
            while events < 2:
                change = await next_item(changes)
                assert isinstance(change, Commit)
                for event in change.events:
                    events += 1
                    (present.discard if event.kind is DELETED else present.add)(event.key)
                    assert present, "between the two it is registered somewhere"
            assert directory.resolve("b1").port == 3181


async def test_what_an_outage_hid_is_seen_after_it(cut_off_backend: Backend) -> None:
    """Case 110."""
    backend = cut_off_backend
    store = await backend.open()
    observer = await backend.open(session_timeout_seconds=5)
    async with BookieDirectory(observer) as directory:
        async with _register(store, _bookie("gone")), observer.session_events() as events:
            await _seen(directory, lambda: "gone" in directory.bookies())
            await backend.disconnect(observer)
            assert await next_item(events) is SessionEvent.CONNECTION_LOST
        key = keys.registration("new", read_only=False)
        await store.put(key, encode_registration(_bookie("new")), ephemeral=True)
        assert set(directory.bookies()) == {"gone"}, "an outage is no reason to believe anything"
        await backend.reconnect(observer)
        await _seen(directory, lambda: set(directory.bookies()) == {"new"})


# ---- one bookie's registration


async def test_an_ended_session_is_followed_by_a_new_registration(backend: Backend) -> None:
    """Cases 111, 119."""
    store, observer = await backend.open(session_timeout_seconds=3), await backend.open()
    async with _register(store, _bookie()) as handle, store.session_events() as events:
        for _ in range(2):
            await backend.expire(store)
            async with asyncio.timeout(60):
                while await anext(events) is not SessionEvent.SESSION_REESTABLISHED:
                    continue
            await _until(lambda: _is_ours(store, WRITABLE, _bookie()))
        await observer.sync()
        async with observer.watch(keys.AVAILABLE) as changes:
            # Quiet from now on: the next thing that anybody sees is what we do ourselves.
            await handle.update(replace(_bookie(), free_bytes=1))
            change = await next_item(changes)
            assert isinstance(change, Commit)
            record = await observer.get(WRITABLE)
            assert record is not None
            assert change.revision in (None, record.stat.revision)
        assert handle.is_registered


async def test_a_registration_outlives_a_long_outage(cut_off_backend: Backend) -> None:
    """Case 112."""
    backend = cut_off_backend
    store, observer = await backend.open(session_timeout_seconds=1), await backend.open()
    async with _register(store, _bookie()) as handle, store.session_events() as events:
        await observer.sync()
        async with observer.watch(keys.AVAILABLE) as changes:
            await backend.disconnect(store)
            change = await next_item(changes)
            assert isinstance(change, Commit)
            assert [event.kind for event in change.events] == [DELETED]
            assert await next_item(events) is SessionEvent.CONNECTION_LOST
            with pytest.raises(MetadataUnavailableError):
                await handle.update(replace(_bookie(), free_bytes=1))
            await backend.reconnect(store)
            change = await next_item(changes)
            assert isinstance(change, Commit)
            assert [event.kind for event in change.events] == [CREATED]
        await _until(lambda: _is_ours(store, WRITABLE, replace(_bookie(), free_bytes=1)))


async def test_a_record_that_another_wrote_over_is_written_again(backend: Backend) -> None:
    """Case 114."""
    store, observer = await backend.open(), await backend.open()
    async with _register(store, _bookie()):
        await observer.sync()
        await observer.put(WRITABLE, b"somebody else's idea")
        await _until(lambda: _is_ours(store, WRITABLE, _bookie()))


async def test_a_deleted_record_is_written_again(backend: Backend) -> None:
    """Case 111."""
    store, observer = await backend.open(), await backend.open()
    async with _register(store, _bookie()):
        await observer.sync()
        await observer.delete(WRITABLE)
        await _until(lambda: _is_ours(store, WRITABLE, _bookie()))


async def test_what_a_former_session_left_is_taken_over(backend: Backend) -> None:
    """Cases 113, 116."""
    store, former = await backend.open(), await backend.open()
    handle = _register(store, _bookie())
    stat = await former.put(WRITABLE, b"left over", ephemeral=True)
    # As after a lost session on a server that has not ended it yet.
    handle._written = (stat.key, stat.version, stat.revision)
    await store.sync()
    async with handle:
        assert await _is_ours(store, WRITABLE, _bookie())


async def test_a_foreign_record_is_waited_for_and_left_alone(backend: Backend) -> None:
    """Cases 115, 122: also one that is not leased."""
    store, other = await backend.open(session_timeout_seconds=1), await backend.open()
    foreign = [
        await other.put(keys.registration(bookie_id, read_only=False), b"foreign", ephemeral=leased)
        for bookie_id, leased in (("b1", True), ("b2", False))
    ]
    await store.sync()

    async def refused(bookie_id: str) -> None:
        with pytest.raises(IdentityError, match=f"is registered as bookie {bookie_id}"):
            async with _register(store, _bookie(bookie_id)):
                pass

    async with asyncio.TaskGroup() as tasks:
        for bookie_id in ("b1", "b2"):
            tasks.create_task(refused(bookie_id))
    for stat in foreign:
        record = await other.get(stat.key)
        assert record is not None
        assert (record.value, record.version) == (b"foreign", stat.version)


async def test_a_slow_store_is_no_other_process(store: MetadataStore) -> None:
    """Case 115: however long its answers take."""
    slow = FaultyStore(store)
    slow.session_timeout_seconds = 0.02
    slow.latency_seconds = 0.05
    async with _register(slow, _bookie()) as handle:
        assert handle.is_registered
        # A repair waits for no one but the store, either.
        await store.delete(WRITABLE)
        await _until(lambda: _is_ours(store, WRITABLE, _bookie()))


async def test_a_store_that_falls_silent_says_nothing_of_others(backend: Backend) -> None:
    """Cases 115, 121."""
    store, other = await backend.open(), await backend.open()
    faulty = FaultyStore(store)
    faulty.session_timeout_seconds = 0.2
    await other.put(READ_ONLY, b"foreign", ephemeral=True)
    await store.sync()
    handle = _register(faulty, _bookie())
    async with asyncio.TaskGroup() as tasks:
        entering = tasks.create_task(_entered(handle))
        await _until(_looked(faulty))
        faulty.is_down = True
    assert isinstance(entering.result(), MetadataUnavailableError)
    faulty.is_down = False
    assert isinstance(await _entered(handle), IdentityError)


def _looked(store: FaultyStore) -> Callable[[], Awaitable[bool]]:
    async def looked() -> bool:
        return store.counts["get"] >= 2

    return looked


async def _entered(handle: BookieRegistration) -> BookieError | None:
    try:
        await handle.__aenter__()
    except BookieError as error:
        return error
    return None


async def test_a_predecessor_whose_session_ends_is_succeeded(backend: Backend) -> None:
    """Case 121."""
    store = await backend.open(session_timeout_seconds=20)
    handle = _register(store, _bookie())
    async with asyncio.TaskGroup() as tasks:
        async with backend.session() as predecessor:
            await predecessor.put(READ_ONLY, b"", ephemeral=True)
            await store.sync()
            entering = tasks.create_task(handle.__aenter__())
            done, _ = await asyncio.wait([entering], timeout=0.1)
            assert not done
        async with asyncio.timeout(60):
            await entering
    assert await _is_ours(store, WRITABLE, _bookie())
    assert await store.get(READ_ONLY) is None
    await handle.__aexit__(None, None, None)
    assert await store.get(WRITABLE) is None


async def test_an_id_that_is_lost_to_another_process_ends_the_bookie(backend: Backend) -> None:
    """Case 115."""
    store, other = await backend.open(session_timeout_seconds=1), await backend.open()

    async def serve() -> None:
        async with _register(store, _bookie()):
            await other.sync()
            record = await other.get(WRITABLE)
            assert record is not None
            await other.put(WRITABLE, b"mine", version=record.version, ephemeral=True)
            await asyncio.Event().wait()

    with pytest.raises(IdentityError):
        async with asyncio.timeout(60):
            await serve()
    record = await other.get(WRITABLE)
    assert record is not None
    assert record.value == b"mine"


async def test_who_leaves_during_a_repair_leaves_nothing_behind(backend: Backend) -> None:
    """Cases 117, 118."""
    store, observer = await backend.open(session_timeout_seconds=3), await backend.open()
    async with store.session_events() as events:
        async with _register(store, _bookie()):
            await backend.expire(store)
        async with asyncio.timeout(60):
            while await anext(events) is not SessionEvent.SESSION_REESTABLISHED:
                continue
    await store.put("/barrier", b"")
    await observer.sync()
    for one in (store, observer):
        assert await registered_bookies(one) == []


async def test_changing_sides_during_a_repair_leaves_one_record(backend: Backend) -> None:
    """Case 120."""
    store = await backend.open(session_timeout_seconds=3)
    wanted = _bookie(read_only=True)
    async with _register(store, _bookie()) as handle, store.session_events() as events:
        await backend.expire(store)
        async with asyncio.timeout(60):
            while await anext(events) is not SessionEvent.SESSION_REESTABLISHED:
                continue
        await handle.update(wanted)
        await _until(lambda: _is_ours(store, READ_ONLY, wanted))
        assert await store.get(WRITABLE) is None


async def test_a_store_that_does_not_answer_fails_the_registration(
    cut_off_backend: Backend,
) -> None:
    """Case 121."""
    backend = cut_off_backend
    store = await backend.open(session_timeout_seconds=3)
    async with store.session_events() as events:
        await backend.disconnect(store)
        assert await next_item(events) is SessionEvent.CONNECTION_LOST
        with pytest.raises(MetadataUnavailableError):
            async with asyncio.timeout(60), _register(store, _bookie()):
                pass
        await backend.reconnect(store)

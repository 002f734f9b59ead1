"""A bookie stays registered through everything, and a directory shows who is."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from bookie.cluster import keys
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration, encode_registration
from bookie.errors import (
    BookieUnreachableError,
    IdentityError,
    MetadataUnavailableError,
    NoSuchKeyError,
    UnauthorizedError,
    WrongClusterError,
)
from bookie.metadata.model import Change, ChangeKind, Commit, Put
from bookie.metadata.session import SessionEvent
from bookie.testing.faulty_memory import FaultyMemoryStore

_names = itertools.count()


@pytest.fixture
def name() -> str:
    return f"registration-{next(_names)}"


@pytest.fixture
async def store(name: str) -> AsyncIterator[FaultyMemoryStore]:
    async with FaultyMemoryStore(name, session_timeout_seconds=0.2) as opened:
        yield opened


@pytest.fixture
async def observer(name: str) -> AsyncIterator[FaultyMemoryStore]:
    async with FaultyMemoryStore(name) as opened:
        yield opened


def _registration(bookie_id: str = "bookie-1", *, port: int = 3181) -> Registration:
    return Registration(
        bookie_id,
        (Endpoint("bookie", "host", port, "grpc"), Endpoint("http", "host", 8000, "http")),
        labels={"rack": "r1"},
        total_bytes=100,
        free_bytes=50,
    )


async def _until(directory: BookieDirectory, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await directory.wait_for_change()


async def _next_put(changes: AsyncIterator[Change]) -> str:
    async with asyncio.timeout(60):
        while True:
            change = await anext(changes)
            assert isinstance(change, Commit)
            for event in change.events:
                if event.kind is not ChangeKind.DELETED:
                    return event.key


# ---- registration


async def test_a_bookie_is_registered_for_as_long_as_the_context(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    key = keys.registration("bookie-1", read_only=False)
    async with BookieRegistration(store, _registration()) as handle:
        record = await observer.get(key)
        assert record is not None
        assert record.ephemeral
        assert record.value == encode_registration(_registration())
    assert not handle.is_registered
    assert not await observer.exists(keys.AVAILABLE)


async def test_new_figures_replace_the_record(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    fuller = replace(_registration(), free_bytes=10)
    async with BookieRegistration(store, _registration()) as handle:
        await handle.update(fuller)
        record = await observer.get(keys.registration("bookie-1", read_only=False))
        assert record is not None
        assert record.value == encode_registration(fuller)
        assert handle.registration == fuller


async def test_between_writable_and_read_only_it_is_never_unregistered(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with BookieRegistration(store, _registration()) as handle:
        async with observer.watch(keys.AVAILABLE) as changes:
            for read_only in (True, False, True):
                await handle.update(replace(_registration(), read_only=read_only))
                assert await observer.get_children(keys.READ_ONLY) == ["bookie-1"] * read_only
                assert await observer.get_children(keys.WRITABLE) == ["bookie-1"] * (not read_only)
                change = await anext(changes)
                assert isinstance(change, Commit)
                assert [event.kind for event in change.events] == [
                    ChangeKind.CREATED,
                    ChangeKind.DELETED,
                ]
        assert handle.is_registered
    assert not await observer.exists(keys.AVAILABLE)


async def test_after_an_expired_session_it_is_registered_again(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    read_only = replace(_registration(), read_only=True)
    async with (
        BookieRegistration(store, _registration()) as handle,
        observer.watch(keys.AVAILABLE) as changes,
    ):
        for wanted in (_registration(), read_only):
            await handle.update(wanted)
            key = keys.registration("bookie-1", read_only=wanted.read_only)
            assert await _next_put(changes) == key
            store.expire_session()
            assert await _next_put(changes) == key
            record = await store.get(key)
            assert record is not None
            assert record.created_by_self


async def test_after_an_outage_it_is_registered_again(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    key = keys.registration("bookie-1", read_only=False)
    async with (
        BookieRegistration(store, _registration()) as handle,
        observer.watch(keys.AVAILABLE) as changes,
        store.session_events() as events,
    ):
        store.disconnect()
        store.expire_session()
        fuller = replace(_registration(), free_bytes=10)
        with pytest.raises(MetadataUnavailableError):
            await handle.update(fuller)
        assert not await observer.exists(key)
        async with asyncio.timeout(60):
            while await anext(events) is not SessionEvent.SESSION_LOST:
                continue
        await asyncio.sleep(0)  # the registration hears it in its own turn
        assert not handle.is_registered
        store.reconnect()
        assert await _next_put(changes) == key
        record = await observer.get(key)
        assert record is not None
        assert record.value == encode_registration(fuller)


async def test_of_ten_namesakes_one_registers(name: str) -> None:
    outcomes = []
    done = asyncio.Event()

    async def attempt() -> None:
        async with FaultyMemoryStore(name, session_timeout_seconds=0.1) as store:
            try:
                async with BookieRegistration(store, _registration()):
                    outcomes.append("registered")
                    await done.wait()
            except IdentityError:
                outcomes.append("refused")
            if len(outcomes) == 10:
                done.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(attempt())
    assert sorted(outcomes) == ["refused"] * 9 + ["registered"]


async def test_an_error_in_the_body_comes_out_as_itself(store: FaultyMemoryStore) -> None:
    with pytest.raises(NoSuchKeyError):
        async with BookieRegistration(store, _registration()):
            await store.delete("/nothing")
    assert not await store.exists(keys.AVAILABLE)


CLUSTER, OTHER_CLUSTER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.mark.parametrize("found", ["", OTHER_CLUSTER], ids=["empty", "another cluster"])
async def test_it_never_registers_in_another_cluster(
    store: FaultyMemoryStore, observer: FaultyMemoryStore, found: str
) -> None:
    """The store may come back empty or as another one; the bookie waits for its own."""
    key = keys.registration("bookie-1", read_only=False)
    await observer.put(keys.INSTANCE_ID, CLUSTER.encode())
    registration = BookieRegistration(store, _registration(), instance_id=CLUSTER)
    async with registration as handle, observer.watch(keys.AVAILABLE) as changes:
        store.disconnect()
        store.expire_session()
        await observer.delete(keys.INSTANCE_ID)
        if found:
            await observer.put(keys.INSTANCE_ID, found.encode())
            # A namesake there is no reason to end.
            await observer.put(key, encode_registration(_registration()), ephemeral=True)
        store.reconnect()
        async with asyncio.timeout(60):
            while not handle.obstacle.startswith("the metadata store holds"):  # noqa: ASYNC110  (no event)
                await asyncio.sleep(0.01)
        record = await store.get(key)
        assert record is None or not record.created_by_self
        with pytest.raises(WrongClusterError):
            await handle.update(replace(_registration(), free_bytes=10))
        if found:
            await observer.delete(key)
        await observer.put(keys.INSTANCE_ID, CLUSTER.encode())
        async with asyncio.timeout(60):
            while not handle.is_registered:
                await anext(changes)
                await asyncio.sleep(0)
        assert not handle.obstacle
        record = await store.get(key)
        assert record is not None
        assert record.created_by_self


async def test_a_store_that_refuses_it_is_waited_for(
    store: FaultyMemoryStore, observer: FaultyMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of the store may be missing or wrong for a while; that ends no bookie."""
    refused = asyncio.Event()

    async def refuse(_: str) -> None:
        refused.set()
        raise UnauthorizedError("etcd does not let nobody use the keys")

    async with (
        BookieRegistration(store, _registration()) as handle,
        observer.watch(keys.AVAILABLE) as changes,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(store, "get", refuse)
            store.expire_session()
            async with asyncio.timeout(60):
                await refused.wait()
        assert await _next_put(changes) == keys.registration("bookie-1", read_only=False)
        assert handle.registration == _registration()


# ---- directory


async def test_a_directory_is_complete_when_it_is_entered(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    second = replace(_registration("bookie-2"), read_only=True)
    async with (
        BookieRegistration(store, _registration()),
        BookieRegistration(store, second),
        BookieDirectory(observer) as directory,
    ):
        assert dict(directory.bookies()) == {"bookie-1": _registration()}
        assert dict(directory.read_only()) == {"bookie-2": second}
        assert sorted(directory.all()) == ["bookie-1", "bookie-2"]
        assert directory.resolve("bookie-2") == Endpoint("bookie", "host", 3181, "grpc")


async def test_a_directory_follows_every_change(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with BookieDirectory(observer) as directory:
        assert not directory.all()
        async with BookieRegistration(store, _registration()) as handle:
            await _until(directory, lambda: "bookie-1" in directory.bookies())
            await handle.update(_registration(port=4000))
            await _until(directory, lambda: directory.resolve("bookie-1").port == 4000)
            await handle.update(replace(_registration(), read_only=True))
            await _until(directory, lambda: "bookie-1" in directory.read_only())
            assert "bookie-1" not in directory.bookies()
        await _until(directory, lambda: not directory.all())


async def test_an_address_is_remembered_beyond_its_registration(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with BookieDirectory(observer) as directory:
        with pytest.raises(BookieUnreachableError, match="not registered"):
            directory.resolve("bookie-1")
        async with BookieRegistration(store, _registration()):
            await _until(directory, lambda: bool(directory.bookies()))
        await _until(directory, lambda: not directory.bookies())
        assert directory.resolve("bookie-1").port == 3181


async def test_an_outage_never_empties_a_directory(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with (
        BookieRegistration(store, _registration()),
        BookieDirectory(observer) as directory,
    ):
        observer.disconnect()
        async with BookieRegistration(store, _registration("bookie-2")):
            assert list(directory.bookies()) == ["bookie-1"]
            observer.reconnect()
            await _until(directory, lambda: len(directory.bookies()) == 2)


async def test_a_failing_read_is_retried_and_loses_nothing(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    async with (
        BookieRegistration(store, _registration()),
        BookieDirectory(observer) as directory,
    ):
        await store.transaction(
            [Put("/available/readwrite/bookie-2", encode_registration(_registration("bookie-2")))]
        )
        observer.disconnect()  # the event was delivered, its record can no longer be read
        for _ in range(5):
            await asyncio.sleep(0)
        assert list(directory.bookies()) == ["bookie-1"]
        observer.reconnect()
        await _until(directory, lambda: len(directory.bookies()) == 2)


async def test_an_unreadable_registration_hides_only_itself(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    await store.put("/available/readwrite/newer", b"{}")
    async with BookieDirectory(observer) as directory:
        await store.put("/available/readwrite/newest", b"\xff")
        async with BookieRegistration(store, _registration()):
            await _until(directory, lambda: list(directory.bookies()) == ["bookie-1"])


async def test_a_bookie_without_an_address_for_entries_is_unreachable(
    store: FaultyMemoryStore, observer: FaultyMemoryStore
) -> None:
    silent = replace(_registration(), endpoints=())
    async with (
        BookieRegistration(store, silent),
        BookieDirectory(observer) as directory,
    ):
        with pytest.raises(BookieUnreachableError, match="names no address"):
            directory.resolve("bookie-1")


async def test_a_directory_without_a_store_cannot_be_entered(observer: FaultyMemoryStore) -> None:
    observer.disconnect()
    with pytest.raises(MetadataUnavailableError):
        async with BookieDirectory(observer):
            pass


async def test_closing_the_store_first_leaves_the_last_view(
    name: str, store: FaultyMemoryStore
) -> None:
    async with BookieRegistration(store, _registration()):
        closing = FaultyMemoryStore(name)
        await closing.__aenter__()
        async with BookieDirectory(closing) as directory:
            await closing.__aexit__(None, None, None)
            assert list(directory.bookies()) == ["bookie-1"]

"""What every metadata store promises; each backend runs all of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    InvalidKeyError,
    KeyExistsError,
    KeyHasChildrenError,
    MetadataClosedError,
    NoSuchKeyError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.local import LocalStore
from bookie.metadata.memory import MemoryStore
from bookie.metadata.store import (
    EXPIRY_EVENTS,
    KEY_SIZE_BYTES_MAX,
    NOT_EXISTS,
    TRANSACTION_OPERATIONS_MAX,
    VALUE_SIZE_BYTES_MAX,
    Change,
    ChangeKind,
    Check,
    Commit,
    Delete,
    MetadataStore,
    Put,
    Record,
    Resync,
    WatchEvent,
)

T = TypeVar("T")

_names = itertools.count()


class Backend:
    """One store, opened by as many sessions as a test wants."""

    def __init__(self, uri: str, stack: AsyncExitStack) -> None:
        self.uri = uri
        self._stack = stack

    async def open(self, *, session_timeout_seconds: float = 30.0) -> MetadataStore:
        """A new session; it ends with the test, unless the test closes it."""
        return await self._stack.enter_async_context(
            open_store(self.uri, session_timeout_seconds=session_timeout_seconds)
        )

    async def expire(self, store: MetadataStore) -> None:
        """End the session of `store` as its peers would after a long silence."""
        if isinstance(store, MemoryStore):
            store.expire_session()
        elif isinstance(store, LocalStore):
            environment, session = store._require_open(), store._session
            await environment.submit(lambda tree: tree.end_session(session))


_URIS: dict[str, Callable[[Path], str]] = {
    "local": lambda directory: f"local://{directory}/metadata",
    "memory": lambda _: f"memory://test-{next(_names)}",
}


@pytest.fixture(params=sorted(_URIS))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Each backend in turn."""
    async with AsyncExitStack() as stack:
        yield Backend(_URIS[request.param](tmp_path), stack)


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    """One session."""
    return await backend.open()


async def _next(stream: AsyncIterator[T]) -> T:
    async with asyncio.timeout(10):
        return await anext(stream)


async def _next_events(stream: AsyncIterator[Change]) -> list[tuple[ChangeKind, str]]:
    change = await _next(stream)
    assert isinstance(change, Commit)
    return [(event.kind, event.key) for event in change.events]


async def _scan(store: MetadataStore, key: str, after: str = "") -> list[str]:
    return [record.name async for record in store.scan_children(key, after=after)]


async def test_an_unknown_key_is_absent_and_childless(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert await store.get("/a/b") is None
    assert not await store.exists("/a")
    assert await store.get_children("/a") == []
    assert await _scan(store, "/a") == []


async def test_deleting_an_unknown_key_fails(store: MetadataStore) -> None:
    with pytest.raises(NoSuchKeyError):
        await store.delete("/a")
    with pytest.raises(NoSuchKeyError):
        await store.delete("/a", version=1)


async def test_fifty_unconditional_puts_of_one_key_all_succeed(store: MetadataStore) -> None:
    async with asyncio.TaskGroup() as tasks:
        puts = [tasks.create_task(store.put("/a", b"%d" % i)) for i in range(50)]
    versions = [put.result() for put in puts]
    assert len(set(versions)) == 50
    record = await store.get("/a")
    assert record is not None
    assert record.version == max(versions)


@pytest.mark.parametrize("version", [0, 1, 12345])
async def test_a_put_with_a_version_never_creates(store: MetadataStore, version: int) -> None:
    with pytest.raises(BadVersionError):
        await store.put("/a", b"x", version=version)
    assert await store.get("/a") is None


async def test_a_create_returns_the_version_that_get_shows(store: MetadataStore) -> None:
    version = await store.put("/a", b"x", version=NOT_EXISTS)
    assert version >= 0
    assert await store.get("/a") == Record("/a", b"x", version)
    assert await store.exists("/a")


async def test_a_create_of_an_existing_key_changes_nothing(store: MetadataStore) -> None:
    version = await store.put("/a", b"x", version=NOT_EXISTS)
    with pytest.raises(KeyExistsError):
        await store.put("/a", b"y", version=NOT_EXISTS)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"y", version=version + 1)
    assert await store.get("/a") == Record("/a", b"x", version)


async def test_a_put_with_the_current_version_grows_it(store: MetadataStore) -> None:
    first = await store.put("/a", b"x")
    second = await store.put("/a", b"y", version=first)
    assert second > first
    assert await store.get("/a") == Record("/a", b"y", second)


async def test_versions_are_never_used_again_after_a_delete(store: MetadataStore) -> None:
    first = await store.put("/a", b"x", version=NOT_EXISTS)
    await store.delete("/a")
    second = await store.put("/a", b"x", version=NOT_EXISTS)
    assert second > first
    with pytest.raises(BadVersionError):
        await store.put("/a", b"y", version=first)


async def test_values_and_keys_round_trip_as_they_are(store: MetadataStore) -> None:
    value = bytes(range(256)) * 16
    for key in ("/é/ß", "/日本語", "/a b", "/..a/b..", "/" + "k" * (KEY_SIZE_BYTES_MAX - 1)):
        await store.put(key, value)
        record = await store.get(key)
        assert record is not None
        assert (record.key, record.value) == (key, value)
    await store.put("/empty", b"")
    record = await store.get("/empty")
    assert record is not None
    assert record.value == b""


async def test_the_largest_value_is_stored_and_a_larger_one_refused(store: MetadataStore) -> None:
    value = b"v" * VALUE_SIZE_BYTES_MAX
    await store.put("/a", value)
    record = await store.get("/a")
    assert record is not None
    assert record.value == value
    with pytest.raises(InvalidKeyError):
        await store.put("/a", value + b"v")


@pytest.mark.parametrize(
    "key",
    ["", " ", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0", "/\ud800", "/" + "é" * 240],
)
async def test_an_invalid_key_is_refused_everywhere(store: MetadataStore, key: str) -> None:
    for call in (
        store.get(key),
        store.exists(key),
        store.get_children(key),
        store.put(key, b""),
        store.delete(key),
        _scan(store, key),
        store.watch(key).__aenter__(),
    ):
        with pytest.raises(InvalidKeyError):
            await call


async def test_the_root_lists_but_has_no_record(store: MetadataStore) -> None:
    assert not await store.exists("/")
    await store.put("/a/b", b"")
    await store.put("/c", b"")
    assert await store.exists("/")
    assert await store.get_children("/") == ["a", "c"]
    assert await _scan(store, "/") == ["c"]
    with pytest.raises(InvalidKeyError):
        await store.get("/")
    with pytest.raises(InvalidKeyError):
        await store.put("/", b"")


async def test_children_are_the_next_level_only_sorted_and_once(store: MetadataStore) -> None:
    for name in (5, 3, 9, 1):
        await store.put(f"/k/c-{name}", b"%d" % name)
    await store.put("/k/c-0/cc-1", b"")
    await store.put("/k/c-0/cc-2/ccc-1", b"")
    await store.put("/k/c-5/cc", b"")
    await store.put("/k!/sibling", b"")
    await store.put("/k0", b"")
    assert await store.get_children("/k") == ["c-0", "c-1", "c-3", "c-5", "c-9"]
    assert await store.get_children("/k/c-0") == ["cc-1", "cc-2"]
    assert await _scan(store, "/k") == ["c-1", "c-3", "c-5", "c-9"]
    assert [r.value async for r in store.scan_children("/k", after="c-3")] == [b"5", b"9"]


async def test_a_scan_of_many_children_is_complete_and_ordered(store: MetadataStore) -> None:
    names = [f"{i:05}" for i in range(1500)]
    for start in range(0, len(names), 100):
        await store.transaction([Put(f"/many/{n}", b"") for n in names[start : start + 100]])
    assert await store.get_children("/many") == names
    assert await _scan(store, "/many") == names
    assert await _scan(store, "/many", after="00700") == names[701:]


async def test_a_scan_survives_deletions_around_it(store: MetadataStore) -> None:
    names = [f"{i:04}" for i in range(700)]
    for start in range(0, len(names), 100):
        await store.transaction([Put(f"/many/{n}", b"") for n in names[start : start + 100]])
    seen = []
    async for record in store.scan_children("/many"):
        seen.append(record.name)
        if int(record.name) % 2 == 0:
            await store.delete(record.key)
    assert seen == names


async def test_names_sort_as_their_bytes(store: MetadataStore) -> None:
    names = ["~", "a", "B", "é", "日", "\U0001f600", "a!", "a0", "￿"]
    for name in names:
        await store.put(f"/s/{name}", b"")
    assert await store.get_children("/s") == sorted(names, key=str.encode)
    assert await _scan(store, "/s") == sorted(names, key=str.encode)


async def test_parents_are_virtual_and_vanish_with_their_last_child(store: MetadataStore) -> None:
    await store.put("/p/q/r", b"")
    assert await store.exists("/p/q")
    assert await store.get("/p/q") is None
    with pytest.raises(NoSuchKeyError):
        await store.delete("/p/q")
    await store.delete("/p/q/r")
    assert not await store.exists("/p/q")
    assert not await store.exists("/p")
    assert await store.get_children("/") == []


async def test_a_parent_with_a_record_outlives_its_children(store: MetadataStore) -> None:
    await store.put("/p/q/r", b"")
    await store.put("/p/q", b"record")
    await store.delete("/p/q/r")
    assert await store.get_children("/p") == ["q"]
    await store.delete("/p/q")
    assert not await store.exists("/p")


async def test_a_key_with_children_cannot_be_deleted(store: MetadataStore) -> None:
    await store.put("/p", b"")
    await store.put("/p/q", b"")
    with pytest.raises(KeyHasChildrenError):
        await store.delete("/p")
    await store.delete("/p/q")
    await store.delete("/p")


async def test_a_delete_with_another_version_changes_nothing(store: MetadataStore) -> None:
    version = await store.put("/a", b"")
    with pytest.raises(BadVersionError):
        await store.delete("/a", version=version + 1)
    assert await store.exists("/a")
    await store.delete("/a", version=version)
    assert not await store.exists("/a")


async def test_three_workers_count_to_a_hundred_by_compare_and_set(backend: Backend) -> None:
    first = await backend.open()
    await first.put("/counter", b"0")
    successes = 0

    async def work(store: MetadataStore) -> None:
        nonlocal successes
        while True:
            record = await store.get("/counter")
            assert record is not None
            if record.value == b"100":
                return
            try:
                await store.put("/counter", b"%d" % (int(record.value) + 1), version=record.version)
                successes += 1
            except BadVersionError:
                continue

    second = await backend.open()
    async with asyncio.TaskGroup() as tasks:
        for worker in (first, first, second):
            tasks.create_task(work(worker))
    assert successes == 100


async def test_exactly_one_of_two_creates_and_of_two_deletes_wins(backend: Backend) -> None:
    stores = [await backend.open(), await backend.open()]

    async def outcome(call: Awaitable[object]) -> str:
        try:
            await call
        except (KeyExistsError, NoSuchKeyError):
            return "lost"
        return "won"

    async with asyncio.TaskGroup() as tasks:
        creates = [
            tasks.create_task(outcome(store.put("/a", b"", version=NOT_EXISTS))) for store in stores
        ]
    assert sorted(task.result() for task in creates) == ["lost", "won"]
    async with asyncio.TaskGroup() as tasks:
        deletes = [tasks.create_task(outcome(store.delete("/a"))) for store in stores]
    assert sorted(task.result() for task in deletes) == ["lost", "won"]


async def test_another_session_sees_a_write_after_sync(backend: Backend) -> None:
    first, second = await backend.open(), await backend.open()
    await first.put("/a/b", b"1")
    await second.sync()
    assert await second.get_children("/a") == ["b"]
    await second.put("/a/b", b"2")
    await first.sync()
    record = await first.get("/a/b")
    assert record is not None
    assert record.value == b"2"


async def test_records_outlive_the_store_object(backend: Backend) -> None:
    async with open_store(backend.uri) as store:
        version = await store.put("/a/b/c", b"x")
    async with open_store(backend.uri) as store:
        assert await store.get("/a/b/c") == Record("/a/b/c", b"x", version)
        assert await store.put("/a/b/c", b"y") > version


async def test_every_call_on_a_closed_store_fails(backend: Backend) -> None:
    async with open_store(backend.uri) as store:
        await store.put("/a", b"")
    for call in (
        store.get("/a"),
        store.exists("/a"),
        store.get_children("/"),
        store.put("/a", b""),
        store.delete("/a"),
        store.transaction([Check("/a", 1)]),
        store.sync(),
        _scan(store, "/"),
        store.watch("/").__aenter__(),
        store.session_events().__aenter__(),
    ):
        with pytest.raises(MetadataClosedError):
            await call


async def test_closing_one_session_leaves_the_other(backend: Backend) -> None:
    store = await backend.open()
    async with open_store(backend.uri) as other:
        await other.put("/a", b"")
    assert await store.exists("/a")
    await store.put("/b", b"")


# ---- transactions


async def test_a_transaction_does_all_or_nothing(store: MetadataStore) -> None:
    a = await store.put("/a", b"1")
    with pytest.raises(BadVersionError):
        await store.transaction(
            [Put("/new", b""), Delete("/a", a), Put("/c", b"", version=7), Put("/d", b"")]
        )
    assert await store.get_children("/") == ["a"]
    versions = await store.transaction(
        [Check("/a", a), Check("/none", NOT_EXISTS), Put("/b/x", b"1", NOT_EXISTS), Put("/c", b"2")]
    )
    assert versions[:2] == [a, NOT_EXISTS]
    record = await store.get("/b/x")
    assert record == Record("/b/x", b"1", versions[2])
    assert await store.get_children("/") == ["a", "b", "c"]


async def test_a_failed_check_names_what_is_wrong(store: MetadataStore) -> None:
    version = await store.put("/a", b"1")
    with pytest.raises(BadVersionError, match="/a has version"):
        await store.transaction([Check("/a", version + 1), Put("/b", b"")])
    with pytest.raises(KeyExistsError, match="/a exists"):
        await store.transaction([Check("/a", NOT_EXISTS), Put("/b", b"")])
    with pytest.raises(BadVersionError, match="/b does not exist"):
        await store.transaction([Check("/b", version)])
    assert await store.get("/b") is None


async def test_an_empty_transaction_or_one_of_checks_writes_nothing(store: MetadataStore) -> None:
    version = await store.put("/a", b"1")
    assert await store.transaction([]) == []
    assert await store.transaction([Check("/a", version)]) == [version]
    assert await store.put("/b", b"") > version


@pytest.mark.parametrize(
    "operations",
    [
        [Put("/a", b""), Put("/a", b"")],
        [Put("/a", b""), Check("/a", 1)],
        [Delete("/a"), Put("/a", b"")],
        [Delete("/a/b"), Delete("/a")],
        [Delete("/a"), Put("/a/b/c", b"")],
        [Put("/a", b"", ephemeral=True), Put("/a/b", b"")],
        [Put(f"/a/{i}", b"") for i in range(TRANSACTION_OPERATIONS_MAX + 1)],
    ],
)
async def test_a_transaction_beyond_the_shared_limits_is_refused(
    store: MetadataStore, operations: list[Put | Delete | Check]
) -> None:
    with pytest.raises(BadRequestError):
        await store.transaction(operations)
    assert await store.get_children("/") == []


async def test_a_transaction_of_too_many_bytes_is_refused(store: MetadataStore) -> None:
    half = b"v" * (VALUE_SIZE_BYTES_MAX - 100)
    with pytest.raises(InvalidKeyError):
        await store.transaction([Put("/a", half), Put("/b", half)])


@pytest.mark.parametrize("version", [-2, -100])
async def test_numbers_that_are_no_versions_are_refused(store: MetadataStore, version: int) -> None:
    with pytest.raises(BadRequestError):
        await store.put("/a", b"", version=version)
    with pytest.raises(BadRequestError):
        await store.delete("/a", version=version)
    with pytest.raises(BadRequestError):
        await store.delete("/a", version=NOT_EXISTS)
    with pytest.raises(BadRequestError):
        await store.transaction([Check("/a", version)])


# ---- ephemeral records


async def test_an_ephemeral_record_ends_with_its_session(backend: Backend) -> None:
    watcher = await backend.open()
    async with open_store(backend.uri) as owner:
        version = await owner.put("/e/1", b"x", ephemeral=True)
        await owner.put("/p", b"x")
        assert await owner.get("/e/1") == Record("/e/1", b"x", version, True, True)
        await watcher.sync()
        assert await watcher.get("/e/1") == Record("/e/1", b"x", version, True, False)
    await watcher.sync()
    assert not await watcher.exists("/e")
    assert await watcher.exists("/p")


async def test_a_plain_put_never_changes_whose_record_it_is(backend: Backend) -> None:
    observer = await backend.open()
    async with open_store(backend.uri) as owner:
        first = await owner.put("/e", b"1", ephemeral=True)
        second = await observer.put("/e", b"2", version=first)
        await observer.put("/e", b"3")
        await owner.sync()
        record = await owner.get("/e")
        assert record is not None
        assert record.version > second
        assert (record.value, record.ephemeral, record.created_by_self) == (b"3", True, True)
        await owner.put("/e", b"4", ephemeral=True)
    await observer.sync()
    assert not await observer.exists("/e")


async def test_a_persistent_record_never_turns_ephemeral(store: MetadataStore) -> None:
    version = await store.put("/a", b"")
    for expected in (None, version):
        with pytest.raises(KeyExistsError):
            await store.put("/a", b"", version=expected, ephemeral=True)
    assert await store.get("/a") == Record("/a", b"", version)


async def test_a_foreign_ephemeral_record_is_taken_over_only_by_its_version(
    backend: Backend,
) -> None:
    taker = await backend.open()
    async with open_store(backend.uri) as owner:
        version = await owner.put("/e", b"1", ephemeral=True)
        await taker.sync()
        with pytest.raises(BadVersionError):
            await taker.put("/e", b"2", ephemeral=True)
        with pytest.raises(BadVersionError):
            await taker.put("/e", b"2", version=version + 1, ephemeral=True)
        await taker.put("/e", b"2", version=version, ephemeral=True)
    await taker.sync()
    record = await taker.get("/e")
    assert record is not None
    assert (record.value, record.created_by_self) == (b"2", True)
    await taker.delete("/e")


async def test_an_ephemeral_record_has_no_children(store: MetadataStore) -> None:
    await store.put("/e", b"", ephemeral=True)
    for key in ("/e/a", "/e/a/b"):
        with pytest.raises(InvalidKeyError):
            await store.put(key, b"")
    await store.put("/p/q", b"")
    with pytest.raises(KeyHasChildrenError):
        await store.put("/p", b"", ephemeral=True)


async def test_an_expired_session_loses_its_records_and_gets_a_new_session(
    backend: Backend,
) -> None:
    store, observer = await backend.open(), await backend.open()
    await store.put("/e", b"", ephemeral=True)
    await store.put("/p", b"")
    async with store.session_events() as events, observer.watch("/") as changes:
        await backend.expire(store)
        assert [await _next(events) for _ in EXPIRY_EVENTS] == list(EXPIRY_EVENTS)
        assert await _next_events(changes) == [(ChangeKind.DELETE, "/e")]
        await store.put("/e", b"again", ephemeral=True)
        assert await _next_events(changes) == [(ChangeKind.PUT, "/e")]
    record = await store.get("/e")
    assert record is not None
    assert record.created_by_self
    assert await observer.exists("/p")


# ---- watches


async def test_a_watch_sees_each_change_once_and_in_order(store: MetadataStore) -> None:
    async with store.watch("/k") as changes:
        first = await store.put("/k", b"1")
        second = await store.put("/k", b"2")
        await store.put("/other", b"")
        await store.put("/kk", b"")
        third = await store.put("/k/xx", b"")
        await store.delete("/k/xx")
        put = ChangeKind.PUT
        assert await _next(changes) == Commit(first, (WatchEvent(put, "/k", first),))
        assert await _next(changes) == Commit(second, (WatchEvent(put, "/k", second),))
        assert await _next(changes) == Commit(third, (WatchEvent(put, "/k/xx", third),))
        last = await _next(changes)
        assert isinstance(last, Commit)
        (deletion,) = last.events
        assert (deletion.kind, deletion.key) == (ChangeKind.DELETE, "/k/xx")
        assert deletion.version > third


async def test_a_watch_sees_a_transaction_as_one_change(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    await store.put("/w/old", b"")
    await other.sync()
    async with other.watch("/w") as changes, other.watch("/x") as elsewhere:
        await store.transaction(
            [Put("/w/1", b""), Put("/x/1", b""), Delete("/w/old"), Put("/w/0", b"")]
        )
        assert await _next_events(changes) == [
            (ChangeKind.PUT, "/w/1"),
            (ChangeKind.DELETE, "/w/old"),
            (ChangeKind.PUT, "/w/0"),
        ]
        assert await _next_events(elsewhere) == [(ChangeKind.PUT, "/x/1")]


async def test_a_refused_write_shows_in_no_watch(store: MetadataStore) -> None:
    async with store.watch("/") as changes:
        with pytest.raises(BadVersionError):
            await store.transaction([Put("/a", b""), Check("/b", 5)])
        await store.put("/c", b"")
        assert await _next_events(changes) == [(ChangeKind.PUT, "/c")]


async def test_a_watch_begins_when_it_is_entered(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    async with other.watch("/"):
        await store.put("/before", b"")
        await other.sync()
        async with other.watch("/") as changes:
            await store.put("/after", b"")
            assert await _next_events(changes) == [(ChangeKind.PUT, "/after")]


async def test_a_mirror_of_four_busy_sessions_equals_the_store(backend: Backend) -> None:
    stores = [await backend.open() for _ in range(4)]
    observer = await backend.open()
    mirror: dict[str, int] = {}
    versions: list[int] = []

    async def work(store: MetadataStore, number: int) -> None:
        for i in range(60):
            key = f"/m/{(i * 7 + number) % 13}"
            if i % 5 == 4:
                try:
                    await store.delete(key)
                except NoSuchKeyError:
                    continue
            else:
                await store.put(key, b"%d" % i)

    async with observer.watch("/m") as changes:
        async with asyncio.TaskGroup() as tasks:
            for number, store in enumerate(stores):
                tasks.create_task(work(store, number))
        await stores[0].put("/m/end", b"")
        while "/m/end" not in mirror:
            change = await _next(changes)
            assert not isinstance(change, Resync)
            versions.append(change.version)
            for event in change.events:
                if event.kind is ChangeKind.PUT:
                    mirror[event.key] = event.version
                else:
                    del mirror[event.key]
    assert versions == sorted(set(versions))
    assert mirror == {r.key: r.version async for r in observer.scan_children("/m")}


async def test_closing_the_store_ends_its_watches(backend: Backend) -> None:
    async with open_store(backend.uri) as store:
        watch = store.watch("/")
        changes = await watch.__aenter__()
        events_watch = store.session_events()
        events = await events_watch.__aenter__()
        await store.put("/a", b"")
        assert await _next_events(changes) == [(ChangeKind.PUT, "/a")]
    with pytest.raises(MetadataClosedError):
        await _next(changes)
    with pytest.raises(MetadataClosedError):
        await _next(events)
    await watch.__aexit__(None, None, None)
    await events_watch.__aexit__(None, None, None)


async def test_an_error_in_the_body_passes_through_the_store(backend: Backend) -> None:
    with pytest.raises(NoSuchKeyError):
        async with open_store(backend.uri) as store:
            await store.delete("/nothing")


async def test_a_cancelled_body_passes_its_cancellation_on(backend: Backend) -> None:
    store = await backend.open()
    entered = asyncio.Event()

    async def body() -> None:
        async with open_store(backend.uri) as inner:
            await inner.put("/e", b"", ephemeral=True)
            entered.set()
            async with inner.watch("/") as changes:
                await anext(changes)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(body())
        await entered.wait()
        task.cancel()
    assert task.cancelled()
    await store.sync()
    assert not await store.exists("/e")

"""A cluster's layout and identity: made once, removed whole, and nothing beside it touched."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster, read_instance_id
from bookie.cluster.layout import FLAT, HIERARCHICAL, encode_layout, layout_of, read_layout
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClusterInUseError,
    FormatError,
    LayoutExistsError,
    MetadataUnavailableError,
    NewerFormatError,
    NoSuchKeyError,
)
from bookie.ledger.catalog.removal import cluster_exists, nuke_cluster, registered_bookies
from bookie.metadata.connect import open_store
from bookie.metadata.model import Operation, Put, Stat
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore

_COOKIE = Cookie("b1", ("/j",), ("/l",), "instance", "unique", CookieState.NEW)


async def _fill(store: MetadataStore) -> None:
    """Some of everything that a cluster keeps."""
    for key in ("/cookies/b1", "/ledgers/x/y", "/IDGEN/000", "/config/namespaces/n", "/logs/a/b"):
        await store.put(key, b"")


async def test_a_layout_is_written_once(store: MetadataStore) -> None:
    """Case 99."""
    with pytest.raises(NoSuchKeyError, match="cluster init"):
        await read_layout(store)
    await initialize_cluster(store, "hierarchical")
    assert await read_layout(store) is HIERARCHICAL
    with pytest.raises(LayoutExistsError):
        await initialize_cluster(store, "flat")
    assert await read_layout(store) is HIERARCHICAL
    await nuke_cluster(store)
    with pytest.raises(NoSuchKeyError):
        await read_layout(store)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", FormatError),
        (b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", FormatError),
        (b'{"format":"bookie-layout","ledgers":"spiral","version":1}', FormatError),
        (b'{"format":"bookie-layout","ledgers":"flat","version":9}', NewerFormatError),
    ],
)
async def test_a_layout_that_is_not_understood_is_left_alone(
    store: MetadataStore, value: bytes, error: type[BookieError]
) -> None:
    """Cases 99, 154."""
    await initialize_cluster(store)
    await store.put(keys.LAYOUT, value)
    for call in (read_layout(store), read_instance_id(store)):
        with pytest.raises(error, match="/LAYOUT") as caught:
            await call
        assert "\n" not in str(caught.value)
    with pytest.raises(LayoutExistsError):
        await initialize_cluster(store)
    record = await store.get(keys.LAYOUT)
    assert record is not None
    assert record.value == value


async def test_a_cluster_is_initialized_once(store: MetadataStore) -> None:
    """Cases 100, 101, 102."""
    assert not await cluster_exists(store)
    with pytest.raises(NoSuchKeyError, match="cluster init"):
        await read_instance_id(store)
    instance_id = await initialize_cluster(store)
    assert str(uuid.UUID(instance_id)) == instance_id
    assert await cluster_exists(store)
    assert await read_layout(store) is layout_of(None, store)
    with pytest.raises(LayoutExistsError, match="initialized already"):
        await initialize_cluster(store)
    assert await read_instance_id(store) == instance_id


async def test_of_five_initializations_at_once_one_wins(backend: Backend) -> None:
    """Case 102."""

    async def attempt(store: MetadataStore) -> str | None:
        try:
            return await initialize_cluster(store)
        except LayoutExistsError:
            return None

    stores = [await backend.open() for _ in range(5)]
    async with asyncio.TaskGroup() as tasks:
        attempts = [tasks.create_task(attempt(store)) for store in stores]
    (winner,) = [task.result() for task in attempts if task.result() is not None]
    await stores[0].sync()
    assert await read_instance_id(stores[0]) == winner


async def test_the_layout_may_be_chosen(store: MetadataStore) -> None:
    """Case 154."""
    with pytest.raises(BadRequestError):
        await initialize_cluster(store, "ms")
    assert not await cluster_exists(store)
    await initialize_cluster(store, "hierarchical")
    assert await read_layout(store) is HIERARCHICAL


async def test_a_cluster_is_nuked_whole(store: MetadataStore) -> None:
    """Case 103."""
    assert not await nuke_cluster(store)
    await initialize_cluster(store)
    await _fill(store)
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []
    assert not await nuke_cluster(store)


async def test_what_a_broken_nuke_left_is_nuked(store: MetadataStore) -> None:
    await _fill(store)
    assert await cluster_exists(store)
    assert await nuke_cluster(store)
    assert not await cluster_exists(store)


@pytest.mark.parametrize("registered", [(False,), (True,), (False, True)])
async def test_a_cluster_with_bookies_is_not_nuked(
    backend: Backend, registered: tuple[bool, ...]
) -> None:
    """Case 104."""
    store = await backend.open()
    instance_id = await initialize_cluster(store)
    await _fill(store)
    async with backend.session() as bookie:
        for i, read_only in enumerate(registered):
            key = keys.registration(f"b{i}", read_only=read_only)
            await bookie.put(key, b"", ephemeral=True)
        await store.sync()
        assert len(await registered_bookies(store)) == len(registered)
        with pytest.raises(ClusterInUseError, match="bookie b0"):
            await nuke_cluster(store)
        assert await read_instance_id(store) == instance_id
        assert await store.exists("/cookies/b1")
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []


async def test_a_scope_with_other_keys_is_left_alone(store: MetadataStore) -> None:
    """A key that only begins like one of ours is somebody else's."""
    await initialize_cluster(store)
    await _fill(store)
    await store.put("/ledgers-2/00", b"precious")
    with pytest.raises(ClusterInUseError, match="/ledgers-2"):
        await nuke_cluster(store)
    assert await store.exists("/cookies/b1")
    assert await store.exists(keys.LAYOUT)


async def test_a_bookie_that_registers_at_the_last_moment_stops_a_nuke(backend: Backend) -> None:
    """Case 104."""
    store, bookie = await backend.open(), await backend.open()
    instance_id = await initialize_cluster(store)
    await _fill(store)
    transaction = store.transaction
    registration = keys.registration("b1", read_only=False)

    async def late(operations):  # type: ignore[no-untyped-def]
        result = await transaction(operations)
        if not await bookie.exists(registration):
            await bookie.put(registration, b"", ephemeral=True)
        return result

    store.transaction = late  # type: ignore[method-assign]
    with pytest.raises(ClusterInUseError, match="b1"):
        await nuke_cluster(store)
    assert await read_instance_id(store) == instance_id
    assert await store.exists("/cookies/b1")


class _Broken(FaultyStore):
    """Falls silent at the transaction that a test names, before it happens or after it."""

    def __init__(self, store: MetadataStore, prefix: str, *, after: bool) -> None:
        super().__init__(store)
        self._prefix, self._after = prefix, after
        self.happened: Callable[[], Awaitable[object]] | None = None
        """Awaited between the transaction and the silence."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        is_it = any(operation.key.startswith(self._prefix) for operation in operations)
        if is_it and not self._after:
            self.is_down = True
        result = await super().transaction(operations)
        if is_it and self._after:
            if self.happened is not None:
                await self.happened()
            self.is_down = True
        return result


async def test_a_nuke_that_fails_half_way_does_not_cost_a_living_cluster(backend: Backend) -> None:
    """Case 104: a bookie registers, and the store falls silent before it is seen."""
    store, bookie = await backend.open(), await backend.open()
    broken = _Broken(store, keys.LAYOUT, after=True)
    registration = keys.registration("b1", read_only=False)

    async def register() -> None:
        await bookie.put(registration, b"", ephemeral=True)

    broken.happened = register
    instance_id = await initialize_cluster(store)
    await _fill(store)
    with pytest.raises(MetadataUnavailableError):
        await nuke_cluster(broken)
    with pytest.raises(ClusterInUseError, match="not removed whole"):
        await initialize_cluster(store)
    await store.sync()
    with pytest.raises(ClusterInUseError, match="bookie b1 registered"):
        await nuke_cluster(store)
    assert await read_instance_id(store) == instance_id
    assert await store.exists("/cookies/b1")
    await bookie.delete(registration)
    await store.sync()
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []


async def test_a_nuke_that_is_cancelled_gives_the_identity_back(store: MetadataStore) -> None:
    broken = _Broken(store, keys.LAYOUT, after=True)
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    broken.happened = wait
    instance_id = await initialize_cluster(store)
    async with asyncio.TaskGroup() as tasks:
        nuke = tasks.create_task(nuke_cluster(broken))
        async with asyncio.timeout(60):
            await reached.wait()
        assert not await store.exists(keys.INSTANCE_ID)
        broken._prefix = "/nothing"
        nuke.cancel()
    assert await read_instance_id(store) == instance_id
    assert sorted(await store.get_children("/")) == ["INSTANCEID", "LAYOUT"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", ["/config", "/cookies", "/ledgers", "/logs", "/IDGEN"])
async def test_no_cluster_is_made_in_the_remains_of_another(
    store: MetadataStore, at: str, after: bool
) -> None:
    """Case 103: the ids of its ledgers would be used twice."""
    await initialize_cluster(store)
    await _fill(store)
    await store.put("/ledgers/plain", b"")
    with pytest.raises(MetadataUnavailableError):
        await nuke_cluster(_Broken(store, at, after=after))
    remains = await store.get_children("/")
    assert "REMOVAL" in remains
    assert "IDGEN" in remains or not {"ledgers", "cookies"}.intersection(remains)
    with pytest.raises(ClusterInUseError, match="not removed whole"):
        await initialize_cluster(store)
    assert await store.get_children("/") == remains
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []
    await initialize_cluster(store)


async def test_a_nuke_that_is_late_deletes_nothing_of_a_new_cluster(backend: Backend) -> None:
    """Case 103."""
    store, other = await backend.open(), await backend.open()
    await initialize_cluster(store)
    await _fill(store)
    late = FaultyStore(store)
    reached, seen = asyncio.Event(), 0

    def hold() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:  # the identity is gone, the removal has begun: this one deletes
            late.hold_writes.clear()
            reached.set()

    late.before_write = hold
    async with asyncio.TaskGroup() as tasks:
        nuke = tasks.create_task(nuke_cluster(late))
        async with asyncio.timeout(60):
            await reached.wait()
        await other.sync()
        assert await nuke_cluster(other)
        instance_id = await initialize_cluster(other)
        await _fill(other)
        late.hold_writes.set()
        assert await nuke
    await other.sync()
    assert await read_instance_id(other) == instance_id
    for name in ("IDGEN", "config", "cookies", "ledgers", "logs"):
        assert await other.exists(f"/{name}")


async def test_settings_may_be_there_before_the_cluster(store: MetadataStore) -> None:
    await store.put(f"{keys.SETTINGS}/a.b", b"1")
    await initialize_cluster(store)
    assert await store.exists(f"{keys.SETTINGS}/a.b")


async def test_a_damaged_removal_is_named_by_its_key(store: MetadataStore) -> None:
    """Case 161."""
    await store.put(keys.REMOVAL, b"junk")
    with pytest.raises(FormatError, match="/REMOVAL"):
        await nuke_cluster(store)


async def test_another_scope_with_the_same_prefix_stays(backend: Backend) -> None:
    """Case 103."""
    if not backend.has_siblings:
        return
    store = await backend.open()
    async with backend.sibling() as sibling:
        for one in (store, sibling):
            await initialize_cluster(one)
            await CookieManager(one).create(_COOKIE)
        theirs = await read_instance_id(sibling)
        await nuke_cluster(store)
        await sibling.sync()
        assert await read_instance_id(sibling) == theirs
        assert await CookieManager(sibling).bookie_ids() == ["b1"]
        await nuke_cluster(sibling)


async def test_no_cluster_is_made_inside_the_scope_of_another(backend: Backend) -> None:
    """A removal of the outer one would otherwise reach its keys."""
    store = await backend.open()
    await initialize_cluster(store)
    for path in backend.inner_paths:
        async with open_store(backend.uri + path) as inner:
            if backend.shares_inner_scopes:
                with pytest.raises(ClusterInUseError, match=r"lies in /.*, which holds another"):
                    await initialize_cluster(inner)
                assert await inner.get_children("/") == []
            else:
                await initialize_cluster(inner)


async def test_no_cluster_is_made_around_another(backend: Backend) -> None:
    """Whatever its depth, and also where our own keys would be."""
    for path in backend.inner_paths:
        store = await backend.open()
        async with open_store(backend.uri + path) as inner:
            await initialize_cluster(inner)
            await store.sync()
            if backend.shares_inner_scopes:
                with pytest.raises(ClusterInUseError, match=f"contains another cluster at {path};"):
                    await initialize_cluster(store)
                assert not await store.exists(keys.LAYOUT)
            else:
                await initialize_cluster(store)
                await nuke_cluster(store)
            await nuke_cluster(inner)


class _Overtaken(FaultyStore):
    """Another store acts between the last look and the transaction."""

    def __init__(self, store: MetadataStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._meanwhile = meanwhile

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if any(isinstance(operation, Put) for operation in operations):
            await self._meanwhile()
        return await super().transaction(operations)


@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_of_two_clusters_made_at_once_one_inside_the_other_one_stays(
    backend: Backend, first: str
) -> None:
    """Both looked before either was there."""
    store = await backend.open()
    for path in backend.inner_paths[:1]:
        async with open_store(backend.uri + path) as inner:
            early, late = (inner, store) if first == "inner" else (store, inner)
            overtaken = _Overtaken(late, partial(initialize_cluster, early))
            if backend.shares_inner_scopes:
                with pytest.raises(ClusterInUseError, match="another cluster"):
                    await initialize_cluster(overtaken)
                assert not await late.exists(keys.LAYOUT)
                assert not await late.exists(keys.INSTANCE_ID)
            else:
                await initialize_cluster(overtaken)
            await read_instance_id(early)


@pytest.mark.parametrize("by", ["identity", "removal"])
async def test_a_nuke_reaches_no_other_cluster(backend: Backend, by: str) -> None:
    """Two clusters that an earlier version made, one inside the other."""
    for path in backend.inner_paths:
        store = await backend.open()
        async with open_store(backend.uri + path) as inner:
            identity = await initialize_cluster(inner)
            await CookieManager(inner).create(_COOKIE)
            if by == "removal":
                with pytest.raises(MetadataUnavailableError):
                    await nuke_cluster(_Broken(inner, "/cookies", after=False))
            await store.put(keys.LAYOUT, encode_layout(FLAT))
            await store.put(keys.INSTANCE_ID, str(uuid.uuid4()).encode())
            await store.sync()
            if backend.shares_inner_scopes:
                for foreign in (False, True):
                    with pytest.raises(ClusterInUseError, match=f"another cluster at {path};"):
                        await nuke_cluster(store, foreign=foreign)
                await store.delete(keys.LAYOUT)
                await store.delete(keys.INSTANCE_ID)
            else:
                await nuke_cluster(store)
            await inner.sync()
            assert await CookieManager(inner).bookie_ids() == ["b1"]
            if by == "identity":
                assert await read_instance_id(inner) == identity
            await nuke_cluster(inner)


async def test_cookies_change_only_by_their_version(store: MetadataStore) -> None:
    """Case 106."""
    cookies = CookieManager(store)
    assert await cookies.read("b1") is None
    with pytest.raises(NoSuchKeyError):
        await cookies.delete("b1", 0)
    created = await cookies.create(_COOKIE)
    assert await cookies.read("b1") == created
    with pytest.raises(BookieError, match="has a cookie already"):
        await cookies.create(_COOKIE)
    with pytest.raises(BookieError):
        await cookies.write(_COOKIE, created.version + 1)
    written = await cookies.write(_COOKIE, created.version)
    assert written.version > created.version
    with pytest.raises(BookieError):
        await cookies.delete("b1", created.version + 1000)
    await cookies.delete("b1", written.version)
    assert await cookies.bookie_ids() == []

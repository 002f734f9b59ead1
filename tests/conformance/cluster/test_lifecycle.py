"""A cluster's layout and identity: made once, removed whole, and nothing beside it touched."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.factory import LedgerManagerFactory
from bookie.cluster.instance import initialize_cluster, read_instance_id
from bookie.cluster.layout import FLAT, HIERARCHICAL, LayoutManager, layout_of
from bookie.cluster.removal import (
    cluster_exists,
    format_cluster,
    nuke_cluster,
    registered_bookies,
)
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClusterInUseError,
    FormatError,
    LayoutExistsError,
    NewerFormatError,
    NoSuchKeyError,
)
from bookie.formats.cookie import Cookie, CookieState
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend

_COOKIE = Cookie("b1", ("/j",), ("/l",), "instance", "unique", CookieState.NEW)


async def _fill(store: MetadataStore) -> None:
    """Some of everything that a cluster keeps."""
    for key in ("/cookies/b1", "/ledgers/x/y", "/IDGEN/000", "/config/namespaces/n", "/logs/a/b"):
        await store.put(key, b"")


async def test_a_layout_is_written_once(store: MetadataStore) -> None:
    """Case 99."""
    layouts = LayoutManager(store)
    with pytest.raises(NoSuchKeyError, match="cluster init"):
        await layouts.read()
    with pytest.raises(NoSuchKeyError):
        await layouts.delete()
    await layouts.create(HIERARCHICAL)
    assert await layouts.read() is HIERARCHICAL
    with pytest.raises(LayoutExistsError):
        await layouts.create(FLAT)
    assert await layouts.read() is HIERARCHICAL
    await layouts.delete()
    with pytest.raises(NoSuchKeyError):
        await layouts.read()


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
    for call in (
        LayoutManager(store).read(),
        read_instance_id(store),
        LedgerManagerFactory.open(store),
    ):
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
    assert await LayoutManager(store).read() is layout_of(None, store)
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
    factory = await LedgerManagerFactory.open(store)
    assert factory.layout is HIERARCHICAL
    assert factory.instance_id == await read_instance_id(store)


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
        with pytest.raises(ClusterInUseError):
            await format_cluster(store)
        assert await read_instance_id(store) == instance_id
        assert await store.exists("/cookies/b1")
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []


async def test_a_cluster_is_formatted_anew(backend: Backend) -> None:
    """Case 105."""
    store = await backend.open()
    first = await format_cluster(store)
    await _fill(store)
    second = await format_cluster(store, "hierarchical")
    assert second != first
    assert await read_instance_id(store) == second
    assert sorted(await store.get_children("/")) == ["INSTANCEID", "LAYOUT"]
    bookie = await backend.open()
    await bookie.put(keys.registration("b1", read_only=False), b"", ephemeral=True)
    await store.sync()
    third = await format_cluster(store, force=True)
    assert third not in (first, second)
    assert await registered_bookies(store) == ["b1"]
    assert await read_instance_id(store) == third


async def test_a_scope_with_other_keys_is_left_alone(store: MetadataStore) -> None:
    """A key that only begins like one of ours is somebody else's."""
    await initialize_cluster(store)
    await _fill(store)
    await store.put("/ledgers-2/00", b"precious")
    for call in (nuke_cluster(store), format_cluster(store), format_cluster(store, force=True)):
        with pytest.raises(ClusterInUseError, match="/ledgers-2"):
            await call
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

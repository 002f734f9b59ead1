"""Listings and whole trees: children, scans, virtual parents, recursive deletes."""

from __future__ import annotations

import asyncio

import pytest

from bookie.errors import KeyHasChildrenError, MetadataUnavailableError, NoSuchKeyError
from bookie.metadata.model import NOT_EXISTS, Put
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend, Difference
from tests.conformance.streams import scan


async def _fill(store: MetadataStore, names: list[str]) -> None:
    for start in range(0, len(names), 100):
        await store.transaction([Put(f"/many/{n}", b"") for n in names[start : start + 100]])


async def test_children_are_the_next_level_only_sorted_and_once(store: MetadataStore) -> None:
    """Cases 8, 9."""
    for number in (5, 3, 9, 1):
        await store.put(f"/k/c-{number}", b"%d" % number)
    await store.put("/k/c-0/cc-1", b"")
    await store.put("/k/c-0/cc-2/ccc-1", b"")
    await store.put("/k/c-5/cc", b"")
    await store.put("/k!/sibling", b"")
    await store.put("/k0", b"")
    assert await store.get_children("/k") == ["c-0", "c-1", "c-3", "c-5", "c-9"]
    assert await store.get_children("/k/c-0") == ["cc-1", "cc-2"]
    assert await store.get_children("/k/c-0/cc-2") == ["ccc-1"]
    assert await scan(store, "/k") == ["c-1", "c-3", "c-5", "c-9"]
    assert [r.value async for r in store.scan_children("/k", after="c-3")] == [b"5", b"9"]
    for name in ("c-0", "c-1", "c-3", "c-5", "c-9"):
        await store.delete_recursive(f"/k/{name}")
    assert await store.get_children("/k") == []
    assert await store.get_children("/") == ["k!", "k0"]


async def test_a_scan_has_the_values_of_the_next_level_and_no_more(store: MetadataStore) -> None:
    """Case 37."""
    assert await scan(store, "/p") == []
    for name in ("b", "a"):
        await store.put(f"/p/{name}", name.encode())
        await store.put(f"/p/{name}/below", b"")
    await store.put("/p", b"itself")
    found = [(record.key, record.value) async for record in store.scan_children("/p")]
    assert found == [("/p/a", b"a"), ("/p/b", b"b")]


async def test_a_scan_of_many_children_is_complete_and_ordered(store: MetadataStore) -> None:
    """Case 37."""
    names = [f"{i:05}" for i in range(1500)]
    await _fill(store, names)
    assert await store.get_children("/many") == names
    assert await scan(store, "/many") == names
    assert await scan(store, "/many", after="00700") == names[701:]


async def test_a_scan_in_an_outage_is_whole_or_raises_what_every_read_does(
    cut_off_backend: Backend,
) -> None:
    """Case 37. It is cut off in the middle, while many records are read at once."""
    store = await cut_off_backend.open(session_timeout_seconds=5.0)
    await _fill(store, [f"{i:05}" for i in range(100)])
    found = 0
    try:
        async for _ in store.scan_children("/many"):
            found += 1
            if found == 1:
                await cut_off_backend.disconnect(store)
    except MetadataUnavailableError:
        assert found < 100
    else:
        assert found == 100
    await cut_off_backend.reconnect(store)


async def test_a_scan_survives_deletions_around_it(store: MetadataStore) -> None:
    """Case 128."""
    names = [f"{i:04}" for i in range(700)]
    await _fill(store, names)
    seen = []
    async for record in store.scan_children("/many"):
        seen.append(record.name)
        if int(record.name) % 2 == 0:
            await store.delete(record.key)
    assert seen == names


async def test_forty_large_values_are_read_and_written_at_once(store: MetadataStore) -> None:
    """Case 35."""
    values = {f"/big/{i:02}": bytes([i]) * 500_000 for i in range(40)}
    async with asyncio.TaskGroup() as tasks:
        for key, value in values.items():
            tasks.create_task(store.put(key, value))
    async with asyncio.TaskGroup() as tasks:
        gets = {key: tasks.create_task(store.get(key)) for key in values}
    for key, get in gets.items():
        record = get.result()
        assert record is not None
        assert record.value == values[key]
    assert [r.value[0] async for r in store.scan_children("/big")] == list(range(40))


async def test_names_sort_as_their_bytes(backend: Backend) -> None:
    """Case 8."""
    store = await backend.open()
    names = ["~", "a", "B", "é", "日", "a!", "a0", "ﬀ"]
    if not backend.differs(Difference.BASIC_NAMES):
        names.append("\U0001f600")
    for name in names:
        await store.put(f"/s/{name}", b"")
    assert await store.get_children("/s") == sorted(names, key=str.encode)
    assert await scan(store, "/s") == sorted(names, key=str.encode)


async def test_parents_are_virtual_and_vanish_with_their_last_child(store: MetadataStore) -> None:
    """Cases 10, 15."""
    await store.put("/p/q/r", b"")
    assert await store.exists("/p/q")
    assert await store.get("/p/q") is None
    with pytest.raises(NoSuchKeyError):
        await store.delete("/p/q")
    await store.delete("/p/q/r")
    assert not await store.exists("/p/q")
    assert not await store.exists("/p")
    assert await store.get_children("/") == []


async def test_a_parent_whose_last_child_went_with_its_session_is_in_nobodys_way(
    backend: Backend,
) -> None:
    """Cases 10, 15: it may be listed, and goes with the next child, or in a recursive delete."""
    store = await backend.open()
    async with backend.session() as owner:
        await owner.put("/p/q/r", b"", ephemeral=True)
        await owner.put("/s/q/r", b"", ephemeral=True)
    await store.sync()
    assert not await store.exists("/p/q")
    assert await store.get_children("/p/q") == []
    assert await store.get_children("/") == (
        ["p", "s"] if backend.differs(Difference.PARENTS_STAY) else []
    )
    await store.put("/p/q", b"record", version=NOT_EXISTS)
    await store.delete("/p/q")
    assert not await store.exists("/p")
    await store.delete_recursive("/s")
    assert await store.get_children("/") == []


async def test_a_parent_with_a_record_outlives_its_children(store: MetadataStore) -> None:
    """Case 15."""
    await store.put("/p/q/r", b"")
    await store.put("/p/q", b"record")
    await store.delete("/p/q/r")
    assert await store.get_children("/p") == ["q"]
    await store.delete("/p/q")
    assert not await store.exists("/p")


async def test_a_tree_is_deleted_and_its_sibling_stays(store: MetadataStore) -> None:
    """Case 14."""
    for key in ("/t", "/t/a", "/t/a/b", "/t/c/d/e", "/t-sibling/x", "/t0"):
        await store.put(key, b"")
    await store.delete_recursive("/t")
    assert not await store.exists("/t")
    assert await store.get_children("/") == ["t-sibling", "t0"]
    await store.delete_recursive("/t")
    await store.delete_recursive("/never")
    await store.delete_recursive("/")
    assert await store.get_children("/") == []


async def test_a_wide_tree_is_deleted_whole(store: MetadataStore) -> None:
    """Case 14."""
    await _fill(store, [f"{i:03}" for i in range(250)])
    await store.put("/many/007/below", b"")
    await store.put("/many/virtual/below", b"")
    await store.delete_recursive("/many")
    assert not await store.exists("/many")


async def test_a_tree_that_others_delete_too_is_gone(backend: Backend) -> None:
    stores = [await backend.open(), await backend.open()]
    await _fill(stores[0], [f"{i:03}" for i in range(150)])
    await stores[1].sync()
    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(store.delete_recursive("/many"))
    assert not await stores[0].exists("/many")


async def test_a_tree_that_never_ends_is_given_up(store: MetadataStore) -> None:
    await store.put("/t/a", b"")

    class Growing:
        """Every look at the children makes a new one before it answers."""

        count = 0

        async def get_children(self, key: str) -> list[str]:
            names = await type(store).get_children(store, key)
            self.count += 1
            if key == "/t":
                await store.put(f"/t/new-{self.count}", b"")
            return names

    growing = Growing()
    store.get_children = growing.get_children  # type: ignore[method-assign]
    await store.put("/t", b"")
    with pytest.raises(KeyHasChildrenError, match="creating keys below /t"):
        await store.delete_recursive("/t")
    del store.get_children

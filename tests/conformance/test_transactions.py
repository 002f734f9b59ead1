"""Several operations at once: all or nothing, and many transactions side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    InvalidKeyError,
    KeyExistsError,
    NoSuchKeyError,
)
from bookie.metadata.local.environment import LocalEnvironment
from bookie.metadata.model import (
    NOT_EXISTS,
    TRANSACTION_OPERATIONS_MAX,
    VALUE_SIZE_BYTES_MAX,
    Check,
    Delete,
    Put,
)
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.streams import assert_holds

WRITES = 200
"""At once."""


async def test_a_transaction_does_all_or_nothing(store: MetadataStore) -> None:
    a = await store.put("/a", b"1")
    with pytest.raises(BadVersionError):
        await store.transaction(
            [Put("/new", b""), Delete("/a", a.version), Put("/c", b"", version=7), Put("/d", b"")]
        )
    assert await store.get_children("/") == ["a"]
    stats = await store.transaction(
        [
            Check("/a", a.version),
            Check("/none", NOT_EXISTS),
            Put("/b/x", b"1", NOT_EXISTS),
            Put("/c", b"2"),
        ]
    )
    assert stats[:2] == [None, None]
    for key, value, stat in (("/b/x", b"1", stats[2]), ("/c", b"2", stats[3])):
        assert stat is not None
        assert stat.first_version
        await assert_holds(store, key, value, stat)
    assert stats[2] is not None
    assert stats[3] is not None
    assert stats[2].revision == stats[3].revision
    assert await store.get_children("/") == ["a", "b", "c"]
    assert await store.transaction([Delete("/a", a.version)]) == [None]


async def test_a_transaction_creates_replaces_and_numbers(store: MetadataStore) -> None:
    """Case 24."""
    old = await store.put("/old", b"1")
    new, replaced, numbered = await store.transaction(
        [
            Put("/new", b"2", NOT_EXISTS),
            Put("/old", b"3", old.version),
            Put("/n/x-", b"4", sequential=True),
        ]
    )
    assert new is not None
    assert replaced is not None
    assert numbered is not None
    assert replaced.version > old.version
    assert not replaced.first_version
    assert numbered.key.startswith("/n/x-")
    await assert_holds(store, "/new", b"2", new)
    await assert_holds(store, "/old", b"3", replaced)
    await assert_holds(store, numbered.key, b"4", numbered)


async def test_a_failed_check_names_what_is_wrong(store: MetadataStore) -> None:
    stat = await store.put("/a", b"1")
    with pytest.raises(BadVersionError, match="/a"):
        await store.transaction([Check("/a", stat.version + 1), Put("/b", b"")])
    with pytest.raises(KeyExistsError, match="/a"):
        await store.transaction([Check("/a", NOT_EXISTS), Put("/b", b"")])
    with pytest.raises(BadVersionError, match="/b"):
        await store.transaction([Check("/b", stat.version)])
    assert await store.get("/b") is None


async def test_the_first_failing_operation_decides_the_error(store: MetadataStore) -> None:
    stat = await store.put("/a", b"")
    with pytest.raises(NoSuchKeyError):
        await store.transaction([Put("/b", b""), Delete("/none"), Put("/a", b"", stat.version + 5)])
    with pytest.raises(BadVersionError):
        await store.transaction([Put("/b", b""), Put("/a", b"", stat.version + 5), Delete("/none")])
    assert await store.get("/b") is None


async def test_an_empty_transaction_or_one_of_checks_writes_nothing(store: MetadataStore) -> None:
    stat = await store.put("/a", b"1")
    assert await store.transaction([]) == []
    assert await store.transaction([Check("/a", stat.version)]) == [None]
    await assert_holds(store, "/a", b"1", stat)


@pytest.mark.parametrize(
    "operations",
    [
        [Put("/a", b""), Put("/a", b"")],
        [Put("/a", b""), Check("/a", 1)],
        [Delete("/a"), Put("/a", b"")],
        [Delete("/a/b"), Delete("/a")],
        [Delete("/a"), Put("/a/b/c", b"")],
        [Put("/a", b"", ephemeral=True), Put("/a/b", b"")],
        [Put("/a", b"", sequential=True), Put("/a", b"", sequential=True)],
        [Put(f"/a/{i}", b"") for i in range(TRANSACTION_OPERATIONS_MAX + 1)],
    ],
)
async def test_a_transaction_beyond_the_shared_limits_is_refused(
    store: MetadataStore, operations: list[Put | Delete | Check]
) -> None:
    with pytest.raises(BadRequestError):
        await store.transaction(operations)
    assert await store.get_children("/") == []


async def test_a_transaction_of_a_hundred_operations_is_done(store: MetadataStore) -> None:
    stats = await store.transaction(
        [Put(f"/a/{i:02}", b"") for i in range(TRANSACTION_OPERATIONS_MAX)]
    )
    assert len(stats) == len(await store.get_children("/a")) == TRANSACTION_OPERATIONS_MAX


async def test_a_transaction_of_too_many_bytes_is_refused(store: MetadataStore) -> None:
    half = b"v" * (VALUE_SIZE_BYTES_MAX - 100)
    with pytest.raises(InvalidKeyError):
        await store.transaction([Put("/a", half), Put("/b", half)])


# ---- many at once


async def test_writes_at_once_do_not_harm_each_other(store: MetadataStore) -> None:
    """Cases 31, 33."""

    async def outcome(*operations: Put | Delete) -> type[BookieError] | None:
        try:
            await store.transaction(operations)
        except BookieError as error:
            return type(error)
        return None

    calls: list[tuple[Put | Delete]] = [
        (Put("/ok", b"1"),),
        (Put("/missing", b"", version=1),),
        (Put("/new", b"2", NOT_EXISTS),),
        (Delete("/none"),),
        (Put("/ok-too", b"3"),),
    ]
    async with asyncio.TaskGroup() as tasks:
        outcomes = [tasks.create_task(outcome(*call)) for call in calls]
    assert [task.result() for task in outcomes] == [
        None,
        BadVersionError,
        None,
        NoSuchKeyError,
        None,
    ]
    assert await store.get_children("/") == ["new", "ok", "ok-too"]


async def test_more_at_once_than_are_sent_at_once(store: MetadataStore) -> None:
    """Reads beyond the bound of a kind of store wait for their turn; writes among them as well."""
    await store.put("/here", b"x")
    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(store.get("/here" if i % 2 else "/none")) for i in range(700)]
        writes = [tasks.create_task(store.put(f"/new/{i}", b"")) for i in range(WRITES)]
        lists = [tasks.create_task(store.get_children("/")) for _ in range(50)]
    assert [one.result() is None for one in reads] == [True, False] * 350
    assert len({one.result().revision for one in writes}) > 1
    assert all("here" in one.result() for one in lists)
    assert len(await store.get_children("/new")) == WRITES


async def test_writes_at_once_travel_together(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few commits of LMDB, without timers. Elsewhere each write is a request of its own."""
    store = await backend.open()
    if backend.name != "local":
        return
    await store.put("/many/kept", b"")
    commits, commit = [], LocalEnvironment._commit

    def counting(self: LocalEnvironment, *arguments: Any) -> object:
        commits.append(arguments)
        return commit(self, *arguments)

    monkeypatch.setattr(LocalEnvironment, "_commit", counting)
    async with asyncio.TaskGroup() as tasks:
        for i in range(WRITES):
            tasks.create_task(store.put(f"/many/{i}", b""))
    assert 0 < len(commits) <= WRITES / 2
    assert len(await store.get_children("/many")) == WRITES + 1
    before = len(commits)
    await store.put("/many/alone", b"")
    assert len(commits) > before


async def test_reads_at_once_get_each_its_own_answer(store: MetadataStore) -> None:
    """Case 32."""
    stat = await store.put("/there", b"1")
    async with asyncio.TaskGroup() as tasks:
        there = tasks.create_task(store.get("/there"))
        absent = tasks.create_task(store.get("/absent"))
    record = there.result()
    assert record is not None
    assert record.version == stat.version
    assert absent.result() is None


async def test_a_read_after_a_write_sees_it(store: MetadataStore) -> None:
    """Case 71."""
    for i in range(20):
        await store.put("/a", b"%d" % i)
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"%d" % i
        await store.delete("/a")
        assert await store.get("/a") is None
        assert not await store.exists("/a")

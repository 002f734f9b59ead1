"""Copying whole stores: nothing is left out silently, and a copy can be done again."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from bookie.errors import (
    FormatError,
    KeyExistsError,
    MetadataError,
    MetadataUnavailableError,
    NewerFormatError,
)
from bookie.metadata import transfer
from bookie.metadata.memory import MemoryStore
from bookie.metadata.records import TRANSACTION_OPERATIONS_MAX, VALUE_SIZE_BYTES_MAX
from bookie.metadata.transfer import export_lines, import_records, migrate, parse_export
from bookie.metadata.walk import Difference, differences, walk

_names = itertools.count()

TREE = {
    "/INSTANCEID": b"id",
    "/a": b"",
    "/a/b": b"1",
    "/a/b/c": b"\x00\xff",
    "/a-b": b"2",
    "/d/e/f": "größer\n".encode(),
}


@pytest.fixture
async def stores() -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    """Two empty stores."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(MemoryStore(f"transfer-{next(_names)}"))
            for _ in range(2)
        ]
        yield opened[0], opened[1]


async def fill(store: MemoryStore, tree: dict[str, bytes] = TREE) -> None:
    for key, value in tree.items():
        await store.put(key, value)


async def content(store: MemoryStore) -> dict[str, bytes]:
    return {record.key: record.value async for record in walk(store)}


Stores = tuple[MemoryStore, MemoryStore]


async def test_a_walk_sees_every_record_once_parents_first(stores: Stores) -> None:
    """In the order of the tree, not of the text: /a/b comes before /a-b."""
    store, _ = stores
    await fill(store)
    walked = [record.key async for record in walk(store)]
    assert walked == ["/INSTANCEID", "/a", "/a/b", "/a/b/c", "/a-b", "/d/e/f"]
    assert [record.key async for record in walk(store, "/a")] == ["/a", "/a/b", "/a/b/c"]
    assert [record.key async for record in walk(store, "/nothing")] == []


async def test_a_walk_of_more_keys_than_are_asked_for_at_a_time(stores: Stores) -> None:
    """In name order all the same."""
    store, _ = stores
    for number in range(200):
        await store.put(f"/x/{number:04}/y", b"")
    walked = [record.key async for record in walk(store)]
    assert walked == [f"/x/{number:04}/y" for number in range(200)]


async def test_a_walk_that_cannot_be_completed_raises(stores: Stores) -> None:
    """It never ends early."""
    store, _ = stores
    for number in range(200):
        await store.put(f"/x/{number:04}", b"")

    async def look() -> None:
        async for record in walk(store):
            if record.key == "/x/0010":
                store.disconnect()

    with pytest.raises(MetadataUnavailableError):
        await look()


async def test_an_export_comes_back_as_it_was(stores: Stores) -> None:
    """Empty values, zeros and text; what belongs to a session is named and left out."""
    source, target = stores
    await fill(source)
    await source.put("/live", b"", ephemeral=True)
    skipped: list[str] = []
    lines = [line async for line in export_lines(source, skipped=skipped.append)]
    assert skipped == ["/live"]
    copied = await import_records(target, parse_export(lines))
    assert (copied.written, copied.equal) == (len(TREE), 0)
    assert await content(target) == TREE
    again = await import_records(target, parse_export(lines))
    assert (again.written, again.equal) == (0, len(TREE))


async def test_an_export_of_a_part(stores: Stores) -> None:
    """What is at and below one key."""
    source, _ = stores
    await fill(source)
    lines = [line async for line in export_lines(source, "/a")]
    assert [key for key, _ in parse_export(lines).records] == ["/a", "/a/b", "/a/b/c"]


async def test_every_damage_of_a_file_is_refused(stores: Stores) -> None:
    """A line less, a line more, two exchanged, a letter changed: nothing of it is used."""
    source, _ = stores
    await fill(source)
    lines = [line async for line in export_lines(source)]
    for cut in range(len(lines)):
        with pytest.raises(FormatError):
            parse_export(lines[:cut])
    for gone in range(len(lines)):
        with pytest.raises(FormatError):
            parse_export(lines[:gone] + lines[gone + 1 :])
    for at in range(1, len(lines) - 2):
        exchanged = lines.copy()
        exchanged[at], exchanged[at + 1] = exchanged[at + 1], exchanged[at]
        with pytest.raises(FormatError):
            parse_export(exchanged)
    changed = [line.replace("/a-b", "/a-c") for line in lines]
    with pytest.raises(FormatError, match="was changed"):
        parse_export(changed)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "cut off"),
        (["{"], "line 1 is not JSON"),
        (["[1]"], "line 1 is not one of an export"),
        (['{"format": "other", "version": 1}'], "says that the file is 'other'"),
        (
            ['{"format": "bookie metadata", "version": 1}', '{"key": "/a", "value": "é"}'],
            "line 2 is not base64",
        ),
    ],
)
def test_what_is_no_export_is_refused(lines: list[str], sentence: str) -> None:
    """With the line that says so."""
    with pytest.raises(FormatError, match=sentence):
        parse_export(lines)


def test_an_export_of_a_newer_version_is_refused() -> None:
    """It is not damaged; we are too old."""
    with pytest.raises(NewerFormatError):
        parse_export(['{"format": "bookie metadata", "version": 3}'])


def test_an_export_of_an_older_version_says_no_number() -> None:
    """Its names do, when it is imported."""
    lines = [
        '{"format": "bookie metadata", "version": 1}',
        '{"key": "/q/n-0000000007", "value": "eA=="}',
    ]
    seal = {"records": 1, "sha256": hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest()}
    found = parse_export([*lines, json.dumps(seal)])
    assert (found.records, found.last_number) == ([("/q/n-0000000007", b"x")], 0)


async def test_another_value_in_the_target_stops_an_import(stores: Stores) -> None:
    """It is named and stays; --overwrite replaces it."""
    source, target = stores
    await fill(source)
    await target.put("/a/b", b"mine")
    lines = [line async for line in export_lines(source)]
    with pytest.raises(KeyExistsError, match="/a/b exists in the target"):
        await import_records(target, parse_export(lines))
    found = await content(target)
    assert found["/a/b"] == b"mine"
    assert "/INSTANCEID" not in found, "half a copy must not look like a cluster"
    await import_records(target, parse_export(lines), overwrite=True)
    assert await content(target) == TREE


async def test_a_migration_of_more_than_one_transaction(stores: Stores) -> None:
    """By number and by size of the records."""
    source, target = stores
    await fill(source)
    for number in range(3 * TRANSACTION_OPERATIONS_MAX):
        await source.put(f"/ledgers/{number:019}", b"%d" % number)
    for number in range(4):
        await source.put(f"/large/{number}", bytes(VALUE_SIZE_BYTES_MAX))
    seen: list[int] = []
    copied = await migrate(source, target, count=seen.append)
    assert copied.written == sum(seen) == len(TREE) + 3 * TRANSACTION_OPERATIONS_MAX + 4
    assert await content(target) == await content(source)


async def test_a_migration_that_was_cut_off_goes_on(stores: Stores) -> None:
    """Whatever it had written by then."""
    source, target = stores
    await fill(source)
    for number in range(250):
        await source.put(f"/ledgers/{number}", b"")

    def cut(_: int) -> None:
        target.disconnect()

    with pytest.raises(MetadataUnavailableError):
        await migrate(source, target, count=cut)
    target.reconnect()
    assert 0 < len(await content(target)) < 250
    copied = await migrate(source, target)
    assert copied.equal > 0
    assert copied.written + copied.equal == len(TREE) + 250
    assert await content(target) == await content(source)


async def test_a_source_in_use_is_refused_unless_asked_for(stores: Stores) -> None:
    """Its sessions' records are not copied in any case."""
    _, target = stores
    name = f"transfer-{next(_names)}"
    async with MemoryStore(name) as source, MemoryStore(name) as other:
        await fill(source)
        await other.put("/available/readwrite/b1", b"", ephemeral=True)
        with pytest.raises(MetadataError, match="/available/readwrite/b1 belongs to a live"):
            await migrate(source, target)
        assert await content(target) == {}
        copied = await migrate(source, target, live=True)
        assert copied.skipped == 1
        assert await content(target) == TREE


async def test_what_the_target_could_not_list_is_refused_before(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of a hundred thousand children goes to few kinds of stores."""
    source, target = stores
    monkeypatch.setattr(transfer, "NARROW_CHILDREN_MAX", 5)
    for number in range(6):
        await source.put(f"/ledgers/{number}", b"")
    assert (await migrate(source, target)).written == 6
    monkeypatch.setattr(MemoryStore, "lists_wide_directories", False)
    await source.put("/more", b"")
    with pytest.raises(MetadataError, match="/ledgers has 6 children, which the metadata store in"):
        await migrate(source, target)
    assert not await target.exists("/more")


async def test_a_migration_that_does_not_agree_says_where(stores: Stores) -> None:
    """A record in the target that the source does not have, or lost meanwhile."""
    source, target = stores
    await fill(source)
    await target.put("/foreign", b"123")
    with pytest.raises(MetadataError, match="/foreign differs after the copy: no record in the so"):
        await migrate(source, target)


async def test_a_target_that_would_give_a_number_again_is_no_copy(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is there, and nobody is told that it is verified."""
    source, target = stores
    for _ in range(3):
        await source.put("/q/n-", b"", sequential=True)
    lines = [line async for line in export_lines(source)]

    async def forget(_: int) -> None:
        return

    monkeypatch.setattr(target, "_number_above", forget)
    for copy in (migrate(source, target), import_records(target, parse_export(lines))):
        with pytest.raises(MetadataError, match="and numbers up to 3 were given in the source"):
            await copy


async def test_a_key_that_looks_numbered_is_in_no_copys_way() -> None:
    """Nor in that of a copy of the copy, where numbers were given."""
    async with AsyncExitStack() as stack:
        source, *copies = [
            await stack.enter_async_context(MemoryStore(f"transfer-{next(_names)}"))
            for _ in range(4)
        ]
        await source.put("/limits/999999999999999999", b"of a user")
        for copy in copies:
            await migrate(source, copy)
            for _ in range(3):
                await copy.put("/q/n-", b"", sequential=True)
            source = copy


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("/q/n-0000000007", 7),
        ("/q/n-12345678901", 12_345_678_901),
        ("/q/n-123456789", 0),
        ("/q/n", 0),
        ("/0000000007/n", 0),
        ("/q/" + "9" * 15, 10**15 - 1),
        ("/q/" + "9" * 30, 10**10 - 1),
        ("/q/day-20261122-0000000007", 7),
        ("/q/day20261122" + "0000000007", 7),
    ],
)
def test_what_a_name_says_of_numbers(key: str, number: int) -> None:
    """At least ten digits at its end, and no more than any number has."""
    assert transfer._number_of(key) == number


async def test_differences_are_found_on_both_sides(stores: Stores) -> None:
    """Missing left, missing right, and another value; in the order of the tree."""
    left, right = stores
    await fill(left)
    await fill(right)
    await left.delete("/a-b")
    await right.delete("/INSTANCEID")
    await right.put("/a/b", b"other")
    await right.put("/z", b"")
    assert [one async for one in differences(left, right)] == [
        Difference("/INSTANCEID", b"id", None),
        Difference("/a/b", b"1", b"other"),
        Difference("/a-b", None, b"2"),
        Difference("/z", None, b""),
    ]

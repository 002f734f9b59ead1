"""Copying whole stores: nothing is left out silently, and a copy can be done again."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
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
from bookie.metadata import export
from bookie.metadata.export import (
    Difference,
    differences,
    export_lines,
    import_records,
    migrate,
    parse_export,
    walk,
)
from bookie.metadata.model import TRANSACTION_OPERATIONS_MAX, VALUE_SIZE_BYTES_MAX
from bookie.testing.faulty_memory import FaultyMemoryStore

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
async def stores() -> AsyncIterator[tuple[FaultyMemoryStore, FaultyMemoryStore]]:
    """Two empty stores."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(FaultyMemoryStore(f"transfer-{next(_names)}"))
            for _ in range(2)
        ]
        yield opened[0], opened[1]


async def fill(store: FaultyMemoryStore, tree: dict[str, bytes] = TREE) -> None:
    for key, value in tree.items():
        await store.put(key, value)


async def content(store: FaultyMemoryStore) -> dict[str, bytes]:
    return {record.key: record.value async for record in walk(store)}


Stores = tuple[FaultyMemoryStore, FaultyMemoryStore]


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
    """The records at and below one key."""
    source, _ = stores
    await fill(source)
    lines = [line async for line in export_lines(source, "/a")]
    assert [key for key, _ in parse_export(lines)] == ["/a", "/a/b", "/a/b/c"]


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
        parse_export(['{"format": "bookie metadata", "version": 2}'])


def test_a_file_of_known_bytes_is_read() -> None:
    lines = [
        '{"format": "bookie metadata", "version": 1}',
        '{"key": "/a", "value": "eA=="}',
    ]
    seal = {"records": 1, "sha256": hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest()}
    assert parse_export([*lines, json.dumps(seal)]) == [("/a", b"x")]


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
    async with FaultyMemoryStore(name) as source, FaultyMemoryStore(name) as other:
        await fill(source)
        await other.put("/available/readwrite/b1", b"", ephemeral=True)
        with pytest.raises(MetadataError, match="/available/readwrite/b1 belongs to a live"):
            await migrate(source, target)
        assert await content(target) == {}
        copied = await migrate(source, target, live=True)
        assert copied.skipped == 1
        assert await content(target) == TREE


@pytest.mark.parametrize(
    ("value", "of"), [(b"host-7:123", " of the process host-7:123"), (b'{"load":1.0}', "")]
)
async def test_who_uses_the_source_is_told(stores: Stores, value: bytes, of: str) -> None:
    """A client that writes ledgers has a record, too, and it names its process."""
    _, target = stores
    name = f"transfer-{next(_names)}"
    async with FaultyMemoryStore(name) as source, FaultyMemoryStore(name) as client:
        await client.put("/writers/0123abcd", value, ephemeral=True)
        said = f"/writers/0123abcd belongs to a live session{of}; stop all bookies and clients"
        with pytest.raises(MetadataError, match=re.escape(said)):
            await migrate(source, target)


async def test_what_the_target_could_not_list_is_refused_before(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of a hundred thousand children goes to few kinds of stores."""
    source, target = stores
    monkeypatch.setattr(export, "NARROW_CHILDREN_MAX", 5)
    for number in range(6):
        await source.put(f"/ledgers/{number}", b"")
    assert (await migrate(source, target)).written == 6
    monkeypatch.setattr(FaultyMemoryStore, "lists_wide_directories", False)
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


@pytest.mark.parametrize(
    ("key", "is_queued"),
    [
        ("/q/items/item-0000000007", True),
        ("/items/item-12345678901", True),
        ("/q/items/item-123456789", False),
        ("/q/item-0000000007", False),
        ("/q/items/item-0000000007/below", False),
        ("/logs/day-20261122000", False),
    ],
)
async def test_only_items_of_queues_are_refused(stores: Stores, key: str, is_queued: bool) -> None:
    """Any other name may end with digits."""
    source, target = stores
    await source.put(key, b"")
    if is_queued:
        with pytest.raises(MetadataError, match=f"{key} is a queued item"):
            await migrate(source, target)
    else:
        await migrate(source, target)
    assert await target.exists(key) is not is_queued


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

"""Keys of numbers: they sort as numbers, and listings overlook nothing."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.cluster.layout import FLAT, HIERARCHICAL, SHORT_ID_MAX, LedgerLayout, layout_of
from bookie.errors import BadRequestError, FormatError
from bookie.ids import MAX_ID
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.model import Put

_names = itertools.count()

_IDS = st.one_of(
    st.integers(0, 50),
    st.integers(SHORT_ID_MAX - 3, SHORT_ID_MAX + 3),
    st.integers(0, MAX_ID),
    st.just(MAX_ID),
)


@pytest.mark.parametrize(
    ("ledger_id", "key"),
    [
        (1, "/ledgers/00/0000/L0001"),
        (2_147_483_646, "/ledgers/21/4748/L3646"),
        (2_147_483_647, "/ledgers/000/0000/0021/4748/L3647"),
        (MAX_ID, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_hierarchical_keys_are_those_of_java(ledger_id: int, key: str) -> None:
    """Case 123."""
    assert HIERARCHICAL.key(ledger_id) == key


@pytest.mark.parametrize("layout", [FLAT, HIERARCHICAL], ids=lambda layout: layout.name)
@pytest.mark.parametrize("wrong", [-1, MAX_ID + 1, 1.0, "1", None])
def test_what_is_no_id_has_no_key(layout: LedgerLayout, wrong: int) -> None:
    with pytest.raises(BadRequestError):
        layout.key(wrong)


def test_an_unknown_layout_is_named() -> None:
    """Case 154."""
    with pytest.raises(BadRequestError, match="flat and hierarchical"):
        layout_of("ms", MemoryStore("nothing"))


@given(ids=st.sets(_IDS, max_size=30), after=_IDS)
@pytest.mark.parametrize("layout", [FLAT, HIERARCHICAL], ids=lambda layout: layout.name)
def test_a_scan_finds_what_is_there_in_order(
    layout: LedgerLayout, ids: set[int], after: int
) -> None:
    """Cases 127, 132."""

    async def found(after: int) -> list[int]:
        return [ledger_id async for ledger_id, _ in layout.scan(store, after=after)]

    async def check() -> None:
        async with store:
            if ids:
                await store.transaction([Put(layout.key(ledger_id), b"") for ledger_id in ids])
            assert await found(-1) == sorted(ids)
            assert await found(after) == sorted(i for i in ids if i > after)

    store = MemoryStore(f"layout-{next(_names)}")
    asyncio.run(check())


@given(number=_IDS)
def test_a_key_is_read_back(number: int) -> None:
    tree = DigitTree("/t", (3, 4, 4, 4, 4), "L")
    assert tree.number_of(tree.key(number)) == number


@pytest.mark.parametrize(
    "key",
    [
        "/ledgers/00/0000/L000",
        "/ledgers/00/0000/0001",
        "/ledgers/0/00000/L0001",
        "/ledgers/00/0000/L00x1",
        "/ledgers/99/9999/L9999",
        "/ledgers/\u0660\u0660/0000/L0001",
        "/ledgers/L0001",
        "/ledgers",
        "/elsewhere/00/0000/L0001",
    ],
)
def test_a_key_that_is_no_numbers_is_refused(key: str) -> None:
    with pytest.raises(FormatError, match="metadata key"):
        DigitTree(keys.LEDGERS, (2, 4, 4), "L", SHORT_ID_MAX).number_of(key)


@pytest.mark.parametrize(
    "stranger",
    ["/ledgers/x", "/ledgers/00/abc", "/ledgers/00/0000/junk", "/ledgers/0000/0000", "/ledgers/L1"],
)
async def test_a_stranger_fails_the_listing(stranger: str) -> None:
    """Case 161."""
    async with MemoryStore(f"layout-{next(_names)}") as store:
        await store.put(HIERARCHICAL.key(5), b"")
        await store.put(stranger, b"")
        with pytest.raises(FormatError):
            [_ async for _ in HIERARCHICAL.scan(store)]


async def test_empty_and_half_built_directories_lose_nothing() -> None:
    """Cases 129, 130."""
    async with MemoryStore(f"layout-{next(_names)}") as store:
        for ledger_id in (1, 2**40):
            await store.put(HIERARCHICAL.key(ledger_id), b"")
        # As a store that keeps empty directories has them (ZooKeeper, after a crash).
        for directory in ("/ledgers/00/0001", "/ledgers/01", "/ledgers/000/0000/0000"):
            await store.put(directory, b"")
        assert [i async for i, _ in HIERARCHICAL.scan(store)] == [1, 2**40]

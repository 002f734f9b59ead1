"""The look at an LMDB file before it is mapped: sound files pass, whatever was damaged shows.

A sound file must pass, because a failure has its index rebuilt. A damaged file may pass only with
the content that was committed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from bookie.env.kv_check import check_lmdb_file
from bookie.errors import CorruptionError

TABLES = ("pages", "rows")
MAP_BYTES = 2**26
Content = dict[str, list[tuple[bytes, bytes]]]


def live(directory: Path, seed: int, steps: int) -> None:
    """Transactions of all sizes, with deletions, overwriting, and values of many pages."""
    rng = random.Random(seed)
    store = open_lmdb(str(directory), MAP_BYTES, TABLES)
    for step in range(steps):
        with store.write() as txn:
            pairs = {
                b"%016d" % rng.randrange(2000): rng.randbytes(rng.randrange(1, 772))
                for _ in range(rng.randrange(200))
            }
            txn.put_many("pages", sorted(pairs.items()))
            for _ in range(rng.randrange(60)):
                txn.delete("pages", b"%016d" % rng.randrange(2000))
            for _ in range(rng.randrange(20)):
                size = rng.randrange(100, 20_000) if rng.random() < 0.1 else 80
                txn.put("rows", b"%08d" % rng.randrange(500), rng.randbytes(size))
            if step % 10 == 9:
                # Pages that are allocated and freed in one transaction are never written.
                for number in range(2000):
                    txn.delete("pages", b"%016d" % number)
        check_lmdb_file(str(directory / "data.mdb"), TABLES)
        if rng.random() < 0.2:
            store.close()
            store = open_lmdb(str(directory), MAP_BYTES, TABLES)
    store.close()


def content(directory: Path) -> Content:
    """Everything in the store."""
    store = open_lmdb(str(directory), MAP_BYTES, TABLES)
    try:
        with store.read() as txn:
            return {name: txn.range(name, b"", b"\xff" * 20, 2**31) for name in TABLES}
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_was_committed_is_sound(tmp_path: Path, seed: int) -> None:
    """After every transaction, and after opening it anew."""
    live(tmp_path, seed, 25)


def test_no_file_and_an_empty_one_are_a_new_store(tmp_path: Path) -> None:
    """LMDB makes one there."""
    path = tmp_path / "data.mdb"
    check_lmdb_file(str(path), TABLES)
    path.touch()
    check_lmdb_file(str(path), TABLES)


def test_a_store_without_a_sum_is_damaged(tmp_path: Path) -> None:
    """Its completeness is unproven."""
    live(tmp_path, 7, 5)
    store = open_lmdb(str(tmp_path), MAP_BYTES, TABLES)
    with store._environment.begin(write=True) as txn:
        txn.drop(store._tables["sum"], delete=False)
    store.close()
    with pytest.raises(CorruptionError, match="sum"):
        content(tmp_path)


def test_another_table_is_damage(tmp_path: Path) -> None:
    """A flipped bit in the name of a table makes one."""
    live(tmp_path, 8, 3)
    with pytest.raises(CorruptionError, match="there is a table"):
        open_lmdb(str(tmp_path), MAP_BYTES, TABLES[:1])


@pytest.mark.parametrize("place", ["anywhere", "in a page header", "in a meta page"])
def test_no_flipped_bit_changes_what_is_read(tmp_path: Path, place: str) -> None:
    """Either it is noticed, or it lies where nobody looks."""
    live(tmp_path, 3, 12)
    before = content(tmp_path)
    path = tmp_path / "data.mdb"
    sound = path.read_bytes()
    used = len(sound.rstrip(b"\0"))  # zeros stand behind the pages in use
    rng = random.Random(place)
    noticed = 0
    for _ in range(150):
        at = rng.randrange(used)
        if place == "in a page header":
            at = at - at % 4096 + rng.randrange(80)
        elif place == "in a meta page":
            at = rng.randrange(2) * 4096 + rng.randrange(152)
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            found = content(tmp_path)
        except CorruptionError:
            noticed += 1
        else:
            assert found == before
    assert noticed > 10


def test_an_old_page_in_the_place_of_a_new_one_is_noticed(tmp_path: Path) -> None:
    """A write that never reached the device leaves a page that looks right by itself."""
    live(tmp_path, 5, 6)
    path = tmp_path / "data.mdb"
    old = path.read_bytes()
    live(tmp_path, 6, 3)
    new = path.read_bytes()
    before = content(tmp_path)
    path.write_bytes(new)
    noticed = 0
    for at in range(8192, len(old), 4096):
        if old[at : at + 4096] != new[at : at + 4096]:
            path.write_bytes(new[:at] + old[at : at + 4096] + new[at + 4096 :])
            try:
                check_lmdb_file(str(path), TABLES)
            except CorruptionError:
                noticed += 1
            else:
                assert content(tmp_path) == before
    assert noticed

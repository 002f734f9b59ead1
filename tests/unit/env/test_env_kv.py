"""The key-value store: transactions that happen whole or not at all, and damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from bookie.env.kv import LmdbStore
from bookie.errors import ConfigurationError, CorruptionError, DiskFullError

TABLES = ("a", "b")


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[LmdbStore]:
    store = open_lmdb(str(tmp_path), 2**20, TABLES)
    yield store
    store.close()


def fill(store: LmdbStore, count: int = 40, size: int = 2000) -> None:
    for index in range(count):
        with store.write() as txn:
            txn.put("a", b"%03d" % index, bytes(size))


def test_tables_are_apart_and_ranges_are_sorted(store: LmdbStore) -> None:
    """A range ends before its stop and at its limit."""
    with store.write() as txn:
        txn.put_many("a", [(b"1", b"x"), (b"2", b"y"), (b"3", b"z")])
        txn.put("b", b"2", b"other")
        assert txn.get("a", b"2") == b"y"
        assert txn.delete("a", b"3")
        assert not txn.delete("a", b"3")
    with store.read() as txn:
        assert txn.range("a", b"", b"\xff", 9) == [(b"1", b"x"), (b"2", b"y")]
        assert txn.range("a", b"", b"2", 9) == [(b"1", b"x")]
        assert txn.range("a", b"", b"\xff", 1) == [(b"1", b"x")]
        assert txn.range("a", b"", b"\xff", 0) == []
        assert txn.range("a", b"4", b"\xff", 9) == []
        assert (txn.get("b", b"2"), txn.get("b", b"1")) == (b"other", None)
        assert (txn.count("a"), txn.count("b")) == (2, 1)
        assert txn.around("a", b"") == [(b"1", b"x")]
        assert txn.around("a", b"2") == [(b"1", b"x"), (b"2", b"y")]
        assert txn.around("a", b"3") == [(b"2", b"y")]
    with store.write() as txn:
        txn.delete("b", b"2")
        assert txn.around("b", b"2") == []


def test_each_commit_syncs_data_and_meta_page(store: LmdbStore) -> None:
    """Without the sync of the meta page, a power cut takes the last commits back."""
    flags = store._environment.flags()
    assert (flags["sync"], flags["metasync"]) == (True, True)
    assert (flags["writemap"], flags["map_async"]) == (False, False)


def test_a_block_that_raises_leaves_nothing(store: LmdbStore) -> None:
    """The caller's error comes out as it is."""

    def put_and_fail() -> None:
        with store.write() as txn:
            txn.put("a", b"1", b"x")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        put_and_fail()
    with store.read() as txn:
        assert txn.get("a", b"1") is None


def test_a_full_map_is_a_full_device_and_nothing_is_lost(store: LmdbStore) -> None:
    """Committed pairs stay, and a smaller transaction succeeds afterwards."""
    with store.write() as txn:
        txn.put("a", b"kept", b"x")
    with pytest.raises(DiskFullError), store.write() as txn:
        txn.put_many("a", ((b"%d" % i, bytes(4000)) for i in range(1000)))
    with store.write() as txn:
        txn.put("a", b"later", b"y")
    with store.read() as txn:
        assert txn.count("a") == 2


def test_a_reader_keeps_its_snapshot(store: LmdbStore) -> None:
    """It does not see later commits."""
    with store.read() as before:
        with store.write() as txn:
            txn.put("a", b"1", b"x")
        assert before.get("a", b"1") is None


def test_a_store_that_is_open_is_not_damaged(store: LmdbStore, tmp_path: Path) -> None:
    """Whoever opens it twice made a mistake, and must not have it set aside."""
    with pytest.raises(ConfigurationError, match="already open"):
        open_lmdb(str(tmp_path), 2**20, TABLES)


def test_a_file_of_something_else_is_damage(tmp_path: Path) -> None:
    """It stays as it is, and is an error instead of an empty store."""
    (tmp_path / "data.mdb").write_bytes(b"not an index at all" * 1000)
    with pytest.raises(CorruptionError, match=r"data\.mdb"):
        open_lmdb(str(tmp_path), 2**20, TABLES)


def test_small_commits_replace_zeros(tmp_path: Path) -> None:
    """They stand behind the pages in use, up to the end of the map; an open alone writes none."""
    path, map_bytes = tmp_path / "data.mdb", 2**20
    store = open_lmdb(str(tmp_path), map_bytes, TABLES)
    opened = path.stat().st_size
    store.close()
    with closing(open_lmdb(str(tmp_path), map_bytes, TABLES)) as store:
        assert path.stat().st_size == opened
        with store.write() as txn:
            txn.put("a", b"key", b"value")
        content = path.read_bytes()
        assert len(content) >= opened + 2**17
        assert not any(content[opened + 2**16 :])
        sizes = set()
        for key in range(200):
            with store.write() as txn:
                txn.put("a", b"%03d" % key, bytes(2000))
            sizes.add(path.stat().st_size)
        assert len(sizes) < 10, "in steps"
        with pytest.raises(DiskFullError):
            fill(store, 2000)
    assert path.stat().st_size == map_bytes


def test_a_file_that_lost_its_end_is_damage(tmp_path: Path) -> None:
    """Reading behind the end of a mapped file would kill the process, so the size is checked."""
    store = open_lmdb(str(tmp_path), 2**20, TABLES)
    fill(store)
    store.close()
    path = tmp_path / "data.mdb"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)  # zeros stand behind the last page in use
    with pytest.raises(CorruptionError, match="cut off"):
        open_lmdb(str(tmp_path), 2**20, TABLES)


def test_damaged_pages_of_the_store_are_damage(tmp_path: Path) -> None:
    """Damage that LMDB notices is an error of ours, for reads and for writes."""
    store = open_lmdb(str(tmp_path), 2**20, TABLES)
    fill(store)
    store.close()
    path = tmp_path / "data.mdb"
    data = path.read_bytes()
    # The two meta pages stay, everything below them is gone.
    path.write_bytes(data[:8192] + bytes(len(data) - 8192))
    with pytest.raises(CorruptionError):
        store = open_lmdb(str(tmp_path), 2**20, TABLES)


def test_damage_below_the_root_is_found_when_it_is_read(tmp_path: Path) -> None:
    """While the store is open the damaged part says so; the next opening says it at once."""
    store = open_lmdb(str(tmp_path), 2**20, TABLES)
    fill(store)
    path = tmp_path / "data.mdb"
    data = path.read_bytes()
    with path.open("r+b") as file:
        for at in range(8192, len(data), 4096):
            if b"020" in data[at : at + 4096]:
                file.seek(at)
                file.write(bytes(4096))
    with pytest.raises(CorruptionError), store.read() as txn:
        txn.get("a", b"020")
    with pytest.raises((CorruptionError, OSError)), store.write() as txn:
        txn.put("a", b"020", b"x")
    store.close()
    with pytest.raises(CorruptionError, match="in the place of page"):
        open_lmdb(str(tmp_path), 2**20, TABLES)


def test_the_sum_is_right_whatever_was_looked_at_before(tmp_path: Path) -> None:
    """Keys that were fetched, absent, put, deleted and put again; an open store checks the sum."""
    store = open_lmdb(str(tmp_path), 2**20, ("a", "b"))
    with store.write() as txn:
        txn.put_many("a", [(b"%d" % i, b"old") for i in range(6)])
    with store.write() as txn:
        keys = [b"%d" % i for i in range(8)]
        assert txn.get_many("a", keys) == [b"old"] * 6 + [None] * 2
        assert txn.get_many("b", keys) == [None] * 8
        txn.put("a", b"0", b"new")
        assert txn.delete("a", b"1")
        txn.put_many("a", [(b"0", b"newer"), (b"1", b"again"), (b"2", b"new"), (b"6", b"first")])
        txn.put_many("a", [(b"2", b"newest"), (b"6", b"second"), (b"6", b"third"), (b"9", b"x")])
        txn.put_many("b", [(b"0", b"there")])
        assert txn.get_many("a", [b"2", b"6", b"7"]) == [b"newest", b"third", None]
        assert txn.delete("a", b"2")
        txn.put_many("a", [(b"2", b"last"), (b"7", b"y")])
    store.close()
    store = open_lmdb(str(tmp_path), 2**20, ("a", "b"))
    with store.read() as txn:
        found = dict(txn.range("a", b"", b"\xff", 100))
    store.close()
    assert found == {
        **{b"%d" % i: b"old" for i in (3, 4, 5)},
        b"0": b"newer",
        b"1": b"again",
        b"2": b"last",
        b"6": b"third",
        b"7": b"y",
        b"9": b"x",
    }

"""The simulated disk: what survives a kill, what survives a power cut, and how devices fail."""

from __future__ import annotations

import errno
import random

import pytest

from bookie.errors import CorruptionError, DirectoryLockedError, DiskFullError, StorageFailedError
from bookie.testing.simulation.disk import SimulatedDisk
from bookie.testing.simulation.disk_faults import Room
from bookie.testing.simulation.platter import SECTOR, Cut, FileWrite, Image, kill, power_cut
from bookie.testing.simulation.store import open_store

SEEDS = range(200)
TABLES = ("a", "b")


def written(*, synced: bytes, unsynced: bytes) -> SimulatedDisk:
    """A disk with one file; its name and first bytes are durable, the others are not."""
    disk = SimulatedDisk()
    disk.make_directory("/d")
    file = disk.create("/d/f", 0)
    file.pwritev([synced], 0)
    file.fdatasync()
    disk.sync_directory("/d")
    file.pwritev([unsynced[:700], unsynced[700:]], len(synced))
    return disk


def contents(image: Image, path: str = "/d/f") -> bytes:
    """The bytes of a file of an image, as a new process reads them."""
    file = SimulatedDisk(image).open(path)
    return file.pread(1 << 20, 0)


def test_a_kill_keeps_the_page_cache() -> None:
    disk = written(synced=b"s" * 600, unsynced=b"u" * 3000)
    disk.rename("/d/f", "/d/g")
    assert contents(kill(disk.freeze()), "/d/g") == b"s" * 600 + b"u" * 3000


def test_a_power_cut_keeps_any_sectors_and_all_that_was_synced() -> None:
    disk = written(synced=b"s" * 600, unsynced=b"u" * 3000)
    found = set()
    for seed in SEEDS:
        after = contents(power_cut(disk.freeze(), Cut(random.Random(seed))))
        assert after[:600] == b"s" * 600
        found.add(after[600:])
    assert b"" in found
    assert b"u" * 3000 in found
    assert any(0 < len(rest) < 3000 and set(rest) == set(b"u") for rest in found), "a prefix"
    assert any(set(rest) == set(b"u\0") for rest in found), "zeros where bytes were to come"
    assert any(set(rest) - set(b"u\0") for rest in found), "garbage where bytes were to come"
    assert any(rest[SECTOR * 3] == ord("u") and rest[0] == 0 for rest in found if len(rest) > 2000)
    assert len(found) > 30


def test_a_sync_makes_bytes_durable_and_no_name() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    file = disk.create("/d/f.tmp", 4096)
    file.pwritev([b"x" * 100], 0)
    file.fdatasync()
    disk.rename("/d/f.tmp", "/d/f")
    found = set()
    for seed in SEEDS:
        image = power_cut(disk.freeze(), Cut(random.Random(seed)))
        names = tuple(SimulatedDisk(image).names("/d"))
        found.add(names)
        if names:
            assert contents(image, f"/d/{names[0]}") == b"x" * 100 + bytes(3996)
    assert found == {(), ("f.tmp",), ("f",)}
    disk.sync_directory("/d")
    image = power_cut(disk.freeze(), Cut(random.Random(1), "nothing"))
    assert SimulatedDisk(image).names("/d") == ["f"]


def test_an_operation_never_comes_without_the_one_it_needs() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    for name in ("a", "b", "c"):
        disk.create(f"/d/{name}.tmp", 0)
        disk.rename(f"/d/{name}.tmp", f"/d/{name}")
    disk.unlink("/d/a")
    found = set()
    for seed in SEEDS:
        names = SimulatedDisk(power_cut(disk.freeze(), Cut(random.Random(seed)))).names("/d")
        assert not {"b", "b.tmp"} <= set(names)
        found.add(tuple(names))
    assert ("c",) in found, "operations on other names may be missing"
    assert ("a", "b", "c") in found


def test_a_truncation_may_be_lost() -> None:
    disk = written(synced=b"s" * 600, unsynced=b"")
    disk.open("/d/f", writable=True).truncate(100)
    cuts = [power_cut(disk.freeze(), Cut(random.Random(seed))) for seed in SEEDS]
    assert {len(contents(image)) for image in cuts} == {100, 600}


@pytest.mark.parametrize(("kind", "cached"), [("error", b"new"), ("revert", b"old")])
def test_a_failed_sync_loses_what_it_should_have_written(kind: str, cached: bytes) -> None:
    disk = written(synced=b"old", unsynced=b"")
    file = disk.open("/d/f", writable=True)
    file.pwritev([b"new"], 0)
    disk.fail("fdatasync", "/f", kind)
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    file.fdatasync()  # the pages are clean: nothing is left to be written, and nobody says so
    assert file.pread(3, 0) == cached
    assert contents(power_cut(disk.freeze(), Cut(random.Random(1)))) == b"old"
    assert contents(kill(disk.freeze())) == cached
    file.drop_cache()
    assert file.pread(3, 0) == b"old"


def test_devices_lie() -> None:
    disk = written(synced=b"o" * 2000, unsynced=b"")
    file = disk.open("/d/f", writable=True)
    for kind in ("lost", "misdirected", "flip"):
        disk.fail("pwritev", "/f", kind, shift=512)
        file.pwritev([b"n" * 10], 0)
        assert kind == "flip" or file.pread(10, 0) == b"n" * 10
        file.fdatasync()
        device = power_cut(disk.freeze(), Cut(random.Random(1)))
        expected = {"lost": (0, 0), "misdirected": (0, 10), "flip": (9, 10)}[kind]
        data = contents(device)
        assert (data[:10].count(b"n"), data[512:522].count(b"n")) == expected
    disk.forgets("/d/f", FileWrite(1000, bytes(SECTOR)))
    assert file.pread(1, 1000) == b"\0"


def test_a_write_may_land_in_another_file_and_makes_none_longer() -> None:
    disk = written(synced=b"o" * 600, unsynced=b"")
    other = disk.create("/d/other", 0)
    other.pwritev([b"x" * 1000], 0)
    other.fdatasync()
    disk.sync_directory("/d")
    disk.lands_in = lambda path: "/d/other"
    file = disk.open("/d/f", writable=True)
    for shift in (-4, 995):
        disk.fail("pwritev", "/f", "misdirected", shift=shift)
        file.pwritev([b"n" * 10], 0)
    file.fdatasync()
    device = power_cut(disk.freeze(), Cut(random.Random(1)))
    assert contents(device) == b"o" * 600
    assert contents(device, "/d/other") == b"n" * 6 + b"x" * 989 + b"n" * 5
    assert file.pread(10, 0) == b"n" * 10, "the page cache has what was written"


def test_a_device_remembers_what_a_file_held_before_and_files_that_are_gone() -> None:
    disk = written(synced=b"s" * SECTOR, unsynced=b"u" * SECTOR)
    disk.open("/d/f", writable=True).fdatasync()
    assert disk.inode_of("/d/f").earlier == (b"", b"s" * SECTOR)
    disk.unlink("/d/f")
    disk.sync_directory("/d")
    image = power_cut(disk.freeze(), Cut(random.Random(1)))
    old = b"s" * SECTOR + b"u" * SECTOR
    assert image.former == (old,)
    rooms = set()
    for seed in SEEDS:
        again = SimulatedDisk(image, old_room=random.Random(seed))
        rooms.add(again.create("/d/g", 4 * SECTOR).pread(4 * SECTOR, 0))
    assert rooms == {part.ljust(4 * SECTOR, b"\0") for part in (b"", old, old[SECTOR:])}


def test_a_file_that_grew_may_have_what_another_one_holds() -> None:
    disk = written(synced=b"o" * 4 * SECTOR, unsynced=b"")
    new = disk.create("/d/new", 0)
    disk.sync_directory("/d")
    new.pwritev([b"n" * 2 * SECTOR], 0)
    cuts = [power_cut(disk.freeze(), Cut(random.Random(seed))) for seed in SEEDS]
    assert b"o" * 2 * SECTOR in {contents(image, "/d/new") for image in cuts}


def test_room_is_counted_and_writes_are_cut_off() -> None:
    disk = SimulatedDisk(rooms=(Room("/d/small", 10_000), Room("")))
    disk.make_directory("/d/small")
    with pytest.raises(OSError, match="No space") as caught:
        disk.create("/d/small/f", 20_000)
    assert caught.value.errno == errno.ENOSPC
    file = disk.create("/d/small/f", 8_000)
    file.pwritev([b"x" * 8_000], 0)
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"y" * 4_000], 8_000)
    assert file.size() == 10_000
    assert disk.usage("/d/small").free_bytes == 0
    disk.unlink("/d/small/f")
    assert disk.usage("/d/small").free_bytes == 10_000
    assert disk.usage("/d").device != disk.usage("/d/small").device


def test_locks_end_with_the_process() -> None:
    disk = SimulatedDisk()
    lock = disk.lock("/LOCK")
    with pytest.raises(DirectoryLockedError):
        disk.lock("/LOCK")
    SimulatedDisk(kill(disk.freeze())).lock("/LOCK")
    lock.close()
    disk.lock("/LOCK")


def test_after_death_nothing_reaches_the_disk() -> None:
    disk = written(synced=b"s", unsynced=b"u")
    file = disk.open("/d/f", writable=True)
    disk.die()
    before = disk.freeze()
    for call in (
        lambda: file.pwritev([b"late"], 0),
        file.fdatasync,
        lambda: disk.unlink("/d/f"),
        lambda: disk.names("/d"),
    ):
        with pytest.raises(OSError, match="dead"):
            call()
    file.close()
    assert disk.freeze() == before


# --- the key-value store ------------------------------------------------------------------------


def test_a_commit_is_there_or_not() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, "/", TABLES)
    disk.sync_directory("/")
    with store.write() as transaction:
        transaction.put("a", b"k", b"old")
    images = []
    disk.inside = lambda name, path, inode: images.append(disk.freeze())
    with store.read() as snapshot:
        with store.write() as transaction:
            transaction.put("a", b"k", b"new")
            transaction.put_many("b", [(b"2", b""), (b"1", b"")])
            assert snapshot.get("a", b"k") == b"old"
        assert snapshot.get("a", b"k") == b"old"
    after = [power_cut(images[0], Cut(random.Random(seed))) for seed in SEEDS]
    after += [kill(images[0], random.Random(seed)) for seed in SEEDS]
    states = set()
    for image in after:
        with open_store(SimulatedDisk(image), "/", TABLES).read() as found:
            states.add((found.get("a", b"k"), tuple(found.range("b", b"", b"\xff", 9))))
    assert states == {(b"old", ()), (b"new", ((b"1", b""), (b"2", b"")))}

    def change_and_fail() -> None:
        with store.write() as transaction:
            transaction.delete("a", b"k")
            raise KeyError

    with pytest.raises(KeyError):
        change_and_fail()
    with store.read() as found:
        assert found.get("a", b"k") == b"new"
        assert found.count("b") == 2


def test_a_new_store_is_nothing_before_its_first_commit() -> None:
    disk = SimulatedDisk()
    images: list[Image] = []
    disk.moments = lambda name, path: images.append(disk.freeze())
    open_store(disk, "/", TABLES)
    outcomes = set()
    for image in images:
        for seed in SEEDS:
            after = SimulatedDisk(power_cut(image, Cut(random.Random(seed))))
            try:
                open_store(after, "/", TABLES)
            except CorruptionError:
                outcomes.add("damaged")
            else:
                outcomes.add("opens")
    assert outcomes == {"opens", "damaged"}


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("kv_write", errno.ENOSPC, DiskFullError),
        ("kv_write", errno.EIO, OSError),
        ("kv_sync", errno.ENOSPC, OSError),
        ("kv_sync", errno.EIO, OSError),
        ("kv_meta", errno.ENOSPC, OSError),
        ("kv_meta", errno.EIO, OSError),
    ],
)
def test_a_store_fails_as_lmdb_does(
    call: str, number: int, expected: type[DiskFullError | OSError]
) -> None:
    """What `tests/system/test_index_errors.py` sees of the real one."""
    disk = SimulatedDisk()
    store = open_store(disk, "/", TABLES)

    def put(value: bytes) -> None:
        with store.write() as transaction:
            transaction.put("a", b"k", value)

    put(b"0")
    disk.fail(call, "", errno=number)
    with pytest.raises(expected) as raised:
        put(b"1")
    if expected is DiskFullError:
        put(b"2")
    else:
        assert isinstance(raised.value, OSError)
        assert raised.value.errno == errno.EIO, "anything else might be taken for a full device"
        with pytest.raises(OSError, match="the index failed"):
            put(b"2")
    if call == "kv_meta":
        with pytest.raises(StorageFailedError), store.read():
            pass
    else:
        with store.read() as found:
            assert found.get("a", b"k") == (b"2" if expected is DiskFullError else b"0")

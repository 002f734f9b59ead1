"""The real disk: short writes, names, locks, and descriptors that are not leaked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from bookie.env import Failpoints, PosixDisk
from bookie.env import disk as disk_module
from bookie.env.disk import IOV_MAX, PAGE_BYTES, WRITEBACK_BYTES
from bookie.errors import ConfigurationError, DirectoryLockedError


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture(name="disk")
def _disk() -> PosixDisk:
    return PosixDisk()


def test_more_buffers_than_one_call_takes_are_all_written(disk: PosixDisk, path: str) -> None:
    """In order, empty ones included."""
    file = disk.create(path, 0)
    buffers = [b"%d," % i if i % 7 else b"" for i in range(3 * IOV_MAX + 5)]
    assert file.pwritev(buffers, 100) == len(b"".join(buffers))
    assert file.pread(10**6, 100) == b"".join(buffers)
    file.close()


def test_a_short_write_is_continued(
    disk: PosixDisk, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes what it likes; the rest follows from where that ended."""
    calls: list[int] = []
    real = os.pwritev

    def at_most_seven_bytes(fd: int, buffers: list[bytes], offset: int) -> int:
        calls.append(offset)
        return real(fd, [b"".join(buffers)[:7]], offset)

    file = disk.create(path, 0)
    monkeypatch.setattr(os, "pwritev", at_most_seven_bytes)
    assert file.pwritev([b"abc", b"", b"defghij", b"klm", b"nopq"], 0) == 17
    assert calls == [0, 7, 14]
    assert file.pread(100, 0) == b"abcdefghijklmnopq"


def test_of_a_long_write_the_device_gets_whole_pages_early(
    disk: PosixDisk, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part once and without a gap; the last page, and the last part, are left to the sync."""
    hints: list[tuple[int, int]] = []
    monkeypatch.setattr(
        disk_module, "_start_writeback", lambda fd, offset, size: hints.append((offset, size))
    )
    start = PAGE_BYTES + 512
    buffers = [bytes([i]) * (300_000 + i) for i in range(13)]
    file = disk.create(path, 0)
    assert file.pwritev(buffers, start) == len(b"".join(buffers))
    assert file.pread(10**7, start) == b"".join(buffers)
    file.close()
    ends = [offset + size for offset, size in hints]
    assert [offset for offset, _ in hints] == [start, *ends[:-1]]
    assert all(end % PAGE_BYTES == 0 for end in ends)
    assert all(size > WRITEBACK_BYTES - start for _, size in hints)
    assert len(hints) == 3


def test_a_short_write_gives_no_hint(
    disk: PosixDisk, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is synced at once: a call more would only take time."""
    hints: list[int] = []
    monkeypatch.setattr(disk_module, "_start_writeback", lambda *_: hints.append(1))
    file = disk.create(path, 0)
    file.pwritev([b"head", bytes(1024), bytes(500)], 0)
    file.close()
    assert not hints


@pytest.mark.parametrize("available", [True, False])
def test_a_long_write_is_durable_with_and_without_the_hint(
    disk: PosixDisk, path: str, monkeypatch: pytest.MonkeyPatch, available: bool
) -> None:
    """A C library without the call, or a file system that refuses it, loses speed only."""
    if not available:
        monkeypatch.setattr(disk_module, "_sync_file_range", None)
    data = os.urandom(3 * WRITEBACK_BYTES)
    file = disk.create(path, 0)
    file.pwritev([data[:WRITEBACK_BYTES], data[WRITEBACK_BYTES:]], 0)
    file.fdatasync()
    assert file.pread(len(data), 0) == data
    file.close()


def test_a_read_ends_with_the_file(disk: PosixDisk, path: str) -> None:
    """From memory a short read is no read."""
    file = disk.create(path, 0)
    file.pwritev([b"0123456789"], 0)
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 100) == b""
    assert file.pread_cached(4, 8) is None
    cached = file.pread_cached(4, 6)
    assert cached is None or bytes(cached) == b"6789"


def test_a_new_file_has_its_space_and_replaces_an_old_one(disk: PosixDisk, path: str) -> None:
    """Allocated space reads as zeros."""
    Path(path).write_bytes(b"old" * 1000)
    file = disk.create(path, 8192)
    assert file.size() == 8192
    assert file.pread(8192, 0) == bytes(8192)
    assert os.stat(path).st_blocks * 512 >= 8192
    file.truncate(100)
    assert file.size() == 100


def test_a_file_without_room_leaves_no_name(disk: PosixDisk, path: str) -> None:
    """The error is the kernel's."""
    with pytest.raises(OSError, match=r"\[Errno"):
        disk.create(path, 2**62)
    assert not Path(path).exists()


def test_only_existing_files_are_opened(disk: PosixDisk, path: str, tmp_path: Path) -> None:
    """And never through a symbolic link."""
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    (tmp_path / "target").write_bytes(b"x")
    Path(path).symlink_to(tmp_path / "target")
    for attempt in (disk.open, lambda name: disk.create(name, 0)):
        with pytest.raises(OSError, match=r"\[Errno"):
            attempt(path)


def test_a_file_that_nobody_holds_is_closed(disk: PosixDisk, path: str) -> None:
    """The table of files drops what a reader may still use; the last user closes it."""
    before = len(os.listdir("/proc/self/fd"))
    file = disk.create(path, 0)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del file
    assert len(os.listdir("/proc/self/fd")) == before


def test_directories_are_made_with_their_parents(disk: PosixDisk, tmp_path: Path) -> None:
    """Twice does no harm."""
    deep = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        disk.make_directory(str(deep))
    assert deep.stat().st_mode & 0o777 == 0o700
    assert disk.names(str(tmp_path)) == ["a"]
    disk.unlink(str(deep / "nothing"))
    disk.sync_directory(str(deep))


def test_the_name_of_a_directory_that_is_there_is_made_durable(tmp_path: Path) -> None:
    """Whoever made it may have been killed before the sync, and the name is still in memory."""

    class NotingDisk(PosixDisk):
        synced: ClassVar[list[str]] = []

        def sync_directory(self, path: str) -> None:
            super().sync_directory(path)
            self.synced.append(path)

    disk = NotingDisk()
    (tmp_path / "a").mkdir()
    disk.make_directory(str(tmp_path / "a" / "b"))
    assert disk.synced == [str(tmp_path), str(tmp_path / "a")]
    disk.make_directory(str(tmp_path / "a" / "b"))
    assert disk.synced[2:] == [str(tmp_path / "a")]


def test_a_lock_keeps_a_second_one_out(disk: PosixDisk, tmp_path: Path) -> None:
    """Until it is closed."""
    path = str(tmp_path / "LOCK")
    held = disk.lock(path)
    with pytest.raises(DirectoryLockedError, match=str(tmp_path)):
        disk.lock(path)
    held.close()
    disk.lock(path).close()


def test_usage_is_that_of_the_file_system(disk: PosixDisk, tmp_path: Path) -> None:
    """Free is not more than all."""
    usage = disk.usage(str(tmp_path))
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert usage.device == tmp_path.stat().st_dev


@pytest.mark.parametrize(
    "spec", ["no.such.point", "journal.before_sync:0", "journal.before_sync:x"]
)
def test_a_failpoint_that_does_not_exist_refuses(spec: str) -> None:
    """Otherwise a test that arms a misspelt name would pass."""
    with pytest.raises(ConfigurationError):
        Failpoints(spec)


def test_failpoints_that_are_not_armed_do_nothing() -> None:
    """Nor does one that is armed for a later passage."""
    points = Failpoints("journal.before_sync:3,journal.after_sync:2")
    for _ in range(2):
        points.hit("journal.before_sync")
    points.hit("add.before_ack")


def test_reading_past_the_page_cache(tmp_path: Path) -> None:
    """The bytes are the same, whether a file system has such reads or not."""
    path = tmp_path / "file"
    data = bytes(range(256)) * 50
    path.write_bytes(data)
    for directly in (True, False):
        file = PosixDisk().open(str(path))
        if not directly:
            file._direct = -1
        assert bytes(file.pread_uncached(8192, 4096)) == data[4096 : 4096 + 8192]
        assert bytes(file.pread_uncached(4096, 12288)) == data[12288:]
        assert bytes(file.pread_uncached(4096, 16384)) == b""
        moved = path.rename(tmp_path / "moved")
        assert bytes(file.pread_uncached(4096, 0)) == data[:4096]
        file.close()
        moved.rename(path)

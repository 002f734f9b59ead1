"""Names of files, the table of open ones, and the directories with their reserve."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie.errors import ConfigurationError, DiskFullError, StorageFailedError
from bookie.node.engine.directories import Directories, locked_directories
from bookie.node.engine.files import (
    OPEN_FILES_MAX,
    FileTable,
    create_file,
    file_name,
    parse_file_name,
    read_header,
)
from bookie.node.engine.format.blocks import FileHeader, FileKind
from tests.unit.node.engine.machine import KIB, Machine


def header(number: int) -> FileHeader:
    return FileHeader(FileKind.JOURNAL, number, b"n" * 16, 512)


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("number", [1, 7, 12345678, 2**32 - 1])
def test_names_and_numbers_belong_together(kind: FileKind, number: int) -> None:
    """For any number of digits."""
    assert parse_file_name(file_name(kind, number)) == (kind, number)


@pytest.mark.parametrize(
    "name",
    [
        *("COOKIE", "x.journal", "1.journal.tmp", "-1.journal", ".journal", "1.txt", "²3.log"),
        *("1 .log", f"{2**32}.log", "9" * 200 + ".journal"),
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    """They are left alone."""
    assert parse_file_name(name) is None


def test_a_file_exists_with_its_header_or_not_at_all(machine: Machine) -> None:
    """Under its name only once it is durable."""
    disk, directory = machine.disk, str(machine.journal)
    disk.make_directory(directory)
    file = create_file(disk, directory, header(1), 64 * KIB)
    assert read_header(file) == header(1)
    calls = [name for name in disk.names_called("") if name != "pread"]
    assert calls == ["create", "pwritev", "fdatasync", "rename", "sync_directory"]
    after = machine.without_power("off")
    assert [path.name for path in after.journals()] == ["00000001.journal"]
    unpublished = create_file(disk, directory, header(2), 0, publish=False)
    assert disk.names(directory) == ["00000001.journal", "00000002.journal.tmp"]
    unpublished.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_leaves_nothing_behind(machine: Machine, number: int) -> None:
    """A quota is a full device."""
    machine.disk.make_directory(str(machine.journal))
    machine.disk.fail("create", ".tmp", number)
    with pytest.raises(DiskFullError):
        create_file(machine.disk, str(machine.journal), header(1), 64 * KIB)
    assert machine.disk.names(str(machine.journal)) == []


def open_files_in(directory: str) -> int:
    """How many files below `directory` this process has open."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(directory + "/")
        except FileNotFoundError:
            continue  # the one that listed them
    return found


def test_only_so_many_files_are_kept_open(machine: Machine) -> None:
    """The least recently read is closed, unless somebody reads it just now."""
    directory = str(machine.journal)
    machine.disk.make_directory(directory)
    table = FileTable(machine.disk)
    for number in range(1, OPEN_FILES_MAX + 20):
        path = os.path.join(directory, file_name(FileKind.JOURNAL, number))
        Path(path).write_bytes(b"%d" % number)
        table.add(number, path)
    reading = table.get(1)
    for number in table.numbers():
        assert table.get(number).pread(10, 0) == b"%d" % number
    assert open_files_in(directory) <= OPEN_FILES_MAX + 1
    assert reading.pread(10, 0) == b"1"
    del reading
    table.close()
    assert open_files_in(directory) == 0
    table.remove(5)
    assert table.path(5) is None
    with pytest.raises(FileNotFoundError):
        table.get(5)
    assert table.get(6).pread(10, 0) == b"6"


def test_the_reserve_is_made_if_there_is_room_to_spare(machine: Machine) -> None:
    """It leaves some space free, is made once, and a failure is silent."""
    machine.changes = {"reserve_bytes": 64 * KIB}
    reserve = machine.root / "ledgers" / "RESERVE"
    with locked_directories(machine.disk, machine.settings) as directories:
        machine.disk.free_bytes = 100 * KIB
        directories.make_reserve()
        assert not reserve.exists()
        machine.disk.free_bytes = 1000 * KIB
        machine.disk.fail("create", "RESERVE", errno.ENOSPC)
        directories.make_reserve()
        assert not reserve.exists()
        directories.make_reserve()
        assert reserve.stat().st_size == 64 * KIB
        assert reserve.stat().st_blocks * 512 >= 64 * KIB
        machine.disk.calls.clear()
        directories.make_reserve()
        assert "create" not in machine.disk.names_called("RESERVE")
        for _ in range(2):
            directories.release_reserve()
        assert not reserve.exists()


def test_a_disk_that_fails_under_a_directory_is_no_wrong_setting(machine: Machine) -> None:
    """An error that needs a person is another thing."""
    machine.disk.fail("lock", "ledgers/LOCK", errno.EIO)
    with (
        pytest.raises(StorageFailedError, match="ledgers failed"),
        locked_directories(machine.disk, machine.settings),
    ):
        pass


def test_word_of_a_failure_is_left_as_well_as_can_be(machine: Machine) -> None:
    """The disk that failed may fail at this, too."""
    with locked_directories(machine.disk, machine.settings) as directories:
        machine.disk.fail("create", "FAILED", errno.EIO)
        directories.mark_failed()
        assert not directories.was_failed()
        directories.mark_failed()
        assert directories.was_failed()
        directories.clear_failed()
        assert not directories.was_failed()


def test_directories_that_hold_nothing_of_a_bookie_are_empty(machine: Machine) -> None:
    """Remains of a file system or of an interrupted first start do not count."""
    with locked_directories(machine.disk, machine.settings) as directories:
        (machine.journal / "lost+found").mkdir()
        for root in directories.roots():
            assert directories.is_empty(root)
        for path in (machine.logs / "x", machine.index / "data.mdb", machine.journal / "x"):
            path.write_bytes(b"")
        for root in directories.roots():
            assert not directories.is_empty(root)


def test_one_directory_cannot_be_both(machine: Machine) -> None:
    """Also not by another spelling."""
    settings = machine.settings.model_copy(
        update={"ledgers_dir": machine.root / "x" / ".." / "journal"}
    )
    with pytest.raises(ConfigurationError, match="two directories"):
        Directories(machine.disk, settings)

"""Files of a bookie that was killed: nothing reaches them any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.env import PosixDisk, ThreadWorkers
from bookie.testing.mortal_disk import MortalDisk, MortalFile, Mortality, mortal_environment


class CountedFile(MortalFile):
    """A file that counts its syncs."""

    def __init__(self, path: Path) -> None:
        super().__init__(PosixDisk().create(str(path), 0), Mortality(fsync=True))
        self.syncs = 0

    def fdatasync(self, *, in_place: bool = False) -> None:
        """Count."""
        self.syncs += 1


def test_a_dead_bookie_changes_nothing(tmp_path: Path) -> None:
    """Each call that would change a file or a name fails, and reads go on."""
    mortality = Mortality(fsync=True)
    disk = MortalDisk(mortality)
    path = str(tmp_path / "file")
    file = disk.create(path, 0)
    file.pwritev([b"before"], 0)
    file.fdatasync()
    mortality.is_dead = True
    changes: list[Callable[[], object]] = [
        lambda: file.pwritev([b"after"], 0),
        file.fdatasync,
        lambda: file.allocate(0, 100),
        lambda: file.truncate(0),
        lambda: disk.create(path, 0),
        lambda: disk.rename(path, path + "2"),
        lambda: disk.unlink(path),
        lambda: disk.make_directory(path + "3"),
        lambda: disk.sync_directory(str(tmp_path)),
    ]
    for change in changes:
        with pytest.raises(OSError, match="killed"):
            change()
    assert disk.names(str(tmp_path)) == ["file"]
    assert disk.open(path).pread(100, 0) == file.pread(100, 0) == b"before"
    assert file.size() == 6
    file.close()


def test_a_kill_undoes_a_transaction_of_the_index(tmp_path: Path) -> None:
    """Earlier commits stay."""
    mortality = Mortality(fsync=True)
    store = mortal_environment(ThreadWorkers(), mortality).open_kv(
        str(tmp_path), 1 << 20, ("table",), False
    )
    with store.write() as transaction:
        transaction.put("table", b"1", b"committed")

    def die() -> None:
        with store.write() as transaction:
            transaction.put("table", b"2", b"lost")
            mortality.is_dead = True

    with pytest.raises(OSError, match="killed"):
        die()
    with pytest.raises(OSError, match="killed"), store.write():
        pass
    with store.read() as found:
        assert (found.get("table", b"1"), found.get("table", b"2")) == (b"committed", None)
    store.close()


@pytest.mark.parametrize("fsync", [True, False])
def test_syncs_can_be_left_out(tmp_path: Path, *, fsync: bool) -> None:
    """Only by the explicit option."""
    below = CountedFile(tmp_path / "file")
    MortalFile(below, Mortality(fsync=fsync)).fdatasync()
    assert below.syncs == int(fsync)
    below.close()

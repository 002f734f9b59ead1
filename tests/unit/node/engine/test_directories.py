"""Two directories are two."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config import StorageSettings
from bookie.env.disk import PosixDisk
from bookie.errors import ConfigurationError
from bookie.node.engine.directories import Directories


@pytest.mark.parametrize(
    ("journal", "ledgers"), [("d", "d/ledgers"), ("d/journal", "d"), ("link/journal", "d")]
)
def test_directories_in_each_other_are_refused(journal: str, ledgers: str, tmp_path: Path) -> None:
    """Otherwise a new bookie would be told that the outer one is not empty."""
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "d")
    settings = StorageSettings(journal_dir=tmp_path / journal, ledgers_dir=tmp_path / ledgers)
    with pytest.raises(ConfigurationError, match="must not lie in each other"):
        Directories(PosixDisk(), settings)


def test_neighbours_are_two(tmp_path: Path) -> None:
    """A name that begins like the other is another directory."""
    settings = StorageSettings(journal_dir=tmp_path / "d", ledgers_dir=tmp_path / "d2")
    assert Directories(PosixDisk(), settings).roots() == (f"{tmp_path}/d", f"{tmp_path}/d2")

"""A device that is read-only or not mounted: the bookie ends before it joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.cluster.instance import read_status
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import new_home, refused
from tests.system.devices import MIB, memory, run

EXIT_CANNOT_START = 1
"""systemd starts it again."""


@pytest.mark.parametrize("key", ["journal_dir", "ledgers_dir"])
async def test_a_read_only_device_is_tried_again(key: str, tmp_path: Path) -> None:
    """Nothing is stamped, and the same settings start once the device can be written."""
    home = await new_home(tmp_path)
    with memory(tmp_path / "device", 64 * MIB) as device:
        home.sections["storage"][key] = f"{device}/data"
        run("mount", "-o", "remount,ro", device)
        status, sentence = await refused(home.write())
        assert status == EXIT_CANNOT_START
        assert sentence == f"cannot use the directory {device}/data: Read-only file system"
        async with open_store(home.metadata_uri) as store:
            assert (await read_status(store)).known == ()

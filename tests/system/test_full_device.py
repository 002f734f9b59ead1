"""Real file systems that are full; mounting them needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from bookie.errors import DiskFullError

MIB = 2**20
OPEN = "import sys; from bookie.env import open_lmdb; open_lmdb(sys.argv[1], 2**30, ('a',))"
OPEN_METADATA = """
import asyncio, sys
from bookie.metadata.connect import open_store
async def main():
    async with open_store("local://" + sys.argv[1]) as store:
        await store.put("/a", b"x", version=-1)
asyncio.run(main())
"""


@pytest.fixture(name="device")
def _device(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    device = tmp_path / "device"
    device.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", device], check=True)
    yield device
    subprocess.run(["umount", device], check=True)


def fill(device: Path) -> None:
    """Leave no room."""
    with (device / "junk").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_commit_that_the_device_cuts_off_is_a_full_device(device: Path) -> None:
    """LMDB calls it an input/output error. Nothing happened, and there may be room later."""
    index = device / "index"
    index.mkdir()
    store = open_lmdb(str(index), 2**30, ("a",))
    with store.write() as txn:
        txn.put("a", b"kept", b"x")
    entries = [(b"%06d" % i, os.urandom(1000)) for i in range(8000)]
    with pytest.raises(DiskFullError, match=r"Input/output error|No space"), store.write() as txn:
        txn.put_many("a", entries)
    subprocess.run(["mount", "-o", "remount,size=32m", device], check=True)
    with store.write() as txn:
        txn.put_many("a", entries)
    with store.read() as txn:
        assert txn.count("a") == 8001
    store.close()


@pytest.mark.parametrize(
    ("program", "said"),
    [(OPEN, "No space left on device"), (OPEN_METADATA, "cannot be used: No space left on device")],
)
def test_opening_on_a_full_device_is_an_error_and_no_crash(
    device: Path, program: str, said: str
) -> None:
    """LMDB would be killed by SIGBUS when it writes its lock file."""
    directory = device / "lmdb"
    directory.mkdir()
    fill(device)
    done = subprocess.run(
        [sys.executable, "-c", program, directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert said in done.stderr

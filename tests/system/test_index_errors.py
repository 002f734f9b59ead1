"""Errors of calls that LMDB makes and no seam of ours can fail: data pages, syncs, meta pages.

A library that is compiled here and preloaded fails one call. Committed pairs stay. An unfinished
commit is there whole or not at all, and the file passes the check before it is mapped again.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from tests.system.devices import memory
from tests.system.index_writer import COMMITS, MAP_BYTES, TABLES

ROOT = Path(__file__).parents[2]
HALF_WRITTEN = 0
FAILED_WRITE = {"OSError"}
FULL = {"DiskFullError"}
DEVICE_BYTES = 1000 * 1024


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.fixture(name="full", scope="module")
def _full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A device with room for the commits of one writer, and not more than a full one has."""
    device = tmp_path_factory.mktemp("full")
    with memory(device / "device", DEVICE_BYTES) as path:
        yield path


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    ("call", "number"),
    [
        *(("data", number) for number in (errno.EIO, errno.ENOSPC, HALF_WRITTEN)),
        *(("sync", number) for number in (errno.EIO, errno.ENOSPC)),
        *(("meta", number) for number in (errno.EIO, errno.ENOSPC, HALF_WRITTEN)),
    ],
)
def test_a_failed_call_of_lmdb_loses_nothing(
    tmp_path: Path, library: Path, call: str, number: int, nth: int
) -> None:
    """The device has room, so that no error is a full device; the process has to end by all."""
    directory = tmp_path / "index"
    outcomes = outcomes_of(directory, library, call, number, nth)
    failed = commits_that_failed(directory, outcomes)
    assert {outcomes[commit] for commit in failed} == FAILED_WRITE
    assert failed == list(map(str, range(int(failed[0]), COMMITS))), "it was tried again"
    assert outcomes["read"] == ("StorageFailedError" if call == "meta" else "ok")


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        # What LMDB makes of a write that was cut off is an input/output error.
        *(("data", number, FULL) for number in (errno.EIO, errno.ENOSPC, HALF_WRITTEN)),
        *(("sync", number, FAILED_WRITE) for number in (errno.EIO, errno.ENOSPC)),
        *(("meta", number, FAILED_WRITE) for number in (errno.EIO, errno.ENOSPC, HALF_WRITTEN)),
    ],
)
def test_a_full_device_is_one_only_before_anything_was_synced(
    full: Path, library: Path, call: str, number: int, expected: set[str]
) -> None:
    """Afterwards nobody knows what is on it, however full it is."""
    directory = full / "index"
    try:
        outcomes = outcomes_of(directory, library, call, number, 1)
        failed = commits_that_failed(directory, outcomes)
        assert {outcomes[commit] for commit in failed} == expected
        if expected == FULL:
            assert failed == [str(COMMITS // 2)], "it is not tried again"
        assert outcomes["read"] == ("StorageFailedError" if call == "meta" else "ok")
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("call", "number", "nth", "expected"),
    [
        # The first write of all makes the file, the others are of the commit of its tables.
        ("meta", errno.EIO, 1, "OSError"),
        ("meta", errno.ENOSPC, 1, "ConfigurationError"),
        ("meta", HALF_WRITTEN, 1, "ConfigurationError"),
        ("data", errno.EIO, 1, "OSError"),
        ("sync", errno.ENOSPC, 1, "OSError"),
        ("meta", errno.EIO, 2, "OSError"),
        ("meta", errno.ENOSPC, 2, "OSError"),
    ],
)
def test_a_device_that_fails_a_new_index_has_not_damaged_one(
    tmp_path: Path, library: Path, call: str, number: int, nth: int, expected: str
) -> None:
    """Damage would be mended by making the index again, on the device that failed."""
    outcomes = outcomes_of(tmp_path / "index", library, call, number, nth, at_once=True)
    assert outcomes == {"open": expected}


def outcomes_of(
    directory: Path, library: Path, call: str, number: int, nth: int, *, at_once: bool = False
) -> dict[str, str]:
    """What each commit and the read of a writer came to, one of whose calls fails."""
    directory.mkdir()
    trigger = directory.parent / "trigger"
    trigger.unlink(missing_ok=True)
    if at_once:
        trigger.touch()
    written = subprocess.run(
        [sys.executable, "-m", "tests.system.index_writer", str(directory), str(trigger)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ
        | {
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(ROOT),
            "FAIL_PART": "data.mdb",
            "FAIL_CALL": call,
            "FAIL_NTH": str(nth),
            "FAIL_ERRNO": str(number),
            "FAIL_TRIGGER": str(trigger),
        },
    )
    assert written.returncode == 0, written.stderr
    return dict(line.split() for line in written.stdout.splitlines())


def commits_that_failed(directory: Path, outcomes: dict[str, str]) -> list[str]:
    """The numbers of those; all others are there, and of them all or nothing."""
    store = open_lmdb(str(directory), MAP_BYTES, TABLES)
    with store.read() as txn:
        found = {key for key, _ in txn.range("pages", b"", b"\xff", 2**31)}
    store.close()
    for commit in range(COMMITS):
        keys = {b"%02d/%04d" % (commit, i) for i in range(60)}
        if outcomes[str(commit)] == "ok":
            assert keys <= found, commit
        else:
            assert keys <= found or not keys & found, commit
    failed = [str(n) for n in range(COMMITS) if outcomes[str(n)] != "ok"]
    assert failed, "the call was never made"
    return failed

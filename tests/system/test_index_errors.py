"""Errors of calls that LMDB makes and no seam of ours can fail: data pages, syncs, meta pages.

A library that is compiled here and preloaded fails one call. What was committed stays, what was not
is either there whole or not at all, and the file passes the check before it is mapped again.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.env import open_lmdb
from tests.system.index_writer import COMMITS, MAP_BYTES, TABLES

ROOT = Path(__file__).parents[2]
HALF_WRITTEN = 0
FAILURES = {"OSError"}
FULL = {"DiskFullError"}


@pytest.fixture(name="library", scope="module")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("data", errno.EIO, FAILURES),
        ("data", errno.ENOSPC, FULL),
        ("data", HALF_WRITTEN, FAILURES),
        ("sync", errno.EIO, FAILURES),
        ("meta", errno.EIO, FAILURES),
        ("meta", HALF_WRITTEN, FAILURES),
    ],
)
def test_a_failed_call_of_lmdb_loses_nothing(
    tmp_path: Path, library: Path, call: str, number: int, expected: set[str], nth: int
) -> None:
    """Full only if nothing was synced; everything else is for the process to end by."""
    directory, trigger = tmp_path / "index", tmp_path / "trigger"
    directory.mkdir()
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
    outcomes = dict(line.split() for line in written.stdout.splitlines())
    failed = [int(n) for n, outcome in outcomes.items() if outcome != "ok"]
    assert failed, "the call was never made"
    assert {outcomes[str(failed[0])]} <= expected, outcomes
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

"""``bookie spark prepare`` with a real Java: an archive that later sessions map, or none at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.waiting import time_limit

WAIT_SECONDS = 600.0
"""Waiting for Java to begin the archive; it takes about a minute on a busy machine."""

PREPARE = (sys.executable, "-m", "bookie", "spark", "prepare")

_SESSION = """
from pathlib import Path
from bookie.spark.class_archive import archive_path
from bookie.spark.session import open_session
spark = open_session("test", "local[1]", {})
java = spark.sparkContext._gateway.proc.pid
print("mapped", str(archive_path()) in Path(f"/proc/{java}/maps").read_text(), flush=True)
print("rows", spark.range(5).count(), flush=True)
spark.stop()
"""


def _environment(cache: Path) -> dict[str, str]:
    left_out = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "XDG_CACHE_HOME": str(cache)}


def _session(cache: Path) -> list[str]:
    program = [sys.executable, "-c", _SESSION]
    said = subprocess.run(
        program, env=_environment(cache), capture_output=True, text=True, check=True
    )
    return said.stdout.splitlines()


def test_later_sessions_read_the_archive(tmp_path: Path) -> None:
    assert _session(tmp_path) == ["mapped False", "rows 5"]
    first = subprocess.run(
        PREPARE, env=_environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    (archive,) = (tmp_path / "bookie").iterdir()
    assert str(archive) in first.stdout
    assert _session(tmp_path) == ["mapped True", "rows 5"]


async def test_a_killed_java_leaves_no_archive(tmp_path: Path) -> None:
    """Java would crash on an archive that is cut off."""
    process = await asyncio.create_subprocess_exec(
        *PREPARE,
        env=_environment(tmp_path),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said = asyncio.get_running_loop().create_task(process.communicate())
    async with time_limit(WAIT_SECONDS):
        while not (begun := _written(tmp_path)):
            assert not said.done(), await said
            await asyncio.sleep(0.01)
    _kill_writer_of(begun[0])
    _, errors = await said
    assert process.returncode != 0
    assert b"wrote no archive" in errors
    assert _written(tmp_path) == []


def _written(cache: Path) -> list[Path]:
    return list(cache.glob("bookie/*"))


def _kill_writer_of(path: Path) -> None:
    """Kill the process that has a file open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [one.readlink() for one in (process / "fd").iterdir()]
        except OSError:
            continue
        if path in opened:
            os.kill(int(process.name), signal.SIGKILL)
            return
    pytest.fail("no process writes the archive")

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


async def test_later_sessions_read_the_archive(tmp_path: Path) -> None:
    """Whoever prepares again keeps the archive until there is another one.

    Java would crash on an archive that is cut off.
    """
    assert await asyncio.to_thread(_session, tmp_path) == ["mapped False", "rows 5"]
    first = await _preparing(tmp_path)
    said, errors = await first.communicate()
    assert first.returncode == 0, errors
    (archive,) = _written(tmp_path)
    assert str(archive).encode() in said
    again = await _preparing(tmp_path)
    saying = asyncio.get_running_loop().create_task(again.communicate())
    async with time_limit(WAIT_SECONDS):
        while len(_written(tmp_path)) == 1:
            assert not saying.done(), await saying
            await asyncio.sleep(0.01)
    (beside,) = set(_written(tmp_path)) - {archive}
    _kill_writer_of(beside)
    _, errors = await saying
    assert again.returncode != 0
    assert b"wrote no archive" in errors
    assert _written(tmp_path) == [archive]
    assert await asyncio.to_thread(_session, tmp_path) == ["mapped True", "rows 5"]


async def _preparing(cache: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *PREPARE,
        env=_environment(cache),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


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

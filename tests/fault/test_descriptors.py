"""Descriptors run out, or were too few from the start: the bookie says so before it fails."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp

from bookie.daemon.descriptors import DESCRIPTORS_MIN, PROCESS, RESERVED
from tests.fault.daemon_process import Home, serving

MISCONFIGURED = 78
SPARE = 100
"""What the test leaves free at first: more than the bookie reserves."""


def limited(soft: int, hard: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours under a limit of open files."""
    shell = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    return subprocess.run(
        ["/bin/sh", "-c", shell, "sh", sys.executable, "-m", "bookie", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_too_few_are_refused(home: Home) -> None:
    """By a start, which says how many it needs, and by the doctor."""
    few = DESCRIPTORS_MIN - 1
    done = limited(few, few, "serve", "--config", str(home.write()))
    assert done.returncode == MISCONFIGURED
    reason = json.loads(done.stderr.splitlines()[-1])["reason"]
    assert f"needs at least {DESCRIPTORS_MIN} open files and may have {few}" in reason
    assert not home.journal.exists()
    done = limited(few, few, "doctor", str(home.path), "--syncs", "10")
    assert done.returncode == 1
    assert "fail     open files" in done.stdout, done.stdout


def descriptors_of(pid: int) -> int:
    """How many a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def answer(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    """Status and body of ``/readyz``, by a connection that stays open."""
    async with session.get(url) as response:
        return response.status, await response.json()


async def test_not_ready_while_they_run_out(home: Home) -> None:
    """Connections took them; ready again when these are closed. A soft limit is raised before."""
    port = int(str(home.sections["http"]["port"]))
    url = f"http://127.0.0.1:{port}/readyz"
    async with serving(home.write()) as daemon, aiohttp.ClientSession() as session:
        await daemon.until("registered")
        pid = daemon.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == hard
        assert await answer(session, url) == (200, {"ready": True, "reasons": [], "remarks": []})
        used = descriptors_of(pid)
        assert used <= PROCESS
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + SPARE, hard))
        with ExitStack() as idle:
            for _ in range(SPARE - RESERVED + 10):
                idle.enter_context(socket.create_connection(("127.0.0.1", port)))
            await daemon.until("descriptors_run_out")
            status, report = await answer(session, url)
            assert (status, report["ready"]) == (503, False)
            assert report["reasons"][0].startswith("descriptors: ")
            assert f"of {used + SPARE} open files are in use" in report["reasons"][0]
        await daemon.until("descriptors_free")
        assert (await answer(session, url))[0] == 200
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0


async def test_the_soft_limit_is_raised_to_what_is_needed(home: Home) -> None:
    """A shell's or a distribution's default is no reason to refuse while more may be had."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", 'ulimit -Sn 300 && exec "$@"', "sh"),
        *(sys.executable, "-m", "bookie", "serve", "--config", str(home.write())),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b'"registered"' not in (line := await process.stderr.readline()):
                assert line, "it ended"
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > DESCRIPTORS_MIN
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0

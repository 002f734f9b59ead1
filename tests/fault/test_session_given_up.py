"""A daemon whose metadata store goes away: it serves on, and ends only as its policy says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Home, serving, suspend

SESSION_GIVEN_UP = 3
WORKER = Path(__file__).with_name("metadata_worker.py")


@asynccontextmanager
async def worker(home: Home, role: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that uses the store; it has said its first line."""
    directory = home.metadata_uri.removeprefix("local://")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(WORKER), role, directory, "1", "write" if role[0] == "t" else "1"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(WORKER.parents[2])},
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_long_outage_ends_the_daemon_with_one_sentence(home: Home) -> None:
    """The store's only writer hangs: all heartbeats arrive, but writes fail."""
    home.sections["session"] = {"give_up_after_timeouts": 1.5}
    async with serving(home.write()) as daemon, worker(home, "hold") as owner:
        await daemon.until("registered")
        async with worker(home, "transaction"):
            # Its lease has to be ended, which the daemon cannot do now.
            owner.kill()
            status, sentence = await daemon.refusal()
    assert status == SESSION_GIVEN_UP
    assert sentence == "the metadata store did not answer for 1.5 seconds, 1.5 session timeouts"


@pytest.mark.parametrize("policy", ["shutdown", "reconnect"])
async def test_a_daemon_that_was_stopped_for_too_long(home: Home, policy: str) -> None:
    """Its peers end its session; it learns that when it runs again, and obeys its policy."""
    home.sections["session"] = {"policy": policy}
    async with (
        open_store(home.metadata_uri) as store,
        serving(home.write()) as daemon,
        store.watch("/") as changes,
    ):
        await daemon.until("registered")
        registration = keys.registration("b1", read_only=False)
        await suspend(daemon.process, home.metadata_uri)
        async with asyncio.timeout(60):
            while await store.exists(registration):
                await anext(changes)
        daemon.process.send_signal(signal.SIGCONT)
        if policy == "shutdown":
            status, sentence = await daemon.refusal()
            assert status == SESSION_GIVEN_UP
            assert sentence.endswith("lost, and session.policy is shutdown")
        else:
            await daemon.until("registered_again")
            assert await store.exists(registration)
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.end() == 0

"""What the commands say about health, on real processes that lack entries or do not answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bookie.api import connect
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.connect import open_store
from bookie.server.local.process import child_environment
from tests.fault.daemon_cluster import BOOKIES, home_of
from tests.fault.daemon_process import Daemon, Home, serving, suspend

COMMAND_SECONDS_MAX = 60.0
ENTRIES = 1000
ANSWER_SECONDS = "2"


@dataclass
class Running:
    """Bookies that are stopped and started one by one, and the commands of an operator."""

    uri: str
    homes: dict[str, Home]
    stack: AsyncExitStack
    daemons: dict[str, Daemon] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start a bookie, and wait until clients find it."""
        daemon = await self.stack.enter_async_context(serving(self.homes[name].write()))
        self.daemons[name] = daemon
        await daemon.until("registered")

    async def stop(self, name: str) -> None:
        """Stop it in order."""
        self.daemons[name].process.send_signal(signal.SIGTERM)
        assert await self.daemons[name].end() == 0

    async def append_without(self, name: str, count: int) -> int:
        """Stop a bookie while a ledger is written, and close that; its id."""
        async with connect(self.uri) as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            )
            await writer.append(b"on all")
            await self.stop(name)
            await writer.append_many([b"on two"] * count)
            await writer.close()
            return writer.ledger_id

    async def metric(self, name: str, metric: str) -> float:
        """A gauge of a bookie, as Prometheus hears of it."""
        port = self.homes[name].sections["http"]["port"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        (value,) = (line.split()[1] for line in lines if line.split()[0] == metric)
        return float(value)

    async def readiness(self, name: str) -> tuple[int, dict[str, Any]]:
        """Status and body of ``/readyz``."""
        port = self.homes[name].sections["http"]["port"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status, await answer.json()

    async def command(self, *words: str) -> tuple[int, Any]:
        """Exit status and JSON of a command."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", *words, "--metadata", self.uri, "-o", "json"),
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(os.environ),
        )
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, json.loads(said)

    async def health(self, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit status and checks of ``bookie cluster health``."""
        status, checks = await self.command(
            "cluster", "health", "--timeout", ANSWER_SECONDS, *words
        )
        return status, {check["check"]: check for check in checks}


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    """A cluster of three bookies."""
    uri = f"local://{path}/metadata"
    async with open_store(uri) as store:
        await initialize_cluster(store)
    async with AsyncExitStack() as stack:
        cluster = Running(uri, {name: home_of(uri, path, name) for name in BOOKIES}, stack)
        for name in BOOKIES:
            await cluster.start(name)
        yield cluster


async def test_missing_entries_are_seen_by_every_command(tmp_path: Path) -> None:
    """A bookie that was away lacks a thousand entries. So it and the cluster are incomplete."""
    async with running(tmp_path) as cluster:
        status, checks = await cluster.health()
        assert (status, [one["check"] for one in checks.values() if not one["healthy"]]) == (0, [])
        status, check = await cluster.command("node", "check", "b3")
        assert (status, check["whole"]) == (0, True)
        ledger_id = await cluster.append_without("b3", ENTRIES)
        status, checks = await cluster.health()
        assert (status, checks["ledgers on absent bookies"]["count"]) == (1, 1)
        await cluster.start("b3")
        for words in ((), ("--deep",)):
            status, checks = await cluster.health(*words)
            assert status == 1
            missing = checks["ledgers with missing copies"]
            assert (missing["healthy"], missing["count"]) == (False, 1)
            assert missing["found"] == f"b3: {ENTRIES} entries (ledger {ledger_id})"
        assert await cluster.metric("b3", "bookie_limbo_ledgers") == 0
        status, check = await cluster.command("node", "check", "b3")
        assert (status, check["whole"], check["missing_entries"]) == (1, False, ENTRIES)
        assert await cluster.metric("b3", "bookie_missing_entries") == ENTRIES
        assert await cluster.metric("b3", "bookie_limbo_ledgers") == 1
        status, checks = await cluster.health()
        assert (status, checks["ledgers in limbo"]["found"]) == (1, f"b3: 1 (ledger {ledger_id})")
        # The doubt outlives the process.
        await cluster.stop("b3")
        await cluster.start("b3")
        assert await cluster.metric("b3", "bookie_integrity_check_needed") == 1
        status, ready = await cluster.readiness("b3")
        assert (status, ready["ready"]) == (200, True)
        (remark,) = ready["remarks"]
        assert "it may miss entries" in remark
        assert "bookie node check b3" in remark
        assert (await cluster.readiness("b1"))[1]["remarks"] == []


async def test_a_bookie_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    """It is registered, and stopped by the system: nobody knows what it has."""
    async with running(tmp_path) as cluster:
        await suspend(cluster.daemons["b2"].process, cluster.uri)
        try:
            status, checks = await cluster.health()
        finally:
            cluster.daemons["b2"].process.send_signal(signal.SIGCONT)
        assert status == 1
        assert checks["bookies that do not answer"]["found"].startswith("b2: ")
        assert checks["ledgers with missing copies"]["count"] is None
        assert "unknown on b2" in checks["ledgers in limbo"]["found"]

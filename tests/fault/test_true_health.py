"""What the commands say about health, on real processes that lack entries or do not answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bookie.api import connect
from bookie.cluster.instance import initialize_cluster
from bookie.daemon.local.process import child_environment
from bookie.ledger.copies.replica_audit import ReplicaVerdict
from bookie.ledger.copies.replica_repair import CopyDamage, RepairOutcome
from bookie.metadata.connect import open_store
from tests.fault.daemon_cluster import BOOKIES, home_of
from tests.fault.daemon_process import Daemon, Home, serving, suspend
from tests.fault.waiting import time_limit

COMMAND_SECONDS_MAX = 300.0
LEASE_SECONDS = 60.0
"""A bookie that is stopped stays registered for longer than a command asks."""
SEEN_SECONDS_MAX = 600.0
"""A bookie looks after at most `CHECK_SECONDS`, and again after 10 s."""

ENTRIES = 1000
CHECK_SECONDS = 0.5
ALERTS = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yml"
ANSWER_SECONDS = "2"


@dataclass
class Running:
    """Bookies that are stopped and started one by one, and the commands of an operator."""

    uri: str
    homes: dict[str, Home]
    stack: AsyncExitStack
    daemons: dict[str, Daemon] = field(default_factory=dict)

    def listen(self, name: str, host: str, advertised_host: str = "") -> None:
        """Have a bookie that does not run yet listen on `host`, for gRPC and for HTTP."""
        sections = self.homes[name].sections
        sections["listen"] |= {"host": host, "advertised_host": advertised_host}
        sections["http"] |= {"host": host}

    async def start(self, name: str) -> None:
        """Start a bookie, and wait until clients find it."""
        daemon = await self.stack.enter_async_context(serving(self.homes[name].write()))
        self.daemons[name] = daemon
        await daemon.until("registered")

    async def stop(self, name: str) -> None:
        """Stop it in order."""
        self.daemons[name].process.send_signal(signal.SIGTERM)
        assert await self.daemons[name].end() == 0

    async def kill(self, name: str) -> None:
        """End it at once."""
        self.daemons[name].process.kill()
        await self.daemons[name].end()

    async def append_without(self, name: str, count: int) -> int:
        """Kill a bookie while a ledger is written, and close that; its id."""
        async with connect(self.uri) as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            )
            await writer.append(b"on all")
            await self.kill(name)
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

    async def until_metric(self, name: str, metric: str, value: float) -> None:
        """Wait until a gauge has a value, without any command to the bookie."""
        async with time_limit(SEEN_SECONDS_MAX):
            while await self.metric(name, metric) != value:  # noqa: ASYNC110  (as Prometheus)
                await asyncio.sleep(0.2)

    async def damage(self) -> list[ReplicaVerdict]:
        """The verdicts of an audit that are not ok; what the Spark job writes to its report."""
        async with connect(self.uri) as client:
            maintenance = client.maintenance()
            items = await maintenance.plan(1 << 28, lambda _: True, lambda _: None)
            return [one for one in await maintenance.audit(items) if one.verdict != "ok"]

    async def repair(self, damage: list[ReplicaVerdict]) -> list[RepairOutcome]:
        """What a task of the Spark job does with the report."""
        async with connect(self.uri) as client:
            return [
                outcome
                for one in damage
                for outcome in await client.maintenance().repair(
                    one.ledger_id, [CopyDamage(one.bookie_id, one.ranges, one.found_on)]
                )
            ]

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
async def prepared(path: Path) -> AsyncIterator[Running]:
    """A cluster of three bookies, none of which runs."""
    uri = f"local://{path}/metadata"
    async with open_store(uri) as store:
        await initialize_cluster(store)
    async with AsyncExitStack() as stack:
        homes = {name: home_of(uri, path, name) for name in BOOKIES}
        for home in homes.values():
            home.sections["limits"] = {"integrity_check_interval_seconds": CHECK_SECONDS}
        yield Running(uri, homes, stack)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    """A cluster of three bookies."""
    async with prepared(path) as cluster:
        for name in BOOKIES:
            await cluster.start(name)
        yield cluster


def unhealthy(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What is wrong, by check."""
    return {name: one["found"] for name, one in checks.items() if not one["healthy"]}


async def test_what_a_bookie_missed_is_seen_and_mended(tmp_path: Path) -> None:
    """A bookie that was away lacks a thousand entries, says so unasked, and gets them back.

    The story of an operator: the alert, the runbook's check, the repair, and silence.
    """
    rule = (
        ALERTS.read_text().partition("- alert: BookieMissesEntries\n")[2].partition("- alert:")[0]
    )
    assert "        expr: bookie_missing_entries > 0\n" in rule
    async with running(tmp_path) as cluster:
        status, checks = await cluster.health()
        assert (status, unhealthy(checks)) == (0, {})
        status, check = await cluster.command("node", "check", "b3")
        assert (status, check["whole"]) == (0, True)
        ledger_id = await cluster.append_without("b3", ENTRIES)
        status, checks = await cluster.health()
        assert (status, checks["ledgers on absent bookies"]["count"]) == (1, 1)
        lost = {"ledgers with missing copies": f"b3: {ENTRIES} entries (ledger {ledger_id})"}

        await cluster.start("b3")
        await cluster.until_metric("b3", "bookie_missing_entries", ENTRIES)
        assert await cluster.metric("b3", "bookie_integrity_check_needed") == 1
        assert await cluster.metric("b3", "bookie_integrity_check_age_seconds") >= 0
        assert [await cluster.metric(name, "bookie_missing_entries") for name in ("b1", "b2")] == [
            0,
            0,
        ]
        for words in ((), ("--deep",)):
            status, checks = await cluster.health(*words)
            assert (status, unhealthy(checks)) == (1, lost)

        status, check = await cluster.command("node", "check", "b3")
        assert (status, check["whole"], check["missing_entries"]) == (1, False, ENTRIES)
        assert await cluster.metric("b3", "bookie_limbo_ledgers") == 0
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

        (wrong,) = damage = await cluster.damage()
        assert (wrong.bookie_id, wrong.verdict, wrong.entries) == ("b3", "missing", ENTRIES)
        (outcome,) = await cluster.repair(damage)
        assert (outcome.outcome, outcome.entries) == ("repaired", ENTRIES), outcome.detail
        await cluster.until_metric("b3", "bookie_missing_entries", 0)
        await cluster.until_metric("b3", "bookie_integrity_check_needed", 0)
        status, checks = await cluster.health("--deep")
        assert (status, unhealthy(checks)) == (0, {})
        assert await cluster.damage() == []


async def test_a_bookie_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    """It is registered, and stopped by the system: nobody knows what it has."""
    async with prepared(tmp_path) as cluster:
        for name in BOOKIES:
            cluster.homes[name].sections["metadata"]["session_timeout_seconds"] = LEASE_SECONDS
            await cluster.start(name)
        await suspend(cluster.daemons["b2"].process, cluster.uri)
        try:
            status, checks = await cluster.health()
        finally:
            cluster.daemons["b2"].process.send_signal(signal.SIGCONT)
        assert status == 1
        assert checks["bookies that do not answer"]["found"].startswith("b2: ")
        assert checks["ledgers with missing copies"]["count"] is None
        assert "unknown on b2" in checks["ledgers in limbo"]["found"]


async def test_commands_reach_a_bookie_wherever_it_listens(tmp_path: Path) -> None:
    """On IPv6, and on every address, as in a container: found at one that is not loopback."""
    async with prepared(tmp_path) as cluster:
        cluster.listen("b1", "::1")
        cluster.listen("b2", "0.0.0.0", own_address())
        cluster.listen("b3", "::", own_address())
        for name in BOOKIES:
            cluster.homes[name].sections["security"] = {"allow_plaintext": True}
            await cluster.start(name)
        async with connect(cluster.uri) as client:
            writer = await client.create_ledger()
            await writer.append(b"on all")
            await writer.close()
        status, checks = await cluster.health()
        assert (status, [one["check"] for one in checks.values() if not one["healthy"]]) == (0, [])
        _, listed = await cluster.command("cluster", "bookies")
        port = cluster.homes["b1"].sections["listen"]["port"]
        assert listed[0]["address"] == f"[::1]:{port}"
        for name in BOOKIES:
            status, check = await cluster.command("node", "check", name)
            assert (status, check["whole"]) == (0, True)
            _, info = await cluster.command("node", "info", name)
            assert (info["bookie_id"], info["read_only"]) == (name, False)
            _, info = await cluster.command("node", "readonly", name, "on")
            assert (info["bookie_id"], info["read_only"]) == (name, True)


def own_address() -> str:
    """An address of this machine that others reach, or loopback if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an example's address; nothing is sent
        return str(probe.getsockname()[0])
    return "127.0.0.1"

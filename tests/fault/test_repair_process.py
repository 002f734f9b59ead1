"""``bookie repair serve``: repair in a process without a bookie."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from bookie.cluster.instance import initialize_cluster
from bookie.daemon.local.process import child_environment
from bookie.daemon.repair_process import RepairProcessMetrics
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.repair_history import ended_repairs
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Daemon
from tests.fault.lossy_cluster import create, lossy_cluster, payloads_of
from tests.servers.ports import claimed_ports

FOUR = ("b1", "b2", "b3", "b4")
PAYLOADS = [b"%d" % number * 20 for number in range(100)]
SECONDS_MAX = 300.0


@asynccontextmanager
async def _repair_serve(uri: str, *words: str) -> AsyncIterator[Daemon]:
    """The process, killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", "repair", "serve", "--metadata", uri, *words),
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(os.environ),
    )
    try:
        yield Daemon(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_copies_come_back_without_a_bookie_that_repairs(tmp_path: Path) -> None:
    """Two such processes; the one that audits is killed, and the other one ends in order."""
    uri = f"local://{tmp_path}/metadata"
    ports = claimed_ports(2)
    delay = ("--set", "repair.lost_bookie_delay_seconds=0.5")
    async with lossy_cluster(uri, tmp_path, FOUR, repair={"enabled": False}) as cluster:
        client = await cluster.client()
        writers = [await create(client) for _ in range(5)]
        for writer in writers:
            await writer.append_many(PAYLOADS)
            await writer.close()
        ledgers = [one.ledger_id for one in writers]
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        await cluster.kill(victim)
        async with (
            _repair_serve(uri, "--set", f"http.port={ports[0]}", *delay) as one,
            _repair_serve(uri, "--set", f"http.port={ports[1]}", *delay) as other,
        ):
            for process in (one, other):
                await process.until("repairing")
            one.process.kill()
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    found = [await client.ledger_metadata(ledger) for ledger in ledgers]
                    if not any(victim in one.last_fragment.bookies for one in found):
                        break
                    await asyncio.sleep(0.1)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{ports[1]}") as session:
                async with session.get("/metrics") as response:
                    families = re.findall(r"(?m)^# TYPE (\S+)", await response.text())
                assert "bookie_repair_copied_entries_total" in families
                assert not [
                    one for one in families if not one.startswith(RepairProcessMetrics.exposed)
                ]
                async with session.get("/readyz") as response:
                    assert (await response.json())["ready"]
                async with session.get("/bookie") as response:
                    assert response.status == 503
            other.process.send_signal(signal.SIGTERM)
            assert await other.end() == 0
        for ledger in ledgers:
            assert await payloads_of(client, ledger) == PAYLOADS
        async with open_store(uri) as store:
            assert not await UnderreplicationManager(store).locked()
            repairs, _ = await ended_repairs(store)
            workers = {worker for worker, _ in repairs}
            assert f"{socket.gethostname()}:{other.process.pid}" in workers


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 1, "holds no cluster"),
        (("--set", "repair.ledgers_at_once=0"), 78, "ledgers_at_once"),
        (("--set", "repair.nonsense=1"), 78, "nonsense"),
        (("--config", "/does/not/exist.toml"), 78, "exist.toml"),
    ],
)
async def test_why_it_does_not_start(
    tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    uri = f"local://{tmp_path}/metadata"
    async with open_store(uri, create=True):
        pass
    (port,) = claimed_ports(1)
    async with _repair_serve(uri, "--set", f"http.port={port}", *words) as process:
        assert await process.end() == status
        assert said in json.loads(process.lines[-1])["reason"]


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """As that of a bookie on the same machine."""
    uri = f"local://{tmp_path}/metadata"
    async with open_store(uri, create=True) as store:
        await initialize_cluster(store)
    (port,) = claimed_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        async with _repair_serve(uri, "--set", f"http.port={port}") as process:
            assert await process.end() == 1
            assert "cannot serve HTTP on" in json.loads(process.lines[-1])["reason"]

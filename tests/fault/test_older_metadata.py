"""The metadata store is put back to an older copy, or loses ledgers: no data is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bookie.api import BookKeeper, connect
from bookie.cluster.layout import FLAT
from bookie.daemon.local.process import child_environment
from bookie.metadata.connect import open_store
from bookie.metadata.model import Delete
from tests.fault.daemon_process import Daemon, Home, new_home, serving

SECONDS_MAX = 300.0
ROUNDS = 10
GARBAGE: dict[str, object] = {"interval_seconds": 0.1, "grace_seconds": 0.2}


def entry(ledger_id: int) -> bytes:
    """What the only entry of a ledger contains."""
    return f"ledger {ledger_id}".encode() * 100


async def create(home: Home, count: int) -> list[int]:
    """Closed ledgers with an entry each, on the bookie that runs."""
    ids = []
    async with connect(home.metadata_uri) as client:
        await answers(client)
        for _ in range(count):
            writer = await client.create_ledger(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
            )
            await writer.append(entry(writer.ledger_id))
            await writer.close()
            ids.append(writer.ledger_id)
    return ids


async def answers(client: BookKeeper) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not client.bookies():  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.05)


async def assert_readable(home: Home, ids: Iterable[int]) -> None:
    """Everything that was acknowledged is there."""
    async with connect(home.metadata_uri) as client:
        await answers(client)
        for ledger_id in ids:
            reader = await client.open_ledger(ledger_id)
            assert [one.payload async for one in reader.read(0, 0)] == [entry(ledger_id)]


@asynccontextmanager
async def running(home: Home) -> AsyncIterator[Daemon]:
    """The bookie, registered; stopped in order at the end of the block."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        yield daemon
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0


async def metrics(home: Home) -> dict[str, float]:
    """What the bookie measures, by name and labels."""
    url = f"http://127.0.0.1:{home.sections['http']['port']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def rounds(home: Home, count: int = ROUNDS) -> dict[str, float]:
    """What is measured after so many more rounds of the collector, whatever they came to."""

    def made(found: dict[str, float]) -> float:
        return sum(n for name, n in found.items() if "garbage_rounds_total{" in name)

    found = await metrics(home)
    wanted = made(found) + count
    async with asyncio.timeout(SECONDS_MAX):
        while made(found) < wanted:
            await asyncio.sleep(0.05)
            found = await metrics(home)
    return found


async def run(home: Home, *words: str) -> tuple[int, str, str]:
    """Run ``bookie …`` to its end: exit status, output and complaints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", *words, "--metadata", home.metadata_uri),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(os.environ),
    )
    async with asyncio.timeout(SECONDS_MAX):
        output, complaints = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), complaints.decode()


async def node(home: Home, *words: str) -> dict[str, object]:
    """What ``bookie node …`` says about the bookie."""
    status, output, complaints = await run(home, "node", *words, "-o", "json")
    assert status == 0, complaints
    found = json.loads(output)
    assert isinstance(found, dict)
    return found


async def refusal(home: Home, *words: str) -> str:
    """Why a command failed, in one sentence."""
    status, _, complaints = await run(home, "node", *words)
    assert status == 1
    assert complaints.count("\n") == 1, complaints
    return complaints


async def test_an_older_copy_of_the_metadata_destroys_nothing(tmp_path: Path) -> None:
    """60 of 90 ledgers are unknown to it. They wait for the newer copy, and then all goes on."""
    home = await new_home(tmp_path)
    home.sections["garbage"] = GARBAGE
    metadata = Path(home.metadata_uri.removeprefix("local://"))
    async with running(home):
        ids = await create(home, 30)
        await rounds(home, 2)
    shutil.copytree(metadata, tmp_path / "older")
    async with running(home):
        ids += await create(home, 60)
        await rounds(home, 2)
    shutil.move(metadata, tmp_path / "newer")
    shutil.copytree(tmp_path / "older", metadata)

    async with running(home) as daemon:
        found = await rounds(home)
        assert found["bookie_garbage_ledgers_total"] == 0, "ledgers were deleted for good"
        assert found["bookie_garbage_stopped"] == 1
        info = await node(home, "info", "b1")
        reason = r"the metadata store went back in time: .*, and (was|had) [0-9]+"
        assert re.fullmatch(reason, str(info["garbage_stopped"])), info
        assert "in doubt" in await refusal(home, "gc", "b1", "--force", "--yes")
        assert (await rounds(home))["bookie_garbage_ledgers_total"] == 0
    said = [line for line in daemon.lines if '"garbage_collection_stopped"' in line]
    assert len(said) == 1, "an operator is told once"

    shutil.rmtree(metadata)
    shutil.move(tmp_path / "newer", metadata)
    async with running(home):
        await assert_readable(home, ids)
        assert (await rounds(home))["bookie_garbage_stopped"] == 1, "it does not end by itself"
        confirmed = await node(home, "gc", "b1", "--confirm-store", "--yes")
        assert confirmed["garbage_stopped"] == ""
        async with connect(home.metadata_uri) as client:
            for ledger_id in ids[::2]:
                await client.delete_ledger(ledger_id)
        found = await rounds(home)
        assert found["bookie_garbage_ledgers_total"] == 45
        assert found["bookie_garbage_stopped"] == 0
        assert "nothing to confirm" in await refusal(home, "gc", "b1", "--confirm-store", "--yes")
        await assert_readable(home, ids[1::2])


async def test_ledgers_without_metadata_wait_and_are_kept(tmp_path: Path) -> None:
    """Also after a kill; what an operator forces goes."""
    home = await new_home(tmp_path)
    home.sections["garbage"] = GARBAGE | {"grace_seconds": 3600.0}
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        ids = await create(home, 12)
        assert "no ledger waits" in await refusal(home, "gc", "b1", "--undelete")
        async with open_store(home.metadata_uri) as store:
            # Together: a round between the two would have the second wait since later.
            await store.transaction([Delete(FLAT.key(ledger_id)) for ledger_id in ids[:2]])
        await rounds(home)
        before = await node(home, "info", "b1")
        assert (before["garbage_waiting_ledgers"], before["garbage_stopped"]) == (2, "")
        since = before["garbage_waiting_since_ms"]
        at = before["garbage_first_deletion_at_ms"]
        assert isinstance(since, int)
        assert isinstance(at, int)
        assert at > since
    # The end of the block above killed it.
    async with running(home):
        await rounds(home)
        assert (await node(home, "info", "b1"))["garbage_waiting_since_ms"] == since
        wrong = await refusal(home, "gc", "b1", str(ids[5]), "--undelete")
        assert f"ledger {ids[5]} does not wait" in wrong
        one = await node(home, "gc", "b1", str(ids[0]), "--undelete")
        assert (one["undeleted_ledgers"], one["garbage_waiting_since_ms"]) == (1, since)
        both = await node(home, "gc", "b1", "--undelete")
        assert both["undeleted_ledgers"] == 2
        newer = both["garbage_waiting_since_ms"]
        assert isinstance(newer, int)
        assert newer > since
        await node(home, "gc", "b1", "--force", "--yes")
        found = await rounds(home)
        assert found["bookie_garbage_ledgers_total"] == 2
        await assert_readable(home, ids[2:])

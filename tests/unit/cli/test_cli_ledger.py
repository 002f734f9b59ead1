"""``bookie ledger`` on a cluster: where a tail starts, how JSON names a ledger, vacant slots."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.api import UNCLAIMED, connect
from bookie.cli import app
from bookie.cluster import keys
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.metadata import Fragment
from bookie.ledger.underreplicated import NOT_RECOVERED
from bookie.metadata.connect import open_store
from tests.unit.cli.command_process import CommandProcess
from tests.unit.ledger.real_cluster import real_cluster

Command = Callable[[str], Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def command(tmp_path: Path, command_process: CommandProcess) -> AsyncIterator[Command]:
    """Runs ``bookie ledger WORDS`` where ledger 0 has three entries, and 1 waits for a writer."""
    uri = f"local://{tmp_path}/metadata"

    async def run(words: str) -> tuple[int, str, str]:
        given = ["ledger", *words.split(), "--metadata", uri]
        return await asyncio.to_thread(command_process.run, given)

    async with real_cluster(tmp_path / "bookies", uri=uri), connect(uri) as bk:
        async with bk.create_ledger() as writer:
            await writer.append_many([b"0", b"1", b"2"])
        await bk.create_ledger(custom_metadata={UNCLAIMED: b""})
        yield run


async def test_a_tail_starts_at_the_first_entry(command: Command) -> None:
    """As `ReaderHandle.tail`; elsewhere if that is asked for."""
    assert await command("tail 0") == (0, "0\n1\n2\n", "")
    assert await command("tail 0 --start 2") == (0, "2\n", "")
    assert await command("tail 0 --new") == (0, "", "")
    status, _, said = await command("tail 0 --new --start 0")
    assert (status, "--start or --new" in said) == (app.EXIT_MISUSED, True)


async def test_json_names_a_ledger_in_one_way(command: Command) -> None:
    """A script takes `ledger_id` out of whatever it called."""
    found = []
    for words in ("list", "show 0", "append 1", "recover 1", "delete 1 --yes"):
        status, out, said = await command(f"{words} --output json")
        assert status == 0, said
        record = json.loads(out)
        found.append((record[0] if words == "list" else record)["ledger_id"])
    _, out, _ = await command("create --output json")
    assert json.loads(out).keys() == {"ledger_id"}
    assert found == [0, 0, 1, 1, 1]


async def test_show_tells_whether_the_writer_lives(command: Command, tmp_path: Path) -> None:
    """By its record; a ledger without a writer shows none."""
    _, out, _ = await command("show 0 --output json")
    shown = json.loads(out)
    assert shown["writer_process"] == f"{socket.gethostname()}:{os.getpid()}"
    assert shown["custom"] == {}
    _, out, _ = await command("show 1 --output json")
    assert (json.loads(out)["writer"], json.loads(out)["writer_process"]) == (None, None)
    async with open_store(f"local://{tmp_path}/metadata") as store:
        assert await store.get_children(keys.WRITERS) == [shown["writer"]]
    async with connect(f"local://{tmp_path}/metadata") as other:
        left = (await other.create_ledger()).ledger_id
    _, out, _ = await command(f"show {left} --output json")
    assert json.loads(out)["writer"] not in (None, shown["writer"])
    assert json.loads(out)["writer_process"] is None


@pytest.mark.parametrize("words", ["recover", "delete --yes"])
async def test_a_failed_recovery_is_forgotten(command: Command, tmp_path: Path, words: str) -> None:
    """Also while no auditor runs. The reason of a failed repair of copies stays."""
    async with open_store(f"local://{tmp_path}/metadata") as store:
        failures = RepairFailures(store)
        await failures.add(1, NOT_RECOVERED, "too few bookies answered")
        await failures.add(0, "no-spare", "too few bookies")
        for ledger in (0, 1):
            verb, *options = words.split()
            status, _, said = await command(" ".join([verb, str(ledger), *options]))
            assert status == 0, said
        assert [one.ledger_id async for one in failures.all()] == [0]


async def test_recover_drops_no_entry_of_a_bookie_that_is_not_named(
    command: Command, tmp_path: Path
) -> None:
    """The metadata is as before the only bookie of the ledger was replaced."""
    uri = f"local://{tmp_path}/metadata"
    async with connect(uri) as bk:
        left = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        await left.append_many([b"0", b"1"])
    (named,) = left.metadata.last_fragment.bookies
    async with open_store(uri) as store:
        manager = LedgerManager(store)
        found = await manager.read(left.ledger_id)
        former = (Fragment(0, ("b1" if named == "b0" else "b0",)),)
        await manager.write(replace(found.value, fragments=former), found.version)
    status, _, said = await command(f"recover {left.ledger_id}")
    assert status == 1
    assert f"bookie {named} has entry 1, " in said
    assert "knows entries up to -1" in said
    status, out, _ = await command(f"explain {left.ledger_id}")
    assert (status, f"bookie {named} has entry 1, " in out) == (1, True)
    status, out, _ = await command(f"explain {left.ledger_id} --output json")
    assert status == 1
    assert f"bookie {named} has entry 1, " in json.loads(out)["unnamed_entries"]
    status, out, _ = await command(f"recover {left.ledger_id} --force --output json")
    assert (status, json.loads(out)["last_entry_id"]) == (0, -1)


async def test_a_degraded_ledger_is_found_and_mended(command: Command) -> None:
    """Five slots for three bookies: two are vacant, which the check of the placement says."""
    status, out, said = await command("check-placement --output json")
    assert (status, [fragment["right"] for fragment in json.loads(out)]) == (0, [True] * 2), said
    status, _, said = await command("create -E 5 -W 5 -A 3")
    assert (status, "only 3 writable bookies" in said) == (1, True)
    status, out, _ = await command("create -E 5 -W 5 -A 3 --allow-degraded")
    assert status == 0
    status, out, _ = await command(f"check-placement {int(out)} --output json")
    (fragment,) = json.loads(out)
    assert (status, fragment["vacant"], fragment["right"]) == (1, 2, False)
    assert {"vacant.2", "vacant.4"} & set(fragment["bookies"])
    assert (await command("check-placement 0 1"))[0] == 0
    status, _, said = await command("check-placement 77")
    assert (status, said) == (1, "bookie: ledger 77 does not exist\n")

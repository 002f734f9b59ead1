"""Making a stopped bookie's index again, as an operator does."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cli import app
from bookie.cluster.cookie import decode_cookie, encode_cookie
from bookie.daemon.rebuild import rebuild_index
from bookie.env import PosixDisk, open_lmdb
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node.engine.index.entry_index import META_FORMAT, TABLES, Index
from tests.unit.node.engine.machine import Machine
from tests.unit.node.node_room import add, add_unnamed, ids_of, read
from tests.unit.node.started_bookie import metadata, started


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        yield store


async def live(machine: Machine, store: MetadataStore) -> None:
    """A bookie with an open and a closed ledger, stopped in order."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, LedgerState.OPEN, ("b1", "b2")))
    await manager.create(metadata(2, LedgerState.CLOSED, ("b1", "b2")))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        await add(one.bookie, 2, range(100))


def words(machine: Machine) -> list[str]:
    """The command."""
    journal, ledgers = str(machine.journal), str(machine.root / "ledgers")
    where = ["--journal-dir", journal, "--ledgers-dir", ledgers]
    return ["rebuild", "index", *where, "--yes", "-o", "json"]


async def test_the_index_is_made_again_and_the_old_one_kept(
    machine: Machine, store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bookie starts on it, and takes nothing for granted about open ledgers."""
    await live(machine, store)
    assert app.run(words(machine)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["entries"] == 110
    assert report["ledgers"] == 2
    assert report["damage"] == []
    assert report["bytes"] == sum(
        path.stat().st_size for path in machine.journals()[:1] + machine.log_files()
    )
    assert report["megabytes_per_second"] > 0
    assert (Path(report["old_index"]) / "data.mdb").is_file()
    async with started(machine, store) as after:
        assert after.engine.needs_integrity_check
        assert not after.engine.report.rebuilt
        assert ids_of(await read(after.bookie, 1, 0, 20)) == list(range(10))
        assert ids_of(await read(after.bookie, 2, 0, 200)) == list(range(100))
        assert (await read(after.bookie, 1, 10, 10)).status is Status.UNKNOWN_LEDGER_STATE
        refused = await add_unnamed(after.bookie, 1, [10])
        assert refused.status is Status.UNKNOWN_LEDGER_STATE


async def test_damage_is_said(
    machine: Machine, store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the rest is kept."""
    await live(machine, store)
    (path,) = machine.journals()
    data = bytearray(path.read_bytes())
    data[data.index(b"1/5/0:")] ^= 1
    path.write_bytes(data)
    assert app.run(words(machine)) == 0
    report = json.loads(capsys.readouterr().out)
    assert path.name in report["damage"][0]
    assert report["entries"] == 100


class Interrupted(BaseException):
    """Ctrl-C."""


async def test_an_interrupted_rebuild_begins_anew(machine: Machine, store: MetadataStore) -> None:
    """By the command or by a start."""
    await live(machine, store)

    def interrupt(size: int) -> None:
        raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            rebuild_index(machine.settings, interrupt)
        index = Index(open_lmdb(str(machine.index), 1 << 24, TABLES))
        assert index.meta(META_FORMAT) is None
        index.close()
    async with started(machine, store) as after:
        assert after.engine.report.rebuilt
        assert ids_of(await read(after.bookie, 2, 0, 200)) == list(range(100))


async def test_a_running_bookie_is_left_alone(
    machine: Machine, store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its directories are locked."""
    await live(machine, store)
    async with started(machine, store) as running:
        assert app.run(words(machine)) == 1
        assert "another process uses" in capsys.readouterr().err
        assert ids_of(await read(running.bookie, 2, 0, 200)) == list(range(100))
    async with started(machine, store) as after:
        assert after.engine.report.clean


async def test_directories_that_are_no_bookie_are_refused(
    machine: Machine, store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, and nothing is made in them."""
    assert app.run(words(machine)) == app.EXIT_MISUSED
    assert "there is no directory" in capsys.readouterr().err
    assert not machine.root.exists()
    await live(machine, store)
    cookie = machine.journal / "COOKIE"
    kept = cookie.read_bytes()
    cookie.unlink()
    assert app.run(words(machine)) == app.EXIT_MISUSED
    assert "there is no cookie in" in capsys.readouterr().err
    cookie.write_bytes(encode_cookie(replace(decode_cookie(kept), bookie_id="b2")))
    assert app.run(words(machine)) == 1
    assert "'b2' and" in capsys.readouterr().err
    cookie.write_bytes(kept)
    for path in machine.journals():
        path.unlink()
    assert app.run(words(machine)) == app.EXIT_MISUSED
    assert "to make an index from" in capsys.readouterr().err
    assert "data.mdb" in PosixDisk().names(str(machine.index))
    assert not [name for name in os.listdir(machine.root / "ledgers") if "replaced" in name]

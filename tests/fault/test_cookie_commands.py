"""``bookie cookie`` beside real bookies: lost disks, copies that do not count, moved data."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bookie.api import BookKeeper
from bookie.cluster.cookie import Cookie
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_instance_id
from bookie.config import load_settings
from bookie.daemon.local.process import child_environment
from bookie.env import Environment, Failpoints, SystemClock, ThreadWorkers, open_lmdb
from bookie.metadata.connect import open_store
from bookie.node.move import move_directories
from tests.fault.daemon_cluster import DaemonCluster, daemon_cluster
from tests.fault.daemon_process import Daemon, refused, serving
from tests.unit.node.engine.faulty_disk import FaultyDisk

ENTRIES = [b"%d" % n for n in range(50)]
DONE, FAILED = 0, 1
FINISH = "; if you moved its directories, finish with `bookie cookie move`"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, object]:
        """Its output as JSON."""
        record: dict[str, object] = json.loads(self.out)
        return record


async def bookie_cookie(*words: str) -> Ran:
    """Run ``bookie cookie`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", "cookie", *words, "--output", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(os.environ),
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def stop(daemon: Daemon) -> None:
    """Stop it in order."""
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.end() == DONE


async def write_ledgers(client: BookKeeper) -> int:
    """One ledger that is closed, whose id is returned, and one that is not."""
    writers = [
        await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        for _ in range(2)
    ]
    for writer in writers:
        await writer.append_many(ENTRIES)
    await writers[0].close()
    return writers[0].ledger_id


async def change_cookie(uri: str, name: str, **fields: object) -> Cookie:
    """Give a stopped bookie's cookie in the metadata store other values; what it was."""
    async with open_store(uri) as store:
        manager = CookieManager(store)
        found = await manager.read(name)
        assert found is not None
        await manager.write(replace(found.value, **fields), found.version)  # type: ignore[arg-type]
        return found.value


async def has_cookie(uri: str, name: str) -> bool:
    async with open_store(uri) as store:
        return await CookieManager(store).read(name) is not None


async def test_one_lost_disk_is_forgotten_and_a_second_is_not(tmp_path: Path) -> None:
    """Of three copies two acknowledged. Deletion needs a second one that counts."""
    uri = f"local://{tmp_path}/metadata"
    delete = ("delete", "--metadata", uri, "--yes")
    async with daemon_cluster(uri, tmp_path) as cluster:
        await write_ledgers(cluster.client)
        ran = await bookie_cookie(*delete, "b1")
        assert (ran.status, "bookie b1 is running; stop it" in ran.err) == (FAILED, True)
        for name in ("b1", "b2"):
            await stop(cluster.daemons[name])
        for directory in ("journal", "ledgers"):
            shutil.rmtree(tmp_path / "b1" / directory)

        before = await change_cookie(uri, "b2", is_in_doubt=True)
        ran = await bookie_cookie(*delete, "b1")
        assert ran.status == FAILED
        assert ran.err.startswith(
            "bookie: bookie b1 may have the last copies of entries of 2 ledgers"
        )
        assert (ran.record["closed"], ran.record["not_closed"]) == (1, 1)
        assert (ran.record["last_copies"], ran.record["deleted"]) == (2, False)
        assert await has_cookie(uri, "b1")

        await change_cookie(uri, "b2", is_in_doubt=before.is_in_doubt)
        ran = await bookie_cookie(*delete, "b1")
        assert ran.status == DONE, ran.err
        assert (ran.record["ledgers"], ran.record["last_copies"]) == (2, 0)
        assert not await has_cookie(uri, "b1")

        ran = await bookie_cookie(*delete, "b2")
        assert (ran.status, ran.record["last_copies"]) == (FAILED, 2)
        assert await has_cookie(uri, "b2")
        ran = await bookie_cookie(*delete, "b2", "--force")
        assert (ran.status, ran.record["deleted"]) == (DONE, True)


async def fail_half_way(config: Path, part: str) -> None:
    """Move as the command does, on a disk that fails at the cookie of one directory."""
    settings = load_settings(config)
    disk = FaultyDisk()
    disk.fail("rename", part, errno.EIO)
    async with open_store(settings.metadata.uri) as store, ThreadWorkers() as workers:
        with pytest.raises(OSError, match="Input/output error"):
            await move_directories(
                Environment(SystemClock(), disk, workers, open_lmdb, Failpoints()),
                settings.storage,
                CookieManager(store),
                settings.bookie.id,
                await read_instance_id(store),
            )


def move_to(cluster_path: Path, name: str) -> Path:
    """Move both directories of a bookie and write their new paths into its settings."""
    home = cluster_path / name
    config = home / "bookie.toml"
    text = config.read_text(encoding="utf-8")
    for directory, device in (("journal", "fast"), ("ledgers", "wide")):
        (cluster_path / device).mkdir()
        shutil.move(home / directory, cluster_path / device / name)
        text = text.replace(f"{home}/{directory}", f"{cluster_path}/{device}/{name}")
    config.write_text(text, encoding="utf-8")
    return config


async def test_moved_directories_serve_what_they_hold(tmp_path: Path) -> None:
    """Two crashes half way are finished by running the command again; until then nothing starts."""
    uri = f"local://{tmp_path}/metadata"
    async with daemon_cluster(uri, tmp_path) as cluster:
        ledger_id = await write_ledgers(cluster.client)
        await stop(cluster.daemons["b1"])
        config = move_to(tmp_path, "b1")
        status, sentence = await refused(config)
        assert status == FAILED
        assert sentence.startswith("the cookie in the metadata store differs from this bookie in")
        assert sentence.endswith(f" its journal directories, ledger directories{FINISH}")

        for device in ("fast", "wide"):
            await fail_half_way(config, f"{tmp_path}/{device}/b1/COOKIE")
            status, sentence = await refused(config)
            assert status == FAILED
            assert sentence.startswith(f"the cookie in {tmp_path}/{device}/b1 differs ")
            assert sentence.endswith(FINISH)

        ran = await bookie_cookie("move", "--config", str(config))
        assert ran.status == DONE, ran.err
        assert ran.record["journal_dirs"] == [f"{tmp_path}/fast/b1"]
        assert ran.record["cookies_rewritten"] == 1
        async with serving(config) as moved:
            await moved.until("registered")
            ran = await bookie_cookie("move", "--config", str(config))
            assert (ran.status, "bookie b1 is running; stop it" in ran.err) == (FAILED, True)
            await check_alone(cluster, ledger_id)
            await stop(moved)
        ran = await bookie_cookie("move", "--config", str(config))
        assert (ran.status, ran.record["cookies_rewritten"]) == (DONE, 0)


async def check_alone(cluster: DaemonCluster, ledger_id: int) -> None:
    """The first bookie has every entry of the closed ledger."""
    for name in ("b2", "b3"):
        await stop(cluster.daemons[name])
    await cluster.registered("b1")
    reader = await cluster.client.open_ledger(ledger_id)
    assert [entry.payload async for entry in reader.read(0, reader.last_entry_id)] == ENTRIES

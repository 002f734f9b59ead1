"""A daemon that goes by the settings of its cluster, which commands in other processes change."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from bookie.cluster import keys
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.directory import BookieDirectory
from bookie.daemon.local.process import child_environment
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Daemon, Home, new_home, refused, serving

FAILED, MISCONFIGURED = 1, 78
SECONDS_MAX = 120.0


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """A bookie whose cluster knows more of it than it does: it has no file."""
    home = await new_home(tmp_path)
    async with open_store(home.metadata_uri) as store:
        await ClusterSettings(store).set(
            {
                f"{section}.{key}": str(value)
                for section in ("listen", "http", "storage", "garbage")
                for key, value in home.sections[section].items()
            }
            | {"storage.scrub_bytes_per_second": "0"}
        )
    return home


def variables(home: Home) -> dict[str, str]:
    """Who the bookie is and where its cluster is: all that it is told."""
    return {
        "BOOKIE_BOOKIE__ID": "b1",
        "BOOKIE_METADATA": home.metadata_uri,
        "BOOKIE_METADATA__SESSION_TIMEOUT_SECONDS": "1",
    }


async def bookie(home: Home, *words: str) -> None:
    """A command in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", *words),
        env=child_environment(os.environ) | {"BOOKIE_METADATA": home.metadata_uri},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0, words


async def until_scrubbed(home: Home) -> None:
    """Wait until the scrubber has been through everything."""
    url = f"http://127.0.0.1:{home.sections['http']['port']}/scrub"
    async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS_MAX):
        while True:
            async with session.get(url) as response:
                if (await response.json())["report"]["passes"]:
                    return
            await asyncio.sleep(0.05)


def changes(daemon: Daemon) -> list[tuple[str, str]]:
    """Event and setting of every line about a setting."""
    lines = [json.loads(line) for line in daemon.lines]
    return [(line["event"], line["key"]) for line in lines if line["event"].startswith("setting_")]


async def test_settings_of_the_cluster_count_and_change_while_it_runs(home: Home) -> None:
    """Rate and level from another process; what needs a restart is said and comes with it."""
    rate = "storage.scrub_bytes_per_second"
    async with serving(None, **variables(home)) as daemon:
        await daemon.until("registered")
        assert home.journal.is_dir()
        # Off until now, the scrubber would have slept for a minute.
        await bookie(home, "cluster", "settings", "set", f"{rate}=1TiB", "log.level=warning")
        await until_scrubbed(home)
        await daemon.until("setting_changed")
        await bookie(home, "node", "readonly", "b1", "on")
        await bookie(home, "cluster", "settings", "unset", "log.level")
        await daemon.until("setting_changed")
        await bookie(home, "node", "readonly", "b1", "off")
        await daemon.until("read_only_changed")
        assert '"read_only": false' in daemon.lines[-1], "the line before came under `warning`"
        await bookie(home, "cluster", "settings", "set", "storage.read_threads=2")
        await daemon.until("setting_needs_restart")
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    assert changes(daemon) == [
        ("setting_changed", rate),
        ("setting_changed", "log.level"),
        ("setting_changed", "log.level"),
        ("setting_needs_restart", "storage.read_threads"),
    ]
    async with serving(None, **variables(home)) as daemon:
        await daemon.until("starting")
        started = json.loads(daemon.lines[-1])
        assert json.loads(started["changed_settings"])["storage"]["read_threads"] == 2


async def test_labels_are_announced_while_it_runs_and_after_its_restart(home: Home) -> None:
    """Those of an operator over those of its settings, which may come from the cluster, too."""
    own = variables(home)
    await bookie(home, "cluster", "settings", "set", "bookie.labels=zone=a,rack=r1")
    async with open_store(home.metadata_uri) as store, BookieDirectory(store) as directory:

        async def until_labels(labels: dict[str, str]) -> None:
            async with asyncio.timeout(SECONDS_MAX):
                while "b1" not in directory.all() or directory.all()["b1"].labels != labels:
                    await directory.wait_for_change()

        async with serving(None, **own) as daemon:
            await until_labels({"zone": "a", "rack": "r1"})
            await bookie(home, "node", "label", "b1", "zone=b", "room=7")
            await until_labels({"zone": "b", "rack": "r1", "room": "7"})
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.end() == 0
        async with serving(None, **own) as daemon:
            await daemon.until("registered")
            await until_labels({"zone": "b", "rack": "r1", "room": "7"})
            await bookie(home, "node", "label", "b1", "--remove", "zone", "--remove", "room")
            await until_labels({"zone": "a", "rack": "r1"})
            await bookie(home, "cluster", "settings", "set", "bookie.labels=zone=c")
            await until_labels({"zone": "c"})


async def test_a_wrong_setting_of_the_cluster_is_named(home: Home) -> None:
    """Somebody wrote it past the command that judges it."""
    async with open_store(home.metadata_uri) as store:
        await store.put(keys.setting("log.level"), b"loud")
    status, sentence = await refused(None, **variables(home))
    assert status == MISCONFIGURED
    assert sentence.startswith("cluster setting log.level: log.level: input should be")


async def test_a_store_that_does_not_answer_is_one_sentence(home: Home) -> None:
    """Before anything else was looked at."""
    told = variables(home) | {"BOOKIE_METADATA": "etcd://127.0.0.1:1/bookie"}
    status, sentence = await refused(None, **told)
    assert status == FAILED
    assert "127.0.0.1:1" in sentence

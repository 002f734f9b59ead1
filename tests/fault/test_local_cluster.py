"""``bookie local``: real processes that come up, are watched, go down, and come back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.api import connect
from bookie.cli import app
from bookie.cluster.directory import BookieDirectory
from bookie.daemon.local.process import child_environment
from bookie.daemon.local.supervisor import local_cluster, start_all
from bookie.errors import ConfigurationError, CookieError, ShuttingDownError
from bookie.metadata.connect import open_store
from tests.fault.metadata_servers import SHARED

SECONDS_MAX = 300.0
UP = "The cluster is up. In another terminal:"


class Supervisor:
    """A started ``bookie local``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, text: str) -> str:
        """Read what it prints up to a line that contains `text`; that line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"ended before {text!r}: {self.lines}"
                self.lines.append(line.rstrip())
                if text in line:
                    return line

    async def end(self) -> int:
        """Wait for its end; the exit status."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS_MAX):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def supervisor(data: Path, *words: str) -> AsyncIterator[Supervisor]:
    """``bookie local`` on `data`, killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bookie", "local", "--data", str(data)),
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=child_environment(os.environ),
    )
    started = Supervisor(process)
    try:
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await started.end()


def pids(data: Path) -> dict[str, int]:
    """The process of each bookie that has one."""
    return {
        path.parent.name: int(path.read_text(encoding="ascii"))
        for path in data.glob("bookie-*/bookie.pid")
    }


async def test_comes_up_goes_down_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C stops everything, and so does a closed terminal; the next start has the same ports."""
    data = tmp_path / "cluster"
    addresses = []
    for stop in (signal.SIGINT, signal.SIGHUP):
        async with supervisor(data, "--bookies", "2") as started:
            await started.until(UP)
            async with (
                open_store(f"local://{data}/metadata") as store,
                BookieDirectory(store) as directory,
            ):
                assert sorted(directory.bookies()) == ["bookie-1", "bookie-2"]
                addresses.append([directory.resolve(name).port for name in directory.bookies()])
            assert len(pids(data)) == 2
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                started.process.send_signal(number)
                await started.until(f"{number.name} does nothing here")
            started.process.send_signal(stop)
            if stop is signal.SIGHUP:
                # Kernel and shell both send it.
                await started.until("stopping")
                started.process.send_signal(stop)
            assert await started.end() == 0
        assert pids(data) == {}
    assert addresses[0] == addresses[1]
    uri = f"local://{data}/metadata"
    loop = asyncio.get_running_loop()
    words = ["cluster", "bookies", "-m", uri, "-o", "json"]
    assert await loop.run_in_executor(None, app.run, words) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["missing", "missing"]


async def test_a_secure_cluster_stays_one(tmp_path: Path) -> None:
    """What it prints lets a client in; a start without --secure, later, is by TLS as well."""
    for words in (["--bookies", "1", "--secure"], []):
        async with supervisor(tmp_path, *words) as started:
            await started.until("Ctrl-C here stops it")
            assert "https://127.0.0.1:" in "".join(started.lines)
            exports = dict(re.findall(r"export (BOOKIE_\w+)=(\S+)", "\n".join(started.lines)))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bookie", "node", "info", "bookie-1"),
                stdout=asyncio.subprocess.DEVNULL,
                env=child_environment(os.environ) | exports,
            )
            assert await process.wait() == 0
            uri = exports.pop("BOOKIE_METADATA")
            files = {name.partition("__")[2].lower(): path for name, path in exports.items()}
            async with connect(uri, **files) as client:
                assert "grpcs" in {one.protocol for one in client.bookies()["bookie-1"].endpoints}
                writer = await client.create_ledger(
                    ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
                )
                await writer.append(b"encrypted")
            started.process.send_signal(signal.SIGINT)
            assert await started.end() == 0


@pytest.mark.parametrize("kind", sorted(SHARED))
async def test_a_cluster_on_a_metadata_server(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Three processes; one is killed under a writer, who then leaves its ledger open."""
    uri = SHARED[kind](request).uri
    written = [b"%d" % number for number in range(40)]
    async with (
        supervisor(tmp_path, "--bookies", "3", "--metadata", uri) as started,
        asyncio.timeout(SECONDS_MAX),
    ):
        await started.until(UP)
        async with connect(uri) as client:
            assert sorted(client.bookies()) == ["bookie-1", "bookie-2", "bookie-3"]
            writer = await client.create_ledger()
            await writer.append_many(written[:20])
            os.kill(pids(tmp_path)["bookie-2"], signal.SIGKILL)
            await started.until("bookie-2 was killed by SIGKILL")
            await writer.append_many(written[20:])
        async with connect(uri) as client:
            reader = await client.open_ledger(writer.ledger_id, recover=True)
            read = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
            assert read == written
        started.process.send_signal(signal.SIGINT)
        assert await started.end() == 0


async def test_death_is_reported_and_repaired_when_asked(tmp_path: Path) -> None:
    """A bookie that dies is reported; with --restart it comes back under another pid."""
    async with supervisor(tmp_path, "--bookies", "1", "--restart") as started:
        await started.until(UP)
        before = pids(tmp_path)["bookie-1"]
        os.kill(before, signal.SIGKILL)
        await started.until("bookie-1 was killed by SIGKILL")
        await started.until("bookie-1 is back, pid ")
        assert pids(tmp_path)["bookie-1"] != before
        started.process.send_signal(signal.SIGTERM)
        assert await started.end() == 0


async def test_two_at_once_is_one_sentence(tmp_path: Path) -> None:
    """The directory belongs to the supervisor that runs."""
    async with supervisor(tmp_path, "--bookies", "1") as first:
        await first.until(UP)
        async with supervisor(tmp_path, "--bookies", "1") as second:
            assert await second.end() == 1
            assert f"bookie: another cluster runs in {tmp_path}; stop it first" in second.lines
        first.process.send_signal(signal.SIGINT)
        assert await first.end() == 0


async def test_bookies_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    """When the supervisor is killed its bookies stop in order and leave the cluster."""
    async with supervisor(tmp_path, "--bookies", "1") as started:
        await started.until(UP)
        async with (
            open_store(f"local://{tmp_path}/metadata") as store,
            BookieDirectory(store) as directory,
            asyncio.timeout(SECONDS_MAX),
        ):
            started.process.kill()
            while directory.all():
                await directory.wait_for_change()
    async with local_cluster(tmp_path) as cluster:
        assert [bookie.pid is not None for bookie in cluster.bookies] == [True]


async def test_a_bookie_that_cannot_start_is_named(tmp_path: Path) -> None:
    """The cluster does not come up when one bookie refuses, and says what that one said."""
    async with local_cluster(tmp_path, bookies=2):
        pass
    (tmp_path / "bookie-2" / "journal" / "COOKIE").write_bytes(b"no cookie")
    with pytest.raises(ShuttingDownError, match=r"bookie-2 ended with status 1: .*cookie"):
        async with local_cluster(tmp_path):
            pytest.fail("a bookie with a damaged cookie came up")
    assert pids(tmp_path) == {}


async def test_a_directory_of_any_name(tmp_path: Path) -> None:
    """Some characters are two surrogates in JSON, which TOML refuses."""
    async with local_cluster(tmp_path / 'a "log" 😀', bookies=1) as cluster:
        assert [bookie.pid is not None for bookie in cluster.bookies] == [True]


async def test_an_orphan_stops_itself() -> None:
    """A bookie may lose its supervisor before it can ask to be told of this."""
    program = "from bookie.daemon.signals import stop_with_parent; stop_with_parent({}); print()"
    for parent, status in ((os.getpid(), 0), (os.getppid(), -signal.SIGTERM)):
        words = (sys.executable, "-c", program.format(parent))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
        async with asyncio.timeout(SECONDS_MAX):
            assert await process.wait() == status


async def test_a_deleted_bookie_begins_empty(tmp_path: Path) -> None:
    """Nobody has to type anything, unless entries could be lost."""
    async with local_cluster(tmp_path, bookies=3) as cluster:
        uri = cluster.metadata_uri
        async with connect(uri) as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            )
            await writer.append_many([b"entry"] * 10)
            await writer.close()
    shutil.rmtree(tmp_path / "bookie-2")
    shutil.move(tmp_path / "bookie-3", tmp_path / "kept")
    with pytest.raises(CookieError, match=r"bookie-2 has lost its data: .* `bookie cookie delete"):
        async with local_cluster(tmp_path):
            pytest.fail("two of three copies were given up")
    shutil.rmtree(tmp_path / "bookie-3")
    shutil.move(tmp_path / "kept", tmp_path / "bookie-3")
    async with local_cluster(tmp_path), connect(uri) as client:
        reader = await client.open_ledger(writer.ledger_id)
        assert [one.payload async for one in reader.read(0, 9)] == [b"entry"] * 10
    assert "lost_data_replaced" in (tmp_path / "bookie-2" / "bookie.log").read_text()


async def test_a_bookie_that_has_left_is_not_started_again(tmp_path: Path) -> None:
    """Its directories stay, until somebody removes them; the others serve without it."""

    async def decommission(*more: str) -> None:
        words = [sys.executable, "-m", "bookie", "cluster", "decommission", "bookie-1", *more]
        environment = child_environment(os.environ) | {"BOOKIE_METADATA": uri}
        shell = await asyncio.create_subprocess_exec(*words, env=environment)
        assert await shell.wait() == 0

    async with local_cluster(tmp_path, bookies=3) as cluster:
        uri = cluster.metadata_uri
        await decommission("--yes")
        await cluster.bookie("bookie-1").stop()
        await decommission("--wait")
    async with supervisor(tmp_path) as started:
        told = await started.until("bookie-1 has left the cluster and is not started; `rm -r ")
        assert str(tmp_path / "bookie-1") in told
        await started.until(UP)
        started.process.send_signal(signal.SIGINT)
        assert await started.end() == 0
    async with local_cluster(tmp_path, bookies=3) as cluster:
        assert cluster.departed == ()
        assert [one.id for one in cluster.bookies] == ["bookie-2", "bookie-3", "bookie-4"]


@pytest.mark.parametrize("deleted", ["journal", "ledgers"])
async def test_a_deleted_bookie_comes_back_by_what_is_said(tmp_path: Path, deleted: str) -> None:
    """The commands of the message are typed, and the same command starts the cluster again."""
    data = tmp_path / "a cluster"
    async with local_cluster(data, bookies=3):
        pass
    shutil.rmtree(data / "bookie-2" / deleted)
    async with supervisor(data) as started:
        assert await started.end() == 1
        told = started.lines[-1]
    assert told.startswith("bookie: bookie-2 has lost its data: ")
    [typed] = re.findall("`(.*?)`", told)
    assert "rm -r " in typed
    words = typed.replace("bookie cookie", f"{shlex.quote(sys.executable)} -m bookie cookie")
    # Nobody is there to be asked.
    shell = await asyncio.create_subprocess_shell(
        f"{words} --yes", env=child_environment(os.environ)
    )
    assert await shell.wait() == 0
    async with supervisor(data) as started:
        await started.until(UP)
        started.process.send_signal(signal.SIGINT)
        assert await started.end() == 0


async def test_deleted_metadata_is_no_new_cluster(tmp_path: Path) -> None:
    """Bookies with data are told of before a cluster is made that does not know them."""
    async with local_cluster(tmp_path, bookies=1):
        pass
    shutil.move(tmp_path / "metadata", tmp_path / "kept")
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"holds no cluster, and .*bookie-1 holds data"
        ):
            async with local_cluster(tmp_path):
                pytest.fail("a bookie of a lost cluster came up")
    shutil.rmtree(tmp_path / "metadata", ignore_errors=True)
    shutil.move(tmp_path / "kept", tmp_path / "metadata")
    async with local_cluster(tmp_path):
        pass


async def test_single_bookies_can_be_killed_and_started(tmp_path: Path) -> None:
    """What tests and the demonstration do: kill some, start what does not run."""
    async with local_cluster(tmp_path, bookies=2) as cluster:
        assert await cluster.bookie("bookie-2").kill() == -signal.SIGKILL
        assert cluster.bookie("bookie-2").pid is None
        await start_all(cluster.bookies)
        assert cluster.bookie("bookie-2").pid is not None

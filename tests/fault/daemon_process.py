"""One ``bookie serve`` process and the settings it runs with, for tests of the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bookie.cluster.instance import initialize_cluster
from bookie.daemon.local.process import child_environment
from bookie.errors import MetadataUnavailableError
from bookie.metadata.connect import open_store
from tests.servers.ports import claimed_ports

START_SECONDS_MAX = 120.0


@dataclass
class Home:
    """A new cluster and the settings of one bookie in it, to be changed before `write`."""

    path: Path
    sections: dict[str, dict[str, object]]

    @property
    def metadata_uri(self) -> str:
        """The cluster's metadata store."""
        return str(self.sections["metadata"]["uri"])

    @property
    def journal(self) -> Path:
        """The directory of the journal."""
        return Path(str(self.sections["storage"]["journal_dir"]))

    @property
    def ledgers(self) -> Path:
        """The directory of the ledgers."""
        return Path(str(self.sections["storage"]["ledgers_dir"]))

    def write(self) -> Path:
        """Write the configuration file."""
        lines = []
        for section, values in self.sections.items():
            lines.append(f"[{section}]")
            lines += [
                f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
            ]
        path = self.path / "bookie.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


async def suspend(process: Process, metadata_uri: str) -> None:
    """SIGSTOP: connections stand, and nothing is answered.

    A process that is stopped inside a write transaction of a `local` store stops every writer of
    it. Such a one goes on for a moment and is stopped again, because others shall write.
    """
    while True:
        process.send_signal(signal.SIGSTOP)
        if await _can_be_written(metadata_uri):
            return
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.05)


async def _can_be_written(uri: str) -> bool:
    if not uri.startswith("local:"):
        return True
    try:
        async with open_store(uri, session_timeout_seconds=2):
            return True  # the beginning of a session was a write
    except MetadataUnavailableError:
        return False


async def new_home(path: Path) -> Home:
    """An initialised cluster and valid settings for a bookie that has never run."""
    port, http_port = claimed_ports(2)
    uri = f"local://{path}/metadata"
    async with open_store(uri) as store:
        await initialize_cluster(store)
    return Home(
        path,
        {
            "bookie": {"id": "b1"},
            "listen": {"port": port},
            "metadata": {"uri": uri, "session_timeout_seconds": 1.0},
            "storage": {"journal_dir": f"{path}/journal", "ledgers_dir": f"{path}/ledgers"},
            "http": {"port": http_port},
            # Tests store ledgers that the cluster has never heard of.
            "garbage": {"interval_seconds": 3600.0},
        },
    )


class Daemon:
    """A started ``bookie serve``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, event: str) -> None:
        """Read its log until a line is about `event`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            while not self.lines or f'"event": "{event}"' not in self.lines[-1]:
                line = await self.process.stderr.readline()
                assert line, f"ended before {event}: {self.lines}"
                self.lines.append(line.decode().rstrip())

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read its log during the block, which does not call `until`: a full pipe would stop it."""
        reading = asyncio.get_running_loop().create_task(self._read())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.lines.append(line.decode().rstrip())

    async def end(self) -> int:
        """Wait for its end, reading the rest of its log; the exit status."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            self.lines += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()

    async def refusal(self) -> tuple[int, str]:
        """Exit status and sentence of a daemon that does not start: its last line of JSON."""
        status = await self.end()
        lines = [json.loads(line) for line in self.lines]
        assert not [line for line in lines if line["logger"] == "py.warnings"]
        assert [line["event"] for line in lines].count("ended") == 1, self.lines
        last = lines[-1]
        assert (last["event"], last["level"], last["exit_status"]) == ("ended", "error", status)
        return status, str(last["reason"])


@asynccontextmanager
async def serving(config: Path | None, *python: str, **variables: str) -> AsyncIterator[Daemon]:
    """A started daemon; killed at the end of the block if it still runs.

    Args:
        config: its configuration file, or None.
        python: options of the interpreter.
        variables: environment on top of this process's own.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *python,
        *("-m", "bookie", "serve"),
        *(() if config is None else ("--config", str(config))),
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(os.environ) | variables,
    )
    try:
        yield Daemon(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        # The transport of the pipe is closed by the loop only after it was read to its end.
        if process.stderr is not None:
            await process.stderr.read()


async def refused(config: Path | None, *python: str, **variables: str) -> tuple[int, str]:
    """Exit status and sentence of a daemon that must not start."""
    async with serving(config, *python, **variables) as daemon:
        return await daemon.refusal()

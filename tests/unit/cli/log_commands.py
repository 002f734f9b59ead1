"""``bookie log`` in another process, on a cluster of real bookies in this one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookie.api import BookKeeper, connect
from tests.unit.cli.command_process import CommandProcess
from tests.unit.ledger.real_cluster import real_cluster

TOLD_SECONDS_MAX = 120.0


@dataclass(slots=True)
class LogCommands:
    """Runs commands on the cluster of `bk`."""

    bk: BookKeeper
    uri: str
    process: CommandProcess

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        """A process for one command, whose standard streams are pipes."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", *words, "--metadata", self.uri),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, words: str, lines: str = "") -> tuple[int, str, str]:
        """A command that is given `lines`; its exit status, and what it said on both streams."""
        command = [*words.split(), "--metadata", self.uri]
        return await asyncio.to_thread(self.process.run, command, lines)

    async def json(self, words: str, lines: str = "", *, status: int = 0) -> Any:
        """The JSON that a command prints."""
        found, out, said = await self.run(f"{words} --output json", lines)
        assert found == status, said
        return json.loads(out)


@asynccontextmanager
async def log_commands(directory: Path, process: CommandProcess) -> AsyncIterator[LogCommands]:
    """A new cluster of three bookies, and commands on it."""
    uri = f"local://{directory}/metadata"
    async with real_cluster(directory / "bookies", uri=uri), connect(uri) as bk:
        yield LogCommands(bk, uri, process)

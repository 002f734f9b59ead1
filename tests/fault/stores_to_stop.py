"""A metadata store of a test's own that can be away: a server, or a local one that is held up."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fault.metadata_servers import SERVERS, MetadataServer

_ROOT = Path(__file__).parents[2]


class _HeldUp:
    """A local store has no server. It is away while a process stays in a transaction that writes.

    Such a process is what `bookie` calls one that was stopped at the wrong moment.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._holder: subprocess.Popen[str] | None = None

    def pause(self) -> None:
        """Nobody writes from now on."""
        words = [sys.executable, "-m", "tests.fault.metadata_worker", "transaction"]
        self._holder = subprocess.Popen(
            [*words, str(self._directory), "30", "write"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "inside\n"

    def resume(self) -> None:
        """Everybody writes again."""
        if self._holder is not None:
            with self._holder as holder:
                holder.send_signal(signal.SIGKILL)
            self._holder = None

    async def restart(self) -> None:
        """As `resume`."""
        self.resume()


@asynccontextmanager
async def own_store(kind: str, directory: Path) -> AsyncIterator[MetadataServer]:
    """A new store of this kind: ``local``, or a server that is stopped at the end."""
    if kind != "local":
        with SERVERS[kind](directory) as server:
            yield server
        return
    held = _HeldUp(directory / "metadata")
    try:
        yield MetadataServer(
            f"local://{directory}/metadata", held.pause, held.resume, held.pause, held.restart
        )
    finally:
        held.resume()

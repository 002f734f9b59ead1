"""The other processes of the benchmarks: a bookie on files, one in memory, and bare gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from bookie.api import BookKeeper, connect
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.connect import open_store

_CLOCK_TICKS = 100
_STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster of one bookie, and a client of it."""

    client: BookKeeper
    pid: int
    root: Path
    uri: str

    @property
    def journal(self) -> Path:
        """Where the real bookie's journal files are."""
        return self.root / "journal"

    @property
    def index(self) -> Path:
        """The file of the real bookie's index."""
        return self.root / "ledgers" / "index" / "data.mdb"

    def cpu_seconds(self) -> float:
        """Processor time that the bookie has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    def system_seconds(self) -> float:
        """Processor time that the kernel has used for the bookie."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[12]) / _CLOCK_TICKS

    def bytes_written(self) -> int:
        """Bytes that the bookie has caused to be sent to a device."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])

    async def settled(self) -> None:
        """Return when the bookie has written nothing for a second, so the next load starts fair.

        Raises:
            TimeoutError: it goes on for a minute.
        """
        async with asyncio.timeout(60):
            before = -1
            while before != (before := self.bytes_written()):  # noqa: ASYNC110  (no event either)
                await asyncio.sleep(1)

    def anonymous_megabytes(self) -> float:
        """Anonymous memory of the bookie now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024


@contextlib.contextmanager
def process(*arguments: str, log: Path) -> Iterator[int]:
    """A Python process with `arguments`, ended by SIGTERM at the end of the block; its pid."""
    with log.open("wb") as output:
        child = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=output)
    try:
        yield child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(_STOP_SECONDS)


@contextlib.asynccontextmanager
async def served(
    root: Path, *, memory: bool = False, keeps: bool = True, settings: str = ""
) -> AsyncIterator[Served]:
    """One bookie under `root`, real or in memory; started again on the same root it comes back.

    One in memory that `keeps` nothing forgets what it acknowledged. `settings` are lines of the
    real one's ``[storage]`` section.
    """
    uri = f"local://{root / 'metadata'}"
    if not (root / "metadata").exists():
        (root / "metadata").mkdir(parents=True)
        async with open_store(uri) as store:
            await initialize_cluster(store)
    if memory:
        arguments = ["-m", "tests.bench.memory_bookie", uri, "bench-1"]
        arguments += [] if keeps else ["forgets"]
    else:
        config = root / "bookie.toml"
        config.write_text(
            f'[bookie]\nid = "bench-1"\n[listen]\nhost = "127.0.0.1"\nport = 0\n'
            f'[metadata]\nuri = "{uri}"\n[http]\nport = 0\n'
            f'[storage]\njournal_dir = "{root}/journal"\nledgers_dir = "{root}/ledgers"\n'
            f"{settings}\n"
        )
        arguments = ["-m", "bookie", "serve", "--config", str(config)]
    with process(*arguments, log=root / "log") as pid:
        async with connect(uri) as client:
            async with asyncio.timeout(60):
                while not client.bookies():  # noqa: ASYNC110  (no event to wait for)
                    await asyncio.sleep(0.05)
            yield Served(client, pid, root, uri)

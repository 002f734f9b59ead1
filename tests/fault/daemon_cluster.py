"""Three ``bookie serve`` processes on one metadata store, and a client of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.cluster.instance import initialize_cluster
from bookie.errors import BookieError
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Daemon, Home, serving
from tests.servers.ports import claimed_ports
from tests.unit.ledger.real_cluster import until

SESSION_TIMEOUT_SECONDS = 2.0
BOOKIES = ("b1", "b2", "b3")
SECONDS_MAX = 300.0
"""What is to happen has happened by then, even on a busy machine."""


@dataclass(frozen=True, slots=True)
class DaemonCluster:
    """Bookies that run, and a client."""

    daemons: dict[str, Daemon]
    client: BookKeeper
    http_ports: dict[str, int]

    async def page(self, bookie: str, name: str) -> tuple[int, str]:
        """Status and text of a page that a bookie serves over HTTP."""
        url = f"http://127.0.0.1:{self.http_ports[bookie]}/{name}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def metric(self, bookie: str, name: str) -> float:
        """The value of one of its metrics without labels."""
        _, text = await self.page(bookie, "metrics")
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])

    async def registered(self, *bookies: str) -> None:
        """Wait until the client sees these bookies and no others; by default all three."""
        wanted = set(bookies or BOOKIES)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while set(self.client.bookies()) != wanted:  # noqa: ASYNC110  (a snapshot tells nobody)
                    await asyncio.sleep(0.01)
        except TimeoutError:
            seen = sorted(self.client.bookies())
            raise AssertionError(f"the client sees {seen}, not {sorted(wanted)}") from None

    async def create(self) -> WriterHandle:
        """A ledger on three bookies, which goes on without one."""
        return await self.client.create_ledger(
            ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
        )

    async def create_again(self) -> WriterHandle:
        """Create one as soon as that is possible: the store answers, the bookies are back."""
        while True:
            try:
                return await self.create()
            except BookieError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.1)


def home_of(
    uri: str,
    path: Path,
    name: str,
    session: Mapping[str, object] | None = None,
    *,
    timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    offers_frames: bool = True,
) -> Home:
    """The settings of a bookie that has never run; `session` are those of its section.

    This bookie repairs nothing, so that a test sees what is lost.
    """
    home = path / name
    home.mkdir()
    port, http_port = claimed_ports(2)
    listen: dict[str, object] = {"port": port, "frames": offers_frames}
    if offers_frames:
        (listen["frames_port"],) = claimed_ports(1)
    return Home(
        home,
        {
            "bookie": {"id": name},
            "listen": listen,
            "metadata": {"uri": uri, "session_timeout_seconds": timeout_seconds},
            "session": dict(session or {}),
            "storage": {"journal_dir": f"{home}/journal", "ledgers_dir": f"{home}/ledgers"},
            "http": {"port": http_port},
            "repair": {"enabled": False},
        },
    )


@asynccontextmanager
async def daemon_cluster(
    uri: str,
    path: Path,
    sessions: Mapping[str, Mapping[str, object]] | None = None,
    *,
    timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
) -> AsyncIterator[DaemonCluster]:
    """Start a new cluster; what still runs at the end is killed.

    `sessions` are settings of the section ``[session]`` by bookie. `timeout_seconds` is of every
    session with the metadata store.
    """
    async with open_store(uri) as store:
        await initialize_cluster(store)
    async with AsyncExitStack() as stack:
        daemons, http_ports = {}, {}
        for name in BOOKIES:
            session = (sessions or {}).get(name)
            home = home_of(uri, path, name, session, timeout_seconds=timeout_seconds)
            del home.sections["listen"]["frames_port"]  # any free one, another at each start
            daemons[name] = await stack.enter_async_context(serving(home.write()))
            http_ports[name] = int(str(home.sections["http"]["port"]))
        for daemon in daemons.values():
            await daemon.until("registered")
        client = await stack.enter_async_context(
            connect(uri, session_timeout_seconds=timeout_seconds)
        )
        yield DaemonCluster(daemons, client, http_ports)


PACE_SECONDS = 0.003
"""Between two appends: a load without a pause would take the cores from all other tests."""


@dataclass(slots=True)
class Appending:
    """Entries that were acknowledged, one after the other."""

    writer: WriterHandle
    acknowledged: int = 0

    async def run(self) -> None:
        """Append without an end; any error ends the test."""
        while True:
            await self.writer.append(b"%d" % self.acknowledged)
            self.acknowledged += 1
            await asyncio.sleep(PACE_SECONDS)

    async def goes_on(self) -> None:
        """Wait until more entries were acknowledged."""
        before = self.acknowledged
        await until(lambda: self.acknowledged >= before + 10)

    async def check(self, client: BookKeeper) -> None:
        """Close the ledger; everything that was acknowledged is in it."""
        await self.writer.close()
        reader = await client.open_ledger(self.writer.ledger_id)
        payloads = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
        assert payloads[: self.acknowledged] == [b"%d" % n for n in range(self.acknowledged)]

"""Directories and metadata of former versions open, and hold what their versions acknowledged.

Each archive under ``specimens`` is a cluster of three bookies (`make_specimen`). Unpacked it lies
elsewhere than its cookies say, so ``bookie cookie move`` comes first.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tarfile
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.api import BookKeeper, ReaderHandle, connect
from bookie.cli import app
from bookie.cluster.cookie import Cookie
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_status
from bookie.errors import NoSuchLedgerError
from bookie.ledger.metadata import LedgerState
from bookie.metadata.connect import open_store
from tests.compat.make_specimen import BOOKIES, SPECIMENS
from tests.fault.daemon_cluster import SECONDS_MAX, DaemonCluster
from tests.fault.daemon_process import Daemon, Home, serving
from tests.servers.ports import claimed_ports

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in SPECIMENS.glob("*.tar.xz"))
SESSION_TIMEOUT_SECONDS = 2.0
STATES = {
    "CLOSED": LedgerState.CLOSED,
    "RECOVERED": LedgerState.CLOSED,
    "OPEN": LedgerState.OPEN,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A ledger as the specimen's record says it is."""

    ledger_id: int
    state: str
    password: str
    entry_size_bytes: int
    crc32: tuple[int, ...]
    """Of each entry's payload."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """An unpacked one."""

    uri: str
    homes: dict[str, Home]
    ledgers: tuple[Kept, ...]

    async def unregistered(self) -> None:
        """Wait until the sessions of bookies that were killed have ended."""
        async with open_store(self.uri) as store, asyncio.timeout(SECONDS_MAX):
            status = await read_status(store)
            while status.writable or status.read_only:
                await asyncio.sleep(0.01)
                status = await read_status(store)

    async def cookies(self) -> list[Cookie]:
        """Those in the metadata store."""
        async with open_store(self.uri) as store:
            found = [await CookieManager(store).read(name) for name in BOOKIES]
        return [versioned.value for versioned in found if versioned is not None]

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[tuple[dict[str, Daemon], BookKeeper]]:
        """Some of its bookies and a client, which sees them; stopped in order at the end."""
        async with AsyncExitStack() as stack:
            daemons = {
                name: await stack.enter_async_context(serving(self.homes[name].write()))
                for name in names
            }
            for daemon in daemons.values():
                await daemon.until("registered")
            async with connect(self.uri, session_timeout_seconds=SESSION_TIMEOUT_SECONDS) as client:
                await DaemonCluster(daemons, client, {}).registered(*names)
                yield daemons, client
            for daemon in daemons.values():
                daemon.process.send_signal(signal.SIGTERM)
            assert [await daemon.end() for daemon in daemons.values()] == [0] * len(names)


@pytest.fixture(params=NAMES, name="specimen")
def _specimen(request: pytest.FixtureRequest, tmp_path: Path) -> Specimen:
    """Each of them, with settings that name where it lies now."""
    with tarfile.open(SPECIMENS / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rows = json.loads((SPECIMENS / f"{request.param}.json").read_text(encoding="utf-8"))
    ledgers = tuple(Kept(**{**row, "crc32": tuple(row["crc32"])}) for row in rows)
    assert {ledger.state for ledger in ledgers} == {*STATES, "DELETED"}
    uri = f"local://{tmp_path}/metadata"
    return Specimen(uri, {name: _home(tmp_path / name, name, uri) for name in BOOKIES}, ledgers)


def _home(path: Path, name: str, uri: str) -> Home:
    port, http_port = claimed_ports(2)
    return Home(
        path,
        {
            "bookie": {"id": name},
            "listen": {"port": port},
            "http": {"port": http_port},
            "metadata": {"uri": uri, "session_timeout_seconds": SESSION_TIMEOUT_SECONDS},
            "storage": {"journal_dir": f"{path}/journal", "ledgers_dir": f"{path}/ledgers"},
        },
    )


async def move(home: Home) -> None:
    """``bookie cookie move``, in a thread, because it runs a loop of its own."""
    words = ["cookie", "move", "--config", str(home.write())]
    assert await asyncio.to_thread(app.run, words) == 0


async def check(reader: ReaderHandle, ledger: Kept) -> None:
    """Every entry is there, and nothing else."""
    payloads = [entry.payload async for entry in reader.read(0, reader.last_entry_id)]
    assert {len(payload) for payload in payloads} == {ledger.entry_size_bytes}
    assert tuple(map(zlib.crc32, payloads)) == ledger.crc32


def test_there_are_specimens() -> None:
    """Of an orderly stop and of a kill, by each version that is kept."""
    versions = {name.rpartition("-")[0] for name in NAMES}
    assert versions
    assert sorted(NAMES) == sorted(f"{v}-{end}" for v in versions for end in ("stopped", "killed"))


async def test_every_entry_is_read_and_the_cluster_goes_on(specimen: Specimen) -> None:
    """The open ledgers are recovered at their ends; a new one takes entries."""
    await specimen.unregistered()
    before = await specimen.cookies()
    assert [cookie.bookie_id for cookie in before] == list(BOOKIES)
    for name in BOOKIES:
        await move(specimen.homes[name])
    async with specimen.running(*BOOKIES) as (_, client):
        for ledger in specimen.ledgers:
            password = ledger.password.encode()
            if ledger.state == "DELETED":
                with pytest.raises(NoSuchLedgerError):
                    await client.open_ledger(ledger.ledger_id)
                continue
            metadata = await client.ledger_metadata(ledger.ledger_id)
            assert metadata.state is STATES[ledger.state]
            recover = not metadata.is_closed
            await check(
                await client.open_ledger(ledger.ledger_id, password=password, recover=recover),
                ledger,
            )
        async with await client.create_ledger() as writer:
            await writer.append_many([b"%d" % n for n in range(100)])
        reader = await client.open_ledger(writer.ledger_id)
        assert len([entry async for entry in reader.read(0, reader.last_entry_id)]) == 100
        after = await specimen.cookies()
    # Data of an older version raises no doubt, and all of it is there.
    assert not any(cookie.is_in_doubt for cookie in after)
    assert [cookie.unique_id for cookie in after] == [cookie.unique_id for cookie in before]


async def test_each_bookie_has_its_copies(specimen: Specimen) -> None:
    """Alone, the one that was killed in the middle too: every entry of the closed ledgers."""
    await specimen.unregistered()
    closed = [ledger for ledger in specimen.ledgers if ledger.state in ("CLOSED", "RECOVERED")]
    for name in BOOKIES:
        await move(specimen.homes[name])
        async with specimen.running(name) as (_, client):
            await _check_all(client, closed)


async def _check_all(client: BookKeeper, ledgers: Sequence[Kept]) -> None:
    for ledger in ledgers:
        reader = await client.open_ledger(ledger.ledger_id, password=ledger.password.encode())
        await check(reader, ledger)

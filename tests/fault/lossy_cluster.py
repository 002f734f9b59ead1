"""Bookies as processes whose disks a test may empty, swap, or put back as they once were."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import ClientSession

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.cluster.instance import initialize_cluster, read_instance_id
from bookie.errors import BookieError, NotEnoughBookiesError
from bookie.ledger.catalog.removal import registered_bookies
from bookie.metadata.connect import open_store
from tests.fault.daemon_cluster import BOOKIES, home_of
from tests.fault.daemon_process import Daemon, Home, serving, suspend
from tests.servers.proxy import Direction, Proxy

SESSION_TIMEOUT_SECONDS = 1.0
"""Of bookies: the loss of one is noticed soon."""
CLIENT_SESSION_TIMEOUT_SECONDS = 30.0
"""Of those that only look on. A busy machine must not end what an episode does not."""
SECONDS_MAX = 300.0

HEAL_SECONDS_MAX = 300.0

ADD_SECONDS, READ_SECONDS, REPLACE_SECONDS = 2.0, 1.0, 0.5
"""Short timeouts: bookies that hang are the rule here."""

T = TypeVar("T")


def with_frames(store: str, bookies: Sequence[str]) -> Sequence[str]:
    """Return the bookies that offer frames on a kind of store: none, all, or every second one.

    A cluster in the middle of an upgrade has frames on some bookies only; each client uses both.
    """
    return {"etcd": (), "zk": bookies}.get(store, bookies[::2])


class Links:
    """All ways of clients to one bookie, broken together."""

    def __init__(self, *proxies: Proxy) -> None:
        self._proxies = proxies

    def hold(self, *directions: Direction) -> None:
        """Silence in these directions, in both if none is named."""
        for one in self._proxies:
            one.hold(*directions)

    def reset(self) -> None:
        """End every connection with an RST; new ones are accepted."""
        for one in self._proxies:
            one.reset()

    def heal(self) -> None:
        """Pass everything on, and what was held."""
        for one in self._proxies:
            one.heal()


class LossyCluster:
    """Bookies b1, b2, b3 and perhaps more, and clients of theirs."""

    def __init__(
        self, uri: str, path: Path, stack: AsyncExitStack, new_home: Callable[[str], Home]
    ) -> None:
        self.uri = uri
        self.path = path
        self.new_home = new_home
        """Makes the settings of a bookie that has never run."""
        self.homes: dict[str, Home] = {}
        self.daemons: dict[str, Daemon] = {}
        self.links: dict[str, Links] = {}
        """The ways of every client to each bookie, if they may be broken."""
        self._stack = stack
        self._lives: dict[str, AsyncExitStack] = {}
        self._hanging: set[str] = set()

    # ---- processes

    async def start(self, *names: str) -> None:
        """Start bookies; they are registered when this returns.

        A busy machine may end a session of one second during a start. The daemon then ends with
        status 1, and is started again, as its service manager would.
        """
        for name in names:
            await self._begin(name)
        for name in names:
            for again in (True, True, False):
                try:
                    await self.daemons[name].until("registered")
                    break
                except AssertionError:
                    if not (again and await self._lost_its_session(name)):
                        raise
                    await self.kill(name)
                    await self._begin(name)

    async def _begin(self, name: str) -> None:
        life = await self._stack.enter_async_context(AsyncExitStack())
        config = self.homes[name].write()
        self.daemons[name] = await life.enter_async_context(serving(config))
        self._lives[name] = life

    async def _lost_its_session(self, name: str) -> bool:
        daemon = self.daemons[name]
        return await daemon.end() == 1 and '"reason": "the session ' in daemon.lines[-1]

    async def kill(self, *names: str) -> None:
        """SIGKILL; what was acknowledged is on the disks."""
        for name in names:
            self._hanging.discard(name)
            await self._lives.pop(name).aclose()
            del self.daemons[name]

    async def stop(self, *names: str) -> None:
        """SIGTERM, and wait for the orderly end."""
        for name in names:
            self.resume(name)
            self.daemons[name].process.send_signal(signal.SIGTERM)
        for name in names:
            assert await self.daemons[name].end() == 0, self.daemons[name].lines[-20:]
            await self.kill(name)

    async def hang(self, *names: str) -> None:
        """SIGSTOP: connections stand, and nothing is answered."""
        for name in names:
            await suspend(self.daemons[name].process, self.uri)
            self._hanging.add(name)

    def resume(self, *names: str) -> None:
        """SIGCONT to those that hang."""
        for name in self._hanging & set(names):
            self.daemons[name].process.send_signal(signal.SIGCONT)
            self._hanging.discard(name)

    async def checked(self, name: str) -> dict[str, Any]:
        """The report of an integrity check that begins after this call."""
        url = f"http://127.0.0.1:{self.homes[name].sections['http']['port']}/check"
        async with open_store(self.uri) as store:
            named = {"Bookie-Id": name, "Bookie-Instance-Id": await read_instance_id(store)}
        async with ClientSession(headers=named) as session, asyncio.timeout(SECONDS_MAX):
            # One that is running may have passed the ledger already.
            await _idle_check(session, url)
            async with session.put(url, json={}) as response:
                response.raise_for_status()
            report: dict[str, Any] = (await _idle_check(session, url))["report"]
            return report

    def heal(self) -> None:
        """All links work; what was held arrives now."""
        for link in self.links.values():
            link.heal()

    @property
    def names(self) -> list[str]:
        """All bookies, running or not."""
        return list(self.homes)

    @property
    def running(self) -> set[str]:
        """The bookies whose processes exist, hanging or not."""
        return set(self.daemons)

    def describe(self) -> str:
        """What each process said last, for whoever looks for the cause of a failure."""
        return "\n".join(
            f"{name}: exit status {daemon.process.returncode}; {daemon.lines[-15:]}"
            for name, daemon in sorted(self.daemons.items())
        )

    # ---- disks of bookies that do not run

    def directories(self, name: str) -> list[Path]:
        """The journal's and the ledgers' directory."""
        return [self.homes[name].journal, self.homes[name].ledgers]

    async def wipe(self, name: str) -> None:
        """An empty disk under the same id, by the documented way."""
        async with asyncio.timeout(SECONDS_MAX):
            async with open_store(self.uri) as store:
                # Asking here costs less than a command that has to be repeated.
                while name in await registered_bookies(store):  # noqa: ASYNC110  (a listing)
                    await asyncio.sleep(0.02)
            while True:
                status, said = await self.command("cookie", "delete", name, "--yes", "--force")
                if status == 0:
                    break
                # After a kill its session has to end first.
                assert "is running" in said, said
        for directory in self.directories(name):
            shutil.rmtree(directory)

    def lose_index(self, name: str, *, journals: bool) -> None:
        """The index is gone, and perhaps the journals with it; the cookies are there."""
        journal, ledgers = self.directories(name)
        shutil.rmtree(ledgers / "index")
        if journals:
            for path in journal.glob("*.journal"):
                path.unlink()

    def copy(self, name: str) -> Path:
        """A copy of both directories as they are."""
        copy = self.path / f"copy-of-{name}"
        shutil.rmtree(copy, ignore_errors=True)
        for directory in self.directories(name):
            shutil.copytree(directory, copy / directory.name)
        return copy

    def put_back(self, name: str, copy: Path, part: str = "") -> None:
        """Both directories, or only `part`, as they were when they were copied."""
        for directory in self.directories(name):
            if part not in ("", directory.name):
                continue
            shutil.rmtree(directory, ignore_errors=True)
            shutil.copytree(copy / directory.name, directory)

    def swap(self, one: str, other: str) -> None:
        """Each bookie finds the other's disks under its own paths."""
        for mine, theirs in zip(self.directories(one), self.directories(other), strict=True):
            aside = mine.with_name("aside")
            mine.rename(aside)
            theirs.rename(mine)
            aside.rename(theirs)

    # ---- clients

    async def client(self) -> BookKeeper:
        """A client of its own, closed at the end."""
        return await self._stack.enter_async_context(self.connect())

    def connect(self) -> BookKeeper:
        """A client that is not connected yet."""
        return client_of(self.uri)

    async def command(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output of a ``bookie`` command on this cluster's metadata."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", *arguments, "--metadata", self.uri),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return process.returncode, said.decode()

    async def sees(self, client: BookKeeper, *names: str) -> None:
        """Wait until the client sees these bookies and no others."""
        async with asyncio.timeout(SECONDS_MAX):
            while set(client.bookies()) != set(names):  # noqa: ASYNC110  (a snapshot)
                await asyncio.sleep(0.01)


async def _idle_check(session: ClientSession, url: str) -> dict[str, Any]:
    """What a bookie says about its check as soon as none is running."""
    while True:
        async with session.get(url) as response:
            status: dict[str, Any] = await response.json()
        if not status["running"]:
            return status
        await asyncio.sleep(0.05)


def client_of(uri: str) -> BookKeeper:
    """A client with short timeouts, that is not connected yet."""
    return connect(
        uri,
        session_timeout_seconds=CLIENT_SESSION_TIMEOUT_SECONDS,
        add_timeout_seconds=ADD_SECONDS,
        read_timeout_seconds=READ_SECONDS,
        speculative_read_seconds=READ_SECONDS / 2,
        connect_timeout_seconds=READ_SECONDS,
        replace_after_seconds=REPLACE_SECONDS,
    )


async def create(client: BookKeeper, sizes: tuple[int, int, int] = (3, 3, 2)) -> WriterHandle:
    """A new ledger, as soon as enough bookies are registered: those that hung come back."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await client.create_ledger(
                    ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2]
                )
            except NotEnoughBookiesError:
                await asyncio.sleep(0.05)


async def healed(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns once the cluster has healed; until then it may fail."""
    async with asyncio.timeout(HEAL_SECONDS_MAX):
        while True:
            try:
                return await call()
            except BookieError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.1)


async def payloads_of(client: BookKeeper, ledger_id: int) -> list[bytes]:
    """Every entry of a closed ledger, in order."""
    reader = await client.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_entry_id)]


def _proxies(home: Home, stack: AsyncExitStack) -> Iterator[Proxy]:
    """A proxy before each port of a bookie, which is what its registration names."""
    listen = home.sections["listen"]
    for port in ("port", "frames_port"):
        if port in listen:
            proxy = stack.enter_context(Proxy(int(str(listen[port]))))
            listen[f"advertised_{port}"] = proxy.port
            yield proxy


@asynccontextmanager
async def lossy_cluster(
    uri: str,
    path: Path,
    bookies: Sequence[str] = BOOKIES,
    *,
    has_links: bool = False,
    by_frames: Collection[str] = (),
    repair: Mapping[str, object] | None = None,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    settings: Mapping[str, Mapping[str, object]] | None = None,
) -> AsyncIterator[LossyCluster]:
    """Start a new cluster; whatever still runs at the end is killed.

    If it `has_links`, clients reach bookies through proxies. The bookies `by_frames` offer frames,
    and clients take them. `repair` are settings of the section
    ``[repair]``; without them nobody repairs, so that a test sees what is lost. `settings` are of
    other sections.
    """

    def new_home(name: str) -> Home:
        home = home_of(uri, path, name, offers_frames=name in by_frames)
        if not has_links:  # any free port, another at each start
            home.sections["listen"].pop("frames_port", None)
        home.sections["metadata"]["session_timeout_seconds"] = session_timeout_seconds
        home.sections["storage"]["journal_file_bytes_max"] = 16 << 20
        home.sections["storage"]["reserve_bytes"] = 0
        if repair is not None:
            home.sections["repair"] = dict(repair)
        for section, values in (settings or {}).items():
            home.sections.setdefault(section, {}).update(values)
        return home

    async with open_store(uri) as store:
        await initialize_cluster(store)
    async with AsyncExitStack() as stack:
        cluster = LossyCluster(uri, path, stack, new_home)
        for name in bookies:
            home = cluster.homes[name] = new_home(name)
            if has_links:
                cluster.links[name] = Links(*_proxies(home, stack))
        await cluster.start(*bookies)
        yield cluster

"""Real ZooKeeper servers for tests: one alone, and an ensemble of three behind proxies.

Each is started at most once in a run of pytest, when the first test asks for it, and stopped at the
end. A test that breaks something mends it, or uses a server of its own (`single_server`).

Sessions may be as short as a second. Servers leave out syncs (`forceSync=no`): a killed process
keeps its data, and tests here leave the power on.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.servers import fetch_zookeeper
from tests.servers.ports import claimed_ports
from tests.servers.processes import ServerProcess, require_program, wait_until
from tests.servers.proxy import Direction, Proxy

TICK_MS = 500
SESSION_TIMEOUT_SECONDS_MIN = 1.0

_SETTINGS = f"""\
tickTime={TICK_MS}
initLimit=10
syncLimit=4
admin.enableServer=false
4lw.commands.whitelist=*
minSessionTimeout={int(SESSION_TIMEOUT_SECONDS_MIN * 1000)}
maxSessionTimeout=60000
maxClientCnxns=0
"""

_JAVA_OPTIONS = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Dzookeeper.forceSync=no",
    # A new leader within a second on one machine.
    # By default they ask each other again after up to a minute.
    *("-Dzookeeper.fastleader.maxNotificationInterval=500", "-Dzookeeper.cnxTimeout=1000"),
    "-Dzookeeper.leaderConnectDelayDuringRetryMs=50",
)

_READ_ONLY = ("-Dreadonlymode.enabled=true",)
"""A server may serve old data without a majority; the tests leave that off."""

_scopes = itertools.count()


def new_scope() -> str:
    """A scope that no other test of this run uses."""
    return f"/scope-{next(_scopes)}"


class ZooKeeperServer:
    """One server process; its data survives `kill` and `start`."""

    def __init__(
        self, name: str, directory: Path, port: int, settings: str, java_options: tuple[str, ...]
    ) -> None:
        self.port = port
        self.process = ServerProcess(name, _command(directory, java_options), directory)
        (directory / "zoo.cfg").write_text(
            f"{_SETTINGS}dataDir={directory}/data\nclientPort={port}\n"
            f"clientPortAddress=127.0.0.1\n{settings}",
            encoding="utf-8",
        )

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def mode(self) -> str:
        """leader, follower, standalone or read-only; empty while it serves nobody."""
        for line in four_letters(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def serves(self, session: int) -> bool:
        """True if the client that has the session is connected to this server."""
        return f"sid=0x{session & 0xFFFFFFFFFFFFFFFF:x}," in four_letters(self.port, "cons")

    def start(self) -> None:
        """Start it; see `wait_until_ready`."""
        self.process.start()

    def wait_until_ready(self) -> None:
        """Return when it serves clients."""

        def serves() -> bool:
            assert self.process.is_running, f"{self.process.name} ended: {self.process.log_tail()}"
            return bool(self.mode())

        wait_until(serves, f"{self.process.name} serves")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """SIGKILL if it runs, start, and wait until it serves."""
        self.kill()
        self.start()
        self.wait_until_ready()


class ZooKeeperEnsemble:
    """Three servers, numbered 1 to 3; each pair of them talks through proxies.

    The links for followers' traffic and those for elections break together. One thing slips past a
    cut. A server that is called by one with a smaller number calls back directly, so votes may
    travel over a broken link. Proposals, acknowledgements and commits never do.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        ports = claimed_ports(9)
        self.servers: dict[int, ZooKeeperServer] = {}
        self.links: dict[tuple[int, int], tuple[Proxy, Proxy]] = {}
        """(caller, called) → the proxies to the called server's quorum and election ports."""
        quorum, election, client = (ports[part : part + 3] for part in (0, 3, 6))
        for number in (1, 2, 3):
            lines = []
            for other in (1, 2, 3):
                called = [quorum[other - 1], election[other - 1]]
                if other != number:
                    # A newly elected leader listens late, and followers that it refuses ask again.
                    # Those that a proxy cuts off give up.
                    pair = [
                        stack.enter_context(Proxy(port, patience_seconds=2.0)) for port in called
                    ]
                    self.links[number, other] = (pair[0], pair[1])
                    called = [proxy.port for proxy in pair]
                lines.append(f"server.{other}=127.0.0.1:{called[0]}:{called[1]}\n")
            home = directory / str(number)
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(f"{number}\n", encoding="utf-8")
            settings = "standaloneEnabled=false\n" + "".join(lines)
            self.servers[number] = ZooKeeperServer(
                f"zookeeper-{number}", home, client[number - 1], settings, _READ_ONLY
            )

    @property
    def hosts(self) -> str:
        """All client addresses, as a URI names them."""
        return ",".join(server.address for server in self.servers.values())

    def leader(self) -> int:
        """The number of the server that leads, as soon as exactly one says so."""
        found: list[int] = []

        def is_one() -> bool:
            found[:] = self._with_mode("leader")
            return len(found) == 1

        wait_until(is_one, "one leader")
        return found[0]

    def followers(self) -> list[int]:
        """The numbers of the others that serve."""
        return self._with_mode("follower")

    def isolate(self, number: int) -> None:
        """Silence between a server and both others; clients still reach it."""
        for other in self.servers:
            if other != number:
                self.cut(number, other)
                self.cut(other, number)

    def cut(self, sender: int, receiver: int) -> None:
        """Messages of one server do not reach the other; the way back is open."""
        for proxy in self.links[sender, receiver]:
            proxy.hold(Direction.TO_SERVER)
        for proxy in self.links[receiver, sender]:
            proxy.hold(Direction.TO_CLIENT)

    def heal(self) -> None:
        """Whole links, running servers, all three serving: how every test leaves the ensemble."""
        for proxies in self.links.values():
            for proxy in proxies:
                proxy.heal()
                # A held connection would deliver old votes and proposals; peers reconnect anyway.
        for server in self.servers.values():
            server.process.resume()
            if not server.process.is_running:
                server.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when one leads and two follow."""

        def is_complete() -> bool:
            return len(self._with_mode("leader")) == 1 and len(self._with_mode("follower")) == 2

        wait_until(is_complete, "three servers with a leader")

    def _with_mode(self, mode: str) -> list[int]:
        return [number for number, server in self.servers.items() if server.mode() == mode]


def four_letters(port: int, word: str) -> str:
    """A server's answer to one of its four-letter commands; empty if it does not answer."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(word.encode())
            while piece := connection.recv(65536):
                answer += piece
    except OSError:
        return ""
    return answer.decode(errors="replace")


_PASSWORD_SALT = 0xB3415C00
_JAVA_RANDOM = 0x5DEECE66D


def password_of(session_id: int) -> bytes:
    """The password of a session, which the server makes of the id alone.

    Source: ZooKeeperServer.generatePasswd, and java.util.Random.nextBytes.
    """
    mask = (1 << 48) - 1
    state = ((session_id ^ _PASSWORD_SALT) ^ _JAVA_RANDOM) & mask
    password = b""
    for _ in range(4):
        state = (state * _JAVA_RANDOM + 0xB) & mask
        password += (state >> 16).to_bytes(4, "little")
    return password


def expire_session(hosts: str, session_id: int, password: bytes) -> None:
    """End a session as its server would after a long silence: a second client closes it.

    Whose session it is may connect again before, and take it back: so it is asked for until the
    server gives another one for it.
    """
    is_gone = False
    while not is_gone:
        client = KazooClient(hosts=hosts, client_id=(session_id, password), timeout=10)
        try:
            client.start(timeout=60)
            is_gone = client.client_id is None or client.client_id[0] != session_id
        except KazooTimeoutError:
            pass  # its owner took it back during the handshake, and kazoo gives up after that
        client.stop()
        with contextlib.suppress(Exception):
            client.close()


@contextmanager
def single_server(
    directory: Path, *, settings: str = "", java_options: tuple[str, ...] = ()
) -> Iterator[ZooKeeperServer]:
    """A server of its own for a test that needs special settings or kills it."""
    home = directory / "zookeeper"
    home.mkdir()
    (port,) = claimed_ports(1)
    server = ZooKeeperServer("zookeeper", home, port, settings, java_options)
    server.start()
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for the whole run. Tests do not stop it; each works in a scope of its own."""
    with single_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def running_zookeeper_ensemble(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ZooKeeperEnsemble]:
    """Three servers for the whole run; tests ask for `zookeeper_ensemble`."""
    with ExitStack() as stack:
        ensemble = ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble"), stack)
        try:
            for server in ensemble.servers.values():
                server.start()
            ensemble.wait_until_ready()
            yield ensemble
        finally:
            for server in ensemble.servers.values():
                server.kill()


@pytest.fixture
def zookeeper_ensemble(
    running_zookeeper_ensemble: ZooKeeperEnsemble,
) -> Iterator[ZooKeeperEnsemble]:
    """The three servers; whatever a test did to them is mended after it."""
    yield running_zookeeper_ensemble
    running_zookeeper_ensemble.heal()


def _command(directory: Path, java_options: tuple[str, ...]) -> list[str]:
    java = require_program("java", "openjdk-17-jre-headless")
    missing = fetch_zookeeper.missing_jars()
    assert not missing, f"ZooKeeper's jars are not on this machine: {fetch_zookeeper.COMMAND}"
    jars = [str(fetch_zookeeper.jars_directory() / name) for name in fetch_zookeeper.JARS]
    return [
        *(java, *_JAVA_OPTIONS, *java_options, "-cp", ":".join(jars)),
        *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(directory / "zoo.cfg")),
    ]

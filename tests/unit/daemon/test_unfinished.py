"""Bytes that arrived and that no handler has taken: how they are counted, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import RpcSettings, SecuritySettings
from bookie.daemon.connections import AcceptedConnection, OwnSockets
from bookie.daemon.unfinished import LARGE_BYTES, UnfinishedCount, bound_unfinished, surplus
from bookie.ids import INSTANCE_ID_METADATA_KEY, Status
from bookie.security import PemFiles, authority
from bookie.telemetry import Metrics
from bookie.wire.commands import ReadReply
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_server import hold_port
from bookie.wire.interfaces import SERVICE
from bookie.wire.server.arrivals import HELD_BACK_BYTES, Arrivals
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.http2_peer import DATA, Peer, connected

MIB = 1024 * 1024
PATIENCE_SECONDS = 60.0
OPTIONS = [("grpc.max_receive_message_length", 8 * MIB)]
GOAWAY = 7
METADATA = ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)


def held(*sizes: tuple[str, int]) -> Mapping[str, int]:
    return {peer: size * MIB for peer, size in sizes}


A1, A2, B1, B2, C6 = "ipv4:a:1", "ipv4:a:2", "ipv4:b:1", "ipv4:b:2", "ipv6:[c::1]:6"


@pytest.mark.parametrize(
    ("sizes", "ended"),
    [
        ({}, []),
        (held((A1, 100)), []),
        (held((A1, 101)), [A1]),
        # The largest one of the address that holds most.
        (held((A1, 60), (B1, 40), (B2, 30)), [B1]),
        (held((A1, 80), (B1, 70), (B2, 30), (C6, 90)), [B1, C6, A1]),
        # A little each is what writers hold that are held back.
        (held(*((f"ipv4:a:{number}", 16) for number in range(12))), []),
        (held(*((f"ipv4:a:{number}", 16) for number in range(13))), ["ipv4:a:12"]),
        # With one that holds much beside them, that one ends first.
        (held((B1, 17), *((f"ipv4:a:{number}", 16) for number in range(6))), [B1]),
        (held((B1, 17), *((f"ipv4:a:{number}", 16) for number in range(5))), []),
    ],
)
def test_who_must_end(sizes: Mapping[str, int], ended: list[str]) -> None:
    """Beyond a half of 200 MiB those that hold much, beyond all of it any."""
    assert surplus(sizes, 200 * MIB) == ended
    assert LARGE_BYTES == 16 * MIB


def test_names_of_connections() -> None:
    """gRPC quotes IPv6 addresses; what is gone is forgotten."""
    arrivals = Arrivals()
    quoted = arrivals.of("ipv6:%5B::1%5D:7")
    quoted.message(1000)
    assert arrivals.of("ipv6:[::1]:7") is arrivals.of("ipv6:%5B::1%5D:7") is quoted
    other = arrivals.of("ipv4:1.2.3.4:5")
    arrivals.keep({"ipv6:[::1]:7"})
    assert arrivals.of("ipv4:1.2.3.4:5") is other, "it began during the look"
    arrivals.keep({"ipv6:[::1]:7"})
    assert arrivals.of("ipv6:%5B::1%5D:7") is arrivals.of("ipv6:[::1]:7") is quoted
    assert arrivals.of("ipv4:1.2.3.4:5") is not other
    arrivals.keep(set())
    assert arrivals.of("ipv6:[::1]:7") is not quoted


def test_a_stream_that_is_held_back_has_an_allowance() -> None:
    """Its client goes on sending until the window is full, and no further."""
    arrived = Arrivals().of("ipv4:1.2.3.4:5")
    assert arrived.allowance == 0
    arrived.busy.add("a stream")
    assert arrived.allowance == HELD_BACK_BYTES
    arrived.busy |= {"another", "a third"}
    assert arrived.allowance == 2 * HELD_BACK_BYTES, "a peer could have any number of them"


@dataclass
class Watched:
    """A server, and what its connections leave unfinished."""

    port: int
    sockets: OwnSockets
    arrivals: Arrivals

    def __post_init__(self) -> None:
        self.count = UnfinishedCount(self.sockets, self.arrivals, drift=0)

    async def held(self) -> int:
        """What all connections hold now."""
        return sum((await self.count.look()).values())


@asynccontextmanager
async def watched(node: FakeNode, security: ServerSecurity | None = None) -> AsyncIterator[Watched]:
    arrivals = Arrivals()
    async with (
        hold_port("127.0.0.1", 0, RpcSettings(drain_seconds=0.2), security=security) as held,
        held.serve(node, Metrics(), None, arrivals),
    ):
        yield Watched(held.port, OwnSockets([held.port]), arrivals)


async def begin(peer: Peer, streams: int) -> int:
    """Begin a message of 8 MB on each of these streams; the number of bytes."""
    size = 40_000
    for number in range(streams):
        stream_id = peer.open(("AddStream", "ReadStream", "Fence")[number % 3])
        peer.frame(DATA, 0, stream_id, b"\0" + (8_000_000).to_bytes(4, "big") + bytes(11_000))
        for _ in range(2):
            peer.frame(DATA, 0, stream_id, bytes(14_500))
        await peer.flush()
    return streams * size


async def test_messages_without_an_end_end_their_connection() -> None:
    """Neither a stream nor a call hears of them. Others go on, and a look tells what is held."""
    node, metrics, bound = FakeNode(), Metrics(), 100 * MIB
    async with (
        watched(node) as server,
        connected(server.port) as other,
        asyncio.TaskGroup() as tasks,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        stream_id = other.open("AddStream")
        watching = tasks.create_task(
            bound_unfinished(server.sockets, server.arrivals, lambda: bound, metrics)
        )

        def value(name: str, labels: dict[str, str] | None = None) -> float:
            return metrics.registry.get_sample_value(name, labels) or 0.0

        async with connected(server.port) as peer:
            sent = await begin(peer, 30)
            # Each call may explain a little more than it has sent.
            await until(lambda: value("bookie_unfinished_bytes") >= sent - 30_000)
            assert value("bookie_unfinished_bytes") < sent + 30_000
            assert not node.calls
            bound = sent // 2
            await peer.until_closed()
        ended = "bookie_connections_ended_total"
        await until(lambda: value(ended, {"reason": "unfinished"}) == 1)
        await until(lambda: value("bookie_unfinished_bytes") < 10_000)
        watching.cancel()
        other.frame(DATA, 0, stream_id, b"\0\0\0\0\1\xff")
        head = await other.reader.readexactly(9)
        assert head[3] != GOAWAY


class FakeSockets(OwnSockets):
    """Connections with the number of bytes that each has received."""

    def __init__(self) -> None:
        super().__init__([])
        self.open: dict[AcceptedConnection, int] = {}
        self.failures: list[OSError] = []
        """What the next looks raise, the last one first."""
        self.ended: list[str] = []

    async def look(self) -> list[AcceptedConnection]:
        if self.failures:
            raise self.failures.pop()
        return list(self.open)

    def end(self, connection: AcceptedConnection) -> bool:
        self.ended.append(connection.peer)
        return self.open.pop(connection) >= 0

    def received(self, connection: AcceptedConnection) -> int | None:
        return self.open[connection] if self.open[connection] >= 0 else None


def accepted(inode: int, peer: str) -> AcceptedConnection:
    return AcceptedConnection(5, inode, "a", is_local=False, look=1, peer=peer)


async def test_a_port_that_is_used_again() -> None:
    """A new connection from the port of an earlier one begins with nothing."""
    sockets, arrivals = FakeSockets(), Arrivals()
    count = UnfinishedCount(sockets, arrivals, drift=0)
    sockets.open = {accepted(1, A1): 50_000, accepted(2, B1): -1}
    arrivals.of(A1).message(10_000)
    taken = arrivals.of(A1).taken
    assert await count.look() == {A1: 50_000 - taken}
    sockets.open = {accepted(1, A1): 60_000}
    assert await count.look() == {A1: 60_000 - taken}
    arrivals.of(A1).message(100_000)
    assert await count.look() == {A1: 0}, "what was allowed too much helps nobody later"
    sockets.open = {accepted(1, A1): 61_000}
    assert await count.look() == {A1: 1000}
    sockets.open = {accepted(3, A1): 700}
    assert await count.look() == {A1: 700}
    sockets.open = {}
    assert await count.look() == {}


async def test_what_pings_receive_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """They belong to no call, and a connection may last for years; a burst is not forgotten."""
    sockets, now = FakeSockets(), [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    count = UnfinishedCount(sockets, Arrivals(), drift=1000)
    received = 0
    for _ in range(100):
        now[0] += 1.0
        received += 900
        sockets.open = {accepted(1, A1): received}
        assert await count.look() == {A1: 0}
    now[0] += 1.0
    sockets.open = {accepted(1, A1): received + 50_000}
    assert await count.look() == {A1: 49_000}
    now[0] += 9.0
    assert await count.look() == {A1: 40_000}


async def test_a_look_allows_for_streams_that_are_held_back() -> None:
    """A writer whose bookie stalls keeps its connection; once it is read, the rest counts."""
    sockets, arrivals = FakeSockets(), Arrivals()
    count = UnfinishedCount(sockets, arrivals, drift=0)
    sockets.open = {accepted(1, A1): HELD_BACK_BYTES + 5_000}
    arrivals.of(A1).busy.add("a stream")
    assert await count.look() == {A1: 5_000}
    arrivals.of(A1).busy.clear()
    assert await count.look() == {A1: HELD_BACK_BYTES + 5_000}


async def test_a_look_forgets_what_has_ended() -> None:
    """Else each connection that ever was would cost the bookie some memory."""
    sockets, arrivals = FakeSockets(), Arrivals()
    count = UnfinishedCount(sockets, arrivals, drift=0)
    sockets.open = {accepted(1, A1): 0}
    stays, goes = arrivals.of(A1), arrivals.of(B1)
    for _ in range(2):
        await count.look()
    assert arrivals.of(A1) is stays
    assert arrivals.of(B1) is not goes


async def test_a_failed_look_is_no_end() -> None:
    """A flood of connections takes the last descriptor: just then the bound is needed."""
    sockets, metrics = FakeSockets(), Metrics()
    sockets.open = {accepted(1, A1): 20 * MIB, accepted(2, B1): 1 * MIB}
    sockets.failures = [OSError(24, "too many open files")]
    async with asyncio.TaskGroup() as tasks:
        bounding = tasks.create_task(
            bound_unfinished(sockets, Arrivals(), lambda: 10 * MIB, metrics)
        )
        await until(lambda: bool(sockets.ended) or bounding.done())
        bounding.cancel()
    assert sockets.ended == [A1]
    assert not sockets.failures


async def test_other_systems_have_no_looks() -> None:
    """Without a listing of descriptors nothing can be counted; the bookie goes on."""
    sockets = FakeSockets()
    sockets.failures = [FileNotFoundError(2, "no /proc")]
    await bound_unfinished(sockets, Arrivals(), lambda: 1, Metrics())
    assert not sockets.failures


@pytest.fixture(params=["plaintext", "tls"])
def security(request: pytest.FixtureRequest, tmp_path: Path) -> SecuritySettings | None:
    """Of the server; None without TLS."""
    if request.param == "plaintext":
        return None
    authority.create_authority(tmp_path / "ca")
    authority.issue(tmp_path / "ca", "bookie", ["127.0.0.1"])
    return SecuritySettings.model_validate(authority.settings_for(tmp_path / "ca", "bookie"))


def channel_to(port: int, security: SecuritySettings | None) -> Any:
    if security is None:
        return aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
    ca, key, certificate = (
        Path(str(name)).read_bytes()
        for name in (security.ca_file, security.key_file, security.certificate_file)
    )
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return aio.secure_channel(f"127.0.0.1:{port}", credentials, options=OPTIONS)


async def test_what_is_taken_is_not_unfinished(
    security: SecuritySettings | None,
) -> None:
    """Large messages, small ones, calls with large metadata, and large answers: no drift."""
    node = FakeNode()
    node.read_reply = ReadReply(Status.OK, "", batch_of([1_000_000]))
    server_security = None if security is None else ServerSecurity(PemFiles(security))
    async with (
        watched(node, server_security) as server,
        channel_to(server.port, security) as channel,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        found = [await server.held()]
        adds = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=METADATA)
        for size, count in ((1_000_000, 60), (60, 2000)):
            for _ in range(count):
                await adds.write(b"\xff" * size)
                await adds.read()
            found.append(await server.held())
        reads = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        request = pb.ReadRequest(ledger_id=3, last_entry_id=9, request_id=1).SerializeToString()
        for _ in range(60):
            await reads.write(request)
            assert len(await reads.read()) > 1_000_000
        found.append(await server.held())
        info = channel.unary_unary(f"/{SERVICE}/GetInfo")
        for number in range(300):
            token = f"{number}".ljust(3000, "x")
            await info(b"", metadata=(*METADATA, ("authorization", token)))
        found.append(await server.held())
        listing = channel.unary_stream(f"/{SERVICE}/ListLedgers")
        for _ in range(300):
            _ = [page async for page in listing(b"", metadata=METADATA)]
        found.append(await server.held())
        assert max(found) < 20_000, found
        adds.cancel()
        reads.cancel()

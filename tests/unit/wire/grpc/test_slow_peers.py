"""Peers that are slow, silent or gone are sent away by the timeouts of ``[rpc]``, each by its own.

In each test one timeout is short, and the others are longer than the test.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from bookie.config import RpcSettings, SecuritySettings
from bookie.daemon.connections import OwnSockets
from bookie.env import gather
from bookie.errors import BookieUnreachableError
from bookie.ids import Status
from bookie.security import PemFiles, authority
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.commands import ReadReply
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_server import hold_port
from tests.unit.wire.fake_node import INFO, INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.http2_peer import PING, SETTINGS, Peer, connected

PATIENCE_SECONDS = 45.0
"""The short timeouts are of a second or two. gRPC's own are of a minute, the long ones of ten."""
LONG = 600.0

QUICK_HANDSHAKE = RpcSettings(
    drain_seconds=0.2,
    handshake_timeout_seconds=0.5,
    keepalive_seconds=LONG,
    connection_idle_seconds_max=LONG,
)
QUICK_PINGS = RpcSettings(
    drain_seconds=0.2,
    handshake_timeout_seconds=LONG,
    keepalive_seconds=1,
    keepalive_timeout_seconds=1,
    ping_interval_seconds_min=0.5,
    connection_idle_seconds_max=LONG,
)
QUICK_IDLE = QUICK_PINGS.model_copy(update={"connection_idle_seconds_max": 2})

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CLIENT_HELLO_BEGINS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
WINDOW_UPDATE, ACK = 8, 1
WINDOW = 2**30


@asynccontextmanager
async def served(
    settings: RpcSettings, node: FakeNode, security: ServerSecurity | None = None
) -> AsyncIterator[int]:
    """A server with these timeouts; afterwards, a client that keeps the rules is served."""
    async with (
        hold_port("127.0.0.1", 0, settings, security=security, plaintext_port=0) as held,
        held.serve(node, Metrics()),
    ):
        yield held.plaintext_port if security is None else held.port
        async with asyncio.TaskGroup() as tasks:
            channel = BookieChannel(f"127.0.0.1:{held.plaintext_port}", INSTANCE_ID, tasks)
            assert await channel.info(timeout=PATIENCE_SECONDS) == INFO
            await channel.close()


async def is_sent_away(peer: Peer) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await peer.until_closed()


async def drip(peer: Peer, said: bytes) -> None:
    """One byte at a time, so that something always arrives."""
    for byte in said:
        peer.writer.write(bytes([byte]))
        await asyncio.sleep(0.3)


async def test_a_plaintext_handshake_ends() -> None:
    """However far it has come: it is over with the first frame of settings, and not before."""
    said = [b"", PREFACE[:10], PREFACE, PREFACE + bytes(5)]
    async with (
        served(QUICK_HANDSHAKE, FakeNode()) as port,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        peers = [await stack.enter_async_context(connected(port, introduced=False)) for _ in said]
        for peer, words in zip(peers, said, strict=True):
            peer.writer.write(words)
        slow = await stack.enter_async_context(connected(port, introduced=False))
        dripping = tasks.create_task(drip(slow, PREFACE * 10))
        await gather(map(is_sent_away, [*peers, slow]))
        dripping.cancel()


@pytest.fixture(name="security")
def _security(tmp_path: Path) -> SecuritySettings:
    authority.create_authority(tmp_path / "ca")
    authority.issue(tmp_path / "ca", "bookie", ["127.0.0.1"])
    return SecuritySettings.model_validate(authority.settings_for(tmp_path / "ca", "bookie"))


async def test_a_tls_handshake_ends(security: SecuritySettings) -> None:
    """However far it has come: with TLS alone the peer has not introduced itself."""
    context = ssl.create_default_context(cafile=security.ca_file)
    context.load_cert_chain(security.certificate_file, security.key_file)
    context.set_alpn_protocols(["h2"])
    server = ServerSecurity(PemFiles(security))
    async with (
        served(QUICK_HANDSHAKE, FakeNode(), server) as port,
        connected(port, introduced=False) as silent,
        connected(port, introduced=False) as half,
    ):
        half.writer.write(CLIENT_HELLO_BEGINS)
        whole = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
        await gather(map(is_sent_away, [silent, half, whole]))
        whole.writer.close()
        with suppress(OSError):
            await whole.writer.wait_closed()


async def test_a_peer_that_answers_no_ping_ends() -> None:
    """Its machine is gone, or its process hangs; a call that it has begun changes nothing."""
    node = FakeNode()
    node.reading.clear()
    async with (
        served(QUICK_PINGS, node) as port,
        connected(port) as deaf,
        connected(port) as silent,
        connected(port) as caller,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        caller.call("Read", b"\x08\x03")
        await until(lambda: len(node.calls) == 1)
        await gather([answer(deaf, ()), answer(silent, (SETTINGS,)), answer(caller, (SETTINGS,))])
        node.reading.set()


async def test_a_peer_that_reads_nothing_ends() -> None:
    """It opened its windows for a gigabyte of answers, and leaves them in the bookie's memory."""
    node = FakeNode()
    node.read_reply = ReadReply(Status.OK, "", batch_of([4_000_000]))
    said = Mock()
    peer = Peer(Mock(), said)
    peer.writer.write(PREFACE)
    peer.frame(SETTINGS, 0, 0, b"\x00\x04" + WINDOW.to_bytes(4, "big"))
    peer.frame(WINDOW_UPDATE, 0, 0, WINDOW.to_bytes(4, "big"))
    for _ in range(20):
        peer.call("Read", b"\x08\x03")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with served(QUICK_PINGS, node) as port:
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(b"".join(call.args[0] for call in said.write.call_args_list))
            await until(lambda: len(node.calls) == 20)
            # The peer does not hear of the end either.
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await OwnSockets([port]).look():  # noqa: ASYNC110  (no event of ours)
                    await asyncio.sleep(0.1)


async def answer(peer: Peer, kinds: tuple[int, ...]) -> None:
    """Acknowledge frames of these kinds alone; return when the connection has ended."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await peer.reader.readexactly(9)
            payload = await peer.reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in kinds and not head[4] & ACK:
                peer.frame(head[3], ACK, 0, payload if head[3] == PING else b"")


async def test_a_peer_without_calls_ends() -> None:
    """It answers pings; the same peer with a call stays."""
    node = FakeNode()
    node.reading.clear()
    async with (
        served(QUICK_IDLE, node) as port,
        connected(port) as caller,
        connected(port) as idle,
        asyncio.TaskGroup() as tasks,
    ):
        caller.call("Read", b"\x08\x03")
        working = tasks.create_task(answer(caller, (SETTINGS, PING)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await answer(idle, (SETTINGS, PING))
        assert not working.done()
        working.cancel()
        node.reading.set()


async def test_a_bookie_that_answers_no_ping_is_left() -> None:
    """The other way around: a call without an answer ends long before its own timeout."""
    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        peer.frame(SETTINGS, 0, 0, b"")
        peer.frame(SETTINGS, ACK, 0, b"")
        await peer.until_closed()
        writer.close()
        gone.set()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server, asyncio.TaskGroup() as tasks:
        port = server.sockets[0].getsockname()[1]
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks, settings=QUICK_PINGS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(BookieUnreachableError):
                await channel.info(timeout=LONG)
            await gone.wait()
        await channel.close()

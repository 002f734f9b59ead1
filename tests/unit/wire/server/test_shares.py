"""Shares of a connection and of an identity: nobody takes the whole bookie, and all comes back.

The client of a test speaks gRPC from 127.0.0.1. Others are hand-made peers at 127.0.0.2, which is
another identity.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any
from unittest.mock import Mock

import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import NodeSettings, RpcSettings
from bookie.env.turns import UNITS_PER_HURRIED_TURN, UNITS_PER_TURN
from bookie.errors import TooManyRequestsError
from bookie.ids import INSTANCE_ID_METADATA_KEY, Status
from bookie.telemetry import Metrics
from bookie.telemetry.metrics import SHARES
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import (
    encode_add_request,
    encode_read_request,
    encode_streamed_read,
    parse_add_request,
)
from bookie.wire.commands import LedgerRow, ReadCommand, ReadReply, Reply
from bookie.wire.interfaces import SERVICE
from bookie.wire.server import service, visits
from bookie.wire.server.read_stream import TOO_LATE
from bookie.wire.server.shares import ADD_OVERHEAD_BYTES
from bookie.wire.server.visits import LEAST_BYTES_PER_SECOND, Reception, Visit
from tests.served_node import serve
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.http2_peer import DATA, Peer, connected
from tests.unit.wire.real_bookie import add_request

METADATA = ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)
OTHER = "127.0.0.2"
KIB, MIB = 1024, 1024 * 1024
PAYLOAD = 10_000
HELD = len(add_request(1, 7, 0, [bytes(PAYLOAD)])) + ADD_OVERHEAD_BYTES
"""What one add of the tests takes of a share."""


@dataclass
class Room:
    """A bookie with a fake node, and a client of it."""

    node: FakeNode
    metrics: Metrics
    port: int
    tasks: asyncio.TaskGroup
    channel: BookieChannel
    answers: list[tuple[Status, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def sample(self, name: str, **labels: str) -> float:
        """The value of a metric."""
        return self.metrics.registry.get_sample_value(f"bookie_{name}", labels) or 0.0

    def exceeded(self, holder: str, of: str) -> float:
        """How often something was more than a share."""
        return self.sample("share_exceeded_total", holder=holder, of=of)

    def client(self) -> BookieChannel:
        """Another client at the same address."""
        return BookieChannel(f"127.0.0.1:{self.port}", INSTANCE_ID, self.tasks)

    def add_stream(self, channel: BookieChannel) -> Any:
        """A stream that collects its answers."""
        return channel.add_stream(
            lambda _id, status, text, *_: self.answers.append((status, text)),
            lambda error: self.broken.append(str(error)),
        )

    async def pass_time(self) -> None:
        """Enough for everything that is going to happen."""
        for _ in range(20):
            await self.channel.info(timeout=60)

    async def nothing_is_held(self) -> None:
        """Wait until no identity holds anything."""
        await until(lambda: self.sample("identity_share") == 0)


@asynccontextmanager
async def room(rpc: RpcSettings | None = None, /, **limits: Any) -> AsyncIterator[Room]:
    """A bookie with some limits."""
    node, metrics = FakeNode(NodeSettings(**limits)), Metrics()
    rpc = rpc or RpcSettings(drain_seconds=0.2)
    async with serve(node, "127.0.0.1", 0, rpc, metrics) as port, asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        try:
            yield Room(node, metrics, port, tasks, channel)
        finally:
            await channel.close()


async def reaches(adds: Sized, count: int) -> None:
    """Wait until the node has so many adds."""
    await until(lambda: len(adds) >= count)


def one(entry_id: int, max_bytes: int = 1000) -> ReadCommand:
    """A read of one entry."""
    return ReadCommand(3, entry_id, entry_id, 1, max_bytes)


# --- adds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["connection", "identity"])
async def test_adds_over_a_share_wait_and_those_of_others_do_not(holder: str) -> None:
    """The share has room for two; each answer makes room for the next one."""
    shares = {"connection_share_max": 1.0, "identity_share_max": 1.0}
    shares[f"{holder}_share_max"] = (2 * HELD + 100) / (256 * KIB)
    async with room(in_flight_add_bytes_max=256 * KIB, **shares) as at:
        held = at.node.held = []
        stream = at.add_stream(at.channel)
        for number in range(5):
            stream.send(add_request(number, 7, number, [bytes(PAYLOAD)]))
            await reaches(held, min(number + 1, 2))
        await at.pass_time()
        assert len(held) == 2
        assert at.exceeded(holder, "adds") >= 1
        async with connected(at.port, source=OTHER) as peer:
            message = add_request(9, 8, 0, [bytes(PAYLOAD)])
            head = b"\x00" + len(message).to_bytes(4, "big")
            peer.frame(DATA, 0, peer.open("AddStream"), head + message)
            await until(lambda: len(held) == 3)
        assert at.node.added[-1].ledger_id == 8
        for number in (0, 1, 3, 4, 5):
            await reaches(held, number + 1)
            assert len(held) - number <= 3
            held[number].settle(Reply(Status.OK))
        held[2].settle(Reply(Status.OK))
        await until(lambda: len(at.answers) == 5)
        await at.nothing_is_held()


async def test_another_connection_of_an_identity_has_no_share_of_its_own() -> None:
    """What one process of an address holds, the other processes there do not have."""
    part = (2 * HELD + 100) / (256 * KIB)
    async with room(in_flight_add_bytes_max=256 * KIB, identity_share_max=part) as at:
        held = at.node.held = []
        stream, channel = at.add_stream(at.channel), at.client()
        for number in range(2):
            stream.send(add_request(number, 7, number, [bytes(PAYLOAD)]))
            await reaches(held, number + 1)
        at.add_stream(channel).send(add_request(3, 9, 0, [bytes(PAYLOAD)]))
        await at.pass_time()
        assert len(held) == 2
        held[0].settle(Reply(Status.OK))
        await until(lambda: len(held) == 3)
        for one_held in held[1:]:
            one_held.settle(Reply(Status.OK))
        await channel.close()
        await at.nothing_is_held()


async def test_small_adds_are_bounded_by_their_number() -> None:
    """Each takes memory besides its bytes."""
    part = 10 * ADD_OVERHEAD_BYTES / (256 * KIB)
    async with room(in_flight_add_bytes_max=256 * KIB, identity_share_max=part) as at:
        held = at.node.held = []
        stream = at.add_stream(at.channel)
        for number in range(30):
            stream.send(add_request(number, 7, number, [b"x"]))
            await at.channel.info(timeout=60)
        await at.pass_time()
        assert 1 <= len(held) < 10
        at.node.held = None
        for one_held in held:
            one_held.settle(Reply(Status.OK))
        await until(lambda: len(at.answers) == 30)
        await at.nothing_is_held()


@pytest.mark.parametrize("settled_first", [False, True])
async def test_a_broken_stream_holds_its_share_until_its_adds_are_done(settled_first: bool) -> None:
    """Otherwise a peer that comes back again and again would have no bound."""
    part = (2 * HELD + 100) / (256 * KIB)
    async with room(in_flight_add_bytes_max=256 * KIB, identity_share_max=part) as at:
        held = at.node.held = []
        channel = at.client()
        stream = at.add_stream(channel)
        for number in range(4):
            stream.send(add_request(number, 7, number, [bytes(PAYLOAD)]))
            await reaches(held, min(number + 1, 2))
        if settled_first:
            held[1].settle(Reply(Status.OK))
        await channel.close()
        await at.pass_time()
        assert at.sample("identity_share") > 0
        for one_held in held:
            if not one_held.done():
                one_held.settle(Reply(Status.OK))
        await at.nothing_is_held()
        at.node.held = None
        stream = at.add_stream(at.channel)
        for number in range(4):
            stream.send(add_request(number, 7, number, [bytes(PAYLOAD)]))
        await until(lambda: len(at.answers) == 4)


@pytest.mark.parametrize("failure", [None, RuntimeError("broken"), TooManyRequestsError("no")])
async def test_refused_adds_return_their_share(failure: Exception | None) -> None:
    """Refused by the node, or not even understood."""
    async with room(in_flight_add_bytes_max=64 * KIB) as at:
        at.node.failure = failure
        stream = at.add_stream(at.channel)
        for number in range(20):
            broken = number % 2 or failure is None
            stream.send(b"garbage" if broken else add_request(number, 7, number, [bytes(PAYLOAD)]))
        await until(lambda: len(at.answers) == 20)
        await at.nothing_is_held()
        at.node.failure = None


# --- reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["connection", "identity"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_reads_over_a_share_are_refused_and_those_of_others_are_not(
    holder: str, streamed: bool
) -> None:
    """Refused in one sentence that says whose share it was."""
    shares = {"connection_share_max": 1.0, "identity_share_max": 1.0}
    shares[f"{holder}_share_max"] = 0.5
    async with room(in_flight_read_bytes_max=8 * MIB, **shares) as at:
        at.node.reading.clear()
        read = at.channel.read_entry if streamed else at.channel.read
        first = at.tasks.create_task(read(one(0, 4 * MIB - 8 * KIB), timeout=60))
        await until(lambda: len(at.node.calls) == 1)
        refused = await read(one(1, 100_000), timeout=60)
        assert refused.status is Status.TOO_MANY_REQUESTS
        assert refused.message == f"this {holder} has as many reads at this bookie as it may"
        assert refused.retry_after_ms == 200
        assert at.exceeded(holder, "reads") == 1
        async with connected(at.port, source=OTHER) as peer:
            peer.call("Read", encode_read_request(one(2, 100_000)))
            await until(lambda: len(at.node.calls) == 2)
        fencing = ReadCommand(3, 0, 0, 1, 100_000, True)
        at.node.reading.set()
        assert (await at.channel.read(fencing, timeout=60)).status is Status.NO_SUCH_ENTRY
        assert (await first).status is Status.NO_SUCH_ENTRY
        await at.nothing_is_held()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("end", ["cancelled", "failed", "broken", "refused"])
async def test_reads_return_their_share_however_they_end(streamed: bool, end: str) -> None:
    """Each of many, so that what is left behind would add up."""
    async with room(in_flight_read_bytes_max=4 * MIB) as at:
        at.node.reading.clear()
        channel = at.client()
        read = channel.read_entry if streamed else channel.read
        command = one(0, 4 * MIB if end == "refused" else 1000)
        if end == "failed":
            at.node.failure = RuntimeError("broken")
        reads = [at.tasks.create_task(_settled(read(command, timeout=60))) for _ in range(10)]
        if end in ("cancelled", "broken"):
            await until(lambda: len(at.node.calls) == 10)
        if end == "cancelled":
            for reading in reads:
                reading.cancel()
        elif end == "broken":
            await channel.close()
        await asyncio.sleep(0)
        at.node.reading.set()
        await asyncio.wait(reads)
        await channel.close()
        at.node.failure = None
        await at.nothing_is_held()
        await until(lambda: at.sample("in_flight_read_bytes") == 0)


async def test_reads_that_the_whole_has_no_room_for_return_their_share() -> None:
    """Others hold the whole, and the share of who is refused stays empty."""
    async with room(in_flight_read_bytes_max=4 * MIB, identity_share_max=1.0) as at:
        at.node.reading.clear()
        async with connected(at.port, source=OTHER) as peer:
            peer.call("Read", encode_read_request(one(0, 4 * MIB - 8 * KIB)))
            await until(lambda: len(at.node.calls) == 1)
            for read in (at.channel.read, at.channel.read_entry):
                refused = await read(one(1, 100_000), timeout=60)
                assert refused.message == "the bookie is answering as many reads as it may"
                assert refused.retry_after_ms == 200
        at.node.reading.set()
        await at.nothing_is_held()


async def _settled(read: Any) -> None:
    try:
        await read
    except Exception:  # noqa: BLE001  (only the end matters)
        return


# --- streams, calls and watches ----------------------------------------------------------------


async def test_streams_of_a_connection_are_bounded() -> None:
    """One too many is told so, and ended. Its peer's next one is served when another has ended."""
    async with (
        room(connection_streams_max=2) as at,
        aio.insecure_channel(f"127.0.0.1:{at.port}") as channel,
    ):
        opened = []
        for rpc in ("AddStream", "ReadStream", "AddStream", "ReadStream", "WatchLac"):
            call = channel.stream_stream(f"/{SERVICE}/{rpc}")(metadata=METADATA)
            await call.initial_metadata()
            opened.append(call)
        await opened[2].write(add_request(5, 7, 0, [b"x"]))
        answer = pb.AddResponse.FromString(await opened[2].read())
        assert (answer.status, answer.request_id) == (pb.STATUS_TOO_MANY_REQUESTS, 5)
        assert answer.message == "this connection has as many streams at this bookie as it may"
        assert answer.retry_after_ms == 200
        assert await opened[2].read() is aio.EOF
        await opened[3].write(encode_streamed_read(6, one(0)))
        reply = pb.ReadResponse.FromString(await opened[3].read())
        assert (reply.status, reply.request_id) == (pb.STATUS_TOO_MANY_REQUESTS, 6)
        assert await opened[3].read() is aio.EOF
        update = pb.LacUpdate.FromString(await opened[4].read())
        assert (update.status, update.ledger_id) == (pb.STATUS_TOO_MANY_REQUESTS, -1)
        assert await opened[4].read() is aio.EOF
        assert at.exceeded("connection", "streams") == 3
        assert at.node.calls == []
        await opened[0].write(add_request(1, 7, 0, [b"x"]))
        assert pb.AddResponse.FromString(await opened[0].read()).status == pb.STATUS_OK
        opened[0].cancel()
        await at.pass_time()
        again = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=METADATA)
        await again.write(add_request(2, 7, 0, [b"x"]))
        assert pb.AddResponse.FromString(await again.read()).status == pb.STATUS_OK


async def test_a_refused_stream_that_says_nothing_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a stream beyond the bound."""
    monkeypatch.setattr(service, "REFUSED_STREAM_SECONDS", 0.05)
    async with (
        room(connection_streams_max=1) as at,
        aio.insecure_channel(f"127.0.0.1:{at.port}") as channel,
    ):
        first = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=METADATA)
        await first.initial_metadata()
        second = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=METADATA)
        assert await second.read() is aio.EOF
        first.cancel()


async def test_calls_of_an_identity_are_bounded_over_all_its_connections() -> None:
    """Fences may be a quarter more. Others are served, and so is the identity afterwards."""
    async with room(identity_calls_max=4) as at:
        at.node.reading.clear()
        channels = [at.client() for _ in range(4)]
        reads = [at.tasks.create_task(one_.read(one(0), timeout=60)) for one_ in channels]
        await until(lambda: len(at.node.calls) == 4)
        refused = await at.channel.read(one(1), timeout=60)
        assert refused.status is Status.TOO_MANY_REQUESTS
        assert refused.message == "this identity has as many calls at this bookie as it may"
        assert refused.retry_after_ms == 200
        assert at.exceeded("identity", "calls") == 1
        assert (await at.channel.fence(7, b"", timeout=60)).status is Status.OK
        async with connected(at.port, source=OTHER) as peer:
            peer.call("Read", encode_read_request(one(2)))
            await until(lambda: len(at.node.calls) == 6)
        at.node.reading.set()
        assert {(await read).status for read in reads} == {Status.NO_SUCH_ENTRY}
        assert (await at.channel.read(one(1), timeout=60)).status is Status.NO_SUCH_ENTRY
        for channel in channels:
            await channel.close()


async def test_thousands_of_processes_may_have_one_name() -> None:
    """By default: each has four streams to a bookie."""
    reception = Reception(NodeSettings(), RpcSettings(), Metrics())
    visits = [
        reception.enter(f"ipv4:10.0.0.1:{process}", is_stream=True)
        for process in range(4000)
        for _ in range(4)
    ]
    for visit in visits:
        visit.leave()
    assert len(reception.shares) == 0


@pytest.mark.parametrize("holder", ["connection", "identity"])
async def test_watches_are_bounded_and_come_back(holder: str) -> None:
    """By the end of a subscription, and by the end of the stream."""
    bound: dict[str, Any] = {f"{holder}_watches_max": 2}
    async with room(**bound) as at:
        updates: list[tuple[int, Status]] = []
        for _ in range(2):
            channel = at.client()
            watch = channel.watch_lac(
                lambda state: updates.append((state.ledger_id, state.status)),
                lambda error: None,
            )
            watch.subscribe([1, 2, 3])
            await until(lambda: len(updates) == 3)
            assert updates[2] == (3, Status.TOO_MANY_REQUESTS) or (
                (3, Status.TOO_MANY_REQUESTS) in updates
            )
            watch.unsubscribe([1, 3])
            watch.subscribe([4, 2])
            await until(lambda: len(updates) >= 4)
            assert updates[3] == (4, Status.NO_SUCH_LEDGER)
            assert at.node.watchers[0].ledgers == {2, 4}
            await channel.close()
            await until(lambda: at.node.watchers == [])
            updates.clear()
        assert at.exceeded(holder, "watches") == 2


# --- clients that take no answers, and devices that hang ------------------------------------------


@pytest.mark.parametrize("rpc", ["Read", "ReadStream", "ListLedgers", "WatchLac"])
async def test_a_client_that_takes_no_answers_loses_its_connection(
    rpc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it held is free again; a client that takes them is served on."""
    monkeypatch.setattr(visits, "HANG_UP_SECONDS", 0.05)
    settings = RpcSettings(drain_seconds=0.2, slow_reader_seconds=0.2)
    async with room(settings, in_flight_read_bytes_max=64 * MIB) as at:
        at.node.read_reply = ReadReply(Status.OK, "", batch_of([1024 * 1024]), 1)
        at.node.rows = [
            [LedgerRow(number, False, False, 0, 9, 10, 1000, 9) for number in range(2000)]
        ] * 100
        async with connected(at.port, source=OTHER) as peer:
            if rpc == "Read":
                peer.call("Read", encode_read_request(one(0, 2 * MIB)))
            elif rpc == "ListLedgers":
                peer.call("ListLedgers", b"")
            else:
                stream_id = peer.open(rpc)
                message = encode_streamed_read(1, one(0, 2 * MIB))
                if rpc == "WatchLac":
                    message = pb.WatchLacRequest(subscribe=range(1000)).SerializeToString()
                head = b"\x00" + len(message).to_bytes(4, "big")
                peer.frame(DATA, 0, stream_id, head + message)
            await peer.flush()
            if rpc == "WatchLac":
                await until(lambda: bool(at.node.watchers and at.node.watchers[0].ledgers))
                lac = 0
                while not at.sample("slow_readers_ended_total"):
                    lac += 1
                    for ledger_id in range(1000):
                        at.node.advance(ledger_id, [lac])
                    await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                await peer.writer.drain()
                await until(lambda: at.sample("slow_readers_ended_total") == 1)
                await peer.until_closed()
        await at.nothing_is_held()
        await until(lambda: at.sample("in_flight_read_bytes") == 0)
        await until(lambda: at.node.watchers == [])
        assert (await at.channel.read(one(0, 2 * MIB), timeout=60)).status is Status.OK
        assert at.sample("slow_readers_ended_total") == 1


async def test_a_client_on_a_slow_link_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a little all the time, for ten times as long as a client may take nothing."""
    monkeypatch.setattr(visits, "HANG_UP_SECONDS", 0.05)
    seconds, pause, pieces = 0.2, 0.05, 40
    loop = asyncio.get_running_loop()
    async with room(RpcSettings(drain_seconds=0.2, slow_reader_seconds=seconds)) as at:
        at.node.read_reply = ReadReply(Status.OK, "", batch_of([4_000_000]), 1)
        said = Mock()
        caller = Peer(Mock(), said)
        caller.introduce(window=2**30)
        for _ in range(8):
            caller.call("Read", encode_read_request(one(0, 4_000_000)))
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", at.port))
            await loop.sock_sendall(slow, b"".join(one.args[0] for one in said.write.mock_calls))
            await until(lambda: len(at.node.calls) == 8)
            for _ in range(pieces):  # 8 MB of 32 MB, and fewer than the kernel keeps at a time
                left = 50_000
                while left > 0:
                    data = await loop.sock_recv(slow, left)
                    assert data, "the bookie hung up"
                    left -= len(data)
                await asyncio.sleep(pause)
            assert pieces * pause >= 10 * seconds
            assert at.sample("slow_readers_ended_total") == 0
            assert at.sample("in_flight_read_bytes") > 0
            # It stops.
            await until(lambda: at.sample("slow_readers_ended_total") > 0)
        await at.nothing_is_held()


@pytest.mark.parametrize(
    ("rate", "looks"),
    [
        pytest.param(1.1, (10, 20), id="other answers of its connection go on"),
        pytest.param(0.9, (2, 2), id="too slow"),
        pytest.param(0.0, (2, 2), id="stands still"),
    ],
)
async def test_patience_with_a_slow_client_ends(
    rate: float, looks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the least rate, with all that its connection holds in front of the answer."""
    monkeypatch.setattr(visits, "HANG_UP_SECONDS", 0.0)
    seconds = 0.02
    least = seconds / 2 * LEAST_BYTES_PER_SECOND
    count, ended = 0, list[set[str]]()

    def taken(peers: set[str]) -> dict[str, int]:
        nonlocal count
        count += 1
        # At last it takes nothing, so that the test ends in any case.
        return {peer: ceil(5000 + min(count, 40) * rate * least) for peer in peers}

    def end(peers: set[str]) -> int:
        ended.append(peers)
        return 1

    settings = RpcSettings(slow_reader_seconds=seconds)
    reception = Reception(NodeSettings(), settings, Metrics(), end, taken)

    async def enter() -> Visit:
        return reception.enter("ipv4:10.0.0.1:1")

    visit = await asyncio.get_running_loop().create_task(enter())
    visit.read(ceil(12 * least))
    visit.sends()
    await until(lambda: bool(ended))
    assert ended == [{"ipv4:10.0.0.1:1"}]
    assert looks[0] <= count <= looks[1]
    visit.end_read(ceil(12 * least))
    visit.leave()


async def test_a_call_without_a_deadline_is_given_up() -> None:
    """As one that waits for a device that hangs. Another call may follow."""
    settings = RpcSettings(drain_seconds=0.2, call_seconds_max=0.2)
    async with room(settings) as at:
        at.node.reading.clear()
        async with aio.insecure_channel(f"127.0.0.1:{at.port}") as channel:
            read = channel.unary_unary(f"/{SERVICE}/Read")
            for timeout in (None, 3600):
                answer = await read(encode_read_request(one(0)), metadata=METADATA, timeout=timeout)
                reply = pb.ReadResponse.FromString(answer)
                assert reply.status == pb.STATUS_TOO_MANY_REQUESTS
                assert reply.message == TOO_LATE
            assert at.sample("calls_given_up_total") == 2
            stream = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
            for request_id, timeout_ms in ((7, 0), (8, 3_600_000)):
                await stream.write(encode_streamed_read(request_id, one(0), timeout_ms))
                reply = pb.ReadResponse.FromString(await stream.read())
                assert reply.status == pb.STATUS_TOO_MANY_REQUESTS
                assert (reply.request_id, reply.message) == (request_id, TOO_LATE)
            assert at.sample("reads_given_up_total") == 2
            at.node.listing.clear()
            listing = channel.unary_stream(f"/{SERVICE}/ListLedgers")(b"", metadata=METADATA)
            page = pb.ListLedgersResponse.FromString(await listing.read())
            assert page.status == pb.STATUS_TOO_MANY_REQUESTS
            assert await listing.read() is aio.EOF
            at.node.reading.set()
            at.node.listing.set()
            stream.cancel()
        await at.nothing_is_held()
        await until(lambda: at.sample("in_flight_read_bytes") == 0)
        assert (await at.channel.read(one(0), timeout=60)).status is Status.NO_SUCH_ENTRY


# --- what recovery waits for ----------------------------------------------------------------------


@pytest.mark.parametrize("recovery", [True, False])
async def test_recovery_adds_take_no_turn(recovery: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if ordinary work never has its turn; the first message of a stream takes none either."""
    monkeypatch.setattr(Visit, "try_turn", lambda visit, units: False)
    monkeypatch.setattr(Visit, "turn", lambda visit, units: asyncio.Event().wait())
    async with room() as at:
        stream = at.add_stream(at.channel)
        for number in range(3):
            _, command = parse_add_request(add_request(number, 7, number, [b"x"]))
            crc = command.payload_crc32c
            stream.send(
                encode_add_request(number, 7, command.batch, payload_crc32c=crc, recovery=recovery)
            )
            await at.pass_time()
        assert len(at.node.added) == (3 if recovery else 1)
        assert len(at.answers) == (3 if recovery else 0)
        assert (await at.channel.fence(7, b"", timeout=60)).status is Status.OK
        assert (await at.channel.read_lac(7, b"", timeout=60)).status is Status.OK
        fencing = ReadCommand(3, 0, 0, 1, 1000, True)
        assert (await at.channel.read(fencing, timeout=60)).status is Status.NO_SUCH_ENTRY


async def test_calls_that_are_refused_shorten_turns_as_well() -> None:
    """A fence may be behind hundreds of them, for gRPC accepts one call a turn."""
    reception = Reception(NodeSettings(identity_calls_max=1), RpcSettings(), Metrics())
    visit = reception.enter("ipv4:10.0.0.1:1")
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(TooManyRequestsError):
        reception.enter("ipv4:10.0.0.1:2")
    for most in (UNITS_PER_HURRIED_TURN, UNITS_PER_HURRIED_TURN, UNITS_PER_TURN):
        assert [visit.try_turn(1) for _ in range(20)].count(True) == most
        await asyncio.sleep(0)
    visit.leave()


# --- the counts themselves ----------------------------------------------------------------------


def test_the_metric_counts_whatever_a_share_bounds() -> None:
    """All of them from the start, as 0."""
    metrics = Metrics()
    for holder, of in SHARES:
        labels = {"holder": holder, "of": of}
        assert metrics.registry.get_sample_value("bookie_share_exceeded_total", labels) == 0


async def test_who_holds_nothing_is_forgotten() -> None:
    """Also among very many names, whatever they did, in whatever order it ended."""
    numbers = random.Random(7)
    reception = Reception(NodeSettings(), RpcSettings(), Metrics())
    under_way: list[tuple[Visit, int, int, int]] = []
    for number in range(5_000):
        visit = reception.enter(f"ipv4:10.{number % 250}.0.1:{number}", is_stream=True)
        size = numbers.randrange(1, 1000)
        assert visit.try_add(size)
        visit.read(size)
        visit.watch()
        under_way.append((visit, size, size, 1))
        if len(under_way) > 50:
            ended, adds, reads, watches = under_way.pop(numbers.randrange(50))
            ends: list[Callable[[], None]] = [
                ended.leave,
                partial(ended.end_add, adds),
                partial(ended.end_read, reads),
                partial(ended.end_watches, watches),
            ]
            numbers.shuffle(ends)
            for end in ends:
                end()
            ended.leave()
        assert len(reception.shares) <= 2 * 51
    for visit, size, _, _ in under_way:
        visit.leave()
        visit.end_add(size)
        visit.end_read(size)
        visit.end_watches()
    assert len(reception.shares) == 0


async def test_adds_that_wait_and_are_cancelled_take_nothing() -> None:
    """Neither of the connection, which had room, nor of the identity, which had none."""
    limits = NodeSettings(in_flight_add_bytes_max=8 * KIB, identity_share_max=0.5)
    reception = Reception(limits, RpcSettings(), Metrics())
    first, second = (reception.enter(f"ipv4:10.0.0.1:{port}") for port in (1, 2))
    assert first.try_add(4 * KIB)
    assert not second.try_add(1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(second.add(1))
        await asyncio.sleep(0)
        waiting.cancel()
    assert [share.adds.used for share in second.shares] == [0, 4 * KIB]
    first.end_add(4 * KIB)
    for visit in (first, second):
        visit.leave()
    assert len(reception.shares) == 0


async def test_a_recovery_may_add_more_and_does_not_wait_behind_others() -> None:
    """A quarter more than the share."""
    limits = NodeSettings(in_flight_add_bytes_max=16 * KIB, identity_share_max=0.5)
    reception = Reception(limits, RpcSettings(), Metrics())
    visit = reception.enter("ipv4:10.0.0.1:1")
    assert visit.try_add(8 * KIB)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(visit.add(KIB))
        await asyncio.sleep(0)
        assert visit.try_add(2 * KIB, is_urgent=True)
        assert not visit.try_add(KIB, is_urgent=True)
        visit.end_add(10 * KIB)
        await waiting

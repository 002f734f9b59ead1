"""Whatever arrives, the answer has the right status and the bookie serves on."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import pytest
from grpc import aio

from bookie._pb import bookie_pb2 as pb
from bookie.config import NodeSettings, RpcSettings
from bookie.ids import INSTANCE_ID_METADATA_KEY, MAX_ID, NO_ENTRY, Status
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_read_request
from bookie.wire.commands import ReadCommand, ReadReply
from bookie.wire.interfaces import SERVICE
from tests.served_node import serve
from tests.unit.wire.conftest import Served
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.http2_peer import connected

UNARY: dict[str, Any] = {
    "Read": pb.ReadResponse,
    "ReadLac": pb.LacResponse,
    "Fence": pb.LacResponse,
    "Force": pb.ForceResponse,
    "WriteLac": pb.WriteLacResponse,
    "GetInfo": pb.GetInfoResponse,
}
LISTINGS: dict[str, Any] = {
    "ListEntries": pb.ListEntriesResponse,
    "ListLedgers": pb.ListLedgersResponse,
}
METADATA = ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)

GARBAGE = [
    b"\xff",
    b"\x08",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x00\x00\x00",
    b"\x0b",
    bytes(range(256)),
]


async def status_of(by_grpc: Served, rpc: str, data: bytes) -> int:
    """The in-band status of one raw call."""
    async with aio.insecure_channel(by_grpc.address) as channel:
        if rpc in UNARY:
            answer = await channel.unary_unary(f"/{SERVICE}/{rpc}")(data, metadata=METADATA)
            return int(UNARY[rpc].FromString(answer).status)
        answers = channel.unary_stream(f"/{SERVICE}/{rpc}")(data, metadata=METADATA)
        statuses = [int(LISTINGS[rpc].FromString(answer).status) async for answer in answers]
        assert len(statuses) <= 1
        return statuses[0] if statuses else 0


@pytest.mark.parametrize("rpc", [*UNARY, *LISTINGS])
async def test_garbage_is_a_bad_request(by_grpc: Served, rpc: str) -> None:
    """Bytes that are no message are refused in band, by every call."""
    for data in GARBAGE:
        assert await status_of(by_grpc, rpc, data) == Status.BAD_REQUEST
    assert by_grpc.node.calls == []


@pytest.mark.parametrize("rpc", [*UNARY, *LISTINGS])
async def test_random_bytes_are_answered(by_grpc: Served, rpc: str) -> None:
    """No bytes make a call fail in transport, and the bookie goes on."""
    rng = random.Random(rpc)
    allowed = {Status.OK, Status.BAD_REQUEST, Status.NO_SUCH_ENTRY}
    async with aio.insecure_channel(by_grpc.address) as channel:
        for _ in range(50):
            data = rng.randbytes(rng.randrange(40))
            if rpc in UNARY:
                answer = await channel.unary_unary(f"/{SERVICE}/{rpc}")(data, metadata=METADATA)
                assert UNARY[rpc].FromString(answer).status in allowed
            else:
                call = channel.unary_stream(f"/{SERVICE}/{rpc}")(data, metadata=METADATA)
                _ = [answer async for answer in call]
    assert (await by_grpc.channel.info(timeout=60)).bookie_id == "b1"


async def test_random_bytes_on_the_streams_are_answered(by_grpc: Served) -> None:
    """Each message of a stream of garbage gets its answer; the next stream works."""
    rng = random.Random(7)
    async with aio.insecure_channel(by_grpc.address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/AddStream")(metadata=METADATA)
        for _ in range(100):
            await call.write(rng.randbytes(rng.randrange(60)))
            refusal = pb.AddResponse.FromString(await call.read())
            assert refusal.status == pb.STATUS_BAD_REQUEST
        await call.done_writing()
        assert await call.read() is aio.EOF
        reads = channel.stream_stream(f"/{SERVICE}/ReadStream")(metadata=METADATA)
        for _ in range(100):
            await reads.write(rng.randbytes(rng.randrange(60)))
            answer = pb.ReadResponse.FromString(await reads.read())
            assert answer.status in (pb.STATUS_BAD_REQUEST, pb.STATUS_NO_SUCH_ENTRY)
        await reads.done_writing()
        assert await reads.read() is aio.EOF
        watch = channel.stream_stream(f"/{SERVICE}/WatchLac")(metadata=METADATA)
        await watch.write(b"\xff\xff")
        update = pb.LacUpdate.FromString(await watch.read())
        assert (update.status, update.ledger_id) == (pb.STATUS_BAD_REQUEST, -1)
        await watch.write(pb.WatchLacRequest(subscribe=[5]).SerializeToString())
        assert pb.LacUpdate.FromString(await watch.read()).ledger_id == 5
        watch.cancel()
    assert by_grpc.node.added == []


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("ReadLac", pb.ReadLacRequest(ledger_id=-1)),
        ("Fence", pb.FenceRequest(ledger_id=-(2**63))),
        ("Fence", pb.FenceRequest(ledger_id=1, master_key=bytes(65))),
        ("Force", pb.ForceRequest(ledger_id=-1)),
        ("WriteLac", pb.WriteLacRequest(ledger_id=1)),
        ("WriteLac", pb.WriteLacRequest(ledger_id=1, lac_packet=bytes(65))),
        ("WriteLac", pb.WriteLacRequest(ledger_id=-1, lac_packet=b"x")),
        ("WriteLac", pb.WriteLacRequest(ledger_id=1, lac_packet=b"x", master_key=bytes(65))),
        ("Read", pb.ReadRequest(ledger_id=-1)),
        ("Read", pb.ReadRequest(ledger_id=1, first_entry_id=5, last_entry_id=4)),
        ("Read", pb.ReadRequest(ledger_id=1, master_key=bytes(65))),
        ("Read", pb.ReadRequest(ledger_id=1, stripe_modulus=2, stripe_count=3)),
        ("ListEntries", pb.ListEntriesRequest(ledger_id=1, first_entry_id=5, last_entry_id=4)),
        ("ListEntries", pb.ListEntriesRequest(ledger_id=1, first_entry_id=-1)),
        ("ListEntries", pb.ListEntriesRequest(ledger_id=-1, last_entry_id=-1)),
        ("ListLedgers", pb.ListLedgersRequest(after_ledger_id=-2)),
    ],
)
async def test_arguments_out_of_range_are_bad_requests(
    by_grpc: Served, rpc: str, request_: pb.ReadRequest
) -> None:
    """The node is not asked."""
    assert await status_of(by_grpc, rpc, request_.SerializeToString()) == Status.BAD_REQUEST
    assert by_grpc.node.calls == []


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("ReadLac", pb.ReadLacRequest(ledger_id=MAX_ID)),
        ("Read", pb.ReadRequest(ledger_id=0, first_entry_id=MAX_ID, last_entry_id=MAX_ID)),
        ("Read", pb.ReadRequest(ledger_id=0, first_entry_id=NO_ENTRY, last_entry_id=NO_ENTRY)),
        ("ListEntries", pb.ListEntriesRequest(ledger_id=0, last_entry_id=NO_ENTRY)),
        ("ListLedgers", pb.ListLedgersRequest(after_ledger_id=-1)),
    ],
)
async def test_arguments_at_the_edge_of_their_range_are_not(
    by_grpc: Served, rpc: str, request_: pb.ReadRequest
) -> None:
    """The bounds are inclusive."""
    assert await status_of(by_grpc, rpc, request_.SerializeToString()) != Status.BAD_REQUEST
    assert len(by_grpc.node.calls) == 1


@pytest.mark.parametrize("rpc", sorted(UNARY))
async def test_an_oversize_message_is_refused_by_transport(by_grpc: Served, rpc: str) -> None:
    """More than the limit never reaches the servicer; the connection lives on."""
    async with aio.insecure_channel(
        by_grpc.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{rpc}")
        with pytest.raises(aio.AioRpcError) as caught:
            await call(bytes(8 * 1024 * 1024 + 1), metadata=METADATA)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await call(b"", metadata=METADATA)


async def test_an_unknown_method_is_unimplemented(by_grpc: Served) -> None:
    """Transport says so itself."""
    async with aio.insecure_channel(by_grpc.address) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/Nothing")(b"", metadata=METADATA)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_subscription_to_too_many_ledgers_at_once_is_refused(
    by_grpc: Served,
) -> None:
    """One message cannot hold up the loop with a million ids."""
    async with aio.insecure_channel(by_grpc.address) as channel:
        watch = channel.stream_stream(f"/{SERVICE}/WatchLac")(metadata=METADATA)
        await watch.write(pb.WatchLacRequest(subscribe=range(5000)).SerializeToString())
        update = pb.LacUpdate.FromString(await watch.read())
        assert (update.status, update.ledger_id) == (pb.STATUS_BAD_REQUEST, -1)
        watch.cancel()
    await until(lambda: by_grpc.node.watchers == [])


def whole(limit: int) -> NodeSettings:
    """A budget for reads that one peer may use up."""
    return NodeSettings(
        in_flight_read_bytes_max=limit, identity_share_max=1, connection_share_max=1
    )


async def test_reads_over_the_budget_are_turned_away_and_fencing_ones_later() -> None:
    """The bytes of answers under way are bounded; recovery gets a quarter more."""
    node, metrics = FakeNode(whole(4 * 1024 * 1024)), Metrics()
    node.reading.clear()
    node.read_reply = ReadReply(Status.OK, "", batch_of([1000]), 1)

    async with (
        serve(node, "127.0.0.1", 0, RpcSettings(drain_seconds=0.2), metrics) as port,
        asyncio.TaskGroup() as tasks,
    ):
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)

        async def read(max_bytes: int, *, fence: bool = False) -> Status:
            command = ReadCommand(3, 0, 9, 0, max_bytes, fence)
            return (await channel.read(command, timeout=60)).status

        first = tasks.create_task(read(0))
        await until(lambda: len(node.calls) == 1)
        assert await read(100) is Status.TOO_MANY_REQUESTS
        recovering = tasks.create_task(read(500_000, fence=True))
        await until(lambda: len(node.calls) == 2)
        assert await read(1_000_000, fence=True) is Status.TOO_MANY_REQUESTS
        node.reading.set()
        assert (await first, await recovering) == (Status.OK, Status.OK)
        assert await read(0) is Status.OK
        await until(lambda: metrics.registry.get_sample_value("bookie_in_flight_read_bytes") == 0)
        await channel.close()


async def test_a_client_that_takes_no_answers_uses_up_the_budget_not_the_memory() -> None:
    """Answers count until the client has them."""
    limit = 8 * 1024 * 1024
    node, metrics = FakeNode(whole(limit)), Metrics()
    node.read_reply = ReadReply(Status.OK, "", batch_of([1024 * 1024]), 1)
    most = 0.0
    settings = RpcSettings(drain_seconds=0.2)
    async with serve(node, "127.0.0.1", 0, settings, metrics) as port:
        async with connected(port) as peer, asyncio.TaskGroup() as tasks:
            for _ in range(40):
                peer.call("Read", encode_read_request(ReadCommand(3, 0, 9)))
            await until(lambda: len(node.calls) > 1)
            for _ in range(20):
                await asyncio.sleep(0.005)
                in_flight = metrics.registry.get_sample_value("bookie_in_flight_read_bytes")
                most = max(most, in_flight or 0.0)
            assert 0 < most <= limit + 5 * 1024 * 1024
            honest = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            assert (await honest.info(timeout=60)).bookie_id == "b1"
            await honest.close()
        await until(lambda: metrics.registry.get_sample_value("bookie_in_flight_read_bytes") == 0)

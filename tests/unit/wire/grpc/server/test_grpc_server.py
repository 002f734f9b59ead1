"""The server's life: a port, health, and an orderly end."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bookie.config import RpcSettings
from bookie.env import Outcome
from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    CannotStartError,
    WrongClusterError,
)
from bookie.ids import Status
from bookie.node.bookie import Bookie
from bookie.telemetry import Metrics
from bookie.wire.call_metadata import check_recipient
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import ReadCommand, Reply
from bookie.wire.grpc import transport
from bookie.wire.grpc.server.grpc_server import ServedNode, hold_port
from bookie.wire.interfaces import SERVICE
from tests.served_node import serve
from tests.servers.ports import claimed_ports
from tests.unit.wire.fake_node import INFO, INSTANCE_ID, FakeNode, batch_of, until

SETTINGS = RpcSettings(drain_seconds=5)


async def test_health_is_serving_while_the_port_listens() -> None:
    """Under the empty name and the service's own; an unknown name is not found."""
    async with (
        serve(FakeNode(), "127.0.0.1", 0, SETTINGS, Metrics()) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("reflection", [True, False])
async def test_reflection_is_served_only_if_asked_for(reflection: bool) -> None:
    """With the setting a debugging tool finds the service, and otherwise nothing."""
    settings = RpcSettings(drain_seconds=0.2, reflection=reflection)
    async with (
        serve(FakeNode(), "127.0.0.1", 0, settings, Metrics()) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        if reflection:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
            call = stub.ServerReflectionInfo(iter([request]))
            answer = await call.read()
            assert len(answer.file_descriptor_response.file_descriptor_proto) == 1
            call.cancel()
        else:
            # Nothing is sent: gRPC's client says INTERNAL about a message that a refusal overtakes.
            call = stub.ServerReflectionInfo()
            with pytest.raises(aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    """By another program, and by another bookie: gRPC never shares the port in silence."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            CannotStartError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"
        ):
            async with serve(FakeNode(), "127.0.0.1", port, SETTINGS, Metrics()):
                raise AssertionError
    async with serve(FakeNode(), "127.0.0.1", 0, SETTINGS, Metrics()) as port:
        with pytest.raises(CannotStartError, match="address already in use"):
            async with serve(FakeNode(), "127.0.0.1", port, SETTINGS, Metrics()):
                raise AssertionError


async def test_a_port_is_held_before_anything_is_served() -> None:
    """A second bookie is refused from the first moment, not only when the first one serves."""
    async with hold_port("127.0.0.1", 0, SETTINGS) as held:
        with pytest.raises(CannotStartError, match="address already in use"):
            async with hold_port("127.0.0.1", held.port, SETTINGS):
                raise AssertionError
    async with hold_port("127.0.0.1", held.port, SETTINGS) as again:
        assert again.port == held.port


async def test_a_bookie_that_starts_refuses_at_once_and_then_serves() -> None:
    """Calls and streams of all kinds; the same connection is served when the bookie is there.

    The client must not take it for an older bookie, which lacks streams of reads.
    """
    async with asyncio.TaskGroup() as tasks:
        async with hold_port("127.0.0.1", 0, SETTINGS) as held:
            channel = BookieChannel(f"127.0.0.1:{held.port}", INSTANCE_ID, tasks)
            broken: list[BookieError] = []
            for _ in range(2):
                with pytest.raises(BookieUnreachableError, match="the bookie is starting"):
                    await channel.info(timeout=60)
                with pytest.raises(BookieUnreachableError, match="the bookie is starting"):
                    await channel.read_entry(ReadCommand(3, 0, 0), timeout=60)
                with pytest.raises(BookieUnreachableError, match="the bookie is starting"):
                    _ = [page async for page in channel.list_ledgers(timeout=60)]
            channel.add_stream(lambda *_: None, broken.append)
            await until(lambda: bool(broken))
            assert "the bookie is starting" in str(broken[0])
            assert await healths(held.port) == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
            node = FakeNode()
            async with held.serve(node, Metrics()):
                assert await channel.info(timeout=60) == INFO
                await channel.read_entry(ReadCommand(3, 0, 0), timeout=60)
                assert channel._reads.is_offered
                assert await healths(held.port) == [health_pb2.HealthCheckResponse.SERVING] * 2
        await channel.close()


async def healths(port: int) -> list[int]:
    """The health of the server and of the service."""
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = [
            await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", SERVICE)
        ]
    return [answer.status for answer in answers]


@pytest.mark.parametrize(
    ("host", "reason"),
    [("203.0.113.7", "cannot assign requested address"), ("no.such.host.invalid", "resolved")],
)
async def test_an_address_that_is_not_ours_is_one_sentence(host: str, reason: str) -> None:
    """The system's own reason is in it."""
    with pytest.raises(CannotStartError, match=reason):
        async with serve(FakeNode(), host, 0, SETTINGS, Metrics()):
            raise AssertionError


async def test_a_port_is_free_again_after_the_server() -> None:
    """A bookie that restarts gets its port back at once."""
    (port,) = claimed_ports(1)
    for _ in range(2):
        async with serve(FakeNode(), "127.0.0.1", port, SETTINGS, Metrics()) as listening:
            assert listening == port


async def test_a_shutdown_answers_what_was_accepted_before_it_ends_a_stream() -> None:
    """Draining waits for the adds in flight, not for the clients' patience."""
    node = FakeNode()
    node.held = []
    answers: list[tuple[int, Status, str]] = []
    broken: list[BookieError] = []
    async with asyncio.TaskGroup() as tasks:
        async with serve(node, "127.0.0.1", 0, SETTINGS, Metrics()) as port:
            channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            stream = channel.add_stream(lambda *answer: answers.append(answer[:3]), broken.append)
            for request_id in (1, 2):
                stream.send(encode_add_request(request_id, 3, batch_of([40])))
            await until(lambda: len(node.held or ()) == 2)
            asyncio.get_running_loop().call_later(0.05, _succeed, node.held)
        await until(lambda: bool(broken))
        assert answers == [(1, Status.OK, ""), (2, Status.OK, "")]
        await channel.close()


async def test_a_shutdown_answers_the_reads_that_run_before_it_ends_their_stream() -> None:
    """The same for reads; what comes later finds no bookie."""
    node = FakeNode()
    node.reading.clear()
    async with asyncio.TaskGroup() as tasks:
        async with serve(node, "127.0.0.1", 0, SETTINGS, Metrics()) as port:
            channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            reads = [
                tasks.create_task(channel.read_entry(ReadCommand(3, entry, entry), timeout=60))
                for entry in range(2)
            ]
            await until(lambda: len(node.calls) == 2)
            asyncio.get_running_loop().call_later(0.05, node.reading.set)
        assert {(await read).status for read in reads} == {Status.NO_SUCH_ENTRY}
        with pytest.raises(BookieUnreachableError):
            await channel.read_entry(ReadCommand(3, 0, 0), timeout=60)
        await channel.close()


def _succeed(outcomes: list[Outcome[Reply]]) -> None:
    for outcome in outcomes:
        outcome.settle(Reply(Status.OK))


async def test_a_shutdown_does_not_wait_for_watchers_and_idle_streams() -> None:
    """Streams that owe nothing end at once, however long the grace is."""
    async with asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        broken: list[BookieError] = []
        async with serve(
            FakeNode(), "127.0.0.1", 0, RpcSettings(drain_seconds=60), Metrics()
        ) as port:
            channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            channel.add_stream(lambda *_: None, broken.append)
            channel.watch_lac(lambda _: None, broken.append)
            await channel.read_entry(ReadCommand(3, 0, 0), timeout=60)
            assert await channel.info(timeout=60) == INFO
            began = loop.time()
        assert loop.time() - began < 5
        await until(lambda: len(broken) == 2)
        await channel.close()


async def test_a_call_that_outlasts_the_grace_is_cut_off() -> None:
    """A shutdown ends."""
    node = FakeNode()
    node.held = []
    async with asyncio.TaskGroup() as tasks:
        broken: list[BookieError] = []
        async with serve(node, "127.0.0.1", 0, RpcSettings(drain_seconds=0.05), Metrics()) as port:
            channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            stream = channel.add_stream(lambda *_: None, broken.append)
            stream.send(encode_add_request(1, 3, batch_of([40])))
            await until(lambda: len(node.held or ()) == 1)
        await until(lambda: bool(broken))
        await channel.close()
    assert not node.held[0].done()


def test_both_ends_agree_on_keepalive() -> None:
    """A client pings no more often than its server allows, and finds a dead server as fast."""
    server = dict(transport.server_options(RpcSettings()))
    client = dict(transport.channel_options(RpcSettings(), 5.0))
    for name in ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms"):
        assert server[name] == client[name]
    assert (
        client["grpc.keepalive_time_ms"] >= server["grpc.http2.min_ping_interval_without_data_ms"]
    )
    assert server["grpc.so_reuseport"] == 0
    assert "grpc.max_connection_age_ms" not in server


def test_the_instance_id_must_be_there_and_equal() -> None:
    """Missing, empty, other and longer ones are refused; text and bytes are compared alike."""
    for metadata in (
        (),
        (("bookie-instance-id", ""),),
        (("bookie-instance-id", "abd"),),
        (("bookie-instance-id", "abcd"),),
        (("other", "abc"),),
    ):
        with pytest.raises(WrongClusterError):
            check_recipient(metadata, "abc", "b1", "")
    check_recipient((("x", "y"), ("bookie-instance-id", "abc")), "abc", "b1", "")
    check_recipient((("bookie-instance-id", b"abc"),), "abc", "b1", "")


def test_the_bookie_is_a_node_that_can_be_served() -> None:
    """The checker compares the node's methods with what this floor calls."""

    def served_by(bookie: Bookie) -> ServedNode:
        return bookie

    assert callable(served_by)

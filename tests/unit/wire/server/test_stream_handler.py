"""Begin and end of the bookie's three kinds of streams, on calls that the test breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookie.config import NodeSettings, RpcSettings
from bookie.errors import WrongClusterError
from bookie.telemetry import Metrics
from bookie.wire import unary_codec
from bookie.wire.codec import encode_streamed_read
from bookie.wire.commands import ReadCommand
from bookie.wire.interfaces import BrokenCallError
from bookie.wire.server.add_stream import AddStreamHandler
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.lac_watch import LacWatchHandler
from bookie.wire.server.read_budget import ReadBudget
from bookie.wire.server.read_stream import ReadStreamHandler
from bookie.wire.server.stream_handler import StreamHandler
from bookie.wire.server.visits import Reception, Visit
from tests.unit.wire.fake_node import FakeNode, until
from tests.unit.wire.real_bookie import add_request

Make = Callable[[FakeNode, WrongClusterError | None], StreamHandler]


class Call:
    """One call without gRPC. With `breaks`, its first write is its last."""

    def __init__(self, *requests: bytes, breaks: bool = False) -> None:
        self.requests = list(requests)
        self.breaks = breaks
        self.read_count = 0
        self.answers: list[bytes] = []
        self.taken_up = False

    async def read(self) -> Any:
        self.read_count += 1
        if self.requests:
            return self.requests.pop(0)
        if self.breaks:
            await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        if self.breaks:
            raise BrokenCallError("the call has ended")
        self.answers.append(message)

    async def send_initial_metadata(self, metadata: object) -> None:
        self.taken_up = True

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return ()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        raise NotImplementedError


def a_visit() -> Visit:
    """A call that holds nothing yet."""
    return Reception(NodeSettings(), RpcSettings(), Metrics()).enter("ipv4:127.0.0.1:1")


def adds(node: FakeNode, refusal: WrongClusterError | None) -> StreamHandler:
    return AddStreamHandler(node, ErrorMapper(Metrics()), refusal, visit=a_visit())


def reads(node: FakeNode, refusal: WrongClusterError | None) -> StreamHandler:
    metrics = Metrics()
    return ReadStreamHandler(
        node,
        ErrorMapper(metrics),
        ReadBudget(1 << 20, 1 << 20, metrics),
        refusal,
        visit=a_visit(),
    )


def watches(node: FakeNode, refusal: WrongClusterError | None) -> StreamHandler:
    return LacWatchHandler(node, ErrorMapper(Metrics()), refusal, visit=a_visit())


KINDS: list[tuple[Make, bytes]] = [
    (adds, add_request(1, 7, 0, [b"x"])),
    (reads, encode_streamed_read(1, ReadCommand(3, 0, 0))),
    (watches, unary_codec.encode_watch_change(unary_codec.WatchChange((3,), ()))),
]


@pytest.mark.parametrize(("make", "request_bytes"), KINDS)
async def test_a_stream_ends_after_the_last_answer(make: Make, request_bytes: bytes) -> None:
    """When the client has nothing more to say."""
    node, call = FakeNode(), Call(request_bytes)
    await make(node, None).serve(call)
    assert call.taken_up
    assert len(call.answers) == 1
    assert node.watchers == []


@pytest.mark.parametrize(("make", "request_bytes"), KINDS)
async def test_a_stream_that_was_ended_before_it_began_reads_nothing(
    make: Make, request_bytes: bytes
) -> None:
    """A call that comes during a shutdown."""
    node, call = FakeNode(), Call(request_bytes)
    stream = make(node, None)
    stream.end()
    await stream.serve(call)
    assert (call.read_count, call.answers, node.watchers) == (0, [], [])


@pytest.mark.parametrize("refusal", [None, WrongClusterError("of another cluster")])
@pytest.mark.parametrize(("make", "request_bytes"), KINDS)
async def test_a_stream_that_breaks_while_it_is_written_ends_quietly(
    make: Make, request_bytes: bytes, refusal: WrongClusterError | None
) -> None:
    """Its reader with it, and nothing of it is left at the node."""
    node, call = FakeNode(), Call(request_bytes, breaks=True)
    await make(node, refusal).serve(call)
    assert node.watchers == []


@pytest.mark.parametrize(("make", "request_bytes"), KINDS)
async def test_a_stream_that_is_cancelled_leaves_nothing(make: Make, request_bytes: bytes) -> None:
    """As gRPC does it with one that breaks while nothing is written."""
    node = FakeNode()
    call = Call(breaks=True)
    async with asyncio.TaskGroup() as tasks:
        served = tasks.create_task(make(node, None).serve(call))
        await until(lambda: call.read_count == 1)
        served.cancel()
    assert served.cancelled()
    assert node.watchers == []


async def test_a_client_that_takes_no_answers_is_held_back_when_many_watches_are_refused() -> None:
    """The node bounds what it watches; what it refuses is bounded here."""

    class Deaf(Call):
        async def write(self, message: bytes) -> None:
            await asyncio.Event().wait()

    node = FakeNode()
    node.watches_max = 0
    many = [range(start, start + unary_codec.WATCH_IDS_MAX) for start in range(0, 100_000, 10_000)]
    call = Deaf(
        *(unary_codec.encode_watch_change(unary_codec.WatchChange(tuple(ids), ())) for ids in many)
    )
    async with asyncio.TaskGroup() as tasks:
        served = tasks.create_task(watches(node, None).serve(call))
        await until(lambda: call.read_count >= 2)
        for _ in range(100):
            await asyncio.sleep(0)
        assert call.read_count == 2
        served.cancel()

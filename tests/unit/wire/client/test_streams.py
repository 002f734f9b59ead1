"""Streams of adds between a client and a bookie, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from bookie.errors import BookieError, BookieUnreachableError, ClientClosedError
from bookie.ids import INSTANCE_ID_METADATA_KEY, JOINED_MESSAGES_METADATA, Status
from bookie.wire.client.channel import BookieChannel
from bookie.wire.client.streams import AddStream
from bookie.wire.coalesce import (
    COALESCED_BYTES_MAX,
    COALESCED_MAX,
    JOINED_BYTES_MAX,
    fitting,
    join_messages,
    split_message,
)
from bookie.wire.codec import (
    encode_add_request,
    encode_add_response,
    parse_add_response,
    request_id_of,
)
from bookie.wire.commands import Reply
from bookie.wire.interfaces import SERVICE
from bookie.wire.server import add_stream as server_side
from tests.unit.wire.conftest import Served
from tests.unit.wire.fake_node import INSTANCE_ID, batch_of, until

Answers = list[tuple[int, Status, str]]


class Client:
    """Records what a stream's owner sees."""

    def __init__(self, channel: BookieChannel) -> None:
        self.answers: Answers = []
        self.broken: list[BookieError] = []
        self.opened = 0
        self.stream: AddStream = channel.add_stream(
            lambda *answer: self.answers.append(answer[:3]), self.broken.append, self._opened
        )

    def _opened(self) -> None:
        self.opened += 1

    def send(self, request_id: int, first: int = 0) -> None:
        self.stream.send(encode_add_request(request_id, 3, batch_of([40, 50], first=first)))

    async def answered(self, count: int) -> Answers:
        await until(lambda: len(self.answers) >= count or bool(self.broken))
        return self.answers


async def test_adds_are_answered_in_the_order_of_their_requests(served: Served) -> None:
    """A later add that is done first waits for its turn."""
    served.node.held = []
    client = Client(served.channel)
    for request_id in (5, 3, 9):
        client.send(request_id)
    await until(lambda: len(served.node.held or ()) == 3)
    served.node.held[2].settle(Reply(Status.OK))
    served.node.held[1].settle(Reply(Status.CONFLICT, "other bytes"))
    await asyncio.sleep(0.02)
    assert client.answers == []
    served.node.held[0].settle(Reply(Status.OK))
    assert await client.answered(3) == [
        (5, Status.OK, ""),
        (3, Status.CONFLICT, "other bytes"),
        (9, Status.OK, ""),
    ]
    assert served.requests("AddStream", "OK") == 2


async def test_a_refused_request_is_answered_in_its_place_and_the_stream_goes_on(
    served: Served,
) -> None:
    """A malformed request costs its sender one answer, not the stream."""
    client = Client(served.channel)
    client.send(1)
    client.stream.send(encode_add_request(2, 3, batch_of([31])))
    client.stream.send(b"\x08\x03\xff")
    client.stream.send(b"garbage")
    client.stream.send(b"")
    client.send(4)
    answers = await client.answered(6)
    assert [answer[:2] for answer in answers] == [
        (1, Status.OK),
        (2, Status.BAD_REQUEST),
        (3, Status.BAD_REQUEST),
        (0, Status.BAD_REQUEST),
        (0, Status.BAD_REQUEST),
        (4, Status.OK),
    ]
    assert all(message for _, status, message in answers if status is not Status.OK)
    assert len(served.node.added) == 2


@asynccontextmanager
async def raw_stream(served: Served) -> AsyncIterator[Any]:
    """An add stream whose messages the test sees."""
    async with aio.insecure_channel(served.address) as channel:
        yield channel.stream_stream(f"/{SERVICE}/AddStream")(
            metadata=((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)
        )


@pytest.mark.parametrize("sizes", [[40], [20_000], [40] * 500])
async def test_requests_of_a_message_are_handled_in_order_and_answered_together(
    served: Served, sizes: list[int]
) -> None:
    """A broken one among them costs itself; what is done at the same time is one message."""
    served.node.held = []
    batch = batch_of(sizes)
    requests = [
        encode_add_request(number, 3, batch, master_key=bytes([number]) * 20)
        for number in range(1, 5)
    ]
    requests[2:2] = [b"\x08\x09garbage" * sum(sizes)]
    async with raw_stream(served) as call:
        await call.write(join_messages(requests))
        await until(lambda: len(served.node.held or ()) == 4)
        for outcome in served.node.held:
            outcome.settle(Reply(Status.OK))
        answers = [parse_add_response(one)[:2] for one in split_message(await call.read())]
    assert answers == [
        (1, Status.OK),
        (2, Status.OK),
        (9, Status.BAD_REQUEST),
        (3, Status.OK),
        (4, Status.OK),
    ]
    assert [each.master_key[0] for each in served.node.added] == [1, 2, 3, 4]
    for command in served.node.added:
        assert command.batch is not None
        assert command.batch.payload == batch.payload
        assert command.batch.sizes.tolist() == sizes
    assert served.requests("AddStream", "OK") == 4


async def test_a_client_that_joins_nothing_gets_each_answer_alone(served: Served) -> None:
    """It may be older than joined messages. The bookie first says which messages it takes."""
    served.node.held = []
    async with raw_stream(served) as call:
        assert JOINED_MESSAGES_METADATA in tuple(await call.initial_metadata())
        for number in (1, 2, 3):
            await call.write(encode_add_request(number, 3, batch_of([40])))
        await until(lambda: len(served.node.held or ()) == 3)
        for outcome in served.node.held:
            outcome.settle(Reply(Status.OK))
        answers = [parse_add_response(await call.read()).request_id for _ in range(3)]
    assert answers == [1, 2, 3]


async def test_an_older_bookie_gets_each_request_alone() -> None:
    """One that does not say that it takes several."""
    received: list[bytes] = []

    async def old(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata(())
        async for request in requests:
            received.append(request)
            yield encode_add_response(request_id_of(request), Status.OK)

    server = aio.server()
    handler = grpc.stream_stream_rpc_method_handler(old)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"AddStream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        client = Client(channel)
        client.stream.reopen()
        await until(lambda: client.opened == 1)
        for number in range(1, 4):
            client.send(number)
        assert [answer[0] for answer in await client.answered(3)] == [1, 2, 3]
        await client.stream.close()
        await channel.close()
    await server.stop(None)
    assert len(received) == 3


@pytest.mark.parametrize("tail", [b"\x62\x7f", b"\x10\x01", b"\x62\xff", b"\x62\x00" * 70])
async def test_a_message_of_broken_messages_is_one_bad_request(served: Served, tail: bytes) -> None:
    """No part of it is added, because the rest behind the break is meaningless."""
    request = encode_add_request(1, 3, batch_of([40]))
    async with raw_stream(served) as call:
        await call.write(join_messages([request, request]) + tail)
        assert parse_add_response(await call.read())[:2] == (0, Status.BAD_REQUEST)
        await call.write(request)
        assert parse_add_response(await call.read())[:2] == (1, Status.OK)
    assert len(served.node.added) == 1


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([0], 1),
        ([100] * (COALESCED_MAX + 5), COALESCED_MAX),
        ([JOINED_BYTES_MAX] * 5, COALESCED_BYTES_MAX // JOINED_BYTES_MAX),
        ([JOINED_BYTES_MAX + 1, 100], 1),
        ([100, JOINED_BYTES_MAX + 1], 1),
        ([JOINED_BYTES_MAX] * 3 + [JOINED_BYTES_MAX - 100, 100, 1], 5),
        ([2 * COALESCED_BYTES_MAX], 1),
    ],
)
def test_what_waits_together_travels_together(sizes: list[int], count: int) -> None:
    """Up to a size: a large one is not copied once more for its company."""
    assert fitting(deque(map(bytes, sizes))) == count


async def test_the_bytes_of_a_message_are_admitted_before_it_is_added(served: Served) -> None:
    """Until the node admits them, the bookie adds nothing and stops reading."""
    served.node.admitting.clear()
    client = Client(served.channel)
    request = encode_add_request(1, 3, batch_of([40]))
    for _ in range(5):
        client.stream.send(request)
    await asyncio.sleep(0.05)
    assert served.node.added == []
    served.node.admitting.set()
    await client.answered(5)
    assert served.node.admitted == [len(request)] * 5


async def test_adds_go_on_when_their_stream_breaks(served: Served) -> None:
    """The adds and the bookie outlive the stream."""
    served.node.held = []
    client = Client(served.channel)
    for request_id in range(3):
        client.send(request_id)
    await until(lambda: len(served.node.held or ()) == 3)
    await client.stream.close()
    await asyncio.sleep(0.05)
    assert not any(outcome.done() for outcome in served.node.held)
    for outcome in served.node.held:
        outcome.settle(Reply(Status.OK))
    served.node.held = None
    again = Client(served.channel)
    again.send(7)
    assert await again.answered(1) == [(7, Status.OK, "")]
    assert client.broken == []


async def test_a_fault_of_the_node_is_an_io_error_without_its_words(served: Served) -> None:
    """Unexpected errors stay in the node's log."""
    served.node.failure = RuntimeError("a secret")
    client = Client(served.channel)
    client.send(1)
    ((_, status, message),) = await client.answered(1)
    assert status is Status.IO_ERROR
    assert "secret" not in message
    served.node.failure = None
    client.send(2)
    answers = await client.answered(2)
    assert answers[1][1] is Status.OK


@pytest.mark.parametrize("instance_id", ["another", ""])
async def test_every_request_of_another_cluster_is_refused(
    served: Served, instance_id: str
) -> None:
    """The node hears of no request whose sender belongs elsewhere."""
    channel = BookieChannel(served.address, instance_id, served.tasks)
    client = Client(channel)
    client.send(1)
    client.send(2)
    answers = await client.answered(2)
    assert [answer[:2] for answer in answers] == [
        (1, Status.WRONG_CLUSTER),
        (2, Status.WRONG_CLUSTER),
    ]
    assert served.node.added == []
    await channel.close()


async def test_a_client_that_reads_no_answers_is_held_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unanswered requests of one stream are bounded; the rest waits with the client."""
    monkeypatch.setattr(server_side, "PENDING_MAX", 10)
    served.node.held = []
    client = Client(served.channel)
    for request_id in range(100):
        client.send(request_id)
    await until(lambda: len(served.node.held or ()) == 10)
    await asyncio.sleep(0.05)
    assert len(served.node.added) == 10
    for number in range(100):
        await until(lambda number=number: len(served.node.held or ()) > number)  # type: ignore[misc]
        served.node.held[number].settle(Reply(Status.OK))
    answers = await client.answered(100)
    assert [answer[0] for answer in answers] == list(range(100))


async def test_a_bookie_that_is_not_there_breaks_the_stream(served: Served) -> None:
    """The owner is told once, and may try again when it likes."""
    channel = BookieChannel("127.0.0.1:1", INSTANCE_ID, served.tasks, connect_timeout_seconds=1)
    client = Client(channel)
    client.send(1)
    await until(lambda: bool(client.broken))
    assert isinstance(client.broken[0], BookieUnreachableError)
    assert not client.stream.is_open
    with pytest.raises(BookieUnreachableError, match="is broken"):
        client.send(2)
    client.stream.reopen()
    await until(lambda: len(client.broken) == 2)
    assert client.opened == 0
    await channel.close()
    with pytest.raises(ClientClosedError):
        client.stream.reopen()


async def test_a_stream_is_opened_when_the_bookie_takes_it_up(served: Served) -> None:
    """Before any answer, and once an attempt."""
    client = Client(served.channel)
    await until(lambda: client.opened == 1)
    assert client.answers == []
    client.stream.send(bytes(9 * 1024 * 1024))
    await until(lambda: bool(client.broken))
    client.stream.reopen()
    await until(lambda: client.opened == 2)


async def test_an_oversize_message_breaks_the_stream_and_nothing_else(served: Served) -> None:
    """Transport refuses it, and says so; the bookie goes on."""
    client = Client(served.channel)
    client.stream.send(bytes(9 * 1024 * 1024))
    await until(lambda: bool(client.broken))
    assert "too large" in str(client.broken[0])
    client.stream.reopen()
    client.send(1)
    client.broken.clear()
    assert await client.answered(1) == [(1, Status.OK, "")]


async def test_a_full_stream_has_room_when_the_bookie_has_taken_enough(served: Served) -> None:
    """The owner of the stream bounds the queue."""
    served.node.admitting.clear()
    client = Client(served.channel)
    message = encode_add_request(1, 3, batch_of([1024 * 1024]))
    count = 0
    while not client.stream.is_full:
        client.stream.send(message)
        count += 1
    assert count >= 16
    served.node.admitting.set()
    await until(lambda: not client.stream.is_full)
    await client.answered(count)

"""The whole way on one bookie: wire bytes, servicer, node, engine, files."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import crc32c
import pytest
from grpc import aio

from bookie.config import RpcSettings
from bookie.entry.entry import verify_batch
from bookie.errors import BookieError
from bookie.ids import INSTANCE_ID_METADATA_KEY, Status
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import (
    encode_add_request,
    encode_read_request,
    parse_add_response,
    parse_read_response,
)
from bookie.wire.commands import LacState, ReadCommand
from bookie.wire.grpc.server.grpc_call import grpc_handlers
from bookie.wire.server.service import BookieService
from tests.served_node import serve
from tests.unit.wire.fake_node import INSTANCE_ID, batch_of, until
from tests.unit.wire.real_bookie import DIGESTER, add_request, real_bookie

Answers = list[tuple[int, Status, str]]


async def test_what_is_added_over_grpc_is_read_back(tmp_path: Path) -> None:
    """Add, read, LAC, fence and watch against a bookie that stores."""
    metrics = Metrics()
    answers: Answers = []
    broken: list[BookieError] = []
    states: list[LacState] = []
    payloads = [b"entry %d" % number for number in range(100)]
    async with (
        real_bookie(tmp_path, metrics) as bookie,
        serve(bookie, "127.0.0.1", 0, RpcSettings(drain_seconds=1), metrics) as port,
        asyncio.TaskGroup() as tasks,
    ):
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        watch = channel.watch_lac(states.append, broken.append)
        watch.subscribe([7])
        stream = channel.add_stream(lambda *answer: answers.append(answer[:3]), broken.append)
        stream.send(add_request(1, 7, 0, payloads))
        await until(lambda: len(answers) == 1)
        assert answers == [(1, Status.OK, "")]

        reply = await channel.read(ReadCommand(7, 0, 200), timeout=60)
        assert reply.batch is not None
        assert [entry.payload for entry in verify_batch(reply.batch, DIGESTER)] == payloads
        assert (reply.next_entry_id, reply.stopped_by) == (100, Status.NO_SUCH_ENTRY)
        for number in (0, 57, 99):
            reply = await channel.read_entry(ReadCommand(7, number, number, 1), timeout=60)
            assert reply.batch is not None
            (entry,) = verify_batch(reply.batch, DIGESTER)
            assert (entry.entry_id, entry.payload) == (number, payloads[number])
        reply = await channel.read_entry(ReadCommand(7, 100, 100, 1), timeout=60)
        assert (reply.status, reply.next_entry_id) == (Status.NO_SUCH_ENTRY, 100)
        reply = await channel.read_entry(ReadCommand(8, 0, 0, 1), timeout=60)
        assert reply.status is Status.NO_SUCH_LEDGER

        pages = [page async for page in channel.list_entries(7)]
        assert [(a.tolist(), b.tolist()) for a, b in pages] == [([0], [99])]
        assert (await channel.fence(7, b"", timeout=60)).status is Status.OK
        stream.send(add_request(2, 7, 100, payloads))
        await until(lambda: len(answers) == 2)
        assert answers[1][:2] == (2, Status.FENCED)
        await until(lambda: any(state.fenced for state in states))
        assert (await channel.force(7, timeout=60)).status is Status.OK
        assert (await channel.info(timeout=60)).bookie_id == "b1"
        assert [row.ledger_id async for rows in channel.list_ledgers() for row in rows] == [7]
        await channel.close()
    assert broken == []


async def test_packets_that_contradict_their_request_are_refused(tmp_path: Path) -> None:
    """A wrong checksum and foreign headers have their own statuses, and nothing is stored."""
    metrics = Metrics()
    answers: Answers = []
    good = add_request(1, 7, 0, [b"x" * 10])
    foreign = batch_of([40])
    async with (
        real_bookie(tmp_path, metrics) as bookie,
        serve(bookie, "127.0.0.1", 0, RpcSettings(drain_seconds=1), metrics) as port,
        asyncio.TaskGroup() as tasks,
    ):
        channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        stream = channel.add_stream(lambda *answer: answers.append(answer[:3]), lambda _: None)
        stream.send(good[:-1] + b"y")
        stream.send(
            encode_add_request(2, 7, foreign, payload_crc32c=crc32c.crc32c(foreign.payload))
        )
        stream.send(encode_add_request(3, 7, None, lac_packet=b"short"))
        await until(lambda: len(answers) == 3)
        assert [answer[:2] for answer in answers] == [
            (1, Status.BAD_CHECKSUM),
            (2, Status.BAD_REQUEST),
            (3, Status.BAD_REQUEST),
        ]
        reply = await channel.read(ReadCommand(7, 0, 0), timeout=60)
        assert reply.status is Status.NO_SUCH_LEDGER
        await channel.close()


class FakeContext:
    """One call without gRPC: requests from a queue, answers to a list."""

    def __init__(self) -> None:
        self.requests: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.answers: list[bytes] = []
        self.answered = asyncio.Event()

    def send(self, data: bytes) -> None:
        self.requests.append(data)
        self.arrived.set()

    async def read(self) -> Any:
        while not self.requests:
            self.arrived.clear()
            await self.arrived.wait()
        data = self.requests.popleft()
        return aio.EOF if data == b"end" else data

    async def write(self, message: bytes) -> None:
        self.answers.append(message)
        self.answered.set()

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((INSTANCE_ID_METADATA_KEY, INSTANCE_ID),)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)


class Profile:
    """Counts Python calls in every thread that is born while it is on."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.on and event == "call":
            code = frame.f_code
            self.calls[f"{Path(code.co_filename).name}:{code.co_qualname}"] += 1

    def take(self) -> Counter[str]:
        """The calls since the last time, without those of this test."""
        mine = Path(__file__).name
        taken = Counter({n: c for n, c in self.calls.items() if not n.startswith(mine)})
        self.calls.clear()
        return taken


@contextmanager
def profiling() -> Iterator[Profile]:
    before = sys.getprofile()
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.mark.parametrize("uniform", [True, False])
async def test_a_thousand_entries_cost_as_many_python_calls_as_sixteen(
    tmp_path: Path, uniform: bool
) -> None:
    """An add and a range read of 1024 entries make at most 1.2 times the calls of 16."""

    def payloads(count: int) -> list[bytes]:
        return [bytes(100 if uniform else 50 + number % 90) for number in range(count)]

    with profiling() as profile:
        async with real_bookie(tmp_path, Metrics()) as bookie, asyncio.TaskGroup() as tasks:
            service = BookieService(bookie, bookie.settings, Metrics())
            handlers = grpc_handlers(service.handlers())
            stream = FakeContext()
            add_stream = handlers.service(_Details("AddStream")).stream_stream
            read = handlers.service(_Details("Read")).unary_unary
            served = tasks.create_task(add_stream(None, stream))
            calls: dict[tuple[str, int], Counter[str]] = {}
            # Twice each, because the first of a kind pays for what later ones find loaded.
            for number, count in enumerate((16, 1024, 16, 1024)):
                ledger_id = 5 + number
                first = add_request(1, ledger_id, 0, payloads(1))
                second = add_request(2, ledger_id, 1, payloads(count))
                await _add(stream, first)
                profile.on = True
                await _add(stream, second)
                profile.on = False
                calls["add", count] = profile.take()
                request = encode_read_request(ReadCommand(ledger_id, 1, count))
                profile.on = True
                answer = await read(request, FakeContext())
                profile.on = False
                calls["read", count] = profile.take()
                reply = parse_read_response(answer, ledger_id)
                assert reply.batch is not None
                assert reply.batch.count == count
            stream.send(b"end")
            await served
    # The writer is woken, by whoever answers, inside of `serve`; nothing else is shared on the way.
    shared = {name for name in calls["add", 16] if name.startswith("stream_handler.py")}
    assert shared <= {
        "stream_handler.py:StreamHandler._send",
        "stream_handler.py:StreamHandler._wake",
        "stream_handler.py:StreamHandler.serve",
    }
    for kind in ("add", "read"):
        few, many = calls[kind, 16], calls[kind, 1024]
        assert many.total() <= 1.2 * few.total(), many - few
        assert few.total() > 0
        print(kind, few.total(), many.total())


async def _add(stream: FakeContext, request: bytes) -> None:
    stream.answered.clear()
    stream.send(request)
    await stream.answered.wait()
    assert parse_add_response(stream.answers[-1]).status is Status.OK


class _Details:
    """The details with which gRPC looks for a handler."""

    invocation_metadata = ()

    def __init__(self, rpc: str) -> None:
        self.method = f"/bookie.v1.Bookie/{rpc}"

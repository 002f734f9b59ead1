"""How fast messages get to a bookie and back: the ceilings of the product, and the product.

``python -m tests.bench.bench_rpc [--seconds S] [--loop uvloop|asyncio] [--json]`` prints one table.
Nothing is asserted. The three kinds of server are those of `rpc_server`. Client and server are two
processes, and messages are built before the clock starts. Each shape is driven the same way against
each kind:

* ``lone``: one entry a message, the next is sent when the last was answered;
* ``flood``: one entry a message, up to 1000 on their way;
* ``batch``: up to 1024 entries or a MiB a message, up to 16 on their way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it has an opinion about each child process

import crc32c
import uvloop

from bookie.entry.entry import pack_batch
from bookie.env.process_tuning import keep_freed_memory
from bookie.errors import BookieError
from bookie.ids import Status
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import ReadCommand
from tests.unit.wire.fake_node import INSTANCE_ID
from tests.unit.wire.real_bookie import DIGESTER

ROOT = Path(__file__).resolve().parents[2]
MESSAGES_BYTES_MAX = 384 * 1024 * 1024
BATCH_ENTRIES, BATCH_BYTES = 1024, 1024 * 1024
KEY_AND_PACKET_BYTES = 36


@dataclass(frozen=True)
class Figure:
    """What one run measured. Latencies are of whole messages, in microseconds."""

    server: str
    what: str
    entry_bytes: int
    entries_a_message: int
    in_flight: int
    messages: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def entries_per_second(self) -> float:
        """Entries answered in a second."""
        return self.messages * self.entries_a_message / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Payload bytes of entries, in 10^6, answered in a second."""
        return self.entries_per_second * self.entry_bytes / 1e6

    def line(self) -> str:
        """One row of the table."""
        return (
            f"{self.server:5} {self.what:6} {self.entry_bytes:6} B x {self.entries_a_message:4}"
            f" {self.in_flight:5} in flight {self.entries_per_second:12,.0f} entries/s"
            f" {self.megabytes_per_second:8,.1f} MB/s"
            f"   p50 {self.p50_us:8,.0f} us  p99 {self.p99_us:8,.0f} us"
        )


@dataclass(frozen=True)
class Shape:
    """One way to send entries."""

    what: str
    entry_bytes: int
    entries_a_message: int
    in_flight: int


def shapes() -> list[Shape]:
    """Small, usual and large entries; one, a thousand, and batches on their way."""
    found = []
    for entry_bytes in (100, 1024, 65536):
        batch = max(1, min(BATCH_ENTRIES, BATCH_BYTES // (entry_bytes + KEY_AND_PACKET_BYTES)))
        found += [
            Shape("lone", entry_bytes, 1, 1),
            Shape("flood", entry_bytes, 1, 1000),
            Shape("batch", entry_bytes, batch, 16),
        ]
    return found


def messages_of(shape: Shape, ledger_id: int, count: int) -> list[bytes]:
    """Add requests of consecutive entries of one ledger, ready to be sent."""
    entries = shape.entries_a_message
    payloads = [os.urandom(shape.entry_bytes)] * entries
    found = []
    for number in range(count):
        first = number * entries
        batch = pack_batch(
            ledger_id, first, first - 1, first * shape.entry_bytes, payloads, DIGESTER
        )
        checksum = crc32c.crc32c(batch.payload)
        found.append(encode_add_request(number + 1, ledger_id, batch, payload_crc32c=checksum))
    return found


@asynccontextmanager
async def served(kind: str, loop_name: str) -> AsyncIterator[BookieChannel]:
    """A server of `kind` in a process of its own, and a channel to it."""
    with tempfile.TemporaryDirectory(prefix="bookie-bench-") as directory:
        command = [sys.executable, "-m", "tests.bench.rpc_server", kind, directory, loop_name]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with asyncio.TaskGroup() as tasks:
            channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
            yield channel
            await channel.close()
        process.stdin.close()
        await process.wait()


async def drive_adds(
    channel: BookieChannel, messages: Sequence[bytes], in_flight: int
) -> tuple[float, list[float]]:
    """Send every message, `in_flight` at a time; seconds in all, and of each until its answer."""
    sent: list[float] = []
    latencies: list[float] = []
    broken: list[BookieError] = []
    finished = asyncio.Event()
    following: Iterator[bytes] = iter(messages)

    def send_next() -> None:
        message = next(following, None)
        if message is not None:
            sent.append(time.perf_counter())
            stream.send(message)

    def on_answer(_request_id: int, status: Status, text: str, _retry_after_ms: int) -> None:
        assert status is Status.OK, text
        latencies.append(time.perf_counter() - sent[len(latencies)])
        send_next()
        if len(latencies) == len(messages):
            finished.set()

    def on_broken(error: BookieError) -> None:
        broken.append(error)
        finished.set()

    stream = channel.add_stream(on_answer, on_broken)
    began = time.perf_counter()
    for _ in range(in_flight):
        send_next()
    await finished.wait()
    if broken:
        raise broken[0]
    seconds = time.perf_counter() - began
    await stream.close()
    return seconds, latencies


async def measure_adds(
    channel: BookieChannel, server: str, shape: Shape, ledger_id: int, seconds: float
) -> Figure:
    """Adds of one shape for about `seconds`."""
    warm = messages_of(shape, ledger_id, max(20, 2 * shape.in_flight))
    took, _ = await drive_adds(channel, warm, shape.in_flight)
    count = int(len(warm) * seconds / took)
    size = shape.entries_a_message * (shape.entry_bytes + KEY_AND_PACKET_BYTES)
    count = max(20, min(count, MESSAGES_BYTES_MAX // size))
    messages = messages_of(shape, ledger_id + 1, count)
    took, latencies = await drive_adds(channel, messages, shape.in_flight)
    return _figure(server, shape, took, latencies)


async def measure_reads(
    channel: BookieChannel, server: str, entry_bytes: int, in_flight: int, seconds: float
) -> Figure:
    """Range reads of a MiB for about `seconds`; a real bookie has the entries in ledger 900."""
    entries = BATCH_BYTES // (entry_bytes + KEY_AND_PACKET_BYTES)
    shape = Shape("read", entry_bytes, entries, in_flight)
    command = ReadCommand(900 + entry_bytes, 0, entries - 1, entries, 2 * BATCH_BYTES)
    if server == "real":
        stored = messages_of(Shape("batch", entry_bytes, entries, 1), 900 + entry_bytes, 1)
        await drive_adds(channel, stored, 1)
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def read() -> None:
        while (began := time.perf_counter()) < until:
            reply = await channel.read(command, timeout=30)
            assert reply.batch is not None, reply.message
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(read())
    return _figure(server, shape, time.perf_counter() - began, latencies)


def _figure(server: str, shape: Shape, seconds: float, latencies: list[float]) -> Figure:
    ordered = sorted(latencies)
    return Figure(
        server,
        shape.what,
        shape.entry_bytes,
        shape.entries_a_message,
        shape.in_flight,
        len(latencies),
        seconds,
        ordered[len(ordered) // 2] * 1e6,
        ordered[len(ordered) * 99 // 100] * 1e6,
    )


async def measure(kinds: Sequence[str], seconds: float, loop_name: str) -> AsyncIterator[Figure]:
    """Every shape against every kind, kinds alternating so that they share the machine's moods."""
    for shape in shapes():
        for kind in kinds:
            async with served(kind, loop_name) as channel:
                yield await measure_adds(channel, kind, shape, 1, seconds)
    for in_flight in (1, 4):
        for kind in kinds:
            async with served(kind, loop_name) as channel:
                yield await measure_reads(channel, kind, 1024 - 36, in_flight, seconds)


async def main(arguments: argparse.Namespace) -> None:
    """Print the table."""
    keep_freed_memory()
    async for figure in measure(arguments.kinds, arguments.seconds, arguments.loop):
        if arguments.json:
            print(json.dumps(asdict(figure)), flush=True)
        else:
            print(figure.line(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Messages to a bookie and back.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--kinds", nargs="+", default=["echo", "null", "real"])
    parser.add_argument("--json", action="store_true", help="one object a line")
    parsed = parser.parse_args()
    if parsed.loop == "uvloop":
        uvloop.run(main(parsed))
    else:
        asyncio.run(main(parsed))

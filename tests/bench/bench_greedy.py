"""How soon a bookie answers what is urgent, while a thousand connections push as hard as they can.

``python -m tests.bench.bench_greedy`` prints one table: the medians of a fence, of a read of the
LAC, of a recovery add and of the health check, over connections of their own. First the bookie is
idle, then it is pushed. ``--help`` lists the options. Nothing is asserted.

The greedy processes send messages that were encoded before (`greedy_peer`). Each connection holds
one stream: of five connections, three add entries of 1 KB, one adds entries of 64 KB, and one reads
64 KB at a time. With ``--calls`` each process has as many more connections, each with 16 unary
reads under way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count, cycle, repeat
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import uvloop
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie.ids import Status
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import (
    encode_add_request,
    encode_read_request,
    encode_streamed_read,
    parse_add_request,
)
from bookie.wire.commands import ReadCommand
from tests.bench.greedy_peer import GreedyPeer
from tests.unit.wire.fake_node import INSTANCE_ID
from tests.unit.wire.real_bookie import add_request

ROOT = Path(__file__).resolve().parents[2]
READ_LEDGER = 1
READ_ENTRIES, ENTRY_BYTES = 64, 1024
IN_FLIGHT = {"small": 64, "large": 16, "read": 32}
KINDS = ("small", "small", "small", "large", "read")


def messages_of(kind: str, ledger_id: int) -> list[bytes]:
    """Ready requests of one stream; when all were sent, they come again."""
    if kind == "read":
        command = ReadCommand(READ_LEDGER, 0, READ_ENTRIES - 1, READ_ENTRIES, 1 << 20)
        return [encode_streamed_read(1, command)]
    size, many = (1024, 80) if kind == "small" else (65536, 8)
    payload = [bytes(size)]
    return [add_request(number + 1, ledger_id, number, payload) for number in range(many)]


async def greedy(port: int, connections: int, calls: int, first_ledger: int) -> None:
    """Push with all connections until standard input ends; then print the number of answers."""
    answered = [0]

    def count_one() -> None:
        answered[0] += 1

    command = ReadCommand(READ_LEDGER, 0, READ_ENTRIES - 1, READ_ENTRIES, 1 << 20)
    reading = encode_read_request(command)
    made: list[Callable[[], GreedyPeer]] = [
        partial(GreedyPeer, "Read", repeat(reading), 16, count_one, is_unary=True)
        for _ in range(calls)
    ]
    for number in range(connections):
        kind = KINDS[number % len(KINDS)]
        rpc = "ReadStream" if kind == "read" else "AddStream"
        requests = cycle(messages_of(kind, first_ledger + number))
        made.append(partial(GreedyPeer, rpc, requests, IN_FLIGHT[kind], count_one))
    loop = asyncio.get_running_loop()
    for make in made:
        await loop.create_connection(make, "127.0.0.1", port)
    print("pushing", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(answered[0], flush=True)


class Urgent:
    """What must not wait, over connections of its own."""

    def __init__(self, port: int, tasks: asyncio.TaskGroup) -> None:
        self.channel = BookieChannel(f"127.0.0.1:{port}", INSTANCE_ID, tasks)
        self._answers: asyncio.Queue[Status] = asyncio.Queue()
        self._stream = self.channel.add_stream(
            lambda _id, status, *_: self._answers.put_nowait(status), lambda error: None
        )
        self._health = aio.insecure_channel(f"127.0.0.1:{port}")
        self._ledgers = count(10_000_000)
        self.took: dict[str, list[float]] = {}

    async def add(self, *, recovery: bool, ledger_id: int, size: int = 1024) -> None:
        request_id, command = parse_add_request(
            add_request(1, ledger_id, 0, [bytes(size)] * (1 if recovery else READ_ENTRIES))
        )
        self._stream.send(
            encode_add_request(
                request_id, ledger_id, command.batch,
                payload_crc32c=command.payload_crc32c, recovery=recovery,
            )
        )  # fmt: skip
        status = await self._answers.get()
        assert status in (Status.OK, Status.TOO_MANY_REQUESTS), status

    async def once(self) -> None:
        """Each of them, one after the other."""
        ledger_id = next(self._ledgers)
        checking = health_pb2_grpc.HealthStub(self._health)
        await self._timed("fence", lambda: self.channel.fence(ledger_id, b"", timeout=60))
        await self._timed("read_lac", lambda: self.channel.read_lac(ledger_id, b"", timeout=60))
        await self._timed("recovery add", lambda: self.add(recovery=True, ledger_id=ledger_id))
        await self._timed("health", lambda: checking.Check(health_pb2.HealthCheckRequest()))

    async def _timed(self, what: str, do: Callable[[], Awaitable[Any]]) -> None:
        began = time.perf_counter()
        await do()
        self.took.setdefault(what, []).append(time.perf_counter() - began)

    async def close(self) -> None:
        await self.channel.close()
        await self._health.close()


def show(title: str, took: dict[str, list[float]]) -> None:
    """One line for each kind of call."""
    for what, seconds in took.items():
        ordered = [1e3 * one for one in sorted(seconds)]
        median, most = statistics.median(ordered), ordered[int(len(ordered) * 0.9)]
        print(
            f"{title:7} {what:13} {len(ordered):5} times  median {median:8.1f} ms"
            f"  p90 {most:8.1f} ms  max {ordered[-1]:8.1f} ms"
        )


async def measure(port: int, seconds: float, processes: int, connections: int, calls: int) -> None:
    """Ask an idle bookie, then one that is pushed."""
    async with asyncio.TaskGroup() as tasks:
        urgent = Urgent(port, tasks)
        await urgent.add(recovery=False, ledger_id=READ_LEDGER)
        for _ in range(50):
            await urgent.once()
        show("idle", urgent.took)
        urgent.took.clear()
        command = [sys.executable, "-m", "tests.bench.bench_greedy", "--greedy", str(port)]
        command += ["--connections", str(connections), "--calls", str(calls)]
        pushing = [
            await asyncio.create_subprocess_exec(
                *command, "--ledger", str(1000 * (number + 1)), cwd=ROOT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for number in range(processes)
        ]  # fmt: skip
        try:
            for process in pushing:
                assert process.stdout is not None
                await process.stdout.readline()
            await asyncio.sleep(2)  # until the bookie has accepted all calls
            end = time.perf_counter() + seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * seconds):
                    while time.perf_counter() < end:
                        await urgent.once()
        finally:
            answered = 0
            for process in pushing:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.close()
            for process in pushing:
                assert process.stdout is not None
                answered += int(await process.stdout.readline() or 0)
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
        show("pushed", urgent.took)
        greedy_ones, load = processes * (connections + calls), os.getloadavg()[0]
        print(f"{answered} answers to {greedy_ones} greedy connections; load {load:.1f}")
        await urgent.close()


async def main(args: argparse.Namespace) -> None:
    """Serve in a process of its own, and measure."""
    if args.greedy:
        await greedy(args.greedy, args.connections, args.calls, args.ledger)
        return
    with tempfile.TemporaryDirectory(prefix="bookie-bench-", dir=args.directory) as directory:
        command = [sys.executable, "-m", "tests.bench.rpc_server", "real", directory, "uvloop"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        try:
            await measure(port, args.seconds, args.processes, args.connections, args.calls)
        finally:
            process.stdin.close()
            await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--connections", type=int, default=250)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--directory", help="where the bookie stores; default: the system's")
    parser.add_argument("--greedy", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ledger", type=int, default=0, help=argparse.SUPPRESS)
    uvloop.run(main(parser.parse_args()))

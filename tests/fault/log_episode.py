"""One random episode of logs: many who work on them, what goes wrong meanwhile, and the verdict."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from bookie.api import BookKeeper, LogPolicy
from bookie.daemon.local.process import child_environment
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.telemetry import Event
from tests.fault.consuming_actors import ConsumingActor, CursorActor, GroupActor
from tests.fault.daemon_process import suspend
from tests.fault.disturbing_actors import RecoveringActor, TruncatingActor
from tests.fault.final_logs import end_of_records, read_final
from tests.fault.log_actors import (
    PARTITIONS,
    ReadingActor,
    WritingActor,
    logs_of,
    pause,
)
from tests.fault.lossy_cluster import LossyCluster, healed
from tests.fault.publishing_actor import PublishingActor
from tests.fault.unreliable_store import UnreliableStore, make_unreliable
from tests.fault.waiting import time_limit
from tests.log_history.log_events import FinalPartition, LogRecorder
from tests.log_history.log_history_checker import assert_logs_valid

SIZES = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2)]
ROOT = Path(__file__).parents[2]
CALM_SECONDS_MAX = 300.0
UNRELIABLE_SHARE = 0.04


class LogEpisode:
    """What happens in an episode follows from its number, apart from the times of processes."""

    def __init__(self, cluster: LossyCluster, number: int, counts: Counter[str]) -> None:
        self.cluster = cluster
        self.number = number
        self.rng = random.Random(number)
        self.recorder = LogRecorder()
        self.counts = counts
        self.orders = LogName.parse(f"orders-{number}")
        self.sales = LogName.parse(f"sales-{number}")
        self.role = self.rng.choice(["write", "consume"])
        self.fate = self.rng.choice(["killed", "stopped"])
        self.trouble = self.rng.choice(["none", "killed", "hangs", "stopped"])
        self.victim = self.rng.choice(cluster.names)
        self.readers: list[ReadingActor] = []
        self.unreliable: list[UnreliableStore] = []

    def __str__(self) -> str:
        return f"{self.role} {self.fate}; bookie {self.victim} {self.trouble}"

    def count(self, what: str) -> None:
        """Something happened."""
        self.counts[what] += 1

    def _random(self) -> random.Random:
        return random.Random(self.rng.random())

    def partitions(self, name: LogName) -> list[LogPartition]:
        """All partitions of a log."""
        return [LogPartition(name, number) for number in range(PARTITIONS)]

    async def run(self, clients: Sequence[BookKeeper]) -> None:
        """Work, trouble, calm and the verdict. `clients` are three."""
        for client in clients:
            await self.cluster.sees(client, *self.cluster.names)
        await self._create(clients[0])
        with counted_events(self.count):
            async with asyncio.TaskGroup() as tails:
                tailing = self._begin_tails(tails, clients[1])
                async with asyncio.TaskGroup() as late:
                    await self._go_wrong(clients, late)
                await self._settle(clients[0])
                for task in tailing:
                    task.cancel()

    async def _create(self, client: BookKeeper) -> None:
        ensemble, writes, acks = self.rng.choice(SIZES)
        policy = LogPolicy(
            ensemble_size=ensemble,
            write_quorum_size=writes,
            ack_quorum_size=acks,
            roll_bytes=self.rng.choice([2000, 8000, 1 << 20]),
        )
        await client.create_log(str(self.orders), partitions=PARTITIONS, policy=policy)
        await client.create_log(
            str(self.sales), partitions=PARTITIONS, policy=policy, transactional=True
        )

    # ---- who works

    def _begin_tails(
        self, tasks: asyncio.TaskGroup, client: BookKeeper
    ) -> list[asyncio.Task[None]]:
        for partition in [*self.partitions(self.orders), *self.partitions(self.sales)]:
            # In one partition both kinds go side by side.
            for skips in (True, False) if partition.number == 0 else (True,):
                name = f"tail of {partition}, {'skips' if skips else 'raises'}"
                logs, add = logs_of(client), self.recorder.add
                self.readers.append(ReadingActor(name, logs, partition, add, skips, self.count))
        return [tasks.create_task(one.run()) for one in self.readers]

    def _actors(self, clients: Sequence[BookKeeper]) -> list[Coroutine[Any, Any, None]]:
        one, two, three = clients
        orders, sales, add, count = str(self.orders), str(self.sales), self.recorder.add, self.count
        partitions = tuple(self.partitions(self.orders))
        all_partitions = (*partitions, *self.partitions(self.sales))
        return [
            WritingActor("writer-1", one, orders, self._random(), add, count).run(),
            WritingActor("writer-2", three, orders, self._random(), add, count).run(),
            ConsumingActor("consumer-1", two, orders, self._random(), add, count).run(),
            GroupActor("member-1", two, orders, self._random(), add, count).run(),
            GroupActor("member-2", three, orders, self._random(), add, count).run(),
            CursorActor(two, partitions, self._random(), add, count).run(),
            PublishingActor("spark", logs_of(one), sales, self._random(), add, count).run(),
            PublishingActor("flink", logs_of(three), sales, self._random(), add, count).run(),
            TruncatingActor(logs_of(two), all_partitions, self._random(), add, count).run(),
            self._read_again(three),
            RecoveringActor(two, partitions, self._random(), count).run(),
        ]

    async def _read_again(self, client: BookKeeper) -> None:
        """Begin again and again at the first record that ever was."""
        rng, number = self._random(), 0
        while True:
            await pause(rng, 0.3)
            number += 1
            partition = rng.choice(self.partitions(self.orders))
            actor = ReadingActor(
                f"reader {number}", logs_of(client), partition, self.recorder.add, False, self.count
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(0.15):
                    await actor.run()

    # ---- what goes wrong

    async def _go_wrong(self, clients: Sequence[BookKeeper], late: asyncio.TaskGroup) -> None:
        for client in (clients[0], clients[1]):
            store = make_unreliable(logs_of(client), self._random(), late, self.count)
            store.share = UNRELIABLE_SHARE
            self.unreliable.append(store)
        async with self._child() as child, asyncio.TaskGroup() as tasks:
            going_on = [tasks.create_task(one) for one in self._actors(clients)]
            troubles = [
                tasks.create_task(self._trouble_bookie()),
                tasks.create_task(self._trouble_child(child)),
            ]
            for task in troubles:
                await task
            for task in going_on:
                task.cancel()
        for store in self.unreliable:
            store.share = 0.0

    async def _trouble_bookie(self) -> None:
        """One bookie is away for a while."""
        cluster, victim, rng = self.cluster, self.victim, self.rng
        await asyncio.sleep(rng.uniform(0.2, 0.6))
        match self.trouble:
            case "killed":
                await cluster.kill(victim)
            case "stopped":
                await cluster.stop(victim)
            case "hangs":
                await cluster.hang(victim)
            case _:
                pass
        self.count(f"bookie {self.trouble}")
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        cluster.resume(victim)
        if victim not in cluster.running:
            await cluster.start(victim)
        await asyncio.sleep(rng.uniform(0.1, 0.4))

    async def _trouble_child(self, child: asyncio.subprocess.Process) -> None:
        """The process is killed in the middle, or stopped and woken."""
        rng = self.rng
        await asyncio.sleep(rng.uniform(0.9, 1.6))
        if self.fate == "stopped":
            await suspend(child, self.cluster.uri)
            await asyncio.sleep(rng.uniform(0.2, 1.2))
            child.send_signal(signal.SIGCONT)
            await asyncio.sleep(rng.uniform(0.1, 0.4))
        child.kill()
        self.count(f"{self.role} {self.fate}")

    @asynccontextmanager
    async def _child(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A writer or a consumer in a process of its own; killed at the end at the latest."""
        arguments = (self.role, self.cluster.uri, str(self.orders), f"child {self.role}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fault.log_worker", *arguments, str(self.number)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=child_environment(os.environ),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                hearing = tasks.create_task(self._hear(process))
                try:
                    yield process
                finally:
                    with suppress(ProcessLookupError):
                        process.kill()
                await hearing
        finally:
            await process.wait()

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            line = raw.decode()
            if not line.endswith("\n"):
                break  # it was killed in the middle of a line, so before the operation
            if line.startswith("count "):
                self.count(line[6:-1])
            else:
                self.recorder.add_line(line)

    # ---- calm

    async def _settle(self, client: BookKeeper) -> None:
        """Everything works again: the logs can be opened, read to their ends, and are right."""
        cluster = self.cluster
        cluster.resume(*cluster.names)
        await cluster.start(*sorted({*cluster.names} - cluster.running))
        async with time_limit(CALM_SECONDS_MAX), cluster.connect() as fresh:
            await healed(lambda: self._close(fresh))
            final = await healed(lambda: self._read_all(fresh))
            ends = {one.partition: end_of_records(one) for one in final}
            for reader in self.readers:
                end = ends[str(reader.partition)]
                while reader.next_offset < end:  # noqa: ASYNC110  (a tail tells the history)
                    await asyncio.sleep(0.01)
                reader.ended(end)
            add, count, orders = self.recorder.add, self.count, str(self.orders)
            last = ConsumingActor("last consumer", fresh, orders, self._random(), add, count)
            # Nothing is consumed from what was truncated as a whole.
            is_there = any(one.records for one in final if one.partition == f"{orders}#0")
            await healed(lambda: last.consume(ends[f"{orders}#0"] if is_there else 0))
            await CursorActor(
                fresh, tuple(self.partitions(self.orders)), self._random(), add
            ).look()
        self.counts["records"] += sum(len(one.records) for one in final)
        assert_logs_valid(self.recorder.history(*final))

    async def _close(self, client: BookKeeper) -> None:
        """Take the log over for the last time, and close it."""
        async with client.open_log(str(self.orders)):
            pass

    async def _read_all(self, client: BookKeeper) -> list[FinalPartition]:
        partitions = [*self.partitions(self.orders), *self.partitions(self.sales)]
        return [await read_final(client, one) for one in partitions]


class _Counting(logging.Handler):
    def __init__(self, count: Callable[[str], object]) -> None:
        super().__init__()
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, Event):
            self._count(record.msg.name)


@contextmanager
def counted_events(count: Callable[[str], object]) -> Iterator[None]:
    """Count what logs say about themselves: takeovers, mended chains, and so on."""
    logger = logging.getLogger("bookie.log")
    handler, level = _Counting(count), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)

"""What the clients of one seed do to logs while faults come, and the calm at its end.

Two writers take a log from each other, roll it, and number some of their records. Two readers
follow it, consumers share a cursor, somebody truncates, resets the cursor, and recovers what is
written. Two join small ledgers. An application publishes to a transactional log. Each works in a
client process of its own, which ends now and then, often by a crash; the next one goes on with what
the former one knew.

Faults end with the chaos. Then, within `CALM_SECONDS`, a new client opens the log and closes it,
reads everything, and all readers and a consumer come to its end. The rules L1 to L9 judge.

Run as a program with a seed it prints the checksum of everything that happened, and with ``-v`` its
story.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from traceback import format_exception
from typing import TypeAlias, TypeVar

from bookie.api import BookKeeper, LogPolicy
from bookie.errors import BookieError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.testing.simulation.cluster_faults import ClusterFaults
from bookie.testing.simulation.loop import simulated_loop
from bookie.testing.simulation.seeded_world import seeded_world
from bookie.testing.simulation.simulated_cluster import SimulatedCluster
from bookie.testing.simulation.simulated_network import PROCESS, SimulatedNetwork, SimulatedProcess
from tests.cluster_sim.cluster_observers import ClusterObservers, observed
from tests.cluster_sim.cluster_script import (
    CALM_SECONDS,
    GRACE_SECONDS,
    ClusterOutcome,
    show_outcome,
)
from tests.cluster_sim.lives_of_ids import LivesOfIds
from tests.cluster_sim.log_observers import observed_logs
from tests.cluster_sim.log_swarm import LogSwarm, draw_framed_logs, draw_logs
from tests.fault.consuming_actors import ConsumingActor, CursorActor
from tests.fault.disturbing_actors import CompactingActor, RecoveringActor, TruncatingActor
from tests.fault.final_logs import end_of_records, read_final
from tests.fault.log_actors import PARTITIONS, ReadingActor, WritingActor, logs_of, moments_of
from tests.fault.publishing_actor import PublishingActor
from tests.ledger_history.ledger_events import HistoryRecorder
from tests.log_history.log_events import FinalPartition, LogRecorder
from tests.log_history.log_history_checker import check_logs

T = TypeVar("T")

ORDERS, SALES = LogName.parse("orders"), LogName.parse("sales")

Actor: TypeAlias = (
    WritingActor
    | ReadingActor
    | ConsumingActor
    | CursorActor
    | PublishingActor
    | TruncatingActor
    | CompactingActor
    | RecoveringActor
)


def partitions_of(name: LogName) -> tuple[LogPartition, ...]:
    """All partitions of a log."""
    return tuple(LogPartition(name, number) for number in range(PARTITIONS))


class LogScript:
    """One seed from its start to its end."""

    def __init__(self, cluster: SimulatedCluster, swarm: LogSwarm) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.recorder = LogRecorder()
        self.problems: list[str] = []
        self.bookies = HistoryRecorder(cluster.loop.time)
        """Events of bookies, which nobody checks here."""
        self._calm, self._over = asyncio.Event(), asyncio.Event()
        self._actors: dict[str, Actor] = {}
        """What each process does, whose lives share it."""
        self._awaited = ""
        """What the calm waits for."""

    async def run(self) -> list[FinalPartition]:
        """The whole story; what a new client reads at its end."""
        cluster, swarm = self.cluster, self.swarm.cluster
        await cluster.initialize()
        await self._in_process("creator", self._create)
        cluster.lost_replies = swarm.lost_replies
        faults = ClusterFaults(cluster, swarm.faults, swarm.fault_pause_seconds, swarm.losses_max)
        faults.supervise()
        works, tails = (
            [cluster.loop.create_task(self._lives(name, make, until)) for name, make in kinds]
            for kinds, until in ((self._works(), self._calm), (self._tails(), self._over))
        )
        chaos = cluster.loop.create_task(faults.run())
        await asyncio.sleep(swarm.chaos_seconds)
        chaos.cancel()
        await asyncio.wait([chaos])
        await faults.heal()
        cluster.lost_replies = 0.0
        cluster.note("calm")
        self._calm.set()
        await asyncio.wait(works, timeout=GRACE_SECONDS)
        final: list[FinalPartition] = []
        try:
            async with asyncio.timeout(CALM_SECONDS):
                await self._in_process("calm", lambda bk: self._settle(bk, final))
        except TimeoutError:
            self.problems.append(f"after {CALM_SECONDS:g} s without faults: {self._awaited}")
        self._over.set()
        await asyncio.wait([*works, *tails], timeout=GRACE_SECONDS)
        for task in (*works, *tails):
            task.cancel()
        await asyncio.wait([*works, *tails])
        await faults.end()
        return final

    async def _create(self, bk: BookKeeper) -> None:
        ensemble, write, ack = self.swarm.cluster.quorums[0]
        policy = LogPolicy(
            ensemble_size=ensemble,
            write_quorum_size=write,
            ack_quorum_size=ack,
            roll_bytes=self.swarm.roll_bytes,
        )
        await bk.create_log(str(ORDERS), partitions=PARTITIONS, policy=policy)
        await bk.create_log(str(SALES), partitions=PARTITIONS, policy=policy, transactional=True)

    # --- who does what -------------------------------------------------------------------

    def _works(self) -> list[tuple[str, Callable[[BookKeeper], Actor]]]:
        """By the name of the process, in the order of the start."""
        swarm, add, count = self.swarm, self.recorder.add, self.cluster.count
        orders, log, chance = partitions_of(ORDERS), str(ORDERS), self._chance

        def write(name: str, bk: BookKeeper) -> Actor:
            pause = swarm.append_pause_seconds
            return WritingActor(name, bk, log, chance(name), add, count, pause)

        def consume(name: str, bk: BookKeeper) -> Actor:
            return ConsumingActor(name, bk, log, chance(name), add, count)

        def publish(bk: BookKeeper) -> Actor:
            logs, pause = logs_of(bk), swarm.publish_pause_seconds
            return PublishingActor("spark", logs, str(SALES), chance("spark"), add, count, pause)

        def truncate(bk: BookKeeper) -> Actor:
            both, pause = (*orders, *partitions_of(SALES)), swarm.truncate_pause_seconds
            return TruncatingActor(logs_of(bk), both, chance("truncating"), add, count, pause)

        def compact(name: str, bk: BookKeeper) -> Actor:
            both, pause = (log, str(SALES)), swarm.compact_pause_seconds
            return CompactingActor(bk, both, chance(name), count, pause)

        def look(bk: BookKeeper) -> Actor:
            pause = swarm.look_pause_seconds
            return CursorActor(bk, orders, chance("looking"), add, count, pause)

        def recover(bk: BookKeeper) -> Actor:
            pause = swarm.recover_pause_seconds
            return RecoveringActor(bk, orders, chance("recovering"), count, pause)

        return [
            *((name, partial(write, name)) for name in ("ann", "bob")),
            *((name, partial(consume, name)) for name in ("eve", "max")),
            ("spark", publish),
            ("truncating", truncate),
            *((name, partial(compact, name)) for name in ("compacting", "compacting too")),
            ("looking", look),
            ("recovering", recover),
        ]

    def _tails(self) -> list[tuple[str, Callable[[BookKeeper], Actor]]]:
        """Readers of both logs, which go on until everything is read."""
        add, count = self.recorder.add, self.cluster.count

        def follow(name: str, partition: LogPartition, bk: BookKeeper) -> Actor:
            skips = name == "skipping"
            return ReadingActor(f"{name} {partition}", logs_of(bk), partition, add, skips, count)

        followed = (
            ("following", LogPartition(ORDERS, 0)),
            ("skipping", LogPartition(ORDERS, 0)),
            ("following", LogPartition(ORDERS, 1)),
            ("skipping", LogPartition(SALES, 0)),
        )
        return [(f"{name} {one}", partial(follow, name, one)) for name, one in followed]

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{name}/{self.cluster.seed}")

    # --- processes -----------------------------------------------------------------------

    async def _lives(
        self, name: str, make: Callable[[BookKeeper], Actor], until: asyncio.Event
    ) -> None:
        """One client process after the other."""
        choose = self._chance(f"lives of {name}")
        while not until.is_set():
            await self._life(name, make, until, choose)
            await asyncio.sleep(choose.random())

    async def _life(
        self,
        name: str,
        make: Callable[[BookKeeper], Actor],
        until: asyncio.Event,
        choose: random.Random,
    ) -> None:
        loop, client = self.cluster.loop, self.cluster.new_client(name)

        async def live() -> None:
            try:
                await self._act(name, make, await client.connect())
            finally:
                await client.aclose()

        task = self.cluster.run_in_process(client.process, live(), client.host)
        ending = loop.create_task(until.wait())
        seconds = choose.expovariate(1 / self.swarm.life_seconds)
        try:
            await asyncio.wait([task, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            is_hurt = choose.random() < self.swarm.vanish_share
            if is_hurt and not task.done() and not self._calm.is_set():
                self.cluster.note(f"{client.host} vanishes")
                self.cluster.count("process vanished")
                client.vanish()
        finally:
            task.cancel()
            ending.cancel()
            await asyncio.wait([task, ending])
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BookieError | TimeoutError):
            self.problems.append("".join(format_exception(error)))

    async def _act(self, name: str, make: Callable[[BookKeeper], Actor], bk: BookKeeper) -> None:
        """Go on with what the former process of this name did."""
        actor = self._actors.get(name)
        if actor is None:
            actor = self._actors[name] = make(bk)
        elif isinstance(actor, ReadingActor | PublishingActor | TruncatingActor):
            actor.logs = logs_of(bk)
        else:
            actor.bk = bk
        await actor.run()

    async def _in_process(self, name: str, work: Callable[[BookKeeper], Awaitable[None]]) -> None:
        """Do `work` in a client process that no fault ends."""
        client = self.cluster.new_client(name)

        async def live() -> None:
            try:
                await work(await client.connect())
            finally:
                await client.aclose()

        task = self.cluster.run_in_process(client.process, live(), client.host)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    # --- the end -------------------------------------------------------------------------

    async def _settle(self, bk: BookKeeper, final: list[FinalPartition]) -> None:
        """Everything works again: the log is opened and closed, and all come to its end."""

        async def close() -> None:
            async with bk.open_log(str(ORDERS), owner="calm"):
                pass

        async def read() -> list[FinalPartition]:
            both = (*partitions_of(ORDERS), *partitions_of(SALES))
            return [await read_final(bk, one) for one in both]

        await self._healed("the log is not opened", close)
        found = await self._healed("not everything is read", read)
        ends = {one.partition: end_of_records(one) for one in found}
        for actor in self._actors.values():
            if isinstance(actor, ReadingActor):
                end = ends[str(actor.partition)]
                while actor.next_offset < end:
                    self._awaited = f"{actor.name} is at {actor.next_offset} of {end}"
                    await asyncio.sleep(0.1)
                actor.ended(end)
        add, count = self.recorder.add, self.cluster.count
        last = ConsumingActor("last", bk, str(ORDERS), self._chance("last"), add, count)
        # Nothing is consumed from what was truncated as a whole.
        until = ends[f"{ORDERS}#0"] if found[0].records else 0
        await self._healed("not everything is consumed", lambda: last.consume(until))
        looking = CursorActor(bk, partitions_of(ORDERS), self._chance("last look"), add)
        await self._healed("the cursors are not seen", looking.look)
        final += found
        self.cluster.counts["records"] += sum(len(one.records) for one in found)

    async def _healed(self, awaited: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` again until it succeeds."""
        while True:
            self._awaited = awaited
            try:
                return await work()
            except BookieError as error:
                self.cluster.note(f"calm: {awaited}: {error}")
                await asyncio.sleep(0.2)


def simulate_logs(seed: int, swarm: LogSwarm | None = None) -> ClusterOutcome:
    """One seed; `problems` of the outcome say what is wrong."""
    swarm = swarm or draw_logs(seed)
    loop = simulated_loop(seed, swarm.cluster.mode)
    network = SimulatedNetwork(loop, seed)
    cluster = SimulatedCluster(
        loop,
        network,
        seed,
        swarm.cluster.bookies,
        interleaving=swarm.cluster.interleaving,
        storage=swarm.cluster.storage,
        sync_seconds=swarm.cluster.sync_seconds,
        by_frames=swarm.cluster.by_frames,
    )
    script = LogScript(cluster, swarm)
    outcome = ClusterOutcome(
        seed, command="make sim LOG_SEED=", counts=cluster.counts, notes=cluster.notes
    )
    PROCESS.set(SimulatedProcess("director"))
    final: list[FinalPartition] = []
    with (
        seeded_world(loop, network, seed, cluster.open_store) as clock,
        observed(ClusterObservers(cluster.counts, script.bookies, cluster.fenced, LivesOfIds())),
        observed_logs(cluster.count),
        moments_of(lambda: round(loop.time() * 1e9)),
    ):
        cluster.clock = clock
        try:
            final = loop.run(script.run())
        finally:
            outcome.virtual_seconds, outcome.steps = loop.time(), loop.steps
            outcome.trace = loop.trace
            loop.close()
            cluster.forget()
    cluster.counts["add by frames"] += network.framed_adds
    cluster.counts["late add by frames"] += network.late_framed_adds
    outcome.problems = script.problems
    outcome.problems += [f"a handler raised {error!r}" for error in network.unexpected]
    outcome.problems += ["".join(format_exception(error)) for error in cluster.unexpected]
    if final:
        is_compacted = cluster.counts["compaction proposed"] > 0
        judged = [replace(one, is_compacted=is_compacted) for one in final]
        verdict = check_logs(script.recorder.history(*judged))
        if not verdict.is_valid:
            outcome.problems.append(verdict.describe())
    elif not outcome.problems:
        outcome.problems.append("nothing was read at the end")
    return outcome


def main(arguments: list[str]) -> int:
    """Run one seed: ``SEED [--frames] [-v]``."""
    logging.disable(logging.CRITICAL)
    seed = int(arguments[0])
    outcome = simulate_logs(seed, draw_framed_logs(seed) if "--frames" in arguments else None)
    return show_outcome(outcome, with_story="-v" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

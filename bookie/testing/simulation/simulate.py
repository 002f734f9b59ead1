"""Runs a function of yours on a simulated cluster with faults; a seed determines the whole run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from bookie.api import BookKeeper
from bookie.errors import BadRequestError
from bookie.testing.simulation.cluster_faults import FAULTS, ClusterFaults
from bookie.testing.simulation.loop import Mode, SimulatedLoop, simulated_loop
from bookie.testing.simulation.machine import KIB
from bookie.testing.simulation.seeded_world import seeded_world
from bookie.testing.simulation.simulated_cluster import SimulatedCluster
from bookie.testing.simulation.simulated_network import PROCESS, SimulatedNetwork, SimulatedProcess

T = TypeVar("T")

Workload = Callable[[BookKeeper], Awaitable[T]]

STORY_LINES_MAX = 30
"""The largest number of story lines in the error of a failed run."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome(Generic[T]):
    """The result of a workload, and a report of its run."""

    result: T
    """The value that the workload returned."""
    trace: int
    """A checksum of every step, which is equal in all processes with the same code."""
    virtual_seconds: float
    """The duration of the run on the simulated clock, in seconds."""
    story: tuple[str, ...]
    """The faults of the run, each with its virtual time."""


def simulate(
    seed: int,
    workload: Workload[T],
    *,
    bookies: int = 4,
    faults: Sequence[str] = FAULTS,
    fault_seconds: float = 10.0,
    fault_pause_seconds: float = 1.0,
    losses_max: int = 1,
    seconds_max: float = 300.0,
) -> SimulationOutcome[T]:
    """Run `workload` with a client of a simulated cluster, in virtual time, so waits take no time.

    While the workload runs, faults happen for `fault_seconds`. After that time, all faults are
    healed, and no new faults happen. The same arguments give the same run in any process, if the
    workload depends on nothing but its client and the virtual time: see docs/testing-your-code.md.

    Call this function from the main thread, while no other code of the process uses `bookie`.
    During the run, the clocks, randomness and channels of `bookie` are simulated.

    Args:
        seed: determines the order of all steps, the faults and their times.
        workload: receives a connected client. The workload creates further clients with
            `bookie.connect(SIMULATED_URI)`.
        bookies: the number of bookies.
        faults: the kinds of faults, from `FAULTS`; empty for a cluster without faults.
        fault_seconds: the virtual seconds during which faults happen.
        fault_pause_seconds: the mean virtual seconds between two faults.
        losses_max: the largest number of bookies that lose their data. Entries survive if this
            number is less than the ack quorum of their ledgers.
        seconds_max: the virtual seconds within which the workload must end.

    Raises:
        BadRequestError: an argument is wrong.
        TimeoutError: the workload did not end in time.
        AssertionError: a bookie failed although no fault explains it.
        Exception: an error of the workload. A note on each error contains the seed and the last
            faults.
    """
    unknown = [kind for kind in faults if kind not in FAULTS]
    if unknown or bookies < 1:
        raise BadRequestError(f"{bookies} bookies with the unknown faults {unknown}")
    kinds = tuple(faults)
    run = _Simulation(seed, bookies)
    chaos = _Chaos(kinds, fault_seconds, fault_pause_seconds, losses_max)
    try:
        # The workload's context variables stay in this copy.
        return copy_context().run(run.run, workload, chaos, seconds_max)
    except BaseException as error:
        error.add_note(f"simulate(seed={seed}) shows it again; at its end:")
        for line in run.cluster.notes[-STORY_LINES_MAX:]:
            error.add_note(line)
        raise


@dataclass(frozen=True, slots=True)
class _Chaos:
    """The faults of a run: their kinds, duration, frequency and maximum number of data losses."""

    kinds: tuple[str, ...]
    seconds: float
    pause_seconds: float
    losses_max: int


class _Simulation:
    """One run of a workload on a simulated cluster."""

    def __init__(self, seed: int, bookies: int) -> None:
        choose = random.Random(f"simulate/{seed}")
        mode = choose.choice((Mode.FIFO, Mode.UNIFORM, Mode.UNIFORM, Mode.PRIORITY))
        self.seed = seed
        self.loop: SimulatedLoop = simulated_loop(seed, mode)
        self.network = SimulatedNetwork(self.loop, seed)
        self.cluster = SimulatedCluster(
            self.loop,
            self.network,
            seed,
            bookies,
            interleaving=choose.choice((0.0, 0.0, 0.1, 0.4)),
            storage={
                "journal_allocate_bytes": 64 * KIB,
                "journal_file_bytes_max": 256 * KIB,
                "checkpoint_interval_seconds": choose.choice((0.5, 3.0, 3600.0)),
                "idle_marker_seconds": choose.choice((0.1, 1.0)),
                "scrub_bytes_per_second": 0,
            },
            sync_seconds=choose.choice((0.0, 0.001, 0.01)),
        )

    def run(self, workload: Workload[T], chaos: _Chaos, seconds_max: float) -> SimulationOutcome[T]:
        """Start the bookies, run the workload, and stop the bookies."""
        loop, cluster = self.loop, self.cluster
        PROCESS.set(SimulatedProcess("director"))
        with (
            seeded_world(loop, self.network, self.seed, cluster.open_store) as clock,
            _seeded_chance(self.seed),
        ):
            cluster.clock = clock
            try:
                result = loop.run(self._live(workload, chaos, seconds_max))
            finally:
                loop.close()
                cluster.forget()
        unexpected = [*self.network.unexpected, *cluster.unexpected]
        if unexpected:
            raise AssertionError("a bookie failed as it never should") from unexpected[0]
        return SimulationOutcome(result, loop.trace, loop.time(), tuple(cluster.notes))

    async def _live(self, workload: Workload[T], chaos: _Chaos, seconds_max: float) -> T:
        cluster = self.cluster
        await cluster.initialize()
        faults = ClusterFaults(cluster, chaos.kinds, chaos.pause_seconds, chaos.losses_max)
        faults.supervise()
        client = cluster.new_client("client")
        results: list[T] = []

        async def work() -> None:
            bk = await client.connect()
            going_wrong = self.loop.create_task(_go_wrong(faults, chaos))
            try:
                async with asyncio.timeout(seconds_max):
                    results.append(await workload(bk))
            finally:
                going_wrong.cancel()
                await asyncio.wait([going_wrong])
                await faults.heal()
                await client.aclose()

        task = cluster.run_in_process(client.process, work(), "workload")
        await asyncio.wait([task])
        await faults.end()
        await task
        return results[0]


async def _go_wrong(faults: ClusterFaults, chaos: _Chaos) -> None:
    """Cause faults for the given time, then heal all faults for the rest of the run."""
    if not chaos.kinds:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(chaos.seconds):
            await faults.run()
    await faults.heal()
    faults.cluster.note("all is healed")


@contextmanager
def _seeded_chance(seed: int) -> Iterator[None]:
    """Seed Python's own random numbers for the duration of the block."""
    before = random.getstate()
    random.seed(f"workload/{seed}")
    try:
        yield
    finally:
        random.setstate(before)

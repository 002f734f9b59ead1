"""What the clients of one seed do to its ledgers while faults come, and the calm at its end.

Each seed draws a cluster, ledgers, clients and kinds of faults (a swarm: what is left out lets the
rest go deeper). Faults end with the chaos. Then, within `CALM_SECONDS`, an append has to succeed
and every ledger has to be closed by a recovery. A fresh client reads everything.

Run as a program with a seed it prints the checksum of everything that happened, and with ``-v`` its
story.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from traceback import format_exception
from typing import Any

from bookie.api import BookKeeper, ReaderHandle, WriterHandle
from bookie.errors import BookieError, NoSuchEntryError
from bookie.formats.entry import Entry
from bookie.formats.ledger_metadata import LedgerState
from tests.cluster_sim.cluster_faults import FAULTS, ClusterFaults
from tests.cluster_sim.cluster_observers import ClusterObservers, observed
from tests.cluster_sim.seeded_world import seeded_world
from tests.cluster_sim.simulated_cluster import SimulatedClient, SimulatedCluster
from tests.cluster_sim.simulated_network import PROCESS, SimulatedNetwork, SimulatedProcess
from tests.ledger_history.ledger_checker import CheckResult, HistoryVerdict, check_ledgers
from tests.ledger_history.ledger_events import (
    AppendEvent,
    CloseEvent,
    FinalFragment,
    FinalLedger,
    FinalLedgerState,
    FinalState,
    HistoryRecorder,
    LedgerHistory,
    OpenEvent,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
    copies_of,
    digest_of,
)
from tests.sim.loop import Mode, simulated_loop
from tests.sim.machine import KIB

CALM_SECONDS = 60.0
"""Within this time after the last fault everything has to work."""

OPERATION_SECONDS_MAX = 15.0
"""A client gives up then; the outcome of what it did is unknown."""

GRACE_SECONDS = 20.0
"""How long clients have to end by themselves when the chaos is over."""

LINE_MAX = 240
"""What is shown of a line."""

QUORUMS = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (5, 3, 2))


class VanishedError(Exception):
    """The client's process is gone."""


@dataclass(frozen=True, slots=True)
class ClusterSwarm:
    """What one seed draws."""

    mode: Mode
    interleaving: float
    bookies: int
    quorums: tuple[tuple[int, int, int], ...]
    writers: int
    recoverers: int
    readers: int
    tailers: int
    faults: tuple[str, ...]
    fault_pause_seconds: float
    chaos_seconds: float
    sync_seconds: float
    storage: dict[str, object]
    lost_replies: float = 0.0
    """Share of transactions with the metadata store that get no reply, at all times."""
    vanish_share: float = 0.15
    """How often a writer's process ends in the middle of its work."""

    @property
    def losses_max(self) -> int:
        """How many bookies may lose what they stored."""
        return min(quorum[2] for quorum in self.quorums) - 1


def draw_cluster(seed: int) -> ClusterSwarm:
    """The features of a seed."""
    choose = random.Random(f"cluster swarm/{seed}")
    bookies = choose.randint(3, 6)
    fitting = [quorum for quorum in QUORUMS if quorum[0] <= bookies]
    if choose.random() < 0.7:
        fitting = [quorum for quorum in fitting if quorum[2] >= 2]
    quorums = tuple(choose.sample(fitting, min(len(fitting), choose.randint(1, 3))))
    kinds = tuple(kind for kind in FAULTS if choose.random() < 0.4) or ("kill",)
    return ClusterSwarm(
        mode=choose.choice((Mode.FIFO, Mode.UNIFORM, Mode.UNIFORM, Mode.PRIORITY)),
        interleaving=choose.choice((0.0, 0.0, 0.1, 0.4)),
        bookies=bookies,
        quorums=quorums,
        writers=choose.randint(1, 3),
        recoverers=choose.randint(0, 3),
        readers=choose.randint(0, 1),
        tailers=choose.randint(0, 2),
        faults=kinds,
        fault_pause_seconds=choose.choice((0.5, 1.5, 4.0)),
        chaos_seconds=choose.choice((4.0, 8.0, 16.0)),
        sync_seconds=choose.choice((0.0, 0.001, 0.01)),
        storage={
            "journal_allocate_bytes": 64 * KIB,
            "journal_file_bytes_max": choose.choice((64, 256)) * KIB,
            "checkpoint_interval_seconds": choose.choice((0.5, 3.0, 3600.0)),
            "idle_marker_seconds": choose.choice((0.1, 1.0)),
            "scrub_bytes_per_second": 0,
        },
        lost_replies=choose.choice((0.0, 0.0, 0.05, 0.2)),
    )


@dataclass(slots=True)
class ClusterOutcome:
    """What happened in a seed."""

    seed: int
    trace: int = 0
    virtual_seconds: float = 0.0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    history: LedgerHistory | None = None

    def describe(self) -> str:
        """For the message of a failed test."""
        story = "\n".join(self.notes)
        problems = "\n".join(self.problems)
        return f"{story}\n{problems}\nmake sim SEED={self.seed} shows it again"


class ClusterScript:
    """One seed from its start to its end."""

    def __init__(self, cluster: SimulatedCluster, swarm: ClusterSwarm) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.recorder = HistoryRecorder(cluster.loop.time)
        self.problems: list[str] = []
        self.ledgers: list[int] = []
        self._calm = asyncio.Event()
        self._recovering: Counter[int] = Counter()
        self._payloads = 0
        self._handles = 0
        self._kept: list[WriterHandle] = []
        """So that no writer is dropped before the end."""
        self._final: list[FinalLedger] = []

    async def run(self) -> FinalState:
        """The whole story; what the metadata and a fresh client say at its end."""
        cluster, swarm = self.cluster, self.swarm
        await cluster.initialize()
        cluster.lost_replies = swarm.lost_replies
        faults = ClusterFaults(
            cluster, self.recorder, swarm.faults, swarm.fault_pause_seconds, swarm.losses_max
        )
        faults.supervise()
        lives: list[Coroutine[Any, Any, None]] = []
        for role, count in (
            (self._write, swarm.writers),
            (self._recover, swarm.recoverers),
            (self._read, swarm.readers),
            (self._tail, swarm.tailers),
        ):
            lives += [self._lives(role, number) for number in range(count)]
        tasks = [self.cluster.loop.create_task(life) for life in lives]
        chaos = self.cluster.loop.create_task(faults.run())
        await asyncio.sleep(swarm.chaos_seconds)
        chaos.cancel()
        await asyncio.wait([chaos])
        await faults.heal()
        cluster.lost_replies = 0.0
        cluster.note("calm")
        self._calm.set()
        await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError
        try:
            async with asyncio.timeout(CALM_SECONDS):
                await self._in_process("calm", self._end_calm)
        except TimeoutError:
            self.problems.append(
                f"after {CALM_SECONDS:g} s without faults, not every ledger was recovered: "
                f"{self._unfinished()}"
            )
        await faults.end()
        return FinalState(ledgers=tuple(self._final), destroyed=frozenset(faults.lost))

    # --- processes of clients ------------------------------------------------------------

    async def _in_process(
        self, name: str, work: Callable[[SimulatedClient, BookKeeper], Awaitable[None]]
    ) -> None:
        """Do `work` as a client process of its own, which ends with it."""
        client = self.cluster.new_client(name)

        async def live() -> None:
            try:
                await work(client, await client.connect())
            finally:
                await client.aclose()

        task = self.cluster.run_in_process(client.process, live(), client.host)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _lives(
        self, role: Callable[[SimulatedClient, BookKeeper, random.Random], Awaitable[None]], n: int
    ) -> None:
        """One client process after the other."""
        name = role.__name__[1:2]
        choose = random.Random(f"{role.__name__}/{self.cluster.seed}/{n}")
        while not self._calm.is_set():
            with contextlib.suppress(BookieError, VanishedError, TimeoutError):
                await self._in_process(name, lambda client, bk: role(client, bk, choose))
            await asyncio.sleep(choose.random())

    def _handle(self, client: SimulatedClient) -> str:
        self._handles += 1
        return f"{client.host}/{self._handles}"

    # --- writers -------------------------------------------------------------------------

    async def _write(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            size, write, ack = choose.choice(self.swarm.quorums)
            try:
                async with asyncio.timeout(OPERATION_SECONDS_MAX):
                    writer = await bookkeeper.create_ledger(
                        ensemble_size=size, write_quorum_size=write, ack_quorum_size=ack
                    )
            except (BookieError, TimeoutError):
                await asyncio.sleep(choose.uniform(0.1, 1.0))
                continue
            self._kept.append(writer)
            self.ledgers.append(writer.ledger_id)
            self.cluster.note(f"{client.host} creates {writer.ledger_id} with {size, write, ack}")
            await self._fill(client, writer, choose)

    async def _fill(
        self, client: SimulatedClient, writer: WriterHandle, choose: random.Random
    ) -> None:
        handle = self._handle(client)
        appends: list[asyncio.Task[bool]] = []
        lane = self.cluster.loop.new_lane()
        pace = choose.choice((0.002, 0.05, 0.3, 1.5))
        for _ in range(choose.choice((3, 12, 30))):
            work = self._append(client, writer, handle, choose)
            # In one lane the tasks hear of acknowledgements in their order.
            appends.append(self.cluster.loop.create_task_in_lane(lane, work, "append"))
            if choose.random() < 0.5:
                await asyncio.wait(appends[-1:])
                if not appends[-1].result():
                    break
            await asyncio.sleep(choose.expovariate(1 / pace))
            if self._calm.is_set():
                break
        if choose.random() < self.swarm.vanish_share:
            client.vanish()
            for append in appends:
                append.cancel()
            await asyncio.wait(appends)
            raise VanishedError
        if choose.random() < 0.6:
            await self._close(client, writer, handle)
        await asyncio.wait(appends)

    async def _append(
        self, client: SimulatedClient, writer: WriterHandle, handle: str, choose: random.Random
    ) -> bool:
        """Append a few payloads; whether they were acknowledged."""
        payloads = []
        for _ in range(choose.choice((1, 1, 1, 3, 12))):
            self._payloads += 1
            payloads.append(
                b"%s-%d-" % (handle.encode(), self._payloads) + bytes(choose.choice((0, 0, 200)))
            )
        event = self.recorder.invoke(
            AppendEvent(
                process=client.host,
                ledger_id=writer.ledger_id,
                handle=handle,
                digests=tuple(map(digest_of, payloads)),
            )
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                if len(payloads) == 1:
                    ids: tuple[int, ...] = (await writer.append(payloads[0]),)
                else:
                    ids = tuple(await writer.append_many(payloads))
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        if client.process.is_alive:
            event.ok(entry_ids=ids)
            self.cluster.counts["append"] += 1
        return True

    async def _close(self, client: SimulatedClient, writer: WriterHandle, handle: str) -> None:
        event = self.recorder.invoke(
            CloseEvent(process=client.host, ledger_id=writer.ledger_id, handle=handle)
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                metadata = await writer.close()
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        event.ok(last_entry_id=metadata.last_entry_id, length=metadata.length)
        self.cluster.counts["close"] += 1

    # --- readers -------------------------------------------------------------------------

    async def _pick(self, choose: random.Random) -> int | None:
        """A ledger, mostly one of the newest."""
        await asyncio.sleep(choose.expovariate(1 / 0.7))
        if not self.ledgers:
            return None
        newest = self.ledgers[-3:]
        return choose.choice(newest if choose.random() < 0.8 else self.ledgers)

    async def _recover(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            if self._recovering[ledger_id]:
                self.cluster.count("competing recoveries")
            self._recovering[ledger_id] += 1
            try:
                opened = await self._open(client, bookkeeper, ledger_id, recover=True)
            finally:
                self._recovering[ledger_id] -= 1
            if opened is not None:
                await self._read_all(client, *opened)
            if choose.random() < 0.1:
                client.vanish()
                raise VanishedError

    async def _open(
        self, client: SimulatedClient, bookkeeper: BookKeeper, ledger_id: int, *, recover: bool
    ) -> tuple[ReaderHandle, str] | None:
        handle = self._handle(client)
        event = self.recorder.invoke(
            OpenEvent(process=client.host, ledger_id=ledger_id, handle=handle, is_recovery=recover)
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                reader = await bookkeeper.open_ledger(ledger_id, recover=recover)
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        length = reader.metadata.length if reader.is_closed else 0
        event.ok(is_closed=reader.is_closed, last_entry_id=reader.last_entry_id, length=length)
        self.cluster.counts["recovery" if recover else "open"] += 1
        return reader, handle

    async def _read_all(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> bool:
        """Read a ledger up to its last entry; whether that was possible."""
        last = reader.last_entry_id
        event = self.recorder.invoke(
            ReadEvent(
                process=client.host, ledger_id=reader.ledger_id, handle=handle, first=0, last=last
            )
        )
        entries: list[tuple[int, bytes]] = []
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                async with contextlib.aclosing(reader.read_batches(0, last)) as batches:
                    async for batch in batches:
                        entries += [(entry.entry_id, bytes(entry.payload)) for entry in batch]
        except NoSuchEntryError as error:
            event.info(error, entries=copies_of(entries), denied=len(entries))
            return False
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error, entries=copies_of(entries))
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        event.ok(entries=copies_of(entries))
        self.cluster.counts["read"] += 1
        return True

    async def _read(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            opened = await self._open(client, bookkeeper, ledger_id, recover=False)
            if opened is None:
                continue
            for _ in range(choose.randint(1, 4)):
                await self._read_all(client, *opened)
                await asyncio.sleep(choose.random())
                await self._refresh(client, *opened)

    async def _refresh(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> None:
        event = self.recorder.invoke(
            ReadLacEvent(process=client.host, ledger_id=reader.ledger_id, handle=handle)
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                last = await reader.refresh()
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        event.ok(last_entry_id=last)

    async def _tail(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            opened = await self._open(client, bookkeeper, ledger_id, recover=False)
            if opened is None:
                continue
            reader, handle = opened
            with contextlib.suppress(BookieError, TimeoutError):
                async with asyncio.timeout(choose.uniform(1, OPERATION_SECONDS_MAX)):
                    async with contextlib.aclosing(reader.tail()) as entries:
                        async for entry in entries:
                            self._tailed(client, ledger_id, handle, entry)

    def _tailed(self, client: SimulatedClient, ledger_id: int, handle: str, entry: Entry) -> None:
        event = TailEvent(process=client.host, ledger_id=ledger_id, handle=handle, start=0)
        copies = copies_of([(entry.entry_id, bytes(entry.payload))])
        self.recorder.invoke(event).ok(entries=copies)
        self.cluster.counts["tailed"] += 1

    # --- the end -------------------------------------------------------------------------

    async def _end_calm(self, client: SimulatedClient, bookkeeper: BookKeeper) -> None:
        """An append succeeds, every ledger is recovered, and everything can be read."""
        await self._append_once(client, bookkeeper)
        # Creations without a reply may have made more.
        listed = [ledger_id async for ledger_id in bookkeeper.list_ledgers()]
        self.ledgers = sorted({*self.ledgers, *listed})
        for ledger_id in self.ledgers:
            while True:
                opened = await self._open(client, bookkeeper, ledger_id, recover=True)
                if opened is not None:
                    break
                await asyncio.sleep(0.2)
            await self._look_at(client, *opened)

    async def _append_once(self, client: SimulatedClient, bookkeeper: BookKeeper) -> None:
        size, write, ack = self.swarm.quorums[0]
        while True:
            try:
                writer = await bookkeeper.create_ledger(
                    ensemble_size=size, write_quorum_size=write, ack_quorum_size=ack
                )
            except BookieError as error:
                self.cluster.note(f"calm: no ledger yet: {error}")
                await asyncio.sleep(0.2)
                continue
            self._kept.append(writer)
            self.ledgers.append(writer.ledger_id)
            if await self._append(
                client, writer, self._handle(client), random.Random(self.cluster.seed)
            ):
                return

    async def _look_at(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> None:
        """Read one ledger as the checker's last word."""
        metadata = reader.metadata
        while not await self._read_all(client, reader, handle):
            self.cluster.note(f"calm: ledger {metadata.ledger_id} cannot be read yet")
            await asyncio.sleep(0.5)
        entries = self.recorder._operations[-1].event.entries
        named = {name for fragment in metadata.fragments for name in fragment.bookies}
        copies = {
            bookie.host: await bookie.copies_of(metadata)
            for bookie in self.cluster.bookies
            if bookie.host in named
        }
        self._final.append(
            FinalLedger(
                ledger_id=metadata.ledger_id,
                state=_STATES[metadata.state],
                ensemble_size=metadata.ensemble_size,
                write_quorum_size=metadata.write_quorum_size,
                ack_quorum_size=metadata.ack_quorum_size,
                last_entry_id=metadata.last_entry_id,
                length=metadata.length,
                fragments=tuple(
                    FinalFragment(fragment.first_entry_id, tuple(fragment.bookies))
                    for fragment in metadata.fragments
                ),
                entries=entries,
                copies=copies,
            )
        )

    def _unfinished(self) -> list[int]:
        looked_at = {ledger.ledger_id for ledger in self._final}
        return [ledger_id for ledger_id in self.ledgers if ledger_id not in looked_at]


_STATES = {
    LedgerState.OPEN: FinalLedgerState.OPEN,
    LedgerState.IN_RECOVERY: FinalLedgerState.IN_RECOVERY,
    LedgerState.CLOSED: FinalLedgerState.CLOSED,
}


def simulate_cluster(seed: int, swarm: ClusterSwarm | None = None) -> ClusterOutcome:
    """One seed; `problems` of the outcome say what is wrong."""
    swarm = swarm or draw_cluster(seed)
    loop = simulated_loop(seed, swarm.mode)
    network = SimulatedNetwork(loop, seed)
    cluster = SimulatedCluster(
        loop,
        network,
        seed,
        swarm.bookies,
        interleaving=swarm.interleaving,
        storage=swarm.storage,
        sync_seconds=swarm.sync_seconds,
    )
    script = ClusterScript(cluster, swarm)
    outcome = ClusterOutcome(seed, counts=cluster.counts, notes=cluster.notes)
    PROCESS.set(SimulatedProcess("director"))
    with (
        seeded_world(loop, network, seed, cluster.open_store) as clock,
        observed(ClusterObservers(cluster.counts, script.recorder)),
    ):
        cluster.clock = clock
        try:
            final = loop.run(script.run())
        finally:
            outcome.virtual_seconds, outcome.steps = loop.time(), loop.steps
            outcome.trace = loop.trace
            loop.close()
            cluster.forget()
    outcome.problems = script.problems
    outcome.problems += [f"a handler raised {error!r}" for error in network.unexpected]
    outcome.problems += ["".join(format_exception(error)) for error in cluster.unexpected]
    outcome.history = script.recorder.history(final)
    result: CheckResult = check_ledgers(outcome.history)
    if result.verdict is not HistoryVerdict.VALID:
        outcome.problems.append(result.describe())
    return outcome


def main(arguments: list[str]) -> int:
    """Run one seed: ``SEED [-v]``."""
    logging.disable(logging.CRITICAL)
    outcome = simulate_cluster(int(arguments[0]))
    if len(arguments) > 1:
        print("\n".join(outcome.notes))
        print(dict(sorted(outcome.counts.items())))
        print(f"{outcome.virtual_seconds:.1f} virtual seconds, {outcome.steps} steps")
        for line in "\n".join(outcome.problems).splitlines():
            print(line[:LINE_MAX])
    print(outcome.trace)
    return bool(outcome.problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

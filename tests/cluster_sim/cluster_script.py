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
from bookie.entry.digest import derive_key, is_password
from bookie.errors import BookieError, UnauthorizedError
from bookie.ids import Status
from bookie.ledger.catalog.deletion_proofs import find_proofs
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.replica_fill import ReplicaFill
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.memory.backend import MemoryStore
from bookie.testing.simulation.cluster_faults import ClusterFaults
from bookie.testing.simulation.loop import simulated_loop
from bookie.testing.simulation.seeded_world import seeded_world
from bookie.testing.simulation.simulated_cluster import (
    STORE_NAME,
    SimulatedBookie,
    SimulatedClient,
    SimulatedCluster,
)
from bookie.testing.simulation.simulated_network import PROCESS, SimulatedNetwork, SimulatedProcess
from bookie.wire.commands import ReadCommand
from tests.cluster_sim.cluster_observers import ClusterObservers, observed
from tests.cluster_sim.cluster_swarm import ClusterSwarm, draw_cluster, draw_frames
from tests.cluster_sim.lives_of_ids import LATER_LIFE
from tests.cluster_sim.recorded_calls import OPERATION_SECONDS_MAX, RecordedCalls
from tests.cluster_sim.stored_copies import stored_copies
from tests.ledger_history.ledger_checker import CheckResult, HistoryVerdict, check_ledgers
from tests.ledger_history.ledger_events import (
    BookieEvent,
    BookieEventKind,
    FinalFragment,
    FinalLedger,
    FinalLedgerState,
    FinalState,
    HistoryRecorder,
    LedgerHistory,
)

CALM_SECONDS = 60.0
"""Within this time after the last fault everything has to work."""

GRACE_SECONDS = 20.0
"""How long clients have to end by themselves when the chaos is over."""

HOPELESS_SECONDS = 3.0
"""After these a ledger is given up whose id had another ledger before."""

LINE_MAX = 240
"""What is shown of a line."""

PASSWORDS = (b"", b"sesame")
WRONG_PASSWORD = b"simsim"


async def deleted_leftovers(cluster: SimulatedCluster, ledger_ids: set[int]) -> list[str]:
    """Return a sentence for each of the ledgers that a bookie still stores.

    Bookies that are not running also get a sentence. If there is a sentence, the function wakes
    garbage collectors.
    """
    left = []
    for bookie in cluster.bookies:
        if bookie.node is None or bookie.garbage is None:
            left.append(f"{bookie.host} is away")
            continue
        try:
            async for rows in bookie.node.list_ledgers(-1):
                found = [row.ledger_id for row in rows if row.ledger_id in ledger_ids]
                left += [f"{bookie.host} stores {ledger_id}" for ledger_id in found]
        except OSError as error:  # the bookie's process is ending
            left.append(f"{bookie.host}: {error}")
        if left:
            # The collector pauses for long after a slow listing.
            bookie.garbage.wake()
    return left


DELETION_GRACE_SECONDS = 60.0
"""Until then a bookie that cannot list the ledgers may take appends to a deleted one."""


class VanishedError(Exception):
    """The client's process is gone."""


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
    command: str = "make sim SEED="
    """Shows a seed again."""

    def describe(self) -> str:
        """For the message of a failed test."""
        story = "\n".join(self.notes)
        problems = "\n".join(self.problems)
        return f"{story}\n{problems}\n{self.command}{self.seed} shows it again"


class ClusterScript:
    """One seed from its start to its end."""

    calm_seconds = CALM_SECONDS

    def __init__(self, cluster: SimulatedCluster, swarm: ClusterSwarm) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.recorder = HistoryRecorder(cluster.loop.time)
        self.problems: list[str] = []
        self.calls = RecordedCalls(cluster, self.recorder)
        self._calm = asyncio.Event()
        self._recovering: Counter[int] = Counter()
        self._final: list[FinalLedger] = []

    async def run(self) -> FinalState:
        """The whole story; what the metadata and a fresh client say at its end."""
        cluster, swarm = self.cluster, self.swarm
        await cluster.initialize()
        cluster.lost_replies = swarm.lost_replies
        faults = ClusterFaults(
            cluster, swarm.faults, swarm.fault_pause_seconds, swarm.losses_max, self._destroyed
        )
        faults.supervise()
        lives: list[Coroutine[Any, Any, None]] = []
        for role, count in (
            (self._write, swarm.writers),
            (self._recover, swarm.recoverers),
            (self._read, swarm.readers),
            (self._tail, swarm.tailers),
            (self._delete, swarm.deleters),
            (self._move, swarm.movers),
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
            async with asyncio.timeout(self.calm_seconds):
                await self._in_process("calm", self._end_calm)
        except TimeoutError:
            self.problems.append(
                f"after {self.calm_seconds:g} s without faults, not every ledger was recovered: "
                f"{self._unfinished()}"
            )
        await faults.end()
        return FinalState(ledgers=tuple(self._final), destroyed=frozenset(faults.lost))

    def _destroyed(self, bookie: SimulatedBookie) -> None:
        """Let the checker know that the bookie's promises end here."""
        kind = BookieEventKind.DISK_DESTROYED
        event = BookieEvent(bookie_id=bookie.host, kind=kind, epoch=bookie.lives)
        self.recorder.bookie(event)

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

    # --- writers -------------------------------------------------------------------------

    async def _write(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            size, write, ack = choose.choice(self.swarm.quorums)
            password = choose.choice(PASSWORDS)
            is_deferred = choose.random() < self.swarm.deferred_share
            try:
                async with asyncio.timeout(OPERATION_SECONDS_MAX):
                    writer = await bookkeeper.create_ledger(
                        ensemble_size=size,
                        write_quorum_size=write,
                        ack_quorum_size=ack,
                        password=password,
                        digest_type=choose.choice(("crc32c", "hmac")),
                        deferred_sync=is_deferred,
                    )
            except (BookieError, TimeoutError):
                await asyncio.sleep(choose.uniform(0.1, 1.0))
                continue
            self.calls.keep(writer, password)
            deferred = " and deferred sync" if is_deferred else ""
            self.cluster.note(
                f"{client.host} creates {writer.ledger_id} with {size, write, ack}{deferred}"
            )
            await self._fill(client, writer, choose, is_deferred=is_deferred)

    async def _fill(
        self,
        client: SimulatedClient,
        writer: WriterHandle,
        choose: random.Random,
        *,
        is_deferred: bool,
    ) -> None:
        handle = self.calls.new_handle(client)
        appends: list[asyncio.Task[bool]] = []
        lane = self.cluster.loop.new_lane()
        pace = choose.choice(self.swarm.paces)
        for _ in range(choose.choice((3, 12, 30))):
            work = self.calls.append(client, writer, handle, choose, is_deferred=is_deferred)
            # In one lane the tasks hear of acknowledgements in their order.
            appends.append(self.cluster.loop.create_task_in_lane(lane, work, "append"))
            if choose.random() < 0.5:
                await asyncio.wait(appends[-1:])
                if not appends[-1].result():
                    break
            if is_deferred and choose.random() < 0.3:
                await self.calls.force(client, writer, handle)
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
            await self.calls.close(client, writer, handle)
        await asyncio.wait(appends)

    # --- readers -------------------------------------------------------------------------

    async def _pick(self, choose: random.Random) -> int | None:
        """A ledger, mostly one of the newest."""
        await asyncio.sleep(choose.expovariate(1 / 0.7))
        if not self.calls.ledgers:
            return None
        newest = self.calls.ledgers[-3:]
        return choose.choice(newest if choose.random() < 0.8 else self.calls.ledgers)

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
                opened = await self.calls.open(client, bookkeeper, ledger_id, recover=True)
            finally:
                self._recovering[ledger_id] -= 1
            if opened is not None:
                await self.calls.read_all(client, *opened)
            if choose.random() < 0.1:
                client.vanish()
                raise VanishedError

    async def _read(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            if choose.random() < 0.2:
                await self._intrude(client, bookkeeper, ledger_id, choose)
            opened = await self.calls.open(client, bookkeeper, ledger_id, recover=False)
            if opened is None:
                continue
            for _ in range(choose.randint(1, 4)):
                await self.calls.read_all(client, *opened)
                await asyncio.sleep(choose.random())
                await self.calls.refresh(client, *opened)

    async def _intrude(
        self,
        client: SimulatedClient,
        bookkeeper: BookKeeper,
        ledger_id: int,
        choose: random.Random,
    ) -> None:
        """A wrong password opens nothing, and a bookie gives nothing for a wrong key."""
        with contextlib.suppress(BookieError, TimeoutError):
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                metadata = await bookkeeper.ledger_metadata(ledger_id)
                bookie_id = choose.choice(metadata.last_fragment.bookies)
                channel = bookkeeper._connected.pool.connection(bookie_id).channel()
                command = ReadCommand(ledger_id, 0, 0, master_key=derive_key(WRONG_PASSWORD))
                reply = await channel.read(command, timeout=1.0)
                if reply.batch is not None:
                    self.problems.append(f"{bookie_id} gave ledger {ledger_id} for a wrong key")
                self.cluster.counts["wrong key refused"] += reply.status is Status.UNAUTHORIZED
                try:
                    await bookkeeper.open_ledger(
                        ledger_id, password=WRONG_PASSWORD, recover=choose.random() < 0.5
                    )
                except UnauthorizedError:
                    self.cluster.count("wrong password refused")
                else:
                    self.problems.append(f"a wrong password opened ledger {ledger_id}")

    async def _tail(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            opened = await self.calls.open(client, bookkeeper, ledger_id, recover=False)
            if opened is None:
                continue
            reader, handle = opened
            try:
                async with asyncio.timeout(choose.uniform(1, OPERATION_SECONDS_MAX)):
                    async with contextlib.aclosing(reader.tail()) as entries:
                        async for entry in entries:
                            self.calls.tailed(client, reader, handle, entry)
            except (BookieError, TimeoutError) as error:
                self.calls.met(error, "deletion met by a reader")

    # --- deletion ------------------------------------------------------------------------

    async def _delete(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        while not self._calm.is_set():
            await asyncio.sleep(choose.expovariate(1 / 2.0))
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            if ledger_id in self.calls.used_again:
                continue
            done = await self.calls.delete(client, bookkeeper, ledger_id)
            if done and self.calls.deleted[ledger_id] == 1 and choose.random() < 0.5:
                self.calls.used_again.add(ledger_id)
                await self._use_again(client, bookkeeper, ledger_id, choose)

    async def _use_again(
        self,
        client: SimulatedClient,
        bookkeeper: BookKeeper,
        ledger_id: int,
        choose: random.Random,
    ) -> None:
        """Make a ledger with the id of one that was deleted a week ago, for whom proofs count."""
        async with MemoryStore(STORE_NAME, session_timeout_seconds=60.0) as store:
            layout = await LedgerManager(store)._read_layout()
            proofs = (await find_proofs(store, layout, [ledger_id])).get(ledger_id, [])
            for proof in proofs:
                await store.delete(proof.key)
            try:
                async with asyncio.timeout(OPERATION_SECONDS_MAX):
                    writer = await bookkeeper.create_ledger(ledger_id=ledger_id)
            except (BookieError, TimeoutError):
                if not await store.exists(layout.key(ledger_id)):
                    for proof in proofs:
                        await store.put(proof.key, proof.value)
                return
        self.calls.keep(writer)
        self.cluster.note(f"{client.host} makes another ledger {ledger_id}")
        await self._fill(client, writer, choose, is_deferred=False)

    # --- repair --------------------------------------------------------------------------

    async def _move(
        self, client: SimulatedClient, bookkeeper: BookKeeper, choose: random.Random
    ) -> None:
        """Take a bookie out of a ledger, whatever happens to it meanwhile, or fill its copy."""
        ledgers = bookkeeper._connected
        while not self._calm.is_set():
            ledger_id = await self._pick(choose)
            if ledger_id is None:
                continue
            with contextlib.suppress(BookieError, TimeoutError):
                async with asyncio.timeout(OPERATION_SECONDS_MAX):
                    metadata = await bookkeeper.ledger_metadata(ledger_id)
                    fragment = choose.choice(metadata.fragments)
                    bookie_id = choose.choice(fragment.bookies)
                    if choose.random() < 0.7:
                        done = await ReplicaMove(ledgers).run(ledger_id, {bookie_id}, None)
                    else:
                        done = await ReplicaFill(ledgers).run(ledger_id, bookie_id)
                    self.cluster.count(f"copies {done.outcome}")
            if choose.random() < 0.1:
                client.vanish()
                raise VanishedError

    # --- the end -------------------------------------------------------------------------

    async def _end_calm(self, client: SimulatedClient, bookkeeper: BookKeeper) -> None:
        """An append succeeds, every ledger is recovered, and everything can be read."""
        await self._append_once(client, bookkeeper)
        # Creations without a reply may have made more.
        listed = [ledger_id async for ledger_id in bookkeeper.list_ledgers()]
        self.calls.ledgers = sorted({*self.calls.ledgers, *listed})
        gone = set(self.calls.ledgers).difference(listed)
        for ledger_id in listed:
            if ledger_id not in self.calls.passwords:
                metadata = await bookkeeper.ledger_metadata(ledger_id)
                self.calls.passwords[ledger_id] = _password_of(metadata)
            opened = await self._opened(client, bookkeeper, ledger_id)
            if opened is None:
                gone.add(ledger_id)
            else:
                await self._look_at(client, *opened)
        await self._until_reclaimed(gone - self.calls.used_again)

    async def _opened(
        self, client: SimulatedClient, bookkeeper: BookKeeper, ledger_id: int
    ) -> tuple[ReaderHandle, str] | None:
        """A ledger that was recovered, however long that takes.

        None if bookies know a former ledger of its id, and the others are too few to decide where
        this one ends. Then an operator deletes it.
        """
        began = self.cluster.loop.time()
        while True:
            opened = await self.calls.open(client, bookkeeper, ledger_id, recover=True)
            if opened is not None:
                return opened
            waited = self.cluster.loop.time() - began
            if ledger_id in self.calls.used_again and waited >= HOPELESS_SECONDS:
                self.cluster.count("former life hides an end")
                if await self.calls.delete(client, bookkeeper, ledger_id):
                    return None
            await asyncio.sleep(0.2)

    async def _until_reclaimed(self, gone: set[int]) -> None:
        """Bookies give back the room of deleted ledgers."""
        while left := await deleted_leftovers(self.cluster, gone) if gone else []:
            self.cluster.note(f"calm: deleted ledgers are left: {left}")
            await asyncio.sleep(1.0)
        self._final += [
            FinalLedger(ledger_id=number, state=FinalLedgerState.DELETED, copies={})
            for number in sorted(self.calls.lives.numbers - self._looked_at())
        ]

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
            self.calls.keep(writer)
            if await self.calls.append(
                client, writer, self.calls.new_handle(client), random.Random(self.cluster.seed)
            ):
                return

    async def _look_at(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> None:
        """Read one ledger as the checker's last word."""
        metadata = reader.metadata
        while not await self.calls.read_all(client, reader, handle):
            self.cluster.note(f"calm: ledger {metadata.ledger_id} cannot be read yet")
            await asyncio.sleep(0.5)
        entries = self.recorder._operations[-1].event.entries
        named = {name for fragment in metadata.fragments for name in fragment.bookies}
        copies = {
            bookie.host: await stored_copies(bookie, metadata)
            for bookie in self.cluster.bookies
            if bookie.host in named
        }
        self._final.append(
            FinalLedger(
                ledger_id=self.calls.lives.of(metadata),
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

    def _looked_at(self) -> set[int]:
        return {ledger.ledger_id for ledger in self._final}

    def _unfinished(self) -> list[int]:
        looked_at = {number % LATER_LIFE for number in self._looked_at()}
        return [ledger_id for ledger_id in self.calls.ledgers if ledger_id not in looked_at]


_STATES = {
    LedgerState.OPEN: FinalLedgerState.OPEN,
    LedgerState.IN_RECOVERY: FinalLedgerState.IN_RECOVERY,
    LedgerState.CLOSED: FinalLedgerState.CLOSED,
}


def _password_of(metadata: LedgerMetadata) -> bytes:
    """The password of a ledger whose creation got no reply."""
    return next(
        one for one in PASSWORDS if is_password(one, metadata.password_key, metadata.c_token)
    )


def simulate_cluster(
    seed: int,
    swarm: ClusterSwarm | None = None,
    new_script: Callable[[SimulatedCluster, ClusterSwarm], ClusterScript] = ClusterScript,
) -> ClusterOutcome:
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
        by_frames=swarm.by_frames,
    )
    script = new_script(cluster, swarm)
    outcome = ClusterOutcome(seed, counts=cluster.counts, notes=cluster.notes)
    PROCESS.set(SimulatedProcess("director"))
    with (
        seeded_world(loop, network, seed, cluster.open_store) as clock,
        observed(
            ClusterObservers(cluster.counts, script.recorder, cluster.fenced, script.calls.lives)
        ),
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
    cluster.counts["late request of an old connection"] += network.late_adds
    cluster.counts["add by frames"] += network.framed_adds
    cluster.counts["late add by frames"] += network.late_framed_adds
    outcome.history = script.recorder.history(final, deletion_grace_seconds=DELETION_GRACE_SECONDS)
    result: CheckResult = check_ledgers(outcome.history)
    if result.verdict is not HistoryVerdict.VALID:
        outcome.problems.append(result.describe())
    return outcome


def main(arguments: list[str]) -> int:
    """Run one seed: ``SEED [--frames] [-v]``."""
    logging.disable(logging.CRITICAL)
    seed = int(arguments[0])
    outcome = simulate_cluster(seed, draw_frames(seed) if "--frames" in arguments else None)
    return show_outcome(outcome, with_story="-v" in arguments)


def show_outcome(outcome: ClusterOutcome, *, with_story: bool) -> int:
    """Print the checksum of a seed; the exit code of the program."""
    if with_story:
        print("\n".join(outcome.notes))
        print(dict(sorted(outcome.counts.items())))
        print(f"{outcome.virtual_seconds:.1f} virtual seconds, {outcome.steps} steps")
        for line in "\n".join(outcome.problems).splitlines():
            print(line[:LINE_MAX])
    print(outcome.trace)
    return bool(outcome.problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

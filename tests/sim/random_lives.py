"""Random lives of one bookie: clients, checkpoints, crashes and faults as a seed chooses them.

Each seed draws a swarm: a set of features, where those left out let the rest go deeper. Features
are how the loop schedules, how far threads interleave, what clients do, how large files are, and
how devices fail. A life ends at a random call of the disk; the next one must keep every promise of
those before.

Run as a program with a seed it prints the checksum of everything that happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from bookie.errors import BookieError, DiskFullError, StorageFailedError
from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.testing.simulation.disk_faults import Room
from bookie.testing.simulation.loop import Mode
from bookie.testing.simulation.machine import KIB, Left, SimulatedMachine
from bookie.testing.simulation.platter import Cut
from tests.sim.observed import adopt, check
from tests.sim.promises import Client, Frozen, LedgerPromise, Promises, packets_of

ACTIONS = (
    "add",
    "add",
    "add",
    "big",
    "deferred",
    "recovery",
    "again",
    "read",
    "read",
    "fence",
    "limbo",
    "delete",
    "lac",
    "force",
    "checkpoint",
    "compact",
    "wait",
)

IDS_MAX = 60

PASSES = (0, 0, 1, 3, 10, 30)
"""How many calls may go well before the one that fails."""

PASSES_RARELY = (0, 0, 1)
"""The same for calls that a life makes once or twice."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A way in which a device may fail: a call of the disk, and a kind of `Fault`."""

    call: str
    kind: str = "error"
    errno: int = errno.EIO

    def __str__(self) -> str:
        how = errno.errorcode[self.errno] if self.kind == "error" else self.kind
        return f"{self.call} {how}"


FAILURES = (
    *(Failure(call) for call in ("pwritev", "fdatasync", "kv_write", "kv_sync", "kv_meta")),
    *(Failure(call) for call in ("create", "rename", "unlink", "truncate", "sync_directory")),
    *(Failure(call) for call in ("allocate", "drop_cache", "pread", "open", "mkdir")),
    *(
        Failure(call, errno=errno.ENOSPC)
        for call in (
            *("pwritev", "fdatasync", "create", "rename", "allocate"),
            *("kv_write", "kv_sync", "kv_meta"),
        )
    ),
    *(Failure(call, "revert") for call in ("fdatasync", "drop_cache", "kv_meta")),
    *(Failure(call, "stall") for call in ("pwritev", "fdatasync", "kv_sync", "pread")),
)
"""Each of them strikes in one of the seeds that run by default."""

RARELY = ("allocate", "truncate", "drop_cache", "mkdir")

AT_BOOT_ONLY = ("drop_cache", "mkdir")

LOSES = ("fdatasync", "drop_cache")
"""What was not synced is lost when these fail, and a kill is enough for that."""


LIES = ("lost", "misdirected", "flip")
"""Kinds of faults that nobody is told of."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one seed draws."""

    mode: Mode
    interleaving: float
    cold: float
    clients: int
    actions: tuple[str, ...]
    changes: dict[str, object]
    calls_max: int
    """A life ends at the latest at this call of the disk, unless its clients are done before."""
    faults: tuple[Failure, ...] = ()
    old_room: bool = False
    """Whether reserved room shows what stood there before."""
    room_bytes: int = 0
    """Size of the device when it may be full, else 0."""


def draw(seed: int, *, faults: bool = False, lies: bool = False) -> Swarm:
    """The features of a seed; with `faults` devices may fail, with `lies` they may also lie."""
    choose = random.Random(f"swarm/{seed}")
    kinds = tuple(item for item in dict.fromkeys(ACTIONS) if choose.random() < 0.75) or ("add",)
    changes: dict[str, object] = {
        "journal_file_bytes_max": choose.choice((64, 128, 192)) * KIB,
        "journal_allocate_bytes": 64 * KIB,
        "block_bytes_max": choose.choice((4, 16, 64)) * KIB,
        "checkpoint_journal_bytes": choose.choice((64, 128, 1024)) * KIB,
        "checkpoint_interval_seconds": choose.choice((0.01, 0.5, 3600.0)),
        "idle_marker_seconds": choose.choice((0.005, 1.0, 3600.0)),
        "reserve_bytes": choose.choice((0, 128 * KIB)),
        "compaction_interval_seconds": choose.choice((0.01, 10.0)),
        "compaction_bytes_per_second": choose.choice((1 << 20, 1 << 30)),
    }
    armed: list[Failure] = []
    if faults:
        # Seeds take turns, so that none is left out; what else may fail is chance.
        armed += [item for item in FAILURES if choose.random() < 0.1]
        armed.append(FAILURES[seed % len(FAILURES)])
    if lies:
        armed.append(Failure("pwritev", LIES[seed % len(LIES)]))
    return Swarm(
        mode=choose.choice(list(Mode)),
        interleaving=choose.choice((0.0, 0.1, 0.4, 0.8)),
        cold=choose.choice((0.0, 0.2)),
        clients=choose.randint(1, 4),
        actions=tuple(item for item in ACTIONS if item in kinds),
        changes=changes,
        calls_max=choose.choice((30, 100, 400)),
        faults=tuple(armed),
        old_room=choose.random() < 0.5,
        room_bytes=choose.choice((0, 0, 0, 128, 192, 256)) * KIB if faults else 0,
    )


@dataclass(slots=True)
class Outcome:
    """What happened, for the summary and for comparing two runs."""

    lives: int = 0
    requests: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    """How often each call failed, by its name and the way in which it did."""
    reported: int = 0
    """Lives that noticed that something durable was destroyed."""
    trace: int = 0
    traces: list[int] = field(default_factory=list)


class RandomLives:
    """A bookie, its clients, and what they were promised."""

    def __init__(self, seed: int, swarm: Swarm) -> None:
        self.swarm = swarm
        self.seed = seed
        self.choose = random.Random(f"lives/{seed}")
        self.promises = Promises()
        self.left = Left()
        self.outcome = Outcome()
        self.power = False

    def run(self, lives: int) -> Outcome:
        """Live `lives` times, each on what the last one left; then look once more."""
        for number in range(lives + 1):
            self._live(number, last=number == lives)
        return self.outcome

    # --- one life ------------------------------------------------------------------------

    def _live(self, number: int, *, last: bool) -> None:
        swarm, choose = self.swarm, self.choose
        machine = SimulatedMachine(
            self.left,
            self.seed * 1000 + number,
            mode=swarm.mode,
            interleaving=swarm.interleaving,
            cold=swarm.cold,
            rooms=self._rooms(last=last),
            old_room=swarm.old_room,
            changes=swarm.changes,
        )
        if not last and choose.random() < 0.5:
            self._arm(machine, booting=True)
        ends_at = 10**9 if last else choose.randint(1, swarm.calls_max)
        found: list[Left] = []

        def before(name: str, path: str) -> None:
            if machine.disk.calls >= ends_at and not found:
                self.promises.look()
                found.append(machine.leaves())
                machine.disk.die()

        machine.disk.moments = before
        self._go(machine, last=last)
        self.promises.forget_requests()
        self.outcome.lives += 1
        self._count(machine)
        self.outcome.trace = machine.loop.trace
        self.outcome.traces.append(machine.loop.trace)
        self.left = found[0] if found else machine.leaves()
        if any(item.struck and item.name in LOSES for item in machine.disk.faults):
            self.promises.lose_power()
        self.power = choose.random() < 0.6
        if self.power:
            self.left = self.left.after_power_cut(Cut(choose))
            self.promises.lose_power()
        else:
            self.left = self.left.after_kill(choose)

    def _count(self, machine: SimulatedMachine) -> None:
        """Note what went wrong."""
        struck = self.outcome.struck
        for fault in machine.disk.faults:
            struck[str(Failure(fault.name, fault.kind, fault.errno))] += fault.struck
        struck["device full"] += machine.disk.refused

    def _go(self, machine: SimulatedMachine, *, last: bool) -> None:
        """Live until the end, which a failure of the storage may be."""
        try:
            if last:
                machine.die_after(self._look)
            elif self.choose.random() < 0.3:
                machine.live(lambda engine: self._work(engine, machine))
                self.promises.stop_in_order()
            else:
                machine.die_after(lambda engine: self._work(engine, machine))
        except BaseException as error:
            if machine.disk.dead and not is_lie(error):
                return
            if not is_failure(error) or last:
                raise AssertionError(f"seed {self.seed}, life {self.outcome.lives}") from error

    def _rooms(self, *, last: bool) -> tuple[Room, ...]:
        if not self.swarm.room_bytes or last:
            return (Room(""),)
        return (Room("", self.swarm.room_bytes),)

    def _arm(self, machine: SimulatedMachine, *, booting: bool) -> None:
        """Arm faults of this seed, for the start or, once it is over, for what comes then."""
        choose, disk = self.choose, machine.disk
        for item in self.swarm.faults:
            if choose.random() < 0.3 or (item.call in AT_BOOT_ONLY and not booting):
                continue
            disk.fail(
                *(item.call, "", item.kind),
                errno=item.errno,
                passes=choose.choice(PASSES_RARELY if item.call in RARELY else PASSES),
                seconds=choose.choice((0.01, 1.0, 20.0, 90.0)),
                times=3 if item.kind == "stall" else 1,
            )

    async def _look(self, engine: Engine) -> None:
        await check(engine, self.promises.frozen(), power=self.power)

    async def _adopt(self, engine: Engine) -> Frozen:
        return await adopt(engine, self.promises.ledgers)

    async def _work(self, engine: Engine, machine: SimulatedMachine) -> None:
        for fault in machine.disk.faults:
            # It was for the start.
            fault.times = 0
        await self._look(engine)
        self.promises.ledgers = await self._adopt(engine)
        for ledger_id in self.promises.ledgers:
            self.promises.of(ledger_id)
        self._arm(machine, booting=False)
        client = Client(engine, self.promises)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.swarm.clients):
                choose = random.Random(f"{self.seed}/{self.outcome.lives}/{number}")
                tasks.create_task(self._client(client, number, choose))

    # --- what clients do -----------------------------------------------------------------

    async def _client(self, client: Client, number: int, choose: random.Random) -> None:
        """One client; its ledgers are nobody else's, so that it knows the right answers."""
        for _ in range(choose.randint(1, 40)):
            if client.engine.failure is not None:
                raise StorageFailedError("the engine failed")
            ledger_id = number * 10 + choose.randint(1, 3)
            self.outcome.requests += 1
            with contextlib.suppress(DiskFullError):
                await self._act(client, ledger_id, choose)

    async def _act(self, client: Client, ledger_id: int, choose: random.Random) -> None:
        first = choose.randrange(IDS_MAX)
        ids = range(first, first + choose.randint(1, 6))
        action = choose.choice(self.swarm.actions)
        match action:
            case "add":
                await client.add(ledger_id, self._unused(ledger_id, ids))
            case "big":
                size = choose.choice((600, 3000))
                await client.add(ledger_id, self._unused(ledger_id, ids), size=size)
            case "deferred":
                await client.add(ledger_id, self._unused(ledger_id, ids), deferred=True)
            case "recovery":
                await client.add(ledger_id, ids, recovery=True, salt=choose.randint(0, 3))
            case "again":
                reply = await client.add(ledger_id, ids, salt=choose.choice((0, 0, 5)))
                assert reply.status is not Status.UNAUTHORIZED
            case "read":
                await self._read(client, ledger_id, first)
            case "lac":
                await client.publish_lac(ledger_id, first)
            case _:
                await self._act_rarely(client, ledger_id, action, choose)

    async def _act_rarely(
        self, client: Client, ledger_id: int, action: str, choose: random.Random
    ) -> None:
        match action:
            case "fence" if choose.random() < 0.2:
                await client.fence(ledger_id)
            case "limbo" if choose.random() < 0.3:
                await client.limbo(ledger_id, on=choose.random() < 0.6)
            case "delete" if choose.random() < 0.1:
                await client.delete(ledger_id)
            case "force":
                await client.force()
            case "checkpoint":
                await client.checkpoint()
            case "compact" if choose.random() < 0.5:
                await client.compact()
            case _:
                await asyncio.sleep(choose.choice((0.0, 0.001, 0.02)))

    def _unused(self, ledger_id: int, ids: range) -> list[int]:
        """Ids above everything that this client ever sent, mostly."""
        promise = self.promises.ledgers.get(ledger_id, LedgerPromise())
        used = [*promise.stored, *promise.written, *promise.tried]
        start = max(used, default=-1) + 1
        return [start + item - ids.start for item in ids]

    async def _read(self, client: Client, ledger_id: int, first: int) -> None:
        """A read while everything else goes on: no lie about what was acknowledged before."""
        state = await client.engine.load(ledger_id)
        if state.deleted:
            return
        self.promises.look()
        before = self.promises.of(ledger_id).copy()
        result = await client.engine.read(
            state, first, first + 20, entries_max=21, bytes_max=1 << 20
        )
        if result.batch is not None:
            for entry_id, packet in packets_of(result.batch).items():
                allowed = before.allowed(entry_id) + self.promises.of(ledger_id).allowed(entry_id)
                assert packet in allowed, f"ledger {ledger_id}: entry {entry_id} is another"
        if result.stopped_by is Status.NO_SUCH_ENTRY:
            certain = before.stored.keys() | before.written.keys()
            assert result.next_entry_id not in certain, f"{ledger_id}/{result.next_entry_id}"


def is_lie(error: BaseException) -> bool:
    """Whether an assertion of ours or of the engine is among the errors."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_lie(item) for item in error.exceptions)
    return isinstance(error, AssertionError)


def is_failure(error: BaseException) -> bool:
    """Whether that is what an engine raises when its disk fails, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_failure(item) for item in error.exceptions)
    return isinstance(error, BookieError)


def simulate(seed: int, lives: int = 4, *, faults: bool = False) -> Outcome:
    """Some lives of one seed."""
    return RandomLives(seed, draw(seed, faults=faults)).run(lives)


if __name__ == "__main__":
    result = simulate(int(sys.argv[1]), faults=len(sys.argv) > 2)
    print(" ".join(map(str, result.traces)))

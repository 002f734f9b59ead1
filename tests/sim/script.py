"""A workload that does everything an engine can be asked for, over several lives of one bookie.

Each life ends in its own way: stopped in order, killed, without power, killed while it starts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.testing.simulation.loop import Mode
from bookie.testing.simulation.machine import KIB, Left, SimulatedMachine
from bookie.testing.simulation.platter import Cut
from bookie.wire.commands import Reply
from tests.sim.crash_images import Moment, Recorder
from tests.sim.observed import adopt, check
from tests.sim.promises import Client, Promises

IDLE_MARKER_SECONDS = 0.01

Life = Callable[[Client], Awaitable[None]]


async def first_life(client: Client) -> None:
    """Adds of every kind, alone and together; a checkpoint in between."""
    await client.add(1, range(4))
    await client.add(1, range(4, 8), size=700)
    await client.add(2, [0, 2, 5], deferred=True)
    await client.add(2, [6, 7], deferred=True, size=1500)
    await client.force()
    async with asyncio.TaskGroup() as tasks:
        for ledger_id in (1, 2, 3, 4):
            tasks.create_task(client.add(ledger_id, range(10, 14), size=300))
        tasks.create_task(client.add(5, range(3), deferred=True))
    await client.publish_lac(1, 7)
    await client.checkpoint()
    await client.add(1, [4, 5, 6, 7], size=700)
    reply = await client.add(1, [4], size=700, salt=9)
    assert reply.status is Status.CONFLICT
    await client.add(1, [2, 3, 14], recovery=True, salt=1)
    await client.add(2, [8], deferred=True)
    await client.publish_lac(2, 6)
    await client.add(3, [20], lac=19)


async def fences_and_doubts(client: Client) -> None:
    """Fences of ledgers known and unknown, doubt, deletion; a journal file that is full."""
    await client.fence(1)
    await client.fence(50)
    reply = await client.add(1, [15])
    assert reply.status is Status.FENCED
    await client.add(1, [15], recovery=True)
    await client.limbo(3, on=True)
    await client.add(60, range(5), deferred=True)
    await client.limbo(60, on=True)
    await client.limbo(3, on=False)
    await client.delete(4)
    for number in range(5):
        await client.add(6, range(number * 10, number * 10 + 8), size=1900)
    await client.add(7, range(3), deferred=True, size=900)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.add(6, range(100, 106), size=2000))
        tasks.create_task(client.fence(7))
        tasks.create_task(client.add(8, range(2)))
    await client.checkpoint()
    await client.delete(6)
    await client.checkpoint()
    await client.add(8, [2, 3])
    await client.compact()
    await client.add(8, [4, 5], size=900)
    await client.add(8, [4], size=900, recovery=True, salt=2)


async def compacted_in_parallel(client: Client) -> None:
    """Files are emptied while entries come, are overwritten, and ledgers go."""
    for number in range(3):
        await client.add(30 + number, range(8), size=1500)
        await client.add(33, range(number * 5, number * 5 + 5), size=800)
    await client.delete(30)
    await client.checkpoint()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.compact())
        tasks.create_task(client.add(33, [0, 1], size=800, recovery=True, salt=4))
        tasks.create_task(client.add(31, range(8, 11)))
        tasks.create_task(client.delete(32))
        tasks.create_task(client.fence(31))
        tasks.create_task(client.checkpoint())
    await client.compact()
    await client.add(33, [40, 41], deferred=True)
    await client.compact()
    await client.delete(33)
    await client.compact()


async def until_files_die(client: Client) -> None:
    """Deletes what old files hold, so that checkpoints remove them; rolls several times."""
    for ledger_id in (1, 2, 3):
        await client.delete(ledger_id)
    await client.checkpoint()
    await client.add(9, range(8), size=1900)
    await client.checkpoint()
    for number in range(4):
        await client.add(10, range(number * 8, number * 8 + 8), size=1900)
        await client.add(9, [20 + number], deferred=True)
    await client.checkpoint()
    await client.delete(10)
    await client.checkpoint()
    await client.checkpoint()
    await client.limbo(9, on=True)
    await client.add(9, [0, 1], recovery=True, salt=3)
    await client.add(11, range(2), deferred=True)


async def last_life(client: Client) -> None:
    """A little of everything, on top of all that was."""
    await client.add(11, range(2, 5))
    await client.fence(11)
    await client.add(12, range(6), deferred=True)
    await client.checkpoint()
    await client.add(12, range(6, 8), deferred=True)


class Improviser(Client):
    """A client that plays the script with other sizes, and something of its own in between."""

    def __init__(self, engine: Engine, promises: Promises, seed: int, choose: random.Random):
        super().__init__(engine, promises)
        self._seed = seed
        self._choose = choose
        self._next = 0

    async def add(
        self,
        ledger_id: int,
        ids: Iterable[int],
        *,
        size: int = 40,
        salt: int = 0,
        recovery: bool = False,
        deferred: bool = False,
        lac: int | None = None,
    ) -> Reply:
        """As the script says, but for the size; equal entries stay equal."""
        factor = random.Random(f"{self._seed}/{ledger_id}/{size}").choice((0.4, 1, 1, 1.3))
        await self._improvise()
        return await super().add(
            ledger_id,
            ids,
            size=round(size * factor),
            salt=salt,
            recovery=recovery,
            deferred=deferred,
            lac=lac,
        )

    async def _improvise(self) -> None:
        draw = self._choose.random()
        self._next += 1
        ids = range(self._next * 4, self._next * 4 + 3)
        if draw < 0.06:
            await self.checkpoint()
        elif draw < 0.12:
            await super().add(70, ids, size=self._choose.choice((20, 600, 2500)), deferred=True)
        elif draw < 0.16:
            await super().add(71, ids, recovery=True, salt=self._choose.randrange(3))
        elif draw < 0.2:
            await asyncio.sleep(2 * IDLE_MARKER_SECONDS)


@dataclass(frozen=True, slots=True)
class Chapter:
    """One life and its end."""

    life: Life
    end: str
    """``stop``, ``kill`` or ``power``."""


CHAPTERS = (
    Chapter(first_life, "kill"),
    Chapter(fences_and_doubts, "power"),
    Chapter(compacted_in_parallel, "kill"),
    Chapter(until_files_die, "stop"),
    Chapter(last_life, "power"),
    Chapter(last_life, "stop"),
)


def changes_of(seed: int) -> dict[str, object]:
    """The settings of one recording: small files, and boots that commit in small batches."""
    return {
        "journal_file_bytes_max": (64 * KIB, 192 * KIB)[seed % 2],
        "journal_allocate_bytes": 64 * KIB,
        "block_bytes_max": (16 * KIB, 4 * KIB)[seed // 2 % 2],
        "checkpoint_entries": (1_000_000, 25)[seed // 2 % 2],
        "idle_marker_seconds": IDLE_MARKER_SECONDS,
        "compaction_bytes_per_second": 1 << 30,
    }


def record(
    seed: int,
    *,
    mode: Mode = Mode.FIFO,
    interleaving: float = 0.0,
    old_room: bool = False,
    chapters: tuple[Chapter, ...] = CHAPTERS,
    prepare: Callable[[SimulatedMachine], None] = lambda _: None,
) -> list[Moment]:
    """Play the chapters and return every moment; `prepare` may break each machine first.

    With `old_room` what is reserved for a file shows what stood there before.
    """
    choose = random.Random(f"script/{seed}")
    changes = changes_of(seed)
    promises = Promises()
    recorder = Recorder(promises)
    left, power = Left(), False
    for number, chapter in enumerate(chapters):
        machine = SimulatedMachine(
            *(left, seed * 100 + number),
            mode=mode,
            interleaving=interleaving,
            old_room=old_room,
            changes=changes,
        )
        prepare(machine)
        recorder.watch(machine)
        live = machine.live if chapter.end == "stop" else machine.die_after
        live(_chapter(chapter, promises, seed, choose, power=power))
        promises.forget_requests()
        power = chapter.end == "power"
        left = machine.leaves()
        if power:
            left = left.after_power_cut(Cut(choose))
            promises.lose_power()
        elif chapter.end == "kill":
            left = left.after_kill(choose)
        else:
            promises.stop_in_order()
    return recorder.moments


def _chapter(
    chapter: Chapter, promises: Promises, seed: int, choose: random.Random, *, power: bool
) -> Callable[[Engine], Awaitable[None]]:
    async def life(engine: Engine) -> None:
        await check(engine, promises.frozen(), power=power)
        promises.ledgers = await adopt(engine, promises.ledgers)
        for ledger_id in promises.ledgers:
            promises.of(ledger_id)
        await chapter.life(Improviser(engine, promises, seed, choose))

    return life

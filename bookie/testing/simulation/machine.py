"""One life of a process on a simulated machine, with clock, disk, key-value store and workers.

A life begins with an image of the disk, and ends with an orderly stop, a kill, or a power cut. The
next life is a new `SimulatedMachine` with the state that the last life left. The engine is the real
code.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from bookie.config import StorageSettings
from bookie.env import Environment, Failpoints, KeyValueStore
from bookie.node.engine import checkpoint, file_removal
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.directories import locked_directories
from bookie.node.engine.engine import Engine, open_engine
from bookie.node.engine.index.opening import make_index
from bookie.telemetry import Metrics
from bookie.testing.simulation.disk import SimulatedDisk
from bookie.testing.simulation.disk_faults import Room
from bookie.testing.simulation.loop import Mode, SimulatedLoop, simulated_loop
from bookie.testing.simulation.platter import Cut, Image, kill, power_cut
from bookie.testing.simulation.store import open_store
from bookie.testing.simulation.workers import SimulatedWorkers

T = TypeVar("T")

KIB, MIB = 1024, 1024 * 1024
JOURNAL, LEDGERS = "/d/journal", "/d/ledgers"
BOOKIE_ID = "b1"
INSTANCE_ID = "5c2b0c1e-0000-4000-8000-000000000001"
EPOCH_MS = 1_700_000_000_000

SETTINGS: dict[str, object] = {
    "journal_dir": Path(JOURNAL),
    "ledgers_dir": Path(LEDGERS),
    "journal_file_bytes_max": 64 * KIB,
    "block_bytes_max": 16 * KIB,
    "checkpoint_journal_bytes": MIB,
    "checkpoint_interval_seconds": 3600.0,
    "idle_marker_seconds": 3600.0,
    "reserve_bytes": 0,
    "page_cache_bytes": 128 * KIB,
    "index_map_bytes": 64 * MIB,
    "read_threads": 1,
}
"""Settings for small files, without checkpoints or idle markers unless a test requests them."""


@contextmanager
def small_steps() -> Iterator[None]:
    """Reduce the steps of space reclaiming, for files a thousand times smaller than real files."""
    before = file_removal.STEP_BYTES, checkpoint.RELOCATED_ENTRIES
    file_removal.STEP_BYTES, checkpoint.RELOCATED_ENTRIES = 16 * KIB, 8
    try:
        yield
    finally:
        file_removal.STEP_BYTES, checkpoint.RELOCATED_ENTRIES = before


class DiedError(Exception):
    """The process was killed, or the machine lost power; the process must not catch this error."""


@dataclass(slots=True)
class SimulatedClock:
    """A clock in virtual time, with nonces from the seed and a new boot id at each power-on."""

    loop: SimulatedLoop
    choose: random.Random
    boot: str
    started: float
    """The wall-clock time when the loop's clock shows 0, in seconds since `EPOCH_MS`."""

    def monotonic(self) -> float:
        """Return the virtual seconds of the loop, which several machines may share."""
        return self.loop.time()

    def now_ms(self) -> int:
        """Return virtual milliseconds since 1970; if a test changes `started`, this time jumps."""
        return EPOCH_MS + round((self.started + self.loop.time()) * 1000)

    def nonce(self) -> bytes:
        return self.choose.randbytes(16)

    def boot_id(self) -> str:
        """Return an id that changes only when the machine is switched off and on."""
        return self.boot


@dataclass(frozen=True, slots=True)
class Left:
    """The state at the end of a life, with which the next life begins."""

    image: Image = field(default_factory=Image)
    boots: int = 1
    """The number of times that the machine was switched on."""
    seconds: float = 0.0
    """The wall-clock time when the next life's loop shows 0, in seconds since `EPOCH_MS`."""
    lives: int = 0
    stamped: bool = False
    """True if the bookie's cookie in the metadata store says READY."""

    def after_power_cut(self, cut: Cut) -> Left:
        return replace(self, image=power_cut(self.image, cut), boots=self.boots + 1)

    def after_kill(self, choose: random.Random | None = None) -> Left:
        return replace(self, image=kill(self.image, choose))


_settings: dict[tuple[tuple[str, object], ...], StorageSettings] = {}
_metrics: list[Metrics] = []


def settings_with(**changes: object) -> StorageSettings:
    """Return `SETTINGS` with `changes`; equal changes give the same object."""
    key = tuple(sorted(changes.items()))
    found = _settings.get(key)
    if found is None:
        found = _settings[key] = StorageSettings.model_validate(SETTINGS | changes)
    return found


def shared_metrics() -> Metrics:
    """Return metrics shared by all machines, because their creation takes longer than a start."""
    if not _metrics:
        _metrics.append(Metrics())
    return _metrics[0]


class SimulatedMachine:
    """One life of a process on a simulated machine; all randomness comes from `seed`.

    The machines of a cluster have the same `loop`; if `loop` is None, the machine creates its own.
    """

    def __init__(
        self,
        left: Left | None = None,
        seed: int = 0,
        *,
        loop: SimulatedLoop | None = None,
        mode: Mode = Mode.FIFO,
        interleaving: float = 0.0,
        cold: float = 0.0,
        rooms: tuple[Room, ...] = (Room(""),),
        old_room: bool = False,
        changes: dict[str, object] | None = None,
    ) -> None:
        self.left = left or Left()
        self.stamped = self.left.stamped
        self.loop = loop or simulated_loop(seed, mode)
        choose = random.Random(f"machine/{seed}/{self.left.lives}")
        self.clock = SimulatedClock(self.loop, choose, f"boot-{self.left.boots}", self.left.seconds)
        self.workers = SimulatedWorkers(self.loop, seed, interleaving)
        reads = random.Random(f"reads/{seed}")
        self.disk = SimulatedDisk(
            self.left.image,
            rooms,
            pause=self.workers.pause,
            block=self.loop.block,
            note=self.loop.note,
            cold=lambda: cold > 0 and reads.random() < cold,
            old_room=random.Random(f"room/{seed}/{self.left.lives}") if old_room else None,
        )
        self.settings = settings_with(**(changes or {}))
        self.metrics = shared_metrics()

    @property
    def environment(self) -> Environment:
        def open_kv(
            directory: str, map_bytes: int, tables: tuple[str, ...], trusted: bool
        ) -> KeyValueStore:
            return open_store(self.disk, directory, tables)

        return Environment(self.clock, self.disk, self.workers, open_kv, Failpoints())

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """Open the real engine on this machine; for a new bookie, first create the index."""
        identity = Identity(BOOKIE_ID, INSTANCE_ID, stamped_before=self.left.stamped)
        with small_steps(), locked_directories(self.disk, self.settings) as directories:
            if not self.stamped:
                furnish = partial(make_index, self.environment, self.settings, directories)
                await self.workers.run("index", furnish)
                self.stamped = True
            async with open_engine(
                self.environment, self.settings, self.metrics, directories, identity
            ) as engine:
                yield engine

    def live(self, life: Callable[[Engine], Awaitable[T]]) -> T:
        """Open the engine, run `life` with it, and stop the engine in an orderly way."""

        async def main() -> T:
            async with self.engine() as engine:
                return await life(engine)

        try:
            return self.loop.run(main())
        finally:
            self.loop.close()

    def die_after(self, life: Callable[[Engine], Awaitable[T]]) -> T:
        """Open the engine, run `life`, then kill the process: no later change reaches the disk.

        If `life` raises an error, this method raises it.
        """
        results: list[T] = []

        async def main() -> None:
            async with self.engine() as engine:
                results.append(await life(engine))
                self.disk.die()
                raise DiedError

        try:
            self.loop.run(main())
        except BaseException:
            if not self.disk.dead or not results:
                raise
        finally:
            self.loop.close()
        return results[0]

    def leaves(self) -> Left:
        """Return the state for the next life, as if this life ended now and the cache survived."""
        return Left(
            self.disk.freeze(),
            self.left.boots,
            self.left.seconds + self.loop.time(),
            self.left.lives + 1,
            self.stamped,
        )

"""Lives of a whole bookie on a simulated machine, between which its disk is lost or put back older.

The node, its start and the engine are the real ones. A life ends in order, by a kill, by a power
cut, or in the middle of a start. Before the next one the disk may be empty, an older state of
itself, or without its index. Whatever came before, no answer denies what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NoReturn

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import decode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.config import NodeSettings
from bookie.env import Failpoints
from bookie.errors import BookieError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.node import identity, limbo_entry, own_cookie, start
from bookie.node.engine.engine import Engine
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SUSPECT
from bookie.node.own_cookie import OwnCookie, StateComparison
from bookie.node.start import StartedBookie, start_bookie
from bookie.testing.simulation.machine import (
    BOOKIE_ID,
    INSTANCE_ID,
    JOURNAL,
    LEDGERS,
    DiedError,
    Left,
    SimulatedMachine,
)
from bookie.testing.simulation.platter import Cut
from tests.unit.node.node_room import add, read
from tests.unit.node.started_bookie import metadata

SEEDS, SEEDS_OF_A_SOAK = 60, 2000
LIVES = 6
LOSSES = ("none", "none", "wiped", "older", "index", "index and journals")


_STORES = count()
"""A store in memory lives on under its name."""


class DieAt(Failpoints):
    """The machine dies at the nth failpoint of a start."""

    def __init__(self, machine: SimulatedMachine, nth: int) -> None:
        super().__init__()
        self._machine, self._left = machine, nth

    def hit(self, name: str) -> None:
        """Die here?"""
        self._left -= 1
        if self._left == 0:
            self._machine.disk.die()
            raise DiedError(name)


@dataclass(slots=True)
class Story:
    """What outlives a life: the disk, the metadata, and what was promised."""

    rng: random.Random
    left: Left = field(default_factory=Left)
    records: dict[str, bytes] = field(default_factory=dict)
    earlier: list[tuple[int, Left]] = field(default_factory=list)
    """The disk as it was, and the state number that the store had then."""
    entries: dict[int, set[int]] = field(default_factory=dict)
    """By ledger: what was acknowledged."""
    suspected: set[int] = field(default_factory=set)
    """Ledgers that existed when something was lost."""
    incarnations: set[str] = field(default_factory=set)
    """Those that are void by now."""
    seen: Counter[str] = field(default_factory=Counter)
    _failed: bool = False
    """Whether a check has begun and has not passed."""

    @property
    def number(self) -> int:
        """The state number of the store's cookie."""
        cookie = self.records.get(keys.cookie(BOOKIE_ID))
        return 0 if cookie is None else decode_cookie(cookie).state_number

    def lose(self) -> None:
        """What happens to the disk between two lives."""
        loss = self.rng.choice(LOSSES)
        older = [left for number, left in self.earlier if 0 < number < self.number]
        cookie = self.records.get(keys.cookie(BOOKIE_ID))
        if cookie is None or (loss == "older" and not older):
            return
        if loss == "none" or not decode_cookie(cookie).incarnation:
            return
        match loss:
            case "wiped":
                self.left = Left(boots=self.left.boots, lives=self.left.lives)
                del self.records[keys.cookie(BOOKIE_ID)]
                self.earlier.clear()  # by its unique id, each of them is another bookie's now
            case "older":
                then = self.rng.choice(older)
                self.left = replace(then, boots=self.left.boots, lives=self.left.lives)
            case _:
                self.left = without_index(self.left, journals="journals" in loss)
        self.seen[loss] += 1
        self.incarnations.add(decode_cookie(cookie).incarnation)
        self.suspected |= set(self.entries)

    def live(self, seed: int) -> None:
        """One life, from its start to whatever its end is."""
        machine = SimulatedMachine(self.left, seed)
        dies_at = self.rng.choice([0, 0, 0, self.rng.randrange(1, 8)])
        ends = self.rng.choice(["in order", "killed", "power cut"])
        try:
            machine.loop.run(self._life(machine, dies_at, ends))
        except (DiedError, BookieError, BaseExceptionGroup):
            # Of a machine that died, whoever was under way may say so in words of its own.
            if not machine.disk.dead or self._failed:
                raise
        finally:
            machine.loop.close()
        self.left = machine.leaves()
        if ends == "power cut":
            self.left = self.left.after_power_cut(Cut(self.rng))
        elif machine.disk.dead:
            self.left = self.left.after_kill(self.rng)
        self.earlier.append((self.number, self.left))

    async def _life(self, machine: SimulatedMachine, dies_at: int, ends: str) -> None:
        environment = machine.environment
        if dies_at:
            environment = replace(environment, failpoints=DieAt(machine, dies_at))
        async with self._store(machine) as store:
            ledgers = LedgerManager(store)
            async with start_bookie(
                environment,
                machine.settings,
                NodeSettings(),
                machine.metrics,
                cookies=CookieManager(store),
                ledgers=ledgers,
                bookie_id=BOOKIE_ID,
                instance_id=INSTANCE_ID,
            ) as one:
                self.seen["lives"] += 1
                self._failed = True
                await self._check(one)
                self._failed = False
                ledger_id = len(self.entries)
                await ledgers.create(metadata(ledger_id, LedgerState.OPEN, (BOOKIE_ID,)))
                self.entries[ledger_id] = set()
                for _ in range(self.rng.randrange(1, 6)):
                    await self._add(one, self.rng.randrange(ledger_id + 1))
                if ends != "in order":
                    self._die(machine)

    def _die(self, machine: SimulatedMachine) -> NoReturn:
        machine.disk.die()
        raise DiedError

    @contextlib.asynccontextmanager
    async def _store(self, machine: SimulatedMachine) -> AsyncIterator[MetadataStore]:
        """The metadata as the last life left it; what this one changes is kept, dead or alive."""
        async with open_store(f"memory://returns-{next(_STORES)}") as store:
            for key, value in self.records.items():
                await store.put(key, value)
            try:
                yield store
            finally:
                self.records = {}
                for parent in (keys.COOKIES, keys.LEDGERS):
                    async for record in store.scan_children(parent):
                        self.records[record.key] = record.value

    async def _add(self, one: StartedBookie, ledger_id: int) -> None:
        known = self.entries[ledger_id]
        entry_id = max(known, default=-1) + 1
        reply = await add(one.bookie, ledger_id, [entry_id], recovery=ledger_id in self.suspected)
        assert reply.status is Status.OK, reply
        known.add(entry_id)

    async def _check(self, one: StartedBookie) -> None:
        assert one.bookie.incarnation not in self.incarnations, "a void incarnation came back"
        for ledger_id, known in self.entries.items():
            for entry_id in known:
                reply = await read(one.bookie, ledger_id, entry_id, entry_id)
                if ledger_id in self.suspected:
                    assert not reply.status.is_definite_negative, (ledger_id, entry_id, reply)
                    self.seen["unknown"] += reply.status is Status.UNKNOWN_LEDGER_STATE
                else:
                    assert reply.status is Status.OK, (ledger_id, entry_id, reply)
            beyond = await read(one.bookie, ledger_id, 1000, 1000)
            is_unknown = beyond.status is Status.UNKNOWN_LEDGER_STATE
            assert is_unknown is (ledger_id in self.suspected), (ledger_id, beyond)


def without_index(left: Left, *, journals: bool) -> Left:
    """The same disk after the index's file was removed, with `journals` those as well."""
    machine = SimulatedMachine(left)
    try:
        disk = machine.disk
        gone = [f"{LEDGERS}/index/data.mdb"] if "data.mdb" in disk.names(f"{LEDGERS}/index") else []
        if journals:
            names = [name for name in disk.names(JOURNAL) if name.endswith(".journal")]
            gone += [f"{JOURNAL}/{name}" for name in names]
        for path in gone:
            disk.unlink(path)
        for directory in (f"{LEDGERS}/index", JOURNAL):
            disk.sync_directory(directory)
        return replace(machine.leaves(), lives=left.lives)
    finally:
        machine.loop.close()


def run(seed: int) -> Counter[str]:
    """One story, from its first life to its last."""
    story = Story(random.Random(seed))
    try:
        for life in range(LIVES):
            story.live(1000 * seed + life)
            story.lose()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return story.seen


def test_no_return_of_a_bookie_denies_what_it_acknowledged(is_soak: bool) -> None:
    """Wiped, put back older, without its index: for each seed, life after life."""
    seen: Counter[str] = Counter()
    for seed in range(SEEDS_OF_A_SOAK if is_soak else SEEDS):
        seen += run(seed)
    for what in (*LOSSES[2:], "unknown", "lives"):
        assert seen[what] >= 10, (what, seen)


# ---- the checks bite -----------------------------------------------------------------------------


def trust_a_fresh_stamp(patch: pytest.MonkeyPatch) -> None:
    """Only what the index itself suspects is suspected."""
    patch.setattr(start, "_is_suspect", lambda value, _: value == INTEGRITY_SUSPECT)


def notice_no_older_state(patch: pytest.MonkeyPatch) -> None:
    """State numbers are not compared."""
    real = own_cookie.compare_states
    patch.setattr(identity, "compare_states", lambda *a: StateComparison(real(*a).number))


def keep_ledgers_out_of_limbo(patch: pytest.MonkeyPatch) -> None:
    """The listing is left out."""

    async def listed(engine: Engine, *_: object) -> int:
        await engine.integrity.set(INTEGRITY_IN_LIMBO)
        return 1

    patch.setattr(start, "put_ledgers_in_limbo", listed)


def list_while_serving(patch: pytest.MonkeyPatch) -> None:
    """Limbo after registering: the bookie does not wait for the listing."""
    real = limbo_entry.put_ledgers_in_limbo
    begun: list[asyncio.Task[int]] = []

    async def later(engine: Engine, ledgers: LedgerManager, bookie_id: str) -> int:
        listing = real(engine, ledgers, bookie_id)
        begun.append(asyncio.get_running_loop().create_task(listing))
        return 1

    patch.setattr(start, "put_ledgers_in_limbo", later)


def keep_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    """Nothing is renewed but the number."""
    real = OwnCookie.advance

    async def advance(self: OwnCookie, *, renew: bool = False, **more: bool) -> None:
        await real(self, **more)

    patch.setattr(OwnCookie, "advance", advance)


@pytest.mark.parametrize(
    "mutate",
    [
        trust_a_fresh_stamp,
        notice_no_older_state,
        keep_ledgers_out_of_limbo,
        list_while_serving,
        keep_the_incarnation,
    ],
)
def test_a_broken_start_is_noticed(mutate: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Within the seeds of the test above."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(SEEDS):
            try:
                run(seed)
            except (AssertionError, BaseExceptionGroup):
                return
    raise AssertionError(f"{SEEDS} seeds did not show that it is wrong to {mutate.__name__}")

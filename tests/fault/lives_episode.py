"""An episode in which ids get several lives, stores go back in time, and clocks are days off.

Ledgers are deleted and made anew, also with swept proofs of their deletions.

Every payload names its ledger's creation token. So whoever gets an entry of another life sees it,
and :class:`Lives` says so.

============================ =====================================================================
rule                         what breaks it
============================ =====================================================================
no entry of another life     a read, a tail or a recovery returns a payload with another token
an entry is the one of its   a payload names another entry than the id at which it was read
id
what was acknowledged stays  a ledger that the store has kept all along, and nobody deleted, lacks
                             an entry at the end
what is young stays          records of a log with a retention of a week are gone, whoever swept
============================ =====================================================================
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bookie.api import BookKeeper, LogPolicy, ReaderHandle, WriterHandle, connect
from bookie.cluster import keys
from bookie.env import SystemClock
from bookie.errors import BookieError, KeyHasChildrenError
from bookie.ids import LOG_TAG
from bookie.log.clock_check import ClockCheck
from bookie.log.tidy.sweep import sweep_logs
from bookie.metadata.export import import_records, walk
from bookie.metadata.model import Record
from bookie.metadata.store import MetadataStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

BOOKIES = 4
IDS = 6
"""Ids that are chosen by hand, so that they meet again."""

CALL_SECONDS_MAX = 10.0
DAYS_OFF = 40
DAY_MS = 24 * 3600 * 1000
WEEK_SECONDS = 7 * 24 * 3600

LOG = "orders"


class WrongClock(SystemClock):
    """The machine's clock, days away from the truth."""

    def __init__(self, days: int) -> None:
        self._off_ms = days * DAY_MS

    def now_ms(self) -> int:
        """The wrong time."""
        return super().now_ms() + self._off_ms


@dataclass(slots=True)
class Life:
    """One ledger among those that have its id."""

    ledger_id: int
    token: int
    writer: WriterHandle
    acknowledged: set[int] = field(default_factory=set)
    is_held: bool = True
    """Whether the store has kept it all along, and nobody deleted it."""


@dataclass(slots=True)
class Lives:
    """All ledgers of an episode, and what was seen that must not be."""

    all: dict[int, Life] = field(default_factory=dict)
    """By creation token."""
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def payload(self, token: int, entry_id: int) -> bytes:
        """What is appended as an entry."""
        return b"%d/%d" % (token, entry_id)

    def read(self, reader: ReaderHandle, entry_id: int, payload: bytes) -> None:
        """A reader got an entry."""
        self.counts["entry read"] += 1
        token = reader.metadata.c_token
        if bytes(payload) != self.payload(token, entry_id):
            self.problems.append(
                f"ledger {reader.ledger_id} of token {token}: entry {entry_id} is {payload!r}"
            )


class LivesEpisode:
    """One seed, on a cluster that it may hurt."""

    def __init__(self, cluster: RealCluster, bk: BookKeeper, seed: int) -> None:
        self.lives = Lives()
        self._cluster = cluster
        self._bk = bk
        self._choose = random.Random(f"lives/{seed}")
        self._readers: list[ReaderHandle] = []
        self._backup: list[tuple[str, bytes]] = []
        self._records: list[bytes] = []

    async def run(self, steps: int) -> None:
        """All of it; problems are in `lives`."""
        policy = LogPolicy(retention_seconds=WEEK_SECONDS)
        await self._bk.create_log(LOG, policy=policy)
        await self._back_up()
        for step in range(steps):
            # What is held at the end was made after the last restore.
            name, act = self._draw(may_restore=step < steps * 2 // 3)
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await act()
            except (BookieError, TimeoutError):
                self.lives.counts[f"{name} refused"] += 1
            else:
                self.lives.counts[name] += 1
        await self._judge()

    def _draw(self, *, may_restore: bool) -> tuple[str, Callable[[], Awaitable[None]]]:
        acts: tuple[tuple[str, int, Callable[[], Awaitable[None]]], ...] = (
            ("create", 8, self._create),
            ("append", 20, self._append),
            ("open", 12, self._open),
            ("read again", 8, self._read_again),
            ("delete", 6, self._delete),
            ("sweep of proofs", 3, self._sweep_proofs),
            ("backup", 2, self._back_up),
            ("restore", 2 * may_restore, self._restore),
            ("collection", 6, self._collect),
            ("restart", 2, self._restart),
            ("record", 6, self._append_record),
            ("sweep of logs", 3, self._sweep_logs),
        )
        (chosen,) = self._choose.choices(acts, [weight for _, weight, _ in acts])
        return chosen[0], chosen[2]

    # -- ledgers -----------------------------------------------------------------------------------

    async def _create(self) -> None:
        wanted = self._choose.randrange(IDS) if self._choose.random() < 0.7 else None
        writer = await self._bk.create_ledger(ledger_id=wanted)
        token = writer.metadata.c_token
        self.lives.all[token] = Life(writer.ledger_id, token, writer)
        if sum(one.ledger_id == writer.ledger_id for one in self.lives.all.values()) > 1:
            self.lives.counts["id used again"] += 1

    async def _append(self) -> None:
        if not self.lives.all:
            return
        life = self._choose.choice(list(self.lives.all.values()))
        for _ in range(self._choose.choice((1, 1, 5))):
            entry_id = life.writer.last_entry_id + 1
            assert await life.writer.append(self.lives.payload(life.token, entry_id)) == entry_id
            life.acknowledged.add(entry_id)

    async def _open(self) -> None:
        """Sometimes of an id that has no ledger now."""
        ids = {*range(IDS), *(life.ledger_id for life in self.lives.all.values())}
        ledger_id = self._choose.choice(sorted(ids))
        recover = self._choose.random() < 0.4
        reader = await self._bk.open_ledger(ledger_id, recover=recover)
        if LOG_TAG not in reader.metadata.custom_metadata:
            self._readers.append(reader)
            await self._read(reader)

    async def _read_again(self) -> None:
        """A reader that was opened long ago, perhaps in another life of the id."""
        if self._readers:
            reader = self._choose.choice(self._readers)
            await reader.refresh()
            await self._read(reader)

    async def _read(self, reader: ReaderHandle) -> None:
        async with aclosing(reader.read()) as entries:
            async for entry in entries:
                self.lives.read(reader, entry.entry_id, entry.payload)

    async def _delete(self) -> None:
        if self.lives.all:
            life = self._choose.choice(list(self.lives.all.values()))
            if (await self._bk.ledger_metadata(life.ledger_id)).c_token == life.token:
                life.is_held = False
                await self._bk.delete_ledger(life.ledger_id)

    # -- the metadata store, bookies and clocks ----------------------------------------------------

    async def _sweep_proofs(self) -> None:
        """A week is over."""
        store = self._cluster.store
        for day in await store.get_children(keys.DELETED):
            await _remove(store, f"{keys.DELETED}/{day}")

    async def _back_up(self) -> None:
        self._backup = [(one.key, one.value) for one in await self._older_some_day()]

    async def _restore(self) -> None:
        """The store is what it was; from now on no ledger counts as held that it may have lost."""
        store = self._cluster.store
        for life in self.lives.all.values():
            life.is_held = False
        kept = {key for key, _ in self._backup}
        for one in sorted(await self._older_some_day(), key=lambda one: len(one.key), reverse=True):
            if one.key not in kept:
                with suppress(KeyHasChildrenError):
                    await store.delete(one.key)
        await import_records(store, self._backup, overwrite=True)

    async def _older_some_day(self) -> list[Record]:
        """What a restore makes older: not the log, whose records have to stay, nor cookies."""
        found = [one async for one in walk(self._cluster.store) if not one.ephemeral]
        return [
            one
            for one in found
            if not one.key.startswith((keys.AVAILABLE, keys.COOKIES, keys.LOGS, keys.LOG_POLICIES))
            and LOG_TAG.encode() not in one.value
        ]

    async def _collect(self) -> None:
        """A round of a bookie; sometimes an operator trusts the store as it is."""
        node = self._cluster.nodes[self._choose.choice(sorted(self._cluster.nodes))]
        await node.garbage.round()
        if node.garbage.store_doubt and self._choose.random() < 0.5:
            await node.garbage.confirm_store()

    async def _restart(self) -> None:
        """With another clock: right, or days off."""
        number = self._choose.choice(sorted(self._cluster.nodes))
        await self._cluster.stop(number)
        self._cluster.clocks[number] = WrongClock(
            self._choose.choice((0, DAYS_OFF, -DAYS_OFF)) if number else 0
        )
        await self._cluster.start(number)

    # -- a log -------------------------------------------------------------------------------------

    async def _append_record(self) -> None:
        value = b"%d" % len(self._records)
        log = await self._bk.open_log(LOG, patience_seconds=CALL_SECONDS_MAX / 2)
        try:
            await log.append(value)
            self._records.append(value)
        finally:
            await log.close()

    async def _sweep_logs(self) -> None:
        """On a machine whose clock is wrong."""
        async with connect(self._cluster.uri) as other:
            logs = other._logs
            logs.clock = WrongClock(self._choose.choice((0, DAYS_OFF, -DAYS_OFF)))
            logs.clocks = ClockCheck(logs.clock, logs.ledgers)
            await sweep_logs(logs)

    # -- the end -----------------------------------------------------------------------------------

    async def _judge(self) -> None:
        for number in range(BOOKIES):
            if number not in self._cluster.nodes:
                await self._cluster.start(number)
        for life in self.lives.all.values():
            if life.is_held:
                await self._judge_held(life)
        values = [record.value async for record in self._bk.read_log(LOG)]
        if lost := set(self._records).difference(values):
            self.lives.problems.append(f"records are gone: {sorted(lost)}")

    async def _judge_held(self, life: Life) -> None:
        self.lives.counts["ledger held"] += 1
        try:
            reader = await self._bk.open_ledger(life.ledger_id, recover=True)
            await self._read(reader)
        except BookieError as error:
            if life.acknowledged:
                self.lives.problems.append(f"ledger {life.ledger_id} cannot be read: {error}")
            return
        if lost := {one for one in life.acknowledged if one > reader.last_entry_id}:
            self.lives.problems.append(f"ledger {life.ledger_id} lacks acknowledged {lost}")


async def _remove(store: MetadataStore, key: str) -> None:
    for child in await store.get_children(key):
        await _remove(store, f"{key}/{child}")
    await store.delete(key)


@asynccontextmanager
async def episode(directory: Path, seed: int) -> AsyncIterator[LivesEpisode]:
    """An episode on a cluster of its own, whose metadata are in memory."""
    uri = f"memory://{directory.parent.name}-{directory.name}"
    async with (
        real_cluster(directory, BOOKIES, uri=uri) as cluster,
        connect(cluster.uri) as bk,
    ):
        yield LivesEpisode(cluster, bk, seed)

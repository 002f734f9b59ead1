"""A bookie's directories with everything in them that can be damaged, and what was promised of it.

One history, through two lives of a real bookie on real files and a real index. Small *probes* stand
at known positions. One is in an entry log, one below the mark, one in an earlier journal file above
the mark. The others are in the middle of the last file and at its end. Each probe is one block with
one record of its kind. Pictures of the directories are taken on the way, as a killed process would
leave them.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from bookie.cluster.cookie import decode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.config import NodeSettings
from bookie.entry.entry import pack_lac
from bookie.env import ThreadWorkers
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.store import MetadataStore
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from bookie.node.start import StartedBookie, start_bookie
from tests.unit.node.engine.machine import DIGESTER, IDENTITY, KEY, KIB, Machine, batch
from tests.unit.node.node_room import add_command

P = ParamSpec("P")
R = TypeVar("R")

POSITIONS = ("log", "below", "earlier", "middle", "last")
KINDS = (
    "entries",
    "steps",
    "recovery",
    "ledger",
    "fence",
    "lac",
    "deleted",
    "limbo",
    "unlimbo",
    "limbo unfenced",
)

DENSE, SPARSE, FILLER, CLOSED = 1, 2, 3, 4
"""Ledgers with many entries: without gaps, every 64th id, to fill files, closed in the metadata."""

GONE = 5
"""A ledger that is not in the metadata."""
REMOVED = ("file removed", "file compacted")
"""Pictures in which a file went right after the last transaction of the index."""

SETTINGS: dict[str, object] = {
    "journal_file_bytes_max": 64 * KIB,
    "block_bytes_max": 16 * KIB,
    "reserve_bytes": 64 * KIB,
    # It would find the damage at a moment of its own, and have the next start doubt.
    "scrub_bytes_per_second": 0,
}


def probe_ledger(position: str, kind: str) -> int:
    """The ledger that the probe of this kind at this position is about."""
    return 1000 * (1 + POSITIONS.index(position)) + 10 * KINDS.index(kind)


@dataclass
class Truth:
    """What was acknowledged."""

    entries: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)
    """Ledger → id → packets that were stored for it, the newest last."""
    fenced: set[int] = field(default_factory=set)
    limbo: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    lacs: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A copy of the directories, and what had been acknowledged when it was taken."""

    root: Path
    truth: Truth
    earlier: tuple[bytes, ...] = ()
    """What the file of the index was after earlier transactions, the newest last."""


class WorkersWithoutPools(ThreadWorkers):
    """Runs a pool's functions at once: files lie in memory, and most work would be the hops."""

    async def run(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return function(*args, **kwargs)

    async def run_through(
        self, pool: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return function(*args, **kwargs)


@asynccontextmanager
async def started(machine: Machine, store: MetadataStore) -> AsyncIterator[StartedBookie]:
    """A bookie, from its directories and a metadata store."""
    async with (
        WorkersWithoutPools() as workers,
        start_bookie(
            machine.environment(workers),
            machine.settings,
            NodeSettings(),
            machine.metrics,
            cookies=CookieManager(store),
            ledgers=LedgerManager(store),
            bookie_id=IDENTITY.bookie_id,
            instance_id=IDENTITY.instance_id,
        ) as bookie,
    ):
        yield bookie


class Author:
    """Writes the history."""

    def __init__(self, machine: Machine, store: MetadataStore, pictures: Path) -> None:
        self._machine = machine
        self._store = store
        self._directory = pictures
        self.truth = Truth()
        self.pictures: dict[str, Picture] = {}
        self._filler = 0
        self._earlier: list[bytes] = []
        self._one: StartedBookie

    async def write(self) -> dict[str, Picture]:
        """Live twice; returns the pictures by name."""
        async with started(self._machine, self._store):
            pass  # it joins the cluster before there is a ledger that could name it
        await self._create_ledgers()
        async with started(self._machine, self._store) as self._one:
            await self._bulk()
            for kind in KINDS:
                await self._probe("log", kind)
            await self._add(FILLER, [10_000])
            await self._write_marker(8)
            self._take("first-life")
        await self._bring_back("first-life")
        async with started(self._machine, self._store) as self._one:
            await self._second_life()
        self._take("stopped")
        for compacting in (False, True):
            await self._bring_back("first-life")
            async with started(self._machine, self._store) as self._one:
                await self._another_second_life(compacting=compacting)
        return self.pictures

    async def _second_life(self) -> None:
        self._remember()
        await self._fill()
        for kind in KINDS:
            await self._probe("below", kind)
        # Both versions of a page, and of a row, are in the index: the second replaces the first.
        await self._one.engine.checkpoint()
        self._remember()
        await self._add(DENSE, range(420, 440))
        await self._one.engine.checkpoint()
        self._remember()
        await self._fill()
        for kind in KINDS:
            await self._probe("earlier", kind)
        await self._fill()
        for kind in KINDS:
            await self._probe("middle", kind)
        await self._add(FILLER, [20_000])
        await self._write_marker(8)
        self._take("killed")
        for kind in KINDS:
            await self._add(FILLER, [30_000 + KINDS.index(kind)])
            await self._probe("last", kind)
            self._take(f"last-{kind}")
            await self._write_marker()
            self._take(f"vouched-{kind}")

    async def _another_second_life(self, *, compacting: bool) -> None:
        """Its last transaction of the index is followed by the removal of a file.

        Of one that held a fence, and entries of a ledger that was deleted meanwhile; or of one
        whose entries a compaction has moved.
        """
        engine = self._one.engine
        await self._add(FILLER, [40_000])
        await engine.checkpoint()
        self._remember()
        await self._fill(GONE)
        number = self._machine.journals()[-1]
        reply = await self._one.bookie.fence(100, KEY)
        assert reply.status is Status.OK
        self.truth.fenced.add(100)
        await self._fill(GONE)
        state = await engine.load(GONE)
        await engine.delete(state, self._machine.clock.now_ms())
        del self.truth.entries[GONE]
        self.truth.deleted.add(GONE)
        await engine.checkpoint()
        if compacting:
            self._remember()
            await engine.compactor.round(force=True)
        await engine._removal.finish()
        assert not number.exists()
        self._take(REMOVED[compacting])

    def _remember(self) -> None:
        """Keep the file of the index as it is after a transaction."""
        self._earlier.append((self._machine.index / "data.mdb").read_bytes())

    async def _create_ledgers(self) -> None:
        manager = LedgerManager(self._store)
        named = {DENSE, SPARSE, FILLER, CLOSED, *range(100, 130)}
        for position in POSITIONS:
            named |= {probe_ledger(position, kind) for kind in KINDS if kind != "deleted"}
        for ledger_id in sorted(named):
            closed = ledger_id == CLOSED
            await manager.create(
                LedgerMetadata(
                    ledger_id=ledger_id,
                    ensemble_size=1,
                    write_quorum_size=1,
                    ack_quorum_size=1,
                    state=LedgerState.CLOSED if closed else LedgerState.OPEN,
                    fragments=(Fragment(0, (IDENTITY.bookie_id,)),),
                    last_entry_id=3 if closed else -1,
                    length=1 if closed else 0,
                )
            )

    async def _bulk(self) -> None:
        for ledger_id in range(100, 130):
            await self._add(ledger_id, range(2), size=12)
        for first in range(0, 420, 60):
            await self._add(DENSE, range(first, first + 60), size=30)
        await self._add(SPARSE, range(0, 64 * 400, 64), size=12)
        await self._add(CLOSED, range(4))

    async def _fill(self, ledger_id: int = FILLER) -> None:
        """Entries until the journal goes on in a new file, and a few small ones there."""
        before = len(self._machine.journals())
        while len(self._machine.journals()) == before:
            await self._add(ledger_id, range(self._filler, self._filler + 4), size=2 * KIB)
            self._filler += 4
        for _ in range(2):
            await self._add(ledger_id, [self._filler])
            self._filler += 1

    async def _probe(self, position: str, kind: str) -> None:
        """One block with one record of `kind`, behind what it needs to stand on its own."""
        ledger_id = probe_ledger(position, kind)
        engine, truth = self._one.engine, self.truth
        if kind != "ledger":
            await self._add(ledger_id, range(2))
        state = await engine.load(ledger_id)
        match kind:
            case "entries":
                await self._add(ledger_id, range(2, 5))
            case "steps":
                await self._add(ledger_id, [10, 13, 17])
            case "recovery":
                await self._add(ledger_id, [1, 2], recovery=True, lac=0)
            case "ledger":
                await self._add(ledger_id, range(2))
            case "fence":
                reply = await self._one.bookie.fence(ledger_id, KEY)
                assert reply.status is Status.OK
                truth.fenced.add(ledger_id)
            case "lac":
                packet = pack_lac(ledger_id, 1, DIGESTER)
                written = await self._one.bookie.write_lac(ledger_id, KEY, packet)
                assert written.status is Status.OK
                assert (await self._one.bookie.force(ledger_id)).status is Status.OK
                truth.lacs[ledger_id] = 1
            case "deleted":
                await engine.delete(state, self._machine.clock.now_ms())
                truth.deleted.add(ledger_id)
            case "limbo unfenced":
                await engine.set_limbo(state, in_limbo=True, fence=False)
                truth.limbo.add(ledger_id)
            case _:
                await engine.set_limbo(state, in_limbo=True)
                truth.fenced.add(ledger_id)
                truth.limbo.add(ledger_id)
                if kind == "unlimbo":
                    await engine.set_limbo(state, in_limbo=False)
                    truth.limbo.discard(ledger_id)

    async def _add(
        self,
        ledger_id: int,
        ids: Iterable[int],
        *,
        size: int = 40,
        lac: int = NO_ENTRY,
        recovery: bool = False,
    ) -> None:
        entries = batch(ledger_id, ids, size=size, lac=lac)
        reply = await self._one.bookie.add(add_command(entries, recovery=recovery))
        assert reply.status is Status.OK, reply
        known = self.truth.entries.setdefault(ledger_id, {})
        for entry_id, packet in zip(entries.entry_ids().tolist(), entries.packets(), strict=True):
            known.setdefault(entry_id, []).append(bytes(packet))

    async def _write_marker(self, blocks: int = 1) -> None:
        """Empty blocks; several where random damage should not reach all of them."""
        for _ in range(blocks):
            self._one.engine._queue.submit(JournalRequest(RequestKind.MARKER, lambda request: None))
            await self._one.engine.force()

    def _take(self, name: str) -> None:
        root = self._directory / name
        shutil.copytree(self._machine.root, root)
        self.pictures[name] = Picture(root, deepcopy(self.truth), tuple(self._earlier))

    async def _bring_back(self, name: str) -> None:
        picture = self.pictures[name]
        await restore(picture, self._machine.root, self._store)
        self.truth, self._earlier = deepcopy(picture.truth), list(picture.earlier)


async def restore(picture: Picture, root: Path, store: MetadataStore) -> None:
    """Put the directories back as they are in the picture; cookies name them, so in that place.

    The store's cookie goes back with them: they are no older state of the bookie.
    """
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(picture.root, root)
    cookies, cookie = CookieManager(store), root / "journal" / "COOKIE"
    recorded = await cookies.read(IDENTITY.bookie_id)
    if cookie.exists() and recorded is not None:
        await cookies.write(decode_cookie(cookie.read_bytes()), recorded.version)

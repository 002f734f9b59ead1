"""Who works on the cluster while bookies lose disks and repair goes on; what they must not see.

Each entry's payload follows from its ledger and its id. So whoever reads knows what must come.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from bookie.api import BookKeeper, LogPolicy, ReaderHandle, WriterHandle
from bookie.errors import (
    BookieError,
    CorruptionError,
    LedgerClosedError,
    LedgerFencedError,
    LogClosedError,
    LogTakenOverError,
    MetadataUnavailableError,
    SessionLostError,
    UnavailableError,
)
from tests.fault.lossy_cluster import create, healed

SIZES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2)]
"""An ack quorum of two: one copy of each entry may be destroyed at a time."""
LOG = "orders"
ENTRIES_MAX = 150
"""Of a ledger; then its writer begins the next one."""
PAUSE_SECONDS_MAX = 0.12

TRY_AGAIN = (UnavailableError, MetadataUnavailableError, SessionLostError)
"""What may happen to whoever works meanwhile: bookies and the store are away."""
ENDED = (LedgerFencedError, LedgerClosedError)
"""What a writer may meet beside: somebody recovered its ledger."""


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """What is written as an entry; no other entry has it within its own."""
    return b"<%d/%d>" % (ledger_id, entry_id) * (1 + (7 * ledger_id + entry_id) % 40)


@dataclass(slots=True)
class Work:
    """What all actors of an episode share."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Ledger → the last entry that its writer saw acknowledged."""
    written: set[int] = field(default_factory=set)
    """Ledgers whose payloads `payload_of` tells."""
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    tails: dict[int, int] = field(default_factory=dict)
    """Ledger → how many entries its tail has delivered."""
    disturbances: int = 0
    """Grows whenever a bookie goes away."""
    away: set[str] = field(default_factory=set)
    """Bookies that do not answer, for now or for ever."""
    rolls: int = 0
    """Whoever writes begins another ledger when this has grown."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def told(self, who: str, error: BookieError) -> None:
        """Somebody met an error; one that must not be is a problem."""
        self.counts[f"{who}: {type(error).__name__}"] += 1
        allowed = (*TRY_AGAIN, *ENDED, LogClosedError, LogTakenOverError)
        if not isinstance(error, allowed):
            self.problems.append(f"{who}: {type(error).__name__}: {error}")

    def read(self, who: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """A reader got an entry."""
        self.counts["entries read"] += 1
        if bytes(payload) != payload_of(ledger_id, entry_id):
            self.problems.append(f"{who}: entry {entry_id} of {ledger_id} is {payload[:40]!r}")


class LedgerActor:
    """Writes ledger after ledger, each followed by a tail."""

    def __init__(
        self, work: Work, client: BookKeeper, reader: BookKeeper, rng: random.Random
    ) -> None:
        self._work, self._client, self._reader, self._rng = work, client, reader, rng
        self.rolled = 0
        """The roll that this actor has followed: no older ledger of its is open."""

    async def run(self) -> None:
        """Until the work is over; then all of its ledgers are closed."""
        work = self._work
        async with asyncio.TaskGroup() as tails:
            while not work.is_over.is_set():
                self.rolled = work.rolls
                sizes = self._rng.choice(SIZES)
                writer = await healed(partial(create, self._client, sizes))
                ledger_id = writer.ledger_id
                work.written.add(ledger_id)
                work.acknowledged[ledger_id] = -1
                work.counts["ledgers"] += 1
                tails.create_task(TailingActor(work, self._reader, ledger_id).run())
                await self._write(writer)

    async def _write(self, writer: WriterHandle) -> None:
        work, rng, ledger_id = self._work, self._rng, writer.ledger_id
        following = 0
        try:
            while not self._is_due(following):
                count = rng.randrange(1, 8)
                ids = range(following, following + count)
                found = await writer.append_many([payload_of(ledger_id, one) for one in ids])
                assert found == ids
                following += count
                work.acknowledged[ledger_id] = following - 1
                work.counts["entries acknowledged"] += count
                await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))
            await writer.close()
        except BookieError as error:
            work.told("writer", error)
            await healed(partial(self._client.open_ledger, ledger_id, recover=True))

    def _is_due(self, following: int) -> bool:
        work = self._work
        return following >= ENTRIES_MAX or self.rolled != work.rolls or work.is_over.is_set()


class TailingActor:
    """Follows one ledger to its end. A tail that fails begins anew where it was."""

    def __init__(self, work: Work, client: BookKeeper, ledger_id: int) -> None:
        self._work, self._client, self._ledger_id = work, client, ledger_id

    async def run(self) -> None:
        work, ledger_id = self._work, self._ledger_id
        work.tails[ledger_id] = 0
        while True:
            try:
                reader = await self._client.open_ledger(ledger_id)
                async with aclosing(reader.tail(work.tails[ledger_id])) as entries:
                    async for entry in entries:
                        if entry.entry_id != work.tails[ledger_id]:
                            work.problems.append(f"a tail of {ledger_id} got {entry.entry_id}")
                        work.read("tail", ledger_id, entry.entry_id, entry.payload)
                        work.tails[ledger_id] = entry.entry_id + 1
                if reader.last_entry_id + 1 != work.tails[ledger_id]:
                    work.problems.append(f"a tail of {ledger_id} ended at {work.tails[ledger_id]}")
                return
            except TRY_AGAIN as error:
                work.told("tail", error)
                await asyncio.sleep(0.1)


class ReadingActor:
    """Reads closed and open ledgers again, from their beginnings."""

    def __init__(self, work: Work, client: BookKeeper, rng: random.Random) -> None:
        self._work, self._client, self._rng = work, client, rng

    async def run(self) -> None:
        work, rng = self._work, self._rng
        while not work.is_over.is_set():
            await asyncio.sleep(rng.uniform(0, 0.5))
            if not work.written:
                continue
            ledger_id = rng.choice(sorted(work.written))
            before, acknowledged = work.disturbances, work.acknowledged[ledger_id]
            try:
                await self._read(await self._client.open_ledger(ledger_id), acknowledged)
            except CorruptionError as error:
                # Somebody else has a good copy, unless one more bookie is away.
                if not work.away and work.disturbances == before:
                    work.told("reader", error)
                else:
                    work.counts["reader: damage, and no other copy in reach"] += 1
            except BookieError as error:
                work.told("reader", error)

    async def _read(self, reader: ReaderHandle, acknowledged: int) -> None:
        work, count = self._work, 0
        async with aclosing(reader.read()) as entries:
            async for entry in entries:
                work.read("reader", reader.ledger_id, entry.entry_id, entry.payload)
                count += 1
        if reader.is_closed and count <= acknowledged:
            work.problems.append(
                f"reader: ledger {reader.ledger_id} has {count} entries; {acknowledged} was"
                " acknowledged"
            )


class RecoveringActor:
    """Recovers ledgers that are written, now and then."""

    def __init__(self, work: Work, client: BookKeeper, rng: random.Random) -> None:
        self._work, self._client, self._rng = work, client, rng

    async def run(self) -> None:
        work, rng = self._work, self._rng
        while not work.is_over.is_set():
            await asyncio.sleep(rng.uniform(0.5, 5))
            if not work.written:
                continue
            try:
                await self._client.open_ledger(max(work.written), recover=True)
                work.counts["recoveries"] += 1
            except BookieError as error:
                work.told("recovery", error)


class LogActor:
    """Owns a log, and appends numbers."""

    def __init__(self, work: Work, client: BookKeeper, rng: random.Random) -> None:
        self._work, self._client, self._rng = work, client, rng
        self._next = 0
        self.acknowledged: list[int] = []
        self.rolled = 0

    async def create(self) -> None:
        """Create the log."""
        policy = LogPolicy(
            ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, roll_bytes=20_000
        )
        await self._client.create_log(LOG, policy=policy)

    async def run(self) -> None:
        """Own it again and again, until the work is over."""
        work = self._work
        while not work.is_over.is_set():
            rolls = work.rolls
            try:
                async with self._client.open_log(LOG) as log:
                    # The ledger of the former time is closed by now.
                    self.rolled = rolls
                    while rolls == work.rolls and not work.is_over.is_set():
                        value, self._next = self._next, self._next + 1
                        await log.append(b"%d" % value)
                        self.acknowledged.append(value)
                        work.counts["records acknowledged"] += 1
                        await asyncio.sleep(self._rng.uniform(0, PAUSE_SECONDS_MAX))
            except BookieError as error:
                work.told("log", error)
                await asyncio.sleep(0.2)

    async def find_lost(self) -> list[str]:
        """What a reader of the whole log misses, in sentences."""
        values = [int(record.value) async for record in self._client.read_log(LOG)]
        problems = []
        if lost := sorted(set(self.acknowledged).difference(values)):
            problems.append(f"the log lacks {len(lost)} acknowledged records: {lost[:10]}")
        if values != sorted(set(values)):
            problems.append("the log has records twice, or in another order")
        return problems

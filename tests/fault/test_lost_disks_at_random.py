"""Random episodes: one bookie's disk is lost while writers, recoveries and tails go on.

Each episode has ledgers of its own and one loss. Bookies may still be in doubt about ledgers of
earlier episodes, which must not reach newer ones. A second bookie may hang, be killed, or be cut
off in one direction or both. With spares, writers replace bookies meanwhile. Recoveries may
compete. Then everything heals, and every ledger is recovered. All that writers, readers, tails and
recoveries did and saw goes into a history. The checker of `tests/ledger_history` judges it by the
rules C1 to C14. Each tail has to reach the end of its ledger.

With spares, every third episode waits for a writer to replace the lost bookie before it returns.
The others leave that to chance.

What an episode does follows from its number, which a failure names.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from bookie.api import BookKeeper, WriterHandle
from bookie.errors import BookieError, NoSuchLedgerError
from bookie.ids import Status
from bookie.wire.commands import ReadCommand
from tests.fault.daemon_cluster import BOOKIES
from tests.fault.lossy_cluster import LossyCluster, create, healed, lossy_cluster, with_frames
from tests.fault.metadata_servers import SHARED
from tests.fault.recorded_ledgers import RecordedLedgers, RecordedWriter
from tests.servers.proxy import Direction

STORES = ["local", *sorted(SHARED)]
EPISODES, EPISODES_OF_A_SOAK = 5, 334
"""On each of the three kinds of store, with three bookies."""
EPISODES_WITH_SPARES, EPISODES_WITH_SPARES_OF_A_SOAK = 3, 334
"""Likewise, with five."""
FIVE = ("b1", "b2", "b3", "b4", "b5")

SIZES = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2)]
LOSSES = [
    "nothing",
    "wiped",
    "older",
    "journal older",
    "index",
    "index and journals",
    "one journal",
    "swapped",
]
DOUBTFUL = frozenset(LOSSES) - {"nothing", "swapped", "one journal"}
"""Losses after which the bookie denies nothing. An empty journal may be gone without a doubt."""
TROUBLES = [
    "none",
    "hangs before",
    "hangs after",
    "killed",
    "cut off",
    "requests lost",
    "answers lost",
    "reset",
]
"""Of a second bookie."""
HARMLESS = frozenset({"nothing", "swapped"})
"""Losses after which the bookie has all that it had."""
LEDGERS = 3
PAUSE_SECONDS_MAX = 0.03
"""Between two batches of a writer, of which an episode then has a hundred."""
EPISODE_SECONDS_MAX = 900.0


async def write(writer: RecordedWriter, rng: random.Random) -> None:
    """Append until the writer fails or is stopped."""
    following = 0
    while True:
        count = rng.randrange(1, 5)
        batch = [
            b"%d/%d %s" % (writer.ledger_id, following + i, b"x" * rng.randrange(9))
            for i in range(count)
        ]
        following += count
        try:
            ids = await writer.append(batch)
        except BookieError:
            return
        assert ids == range(following - count, following)
        await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))


class Episode:
    """What happens in one episode follows from its number, apart from the times of processes."""

    def __init__(self, cluster: LossyCluster, number: int) -> None:
        self.cluster = cluster
        self.awaits_replacement = len(cluster.names) == len(FIVE) and number % 3 == 0
        self.rng = random.Random(number)
        self.loss = LOSSES[number % len(LOSSES)]
        self.victim, self.other, *_ = self.rng.sample(cluster.names, 3)
        self.history = RecordedLedgers()
        self.writers: list[RecordedWriter] = []
        self.tailed: dict[int, int] = {}
        """How many entries of each ledger a tail delivered."""
        self.changes = 0
        """Fragments beyond the first of each ledger."""

    async def run(self, client: BookKeeper, reader: BookKeeper) -> None:
        """One episode, with its checks."""
        rng, cluster = self.rng, self.cluster
        copy = None
        if "older" in self.loss:
            await cluster.stop(self.victim)
            copy = cluster.copy(self.victim)
            await cluster.start(self.victim)
        for one in (client, reader):
            await cluster.sees(one, *cluster.names)
        for _ in range(LEDGERS):
            writer = await create(client, rng.choice(SIZES))
            self.writers.append(self.history.writer("client", writer))
        if self.awaits_replacement:
            self.writers.append(self.history.writer("client", await self._naming_ledger(client)))
        async with asyncio.timeout(EPISODE_SECONDS_MAX), asyncio.TaskGroup() as tails:
            for writing in self.writers:
                tails.create_task(self._tail(reader, writing.ledger_id))
            await self._go_wrong(client, reader, copy)
            await self._settle(reader)
        await self._check(client, reader)

    async def _go_wrong(self, client: BookKeeper, reader: BookKeeper, copy: Path | None) -> None:
        """Writers and recoveries go on while the loss happens; at the end all bookies run."""
        rng, cluster = self.rng, self.cluster
        async with asyncio.TaskGroup() as tasks:
            going_on = [
                tasks.create_task(write(one, random.Random(rng.random()))) for one in self.writers
            ]
            going_on += [
                tasks.create_task(self._read(reader, one.ledger_id, rng.randrange(2) * 5))
                for one in self.writers
            ]
            recovering = []
            for writer in self.writers[:LEDGERS]:
                after = rng.uniform(0, 3)
                # Two begin at about the same time, so that they compete.
                for recoverer in (reader, client)[: rng.choice([0, 0, 1, 1, 2])]:
                    begin = after + rng.uniform(0, 0.02)
                    recovery = self._recover(recoverer, writer.ledger_id, begin)
                    recovering.append(tasks.create_task(recovery))
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            await self._lose_and_return(copy)
            await asyncio.sleep(rng.uniform(0, 0.3))
            cluster.heal()
            cluster.resume(*cluster.names)
            await cluster.start(*sorted({*cluster.names} - cluster.running))
            for task in recovering:
                await task
            for task in going_on:
                task.cancel()

    async def _lose_and_return(self, copy: Path | None) -> None:
        """The victim's disk is lost and it comes back, while another may hang or be away."""
        rng, cluster, victim, other = self.rng, self.cluster, self.victim, self.other
        trouble = rng.choice(TROUBLES)
        match trouble:
            case "hangs before":
                await cluster.hang(other)
            case "killed":
                await cluster.kill(other)
            case "cut off":
                cluster.links[other].hold()
            case "requests lost":
                cluster.links[other].hold(Direction.TO_SERVER)
            case "answers lost":
                cluster.links[other].hold(Direction.TO_CLIENT)
            case "reset":
                cluster.links[other].reset()
            case _:
                pass
        if rng.random() < 0.5:
            await cluster.kill(victim)
        else:
            await cluster.stop(victim)
        await asyncio.sleep(rng.uniform(0, 0.2))
        await self._lose(copy)
        if self.awaits_replacement:
            await self._replaced(self.writers[LEDGERS].ledger_id)
        named = await self._naming_the_victim() if self.loss in DOUBTFUL else []
        await cluster.start(victim)
        await self._check_doubt(named)
        if trouble == "hangs after" and other in cluster.running:
            await cluster.hang(other)
        await asyncio.sleep(rng.uniform(0, 0.5))

    async def _lose(self, copy: Path | None) -> None:
        """What becomes of the victim's disk."""
        rng, cluster, victim = self.rng, self.cluster, self.victim
        if self.loss not in HARMLESS:
            self.history.destroyed.add(victim)
        match self.loss:
            case "wiped":
                await cluster.wipe(victim)
            case "older":
                assert copy is not None
                cluster.put_back(victim, copy)
            case "journal older":
                assert copy is not None
                cluster.put_back(victim, copy, "journal")
            case "index":
                cluster.lose_index(victim, journals=False)
            case "index and journals":
                cluster.lose_index(victim, journals=True)
            case "one journal":
                rng.choice(sorted(cluster.homes[victim].journal.glob("*.journal"))).unlink()
            case "swapped":
                await self._refuse_swapped()
            case _:
                pass

    async def _naming_ledger(self, client: BookKeeper) -> WriterHandle:
        """A ledger that names the victim and that nobody recovers while the victim is away."""
        while True:
            writer = await create(client, (3, 3, 2))
            metadata = await client.ledger_metadata(writer.ledger_id)
            if self.victim in metadata.last_fragment.bookies:
                return writer
            await writer.close()

    async def _replaced(self, ledger_id: int) -> None:
        """Wait until the ledger's writer has put another bookie in the victim's place."""
        async with self.cluster.connect() as client, asyncio.timeout(60):
            while True:
                metadata = await client.ledger_metadata(ledger_id)
                if self.victim not in metadata.last_fragment.bookies:
                    return
                await asyncio.sleep(0.05)

    async def _naming_the_victim(self) -> list[int]:
        """The ledgers whose last fragment names the victim now, while it is away."""
        async with self.cluster.connect() as client:
            found = [await client.ledger_metadata(one.ledger_id) for one in self.writers]
        return [one.ledger_id for one in found if self.victim in one.last_fragment.bookies]

    async def _check_doubt(self, named: Sequence[int]) -> None:
        """The victim denies no entry of ledgers that named it before, unless they are closed.

        Ledgers that chose it again since it is back are no such ones: it may deny what it knows.
        """
        async with self.cluster.connect() as client:
            entered = client._connected
            channel = entered.pool.connection(self.victim).channel()
            for ledger_id in named:
                reply = await channel.read(ReadCommand(ledger_id, 10**6, 10**6), timeout=60)
                metadata = (await entered.ledgers.read(ledger_id)).value
                assert metadata.is_closed or reply.status is Status.UNKNOWN_LEDGER_STATE, reply

    async def _refuse_swapped(self) -> None:
        cluster, victim, other = self.cluster, self.victim, self.other
        if other in cluster.running:
            await cluster.kill(other)
        cluster.swap(victim, other)
        with pytest.raises(AssertionError):
            await cluster.start(victim)
        assert (await cluster.daemons[victim].refusal())[0] == 1
        await cluster.kill(victim)
        cluster.swap(victim, other)

    async def _recover(self, client: BookKeeper, ledger_id: int, after: float) -> None:
        await asyncio.sleep(after)
        with suppress(BookieError):
            await self.history.open("recoverer", client, ledger_id, recover=True)

    async def _read(self, reader: BookKeeper, ledger_id: int, first: int) -> None:
        """Ask for the LAC again and again, and read up to it."""
        handle = await healed(partial(self.history.open, "reader", reader, ledger_id))
        while True:
            with suppress(BookieError):
                last = await handle.read_lac()
                if last >= first:
                    await handle.read(first, last)
            await asyncio.sleep(0.05)

    async def _tail(self, reader: BookKeeper, ledger_id: int) -> None:
        """Follow the ledger to its end; a tail that fails is begun anew where it was."""
        self.tailed[ledger_id] = 0
        while True:
            with suppress(BookieError):
                handle = await self.history.open("follower", reader, ledger_id)
                try:
                    await handle.tail(self.tailed[ledger_id])
                    return
                finally:
                    self.tailed[ledger_id] = handle.tailed
            await asyncio.sleep(0.1)

    async def _settle(self, reader: BookKeeper) -> None:
        """Everything is up: each ledger can be closed, by its writer or by a recovery."""
        for writer in self.writers:
            if self.rng.random() < 0.5:
                with suppress(BookieError):
                    await writer.close()
            recover = partial(self.history.open, "recoverer", reader, writer.ledger_id)
            await healed(partial(recover, recover=True))

    async def _check(self, client: BookKeeper, reader: BookKeeper) -> None:
        """The history is valid, and stays so after late appends and the ledgers' deletion."""
        for writer in self.writers:
            ledger_id = writer.ledger_id
            with suppress(BookieError):
                await writer.append([b"%d, too late" % ledger_id])
            # Another client reads it as well.
            found = await self.history.open("client", client, ledger_id)
            await found.read(0, found.reader.last_entry_id)
            metadata = await self.history.look(reader, ledger_id)
            self.changes += len(metadata.fragments) - 1
            seen, last = self.tailed[ledger_id], metadata.last_entry_id
            assert seen == last + 1, f"a tail of {ledger_id} saw {seen} entries, not {last + 1}"
        self.history.check()
        for writer in self.writers:
            await self.history.delete("client", client, writer.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await self.history.open("reader", reader, writer.ledger_id)
        self.history.check()


async def run_episodes(
    kind: str, request: pytest.FixtureRequest, path: Path, bookies: Sequence[str], episodes: int
) -> int:
    """Many losses, one after the other, on the same bookies; how many changes they brought."""
    uri = f"local://{path}/metadata"
    if kind != "local":
        uri = SHARED[kind](request).uri
    offset = 100_000 * STORES.index(kind) + 10_000_000 * (len(bookies) - 3)
    changes = 0
    seen: Counter[str] = Counter()
    framed = with_frames(kind, bookies)
    async with lossy_cluster(uri, path, bookies, has_links=True, by_frames=framed) as cluster:
        for number in range(episodes):
            async with cluster.connect() as client, cluster.connect() as reader:
                episode = Episode(cluster, offset + number)
                try:
                    await episode.run(client, reader)
                except BaseException as error:
                    error.add_note(
                        f"episode {offset + number} on {kind}: {episode.victim} {episode.loss}"
                    )
                    error.add_note(cluster.describe())
                    raise
                changes += episode.changes
                seen += episode.history.counts()
    print(f"{kind}: {dict(sorted(seen.items()))}")
    for kinds in ("AppendEvent ok", "ReadEvent ok", "ReadLacEvent ok", "TailEvent ok"):
        assert seen[kinds] >= episodes, seen
    return changes


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", STORES)
async def test_episodes(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, is_soak: bool
) -> None:
    """Three bookies: nobody else can take over, except in ledgers on two."""
    episodes = EPISODES_OF_A_SOAK if is_soak else EPISODES
    await run_episodes(kind, request, tmp_path, BOOKIES, episodes)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", STORES)
async def test_episodes_with_spares(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, is_soak: bool
) -> None:
    """Five bookies: writers and recoveries replace those that fail."""
    episodes = EPISODES_WITH_SPARES_OF_A_SOAK if is_soak else EPISODES_WITH_SPARES
    changes = await run_episodes(kind, request, tmp_path, FIVE, episodes)
    assert changes >= (episodes if is_soak else episodes // 3), "writers replaced bookies"

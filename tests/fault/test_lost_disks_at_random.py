"""Random episodes: one bookie's disk is lost while writers, recoveries and tails go on.

Each episode has ledgers of its own and one loss. A second bookie may hang, be killed, or be cut off
in one direction or both. With spares, writers replace bookies meanwhile. Recoveries may compete.
Then everything heals, and every ledger is recovered. The checks look for

- lost entries: acknowledged and not there;
- phantoms: never appended, acknowledged beyond the end, or seen by a tail and not there;
- entries that differ between readers or between bookies;
- entries with too few copies where the metadata says that they are.

What an episode does follows from its number, which a failure names.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from bookie.api import BookKeeper, WriterHandle
from bookie.client.verification import verify_read
from bookie.errors import BookieError
from bookie.formats.commands import ReadCommand
from bookie.formats.digest import digester_for_key
from bookie.formats.ledger_metadata import Fragment, LedgerMetadata
from bookie.ids import Status
from bookie.protocol.quorum import Quorum
from tests.fault.daemon_cluster import BOOKIES
from tests.fault.lossy_cluster import LossyCluster, create, lossy_cluster, payloads_of
from tests.fault.metadata_servers import SHARED
from tests.servers.proxy import Direction

STORES = ["local", *sorted(SHARED)]
EPISODES, EPISODES_OF_A_SOAK = 14, 334
"""On each of the three kinds of store, with three bookies."""
EPISODES_WITH_SPARES, EPISODES_WITH_SPARES_OF_A_SOAK = 6, 334
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
LEDGERS = 3
HEAL_SECONDS_MAX = 60.0
EPISODE_SECONDS_MAX = 240.0

PAUSE_SECONDS_MAX = 0.03
"""Between two batches of a writer, of which an episode then has a hundred."""

RECOVERY_SECONDS_MAX = 3.0
"""By then a recovery has begun: before the loss, while the victim is away, or after its return."""

T = TypeVar("T")


@dataclass(slots=True)
class Written:
    """One ledger: what was attempted, in order of the ids, and what was acknowledged."""

    writer: WriterHandle
    attempted: list[bytes] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    closed_at: set[int] = field(default_factory=set)
    """What each recovery and close said about the last entry."""
    tailed: int = 0
    """Entries that a tail delivered."""

    async def write(self, rng: random.Random) -> None:
        """Append until the writer fails or is stopped."""
        ledger_id = self.writer.ledger_id
        while True:
            count = rng.randrange(1, 5)
            first = len(self.attempted)
            batch = [b"%d/%d" % (ledger_id, first + i) * rng.randrange(1, 9) for i in range(count)]
            self.attempted += batch
            try:
                ids = await self.writer.append_many(batch)
            except BookieError:
                return
            assert ids == range(first, first + count)
            self.acknowledged.update(ids)
            await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))

    async def tail(self, client: BookKeeper) -> None:
        """Follow the ledger to its end; a tail that fails is begun anew where it was."""
        while True:
            with suppress(BookieError):
                reader = await client.open_ledger(self.writer.ledger_id)
                async for entry in reader.tail(self.tailed):
                    assert entry == (self.tailed, self.attempted[self.tailed])
                    self.tailed += 1
                return
            await asyncio.sleep(0.1)


async def healed(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns once the cluster has healed; until then it may fail."""
    async with asyncio.timeout(HEAL_SECONDS_MAX):
        while True:
            try:
                return await call()
            except BookieError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.1)


class Episode:
    """What happens in one episode follows from its number, apart from the times of processes."""

    def __init__(self, cluster: LossyCluster, number: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(number)
        self.loss = LOSSES[number % len(LOSSES)]
        self.victim, self.other, *_ = self.rng.sample(cluster.names, 3)
        self.ledgers: list[Written] = []
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
            self.ledgers.append(Written(await create(client, rng.choice(SIZES))))
        async with asyncio.timeout(EPISODE_SECONDS_MAX), asyncio.TaskGroup() as tails:
            for ledger in self.ledgers:
                tails.create_task(ledger.tail(reader))
            await self._go_wrong(client, reader, copy)
            await self._settle(client, reader)
        for ledger in self.ledgers:
            await self._check(client, reader, ledger)
            await client.delete_ledger(ledger.writer.ledger_id)

    async def _go_wrong(self, client: BookKeeper, reader: BookKeeper, copy: Path | None) -> None:
        """Writers and recoveries go on while the loss happens; at the end all bookies run."""
        rng, cluster = self.rng, self.cluster
        async with asyncio.TaskGroup() as tasks:
            writing = [
                tasks.create_task(ledger.write(random.Random(rng.random())))
                for ledger in self.ledgers
            ]
            recovering = []
            for ledger in self.ledgers:
                after = rng.uniform(0, RECOVERY_SECONDS_MAX)
                # Two begin at about the same time, so that they compete.
                for recoverer in (reader, client)[: rng.choice([0, 0, 1, 1, 2])]:
                    recovery = self._recover(recoverer, ledger, after + rng.uniform(0, 0.02))
                    recovering.append(tasks.create_task(recovery))
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            await self._lose_and_return(copy)
            await asyncio.sleep(rng.uniform(0, 0.3))
            cluster.heal()
            cluster.resume(*cluster.names)
            await cluster.start(*sorted({*cluster.names} - cluster.running))
            for task in recovering:
                await task
            for task in writing:
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
        await cluster.start(victim)
        if self.loss in DOUBTFUL:
            await self._check_doubt()
        if trouble == "hangs after" and other in cluster.running:
            await cluster.hang(other)
        await asyncio.sleep(rng.uniform(0, 0.5))

    async def _lose(self, copy: Path | None) -> None:
        """What becomes of the victim's disk."""
        rng, cluster, victim = self.rng, self.cluster, self.victim
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

    async def _check_doubt(self) -> None:
        """The victim may deny entries only of closed and whole ledgers that name it."""
        async with self.cluster.connect() as client:
            entered = client._connected
            channel = entered.pool.connection(self.victim).channel()
            for ledger in self.ledgers:
                ledger_id = ledger.writer.ledger_id
                metadata = (await entered.ledgers.read(ledger_id)).value
                if self.victim not in metadata.last_fragment.bookies:
                    continue
                reply = await channel.read(ReadCommand(ledger_id, 10**6, 10**6), timeout=5)
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

    async def _recover(self, reader: BookKeeper, ledger: Written, after: float) -> None:
        await asyncio.sleep(after)
        with suppress(BookieError):
            found = await reader.open_ledger(ledger.writer.ledger_id, recover=True)
            ledger.closed_at.add(found.last_entry_id)

    async def _settle(self, client: BookKeeper, reader: BookKeeper) -> None:
        """Everything is up: each ledger can be closed, by its writer or by a recovery."""
        for ledger in self.ledgers:
            if self.rng.random() < 0.5:
                with suppress(BookieError):
                    ledger.closed_at.add((await ledger.writer.close()).last_entry_id)
            ledger_id = ledger.writer.ledger_id
            found = await healed(partial(reader.open_ledger, ledger_id, recover=True))
            ledger.closed_at.add(found.last_entry_id)

    async def _check(self, client: BookKeeper, reader: BookKeeper, ledger: Written) -> None:
        ledger_id = ledger.writer.ledger_id
        assert len(ledger.closed_at) == 1, f"ledger {ledger_id} ends at {ledger.closed_at}"
        (last,) = ledger.closed_at
        assert ledger.tailed == last + 1, f"a tail saw {ledger.tailed} entries, not {last + 1}"
        late = [entry_id for entry_id in ledger.acknowledged if entry_id > last]
        assert not late, f"ledger {ledger_id} ends at {last}, but {late} were acknowledged"
        found = await payloads_of(reader, ledger_id)
        assert found == ledger.attempted[: last + 1], f"ledger {ledger_id}: other entries"
        assert await payloads_of(client, ledger_id) == found
        metadata = (await reader._connected.ledgers.read(ledger_id)).value
        self.changes += len(metadata.fragments) - 1
        copies: Counter[int] = Counter()
        ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]] + [last + 1]
        for fragment, end in zip(metadata.fragments, ends, strict=True):
            for slot in range(metadata.ensemble_size):
                place = Place(metadata, fragment, slot, end)
                copies.update(await self._check_copies(reader, place, found))
        least = metadata.ack_quorum_size - (self.loss not in ("nothing", "swapped"))
        assert all(copies[entry_id] >= least for entry_id in range(last + 1)), (
            f"ledger {ledger_id}: {copies}, and every entry should have {least} copies"
        )

    async def _check_copies(
        self, reader: BookKeeper, place: Place, entries: list[bytes]
    ) -> list[int]:
        """Which entries a bookie holds of those that it should; what it holds must be right."""
        metadata, bookie = place.metadata, place.fragment.bookies[place.slot]
        connection = reader._connected.pool.connection(bookie)
        digester = digester_for_key(metadata.digest_type, metadata.password_key)
        quorum = Quorum(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        stripe = quorum.stripe_of(place.slot)
        following = stripe.next_id(place.fragment.first_entry_id)
        held: list[int] = []
        while following < min(place.end, len(entries)):
            command = ReadCommand(
                metadata.ledger_id,
                following,
                place.end - 1,
                max_entries=1000,
                max_bytes=1 << 20,
                stripe_modulus=stripe.modulus,
                stripe_first_residue=stripe.first_residue,
                stripe_count=stripe.count,
            )
            read = partial(connection.channel().read, command, timeout=5)
            told = verify_read(await healed(read), digester)
            for entry in told.entries:
                assert entry.payload == entries[entry.entry_id], f"{bookie} holds another entry"
                held.append(entry.entry_id)
            if told.batch is None:
                # Lost with the disk, or never stored: absent, or unknown.
                assert told.status is not Status.BAD_CHECKSUM
                following = stripe.next_id(following + 1)
            else:
                following = stripe.next_id(told.batch.last_entry_id + 1)
        return held


@dataclass(frozen=True, slots=True)
class Place:
    """A slot of a fragment, whose entries end before `end`."""

    metadata: LedgerMetadata
    fragment: Fragment
    slot: int
    end: int


async def run_episodes(
    kind: str, request: pytest.FixtureRequest, path: Path, bookies: Sequence[str], episodes: int
) -> int:
    """Many losses, one after the other, on the same bookies; how many changes they brought."""
    uri = f"local://{path}/metadata"
    if kind != "local":
        uri = SHARED[kind](request).uri
    offset = 100_000 * STORES.index(kind) + 10_000_000 * (len(bookies) - 3)
    changes = 0
    async with lossy_cluster(uri, path, bookies, has_links=True) as cluster:
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
    assert changes >= episodes, "writers replaced bookies"

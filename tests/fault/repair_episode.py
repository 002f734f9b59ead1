"""One random episode with repair: who works, what is destroyed meanwhile, and the verdict.

Five bookies are processes. Two writers write ledger after ledger, each with a tail; a reader reads
all of them again, somebody recovers what is written, and a log has an owner. Meanwhile disks are
lost, damaged and replaced, and whoever repairs is killed.

An act that destroys copies waits until all ledgers from before have all their copies again. So the
copies of one bookie are destroyed at a time, and an ack quorum of two loses nothing. Acts that only
disturb follow at once, and hit the repair that goes on.

``python -m tests.fault.repair_episode SEED…`` shows the story of these episodes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bookie.cluster import keys
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.env import SystemClock
from bookie.errors import BookieError, NoSuchLedgerError
from bookie.ledger.catalog.removal import registered_bookies
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.metadata import LedgerMetadata
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.fault.disk_damage import flip_bit, punch_hole
from tests.fault.lossy_cluster import LossyCluster, healed, lossy_cluster, with_frames
from tests.fault.metadata_servers import MetadataServer
from tests.fault.repair_actors import (
    LedgerActor,
    LogActor,
    ReadingActor,
    RecoveringActor,
    Work,
    payload_of,
)
from tests.fault.standing_copies import find_problems
from tests.fault.stores_to_stop import own_store
from tests.fault.waiting import time_limit

FIVE = ("b1", "b2", "b3", "b4", "b5")
STORES = ("local", "etcd", "zk")
ROUNDS = 3
"""Acts that destroy copies; after each of them up to `DISTURBANCES_MAX` that only disturb."""
DISTURBANCES_MAX = 3
Act = Callable[[], Coroutine[Any, Any, str]]
SESSION_SECONDS = 4.0
AWAY_SECONDS_MAX = 6.0
WORK_SECONDS_MAX = 5.0
"""Somebody repairs something within this time, or nobody does."""
SECONDS_MAX = 300.0
"""What is to happen has happened by then, even on a busy machine."""
EPISODE_SECONDS_MAX = 1500.0
LAST_LINES = 20
"""Of each bookie's log, in the report of an episode that failed."""
AUDIT = "replicas"

REPAIR = {
    "lost_bookie_delay_seconds": 0.5,
    "retry_seconds_max": 2.0,
    "audit_interval_seconds": 5.0,
    "unnamed_copies_grace_seconds": 1.0,
    "bytes_per_second_max": 1 << 20,
}
SETTINGS: dict[str, dict[str, object]] = {
    "storage": {"scrub_bytes_per_second": 64 << 20},
    "limits": {
        "integrity_check_interval_seconds": 1.0,
        "integrity_check_repeat_seconds": 2.0,
    },
}


class RepairEpisode:
    """What happens in an episode follows from its seed, apart from the times of processes."""

    def __init__(self, cluster: LossyCluster, server: MetadataServer, seed: int) -> None:
        self.cluster, self.server = cluster, server
        self.seed = seed
        self.rng = random.Random(f"repair/{seed}")
        self.work = Work()
        self.story: list[str] = []
        self.dead: set[str] = set()
        """Bookies that were killed for good; they may come back all the same."""
        self._left: set[str] = set()
        self._came = 0
        self._drains: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    @property
    def live(self) -> set[str]:
        """The bookies that run and are there to stay."""
        return {*self.cluster.names} - self.dead - self._left

    def tell(self, what: str) -> None:
        """The next line of the story."""
        self.story.append(f"{asyncio.get_running_loop().time() - self._began:6.1f} {what}")
        with (self.cluster.path / "story").open("a", encoding="utf-8") as file:
            file.write(f"{self.story[-1]}\n")

    async def run(self) -> None:
        """Work, trouble, calm and the verdict."""
        async with self._begun():
            async with self._working():
                await self._go_wrong()
            await self._settle()
            await self._judge()

    async def run_and(
        self, damage: Callable[[LedgerMetadata], Awaitable[None]], problems: list[str]
    ) -> LedgerMetadata:
        """Work without trouble, then damage one ledger, and put what the checker says in a list.

        Repair is disabled before the damage, and everything was right then. Returns the ledger.
        """
        async with self._begun():
            async with self._working():
                await self._whole_again()
            await self._settle()
            await self._judge()
            await self._marks.disable()
            metadata = next(
                one
                for one in await self._ledgers()
                if one.ledger_id in self.work.written
                and one.last_entry_id >= 0
                and len(one.fragments) == 1
            )
            await damage(metadata)
            problems += await self.find_problems()
        return metadata

    async def away_for(self, name: str, change: Callable[[], object]) -> None:
        """Stop a bookie in order, change its disk, and start it again."""
        await self._end(name, orderly=True)
        change()
        await self._start(name)

    @asynccontextmanager
    async def _begun(self) -> AsyncIterator[None]:
        self._began = asyncio.get_running_loop().time()
        async with time_limit(EPISODE_SECONDS_MAX), self._stack:
            await self._connect()
            async with asyncio.TaskGroup() as drains:
                self._tasks = drains
                for name in FIVE:
                    self._drain(drains, name)
                yield
                for task in self._drains.values():
                    task.cancel()

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Everybody works; at the end all have ended, in order."""
        async with asyncio.TaskGroup() as tasks:
            for actor in self._actors():
                tasks.create_task(actor)
            yield
            self.work.is_over.set()
        self.tell("the work is over")

    async def _connect(self) -> None:
        enter = self._stack.enter_async_context
        self.client = await enter(self.cluster.connect())
        self._reader = await enter(self.cluster.connect())
        self._store: MetadataStore = await enter(open_store(self.cluster.uri))
        self._marks = UnderreplicationManager(self._store)
        await self.cluster.sees(self.client, *FIVE)
        self._writers = [
            LedgerActor(self.work, self.client, self._reader, self._random()) for _ in range(2)
        ]
        self._log = LogActor(self.work, self.client, self._random())
        await self._log.create()

    def _random(self) -> random.Random:
        return random.Random(self.rng.random())

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        return [
            *(one.run() for one in self._writers),
            self._log.run(),
            ReadingActor(self.work, self._reader, self._random()).run(),
            RecoveringActor(self.work, self._reader, self._random()).run(),
        ]

    # ---- processes

    def _drain(self, tasks: asyncio.TaskGroup, name: str) -> None:
        """Read what a bookie says. A full pipe would stop it."""
        daemon = self.cluster.daemons[name]
        stream = daemon.process.stderr
        assert stream is not None

        async def read() -> None:
            with (self.cluster.path / f"{name}.log").open("a", encoding="utf-8") as log:
                log.write("".join(f"{line}\n" for line in daemon.lines))
                async for line in stream:
                    log.write(line.decode())

        self._drains[name] = tasks.create_task(read())

    async def _start(self, name: str) -> None:
        await self.cluster.start(name)
        self._drain(self._tasks, name)
        self.work.away.discard(name)

    async def _end(self, name: str, *, orderly: bool) -> None:
        self.work.away.add(name)
        self.work.disturbances += 1
        drain = self._drains.pop(name)
        drain.cancel()
        await asyncio.wait([drain])
        await (self.cluster.stop(name) if orderly else self.cluster.kill(name))

    async def _restart(self, name: str, *, orderly: bool) -> None:
        await self._end(name, orderly=orderly)
        await self._start(name)

    async def _until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait until the condition returns something false: what is still wrong."""
        wrong: object = "nothing was seen"
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    try:
                        wrong = await condition()
                    except BookieError as error:
                        wrong = error
                    if not wrong:
                        return
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(
                f"in {SECONDS_MAX:g} s it never came that {what}: {wrong}"
            ) from None

    # ---- acts

    async def _go_wrong(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.5, 1.5))
        for _ in range(ROUNDS):
            await self._whole_again()
            await self._act(self.rng.choice(self._destroying()))
            for _ in range(self.rng.randrange(1, DISTURBANCES_MAX + 1)):
                await asyncio.sleep(self.rng.uniform(0, 1))
                await self._act(self.rng.choice(self._disturbing()))

    async def _act(self, act: Act) -> None:
        name = act.__name__.strip("_").replace("_", " ")
        self.tell(f"{name} …")
        self.tell(f"{name}: {await act()}")
        self.work.counts[f"act: {name}"] += 1

    def _destroying(self) -> list[Act]:
        acts = [self._wiped, self._index_lost, self._bit_flipped, self._hole]
        return [*acts, self._killed_for_good] if len(self.live) >= len(FIVE) else acts

    def _disturbing(self) -> list[Act]:
        acts = [
            self._paused,
            self._auditor_killed,
            self._replicator_killed,
            self._store_away,
        ]
        if self.dead:
            acts += [self._returned] * 2
        if len(self.live) <= len(FIVE):
            acts.append(self._added)
        if len(self.live) >= len(FIVE):
            acts.append(self._decommissioned)
        return acts

    def _victim(self) -> str:
        return self.rng.choice(sorted(self.live))

    async def _killed_for_good(self) -> str:
        name = self._victim()
        self.dead.add(name)
        await self._end(name, orderly=False)
        return name

    async def _wiped(self) -> str:
        """Empty directories under the same id. The bookie needs no command."""
        name = self._victim()
        await self._end(name, orderly=self.rng.random() < 0.5)
        for directory in self.cluster.directories(name):
            shutil.rmtree(directory)

        async def is_registered() -> bool:
            return name in await registered_bookies(self._store)

        # Before that the start would end with status 1, and a service manager would try again.
        await self._until(is_registered, f"the session of {name} has ended")
        await self._start(name)
        return name

    async def _index_lost(self) -> str:
        name = self._victim()
        await self._end(name, orderly=self.rng.random() < 0.5)
        self.cluster.lose_index(name, journals=False)
        await self._start(name)
        return name

    async def _bit_flipped(self) -> str:
        """Of entries below the mark: the bookie was stopped in order."""
        name, ledgers = await self._victim_with_ledgers()
        await self._end(name, orderly=True)
        flipped = 0
        for metadata in ledgers:
            entry_id = self.rng.randrange(metadata.last_entry_id + 1)
            payload = payload_of(metadata.ledger_id, entry_id)
            flipped += flip_bit(self.cluster.directories(name), payload)
        self.work.counts["bits flipped"] += flipped
        await self._start(name)
        return f"{name}, {flipped} bits"

    async def _hole(self) -> str:
        """Entries of closed ledgers vanish from one bookie."""
        name, ledgers = await self._victim_with_ledgers()
        await self._end(name, orderly=True)
        removed = 0
        for metadata in ledgers:
            removed += punch_hole(
                self.cluster.homes[name].ledgers,
                metadata.ledger_id,
                keep_ends=self.rng.random() < 0.5,
            )
        self.work.counts["entries removed"] += removed
        await self._start(name)
        return f"{name}, {removed} entries"

    async def _victim_with_ledgers(self) -> tuple[str, list[LedgerMetadata]]:
        """A bookie, and up to three closed ledgers of the writers that have entries there."""
        name, ledgers = "", list[LedgerMetadata]()

        async def is_empty() -> bool:
            nonlocal name, ledgers
            name = self._victim()
            ledgers = await self._closed_ones(name)
            return not ledgers

        await self._until(is_empty, "a bookie has entries of closed ledgers")
        return name, self.rng.sample(ledgers, min(3, len(ledgers)))

    async def _closed_ones(self, name: str) -> list[LedgerMetadata]:
        return [
            one
            for one in await self._ledgers()
            if one.ledger_id in self.work.written
            and one.is_closed
            and any(
                name in fragment.bookies and last >= fragment.first_entry_id
                for fragment, last in settled_fragments(one)
            )
        ]

    async def _paused(self) -> str:
        """SIGSTOP for longer than its session lasts."""
        name = self._victim()
        self.work.away.add(name)
        self.work.disturbances += 1
        await self.cluster.hang(name)

        async def is_registered() -> bool:
            return name in self.client.bookies()

        await self._until(is_registered, f"the session of {name} has ended")
        await asyncio.sleep(self.rng.uniform(0, 3))
        self.cluster.resume(name)
        self.work.away.discard(name)
        return name

    async def _auditor_killed(self) -> str:
        name = ""

        async def is_unknown() -> bool:
            nonlocal name
            async with Participant(self._store) as participant:
                holder = await LockManager(participant).read(keys.AUDITOR)
            name = "" if holder is None else holder.owner
            return name not in self.live

        await self._until(is_unknown, "a bookie audits that is there")
        orderly = self.rng.random() < 0.5
        await self._restart(name, orderly=orderly)
        return f"{name} {'stopped' if orderly else 'killed'}"

    async def _replicator_killed(self) -> str:
        """In the middle of a copy, if there is one within seconds."""
        name = ""
        with suppress(TimeoutError, BookieError):
            async with asyncio.timeout(WORK_SECONDS_MAX):
                while not name:
                    name = await self._replicator()
                    await asyncio.sleep(0.01)
        if not name:
            return "nobody repaired anything"
        await self._restart(name, orderly=False)
        self.work.counts["replicator killed at work"] += 1
        return name

    async def _replicator(self) -> str:
        """A bookie that copies entries now; empty if there is none."""
        for ledger_id in await self._marks.locked():
            name = await self._marks.worker_of(ledger_id)
            if name in self.live and await self._marks.find(ledger_id):
                return name
        return ""

    async def _store_away(self) -> str:
        seconds = self.rng.uniform(1, AWAY_SECONDS_MAX)
        crashes = self.rng.random() < 0.5
        (self.server.crash if crashes else self.server.pause)()
        await asyncio.sleep(seconds)
        if crashes:
            await self.server.restart()
        else:
            self.server.resume()
        return f"{seconds:.1f} s, {'crashed' if crashes else 'paused'}"

    async def _returned(self) -> str:
        """A bookie comes back with all that it had; its copies may have moved."""
        name = self.rng.choice(sorted(self.dead))
        await self._start(name)
        self.dead.discard(name)
        return name

    async def _added(self) -> str:
        self._came += 1
        name = f"new{self._came}"
        self.cluster.homes[name] = self.cluster.new_home(name)
        await self._start(name)
        return name

    async def _decommissioned(self) -> str:
        """By one command, which ends when the bookie is stopped."""
        name = self._victim()
        decommission = ("cluster", "decommission", name)

        async def is_refused() -> str:
            status, said = await self.cluster.command(*decommission, "--yes")
            return said if status else ""

        await self._until(is_refused, f"{name} begins to leave")
        await self._roll()
        await self._until(lambda: self._naming(name), f"no ledger names {name}")
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(self.cluster.command(*decommission, "--wait"))
            await self._end(name, orderly=True)
            status, said = await leaving
        assert status == 0, said
        self._left.add(name)
        self.work.away.discard(name)
        return name

    async def _naming(self, name: str) -> list[int]:
        return [
            one.ledger_id
            for one in await self._ledgers()
            if any(name in fragment.bookies for fragment in one.fragments)
        ]

    # ---- waiting for repair

    async def _ledgers(self) -> list[LedgerMetadata]:
        """All ledgers there are, those of the log as well."""
        found = [await self._metadata(one) async for one in self.client.list_ledgers()]
        return [one for one in found if one is not None]

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """None if the log deleted a ledger that it did not need."""
        try:
            return await self.client.ledger_metadata(ledger_id)
        except NoSuchLedgerError:
            if ledger_id in self.work.written:
                raise
            return None

    async def _roll(self) -> list[int]:
        """Have every ledger closed that there is now; return their ids."""
        before = [one.ledger_id for one in await healed(self._ledgers)]
        self.work.rolls += 1

        async def still_writing() -> list[int]:
            rolled = [*(one.rolled for one in self._writers), self._log.rolled]
            return [one for one in rolled if one != self.work.rolls]

        await self._until(still_writing, "everybody writes to another ledger")
        await self._close(before)
        return before

    async def _close(self, ledger_ids: list[int]) -> None:
        """Recover those that nobody writes, as after a creation that was not answered."""
        for ledger_id in ledger_ids:
            metadata = await healed(partial(self._metadata, ledger_id))
            if metadata is not None and not metadata.is_closed:
                await healed(partial(self.client.open_ledger, ledger_id, recover=True))

    async def _whole_again(self) -> None:
        """All that is there now has all of its copies, intact; then more may be destroyed."""
        ledger_ids = await self._roll()
        left = list(ledger_ids)

        async def lacking() -> list[str]:
            while left:
                if problems := await self._problems_of(left[-1]):
                    return problems[:3]
                left.pop()
            return []

        await self._until(lacking, f"{len(ledger_ids)} ledgers have all of their copies")
        self.tell(f"{len(ledger_ids)} ledgers are whole")

    async def _problems_of(self, ledger_id: int) -> list[str]:
        metadata = await self._metadata(ledger_id)
        if metadata is None:
            return []
        if ledger_id not in self.work.written:
            return await find_problems(self.client, metadata, self.live)
        acknowledged = self.work.acknowledged[ledger_id]
        return await find_problems(self.client, metadata, self.live, acknowledged, payload_of)

    async def _settle(self) -> None:
        """Until repair says that all is done, and every bookie says that it is whole."""
        await self._close([one.ledger_id for one in await healed(self._ledgers)])

        async def missing() -> set[str]:
            return self.live - set(self.client.bookies())

        await self._until(missing, "all bookies are registered")
        await self._until(self._unrepaired, "an audit has ended, and nothing is marked or locked")
        await self._until(self._unsound, "every bookie is whole")
        await self._until(self._unrepaired, "an audit has ended, and nothing is marked or locked")
        self.tell("repair is done")

    async def _unrepaired(self) -> str:
        """An audit that begins now, and what it left to do."""
        marks, began = self._marks, SystemClock().now_ms()
        await marks.forget_check(AUDIT)

        async def no_audit() -> bool:
            return (await marks.checked_ms(AUDIT) or 0) < began

        await self._until(no_audit, "an audit has ended")

        async def busy() -> str:
            marked = [one.ledger_id async for one in marks.marked()]
            locked = sorted(await marks.locked())
            return f"marked: {marked}, locked: {locked}" if marked or locked else ""

        await self._until(busy, "nothing is marked or locked")
        return ""

    async def _unsound(self) -> str:
        """A bookie that lacks entries, or cannot read some, by its own word."""
        for name in sorted(self.live):
            report = await self.cluster.checked(name)
            if not report or not report["whole"]:
                return f"{name}: {report}"
        return ""

    # ---- the verdict

    async def find_problems(self) -> list[str]:
        """What is wrong with the copies of all ledgers, in sentences."""
        problems: list[str] = []
        for one in await self._ledgers():
            problems += await healed(partial(self._problems_of, one.ledger_id))
        return problems

    async def _judge(self) -> None:
        problems = self.work.problems + await self.find_problems()
        problems += await healed(self._log.find_lost)
        for ledger_id, last in self.work.acknowledged.items():
            seen = self.work.tails[ledger_id]
            if seen <= last:
                problems.append(f"the tail of ledger {ledger_id} saw {seen} entries, not {last}")
        assert not problems, "\n".join(problems[:20])
        self.tell("the verdict: nothing is lost")


@asynccontextmanager
async def repair_episode(
    server: MetadataServer, path: Path, seed: int
) -> AsyncIterator[RepairEpisode]:
    """An episode that has not begun, on five new bookies. A failure names the seed."""
    async with lossy_cluster(
        server.uri,
        path,
        FIVE,
        repair=REPAIR,
        session_timeout_seconds=SESSION_SECONDS,
        settings=SETTINGS,
        by_frames=with_frames(store_of(seed), FIVE),
    ) as cluster:
        episode = RepairEpisode(cluster, server, seed)
        try:
            yield episode
        except BaseException as error:
            error.add_note(f"seed {seed} on {store_of(seed)}; python -m {__spec__.name} {seed}")
            error.add_note("\n".join(episode.story))
            error.add_note("\n".join(_last_words(episode)))
            raise


def _last_words(episode: RepairEpisode) -> Iterator[str]:
    """The state of each bookie's process, and the end of its log."""
    for name, daemon in episode.cluster.daemons.items():
        yield f"{name}: exit status {daemon.process.returncode}"
        log = episode.cluster.path / f"{name}.log"
        if log.exists():
            yield from log.read_text(encoding="utf-8").splitlines()[-LAST_LINES:]


def store_of(seed: int) -> str:
    """The kind of store of an episode."""
    return STORES[seed % len(STORES)]


async def run_seed(path: Path, seed: int) -> Counter[str]:
    """One episode on a store of its own, in an empty directory; what happened in it."""
    async with own_store(store_of(seed), path) as server, repair_episode(server, path, seed) as one:
        await one.run()
    return one.work.counts


async def _main(seeds: list[int]) -> None:
    for seed in seeds:
        path = Path(tempfile.mkdtemp(prefix="repair-"))
        print(f"seed {seed} on {store_of(seed)}, in {path}")
        counts = await run_seed(path, seed)
        print((path / "story").read_text(encoding="utf-8"))
        print(dict(sorted(counts.items())))
        shutil.rmtree(path)


if __name__ == "__main__":
    asyncio.run(_main([int(word) for word in sys.argv[1:]]))

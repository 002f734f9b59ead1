"""The recipes in virtual time, in orders that seeds choose, while replies and sessions are lost.

When the faults end, everything must come to rest: one leader, whole lines without orphans, every
member listed, every item worked on.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest

from bookie.coordination.election import Election, LeaderState
from bookie.coordination.lock import LockState
from bookie.coordination.locks import LockManager, ReadWriteLocks
from bookie.coordination.membership import Group
from bookie.coordination.participant import Participant
from bookie.coordination.queues import Queue
from bookie.errors import (
    LockBusyError,
    LockLostError,
    MetadataUnavailableError,
    OperationTimeoutError,
    SessionLostError,
)
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import Mode, simulated_loop
from tests.conformance.faulty_store import FaultyStore

SEEDS = range(24)
SESSION_SECONDS = 6.0
_names = itertools.count()


@dataclass
class Node:
    """One process."""

    name: str
    session: FaultyMemoryStore
    store: FaultyStore
    participant: Participant


class World:
    """Some processes on one store, and what is done to them."""

    def __init__(self, nodes: list[Node], observer: FaultyMemoryStore, seed: int) -> None:
        self.nodes = nodes
        self.observer = observer
        self.dice = random.Random(f"faults/{seed}")

    async def strike(self, times: int) -> None:
        """Faults one after the other; afterwards there are none."""
        for _ in range(times):
            node = self.dice.choice(self.nodes)
            match self.dice.randrange(6):
                case 0 | 1:
                    node.store.lost_replies += self.dice.randrange(1, 3)
                case 2:
                    node.store.lost_requests += self.dice.randrange(1, 3)
                case 3:
                    node.session.expire_session()
                case 4:
                    node.session.disconnect()
                    await asyncio.sleep(self.dice.uniform(0, 2 * SESSION_SECONDS))
                    node.session.reconnect()
                case _:
                    node.store.is_down = True
                    await asyncio.sleep(self.dice.uniform(0, SESSION_SECONDS))
                    node.store.is_down = False
            await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.1, 3.0)))
        for node in self.nodes:
            node.store.lost_replies = node.store.lost_requests = 0

    async def rest(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait, in virtual time, until `condition` holds; it may take some session timeouts."""
        async with asyncio.timeout(100 * SESSION_SECONDS):
            while not await condition():  # noqa: ASYNC110  (states of many parts)
                await asyncio.sleep(0.5)

    async def has_claims(self, path: str, count: int) -> bool:
        return len(await self.observer.get_children(path)) == count


def simulate(seed: int, test: Callable[[World], Awaitable[None]], *, nodes: int = 4) -> None:
    """Run a test in a world of its own."""

    async def main() -> None:
        name = f"recipes-{next(_names)}"
        async with AsyncExitStack() as stack:
            observer = await stack.enter_async_context(
                FaultyMemoryStore(name, session_timeout_seconds=SESSION_SECONDS)
            )
            made = []
            for number in range(nodes):
                session = await stack.enter_async_context(
                    FaultyMemoryStore(name, session_timeout_seconds=SESSION_SECONDS)
                )
                store = FaultyStore(session)
                participant = await stack.enter_async_context(
                    Participant(store, nonce=bytes([number]) * 16)
                )
                made.append(Node(f"n{number}", session, store, participant))
            await test(World(made, observer, seed))

    loop = simulated_loop(seed, list(Mode)[seed % 3])
    loop.run(main())
    assert not loop.unfinished()


@pytest.mark.parametrize("seed", SEEDS)
def test_elections_come_to_rest_with_one_leader(seed: int) -> None:
    async def test(world: World) -> None:
        elections = [Election(node.participant, "/leader") for node in world.nodes]
        for number, election in enumerate(elections):
            world.nodes[number].participant.spawn(_stand(election, b"%d" % number))
        await world.strike(15)

        async def one_leads() -> bool:
            states = Counter(election.state for election in elections)
            return states == {LeaderState.LEADING: 1, LeaderState.FOLLOWING: 3}

        await world.rest(one_leads)
        # Nothing is left of claims whose replies were lost.
        await world.rest(lambda: world.has_claims("/leader", 4))
        assert await one_leads()
        (leader,) = (e for e in elections if e.state is LeaderState.LEADING)
        holder = await leader.leader()
        assert holder is not None
        assert holder.content == b"%d" % elections.index(leader)

    simulate(seed, test)


async def _stand(election: Election, value: bytes) -> None:
    await election.elect(value)


@pytest.mark.parametrize("seed", SEEDS)
def test_locks_leave_no_orphans_and_never_two_for_certain(seed: int) -> None:
    """Two who are certain at once must both be first in line: that is seen at the store."""

    async def test(world: World) -> None:
        tokens: list[int] = []

        async def work(node: Node) -> None:
            dice = random.Random(f"{seed}/{node.name}")
            locks = LockManager(node.participant)
            for _ in range(4):
                try:
                    lock = await locks.acquire("/lock", timeout_seconds=dice.choice((0.5, 60.0)))
                except OperationTimeoutError:
                    continue
                tokens.append(lock.token)
                await asyncio.sleep(dice.uniform(0, 2))
                if dice.randrange(3) == 0:
                    with suppress(LockLostError, MetadataUnavailableError, SessionLostError):
                        await lock.update(node.name.encode())
                await lock.release()
                assert not (lock.lost.is_set() and lock.state is LockState.RELEASED)

        async with asyncio.TaskGroup() as group:
            group.create_task(world.strike(15))
            for node in world.nodes:
                group.create_task(work(node))
        assert len(set(tokens)) == len(tokens)
        assert len(tokens) >= 4
        await world.rest(lambda: world.has_claims("/lock", 0))

    simulate(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_and_writers_leave_no_orphans(seed: int) -> None:
    async def test(world: World) -> None:
        async def work(node: Node) -> None:
            dice = random.Random(f"{seed}/{node.name}")
            locks = ReadWriteLocks(node.participant)
            for _ in range(5):
                acquire = dice.choice((locks.read, locks.read, locks.write))
                lock = await acquire("/rw", timeout_seconds=300.0)
                await asyncio.sleep(dice.uniform(0, 1))
                await lock.release()

        async with asyncio.TaskGroup() as group:
            group.create_task(world.strike(12))
            for node in world.nodes:
                group.create_task(work(node))
        await world.rest(lambda: world.has_claims("/rw", 0))

    simulate(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_item_is_put_once_and_worked_on(seed: int) -> None:
    async def test(world: World) -> None:
        put: list[bytes] = []
        doubtful: list[bytes] = []
        done: Counter[bytes] = Counter()
        worked: Counter[bytes] = Counter()

        async def produce(node: Node) -> None:
            queue = Queue(node.participant, "/queue")
            for number in range(6):
                value = f"{node.name}-{number}".encode()
                try:
                    await queue.put(value)
                    put.append(value)
                except (MetadataUnavailableError, SessionLostError):
                    doubtful.append(value)
                await asyncio.sleep(0.3)

        async def consume(node: Node) -> None:
            queue = Queue(node.participant, "/queue")
            idle = 0
            while idle < 3:
                try:
                    taken = await queue.take(timeout_seconds=3 * SESSION_SECONDS)
                except OperationTimeoutError:
                    idle += 1
                    continue
                except (MetadataUnavailableError, SessionLostError):
                    await asyncio.sleep(0.5)
                    continue
                worked[taken.value] += 1
                await asyncio.sleep(0.1)
                try:
                    await taken.done()
                    done[taken.value] += 1
                except (LockLostError, MetadataUnavailableError):
                    await taken.give_back()

        async with asyncio.TaskGroup() as group:
            group.create_task(world.strike(15))
            for node in world.nodes[:2]:
                group.create_task(produce(node))
            for node in world.nodes[2:]:
                group.create_task(consume(node))
        assert await world.observer.get_children("/queue/items") == []
        assert set(put) <= set(worked)
        assert set(worked) <= {*put, *doubtful}
        assert set(done) <= set(worked)

    simulate(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_members_are_all_there_in_the_end(seed: int) -> None:
    async def test(world: World) -> None:
        async with AsyncExitStack() as stack:
            group = Group(world.nodes[0].participant, "/group")
            view = await stack.enter_async_context(group.view())
            for node in world.nodes:
                mine = Group(node.participant, "/group").join(node.name, node.name.encode())
                await stack.enter_async_context(mine)
            await world.strike(15)
            wanted = {node.name: node.name.encode() for node in world.nodes}

            async def is_whole() -> bool:
                return dict(view.members) == wanted and await group.members() == wanted

            await world.rest(is_whole)
        await world.rest(lambda: world.has_claims("/group", 0))

    simulate(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_name_has_one_member_at_a_time(seed: int) -> None:
    """After an outage a member takes its name again, or waits for the present owner."""

    async def test(world: World) -> None:
        inside: set[str] = set()

        async def work(node: Node) -> None:
            for _ in range(3):
                member = Group(node.participant, "/group").join("a")
                try:
                    await member.__aenter__()
                except (LockBusyError, MetadataUnavailableError, SessionLostError):
                    await asyncio.sleep(1.0)
                    continue
                inside.add(node.name)
                await asyncio.sleep(0.5)
                await member.__aexit__(None, None, None)

        async with asyncio.TaskGroup() as group:
            group.create_task(world.strike(8))
            for node in world.nodes:
                group.create_task(work(node))
        assert inside
        await world.rest(lambda: world.has_claims("/group", 0))

    simulate(seed, test)

"""Clients of three real servers, and faults of the servers and of the way to them: a history.

Every client reaches the servers through proxies of its own. While they work, faults of the servers
come one after the other, and beside them faults of single clients. When all is healed, everybody
has to go on, and what belonged to sessions that were lost has to go within a bound.

Who is told that a session ended? Each session has a leased record, the *mark*. Another client reads
it again and again, and faults of clients spare this one. When the mark is gone the session has
ended, and its other records went in the same commit.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from bookie.errors import BookieError, MetadataUnavailableError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore
from tests.conformance.faulty_store import FaultyStore
from tests.histories.ensembles import Fault, Servers
from tests.histories.history import FOREVER, History, SessionEnd
from tests.histories.workload import Person, Recorder, Watcher, write_fence
from tests.servers.proxy import Proxy

LEASES_MAX = 2
"""So many session timeouts after all is healed, the records of lost sessions are gone.

A server that becomes leader grants every session a whole lease again, and may become leader last.
"""

MARKS = "/marks"
_LOOK_SECONDS = 0.02
_PEOPLE = 3
_RESETS = 10


@dataclass(frozen=True)
class Manner:
    """The parameters of a run."""

    pace_seconds: float = 0.02
    """How long each part of a client pauses after each step."""
    session_seconds: float = 3.0
    margin_seconds: float = 30.0
    """Time that a busy machine may add to any wait."""
    kind: type[FaultyStore] = FaultyStore
    """A layer between clients and their stores: one with a bug, to see that it is found."""

    @property
    def absence_seconds(self) -> float:
        """No session survives such a silence: servers round up what they grant."""
        return self.session_seconds * 1.1 + 0.6


class ClientFault(enum.Enum):
    """A fault of one client."""

    LOST_REPLY = "a reply is lost, and its connection with it"
    RESET = "all connections break, several times in a row"
    SILENCE = "nothing passes for a while"
    ABSENCE = "nothing passes for longer than the session lives"
    EXPIRY = "the servers end the session"


class Way:
    """The way of one client to the servers: a proxy in front of each."""

    def __init__(self, ports: Sequence[int], stack: ExitStack) -> None:
        self._proxies = [stack.enter_context(Proxy(port)) for port in ports]

    @property
    def ports(self) -> list[int]:
        """Ports at which the client finds the servers."""
        return [proxy.port for proxy in self._proxies]

    def hold(self) -> None:
        """Silence."""
        for proxy in self._proxies:
            proxy.hold()

    def reset(self) -> None:
        """Break all connections."""
        for proxy in self._proxies:
            proxy.reset()

    async def lose_reply(self) -> None:
        """Lose the next reply from any server; returns when it is lost."""
        for proxy in self._proxies:
            proxy.eat_next_reply()
        while not any(proxy.has_eaten for proxy in self._proxies):  # noqa: ASYNC110  (in a thread)
            await asyncio.sleep(0.01)

    def heal(self) -> None:
        """All is well."""
        for proxy in self._proxies:
            proxy.heal()


@dataclass
class _Mark:
    """A mark of one session."""

    client: str
    session: int
    made_at: float
    """As the history counts."""


@dataclass
class Run:
    """One run: who takes part, and what was seen."""

    servers: Servers
    seed: int
    manner: Manner
    recorder: Recorder = field(default_factory=Recorder)
    people: list[Person] = field(default_factory=list)
    ways: dict[str, Way] = field(default_factory=dict)
    marks: dict[str, _Mark] = field(default_factory=dict)
    """By their keys; those that are not known to be gone."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each fault was."""

    def rounds(self) -> Iterator[None]:
        """One after the other, until the run is over."""
        while not self.is_over.is_set():
            yield

    # ---- sessions

    async def mark_sessions(self, person: Person) -> None:
        """Make a mark for each session of a client."""
        session = unmarked = 0
        begun_at = self.recorder.now()
        while not self.is_over.is_set():
            now = person.session_number
            if now != session:
                self._note_unmarked(person, unmarked, begun_at)
                session = unmarked = now
                begun_at = self.recorder.now()
            if unmarked and await self._make_mark(person, session):
                unmarked = 0
            await asyncio.sleep(_LOOK_SECONDS)
        self._note_unmarked(person, unmarked, begun_at)

    def _note_unmarked(self, person: Person, session: int, begun_at: float) -> None:
        """Its end was unobserved, and its leased records, if any, are unknown."""
        if session:
            self.recorder.history.append(SessionEnd(person.name, session, begun_at, FOREVER))

    async def _make_mark(self, person: Person, session: int) -> bool:
        key = f"{MARKS}/{person.name}-{session}-{self.recorder.now():.0f}"
        made_at = self.recorder.now()
        try:
            await person.store.put(key, b"", version=NOT_EXISTS, ephemeral=True)
        except (MetadataUnavailableError, SessionLostError):
            return False
        if person.session_number != session:
            return False
        self.marks[key] = _Mark(person.name, session, made_at)
        return True

    def is_marked(self, person: Person, session: int) -> bool:
        """True if the end of the session will be known."""
        return any(
            (mark.client, mark.session) == (person.name, session) for mark in self.marks.values()
        )

    async def witness(self, store: MetadataStore) -> None:
        """Look at all marks again and again, and write down which are gone."""
        seen_at: dict[str, float] = {}
        while not self.is_over.is_set():
            with suppress(MetadataUnavailableError, SessionLostError):
                await self._look(store, seen_at)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self, store: MetadataStore, seen_at: dict[str, float]) -> None:
        called = self.recorder.now()
        marks = list(self.marks)
        await store.sync()
        for key in marks:
            if await store.get(key) is not None:
                seen_at[key] = called
                continue
            mark = self.marks.pop(key)
            since = seen_at.get(key, mark.made_at)
            end = SessionEnd(mark.client, mark.session, since, self.recorder.now())
            self.recorder.history.append(end)

    def overdue(self) -> list[str]:
        """Marks of sessions that their clients have lost."""
        present = {(person.name, person.session_number) for person in self.people}
        return [
            key for key, mark in self.marks.items() if (mark.client, mark.session) not in present
        ]

    async def settle(self) -> None:
        """All is healed: everybody goes on, and nothing of a lost session stays beyond the bound.

        Raises:
            AssertionError: not so.
        """
        answers = {person.name: person.answers for person in self.people}

        def waits_for() -> list[str]:
            late = [p.name for p in self.people if p.answers < answers[p.name] + 5]
            return late + self.overdue()

        limit = LEASES_MAX * self.manner.session_seconds + self.manner.margin_seconds
        try:
            async with asyncio.timeout(limit):
                while waits_for():  # noqa: ASYNC110  (states of many parts)
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise AssertionError(f"long after all was healed, still: {waits_for()}") from None

    # ---- faults

    async def befall_servers(self, faults: Sequence[Fault]) -> None:
        """Each of these, one after the other."""
        for fault in faults:
            await self._progress(10)
            await self.servers.strike(fault)
            self.counts[fault.name] += 1
            await asyncio.sleep(self._duration(fault))
            await self.servers.heal()

    def _duration(self, fault: Fault) -> float:
        if fault.outlasts_sessions:
            return self.manner.absence_seconds
        is_short = fault.kills or fault is Fault.STOP_FOLLOWER
        return 0.7 if is_short else self.servers.silence_seconds

    async def befall_clients(self, faults: Sequence[ClientFault]) -> None:
        """Each of these befalls somebody."""
        dice = random.Random(f"clients/{self.seed}")
        for fault in faults:
            person = dice.choice(self.people)
            way = self.ways[person.name]
            await self._until_marked(person)
            self.counts[fault.name] += 1
            match fault:
                case ClientFault.LOST_REPLY:
                    async with asyncio.timeout(self.manner.margin_seconds * 2):
                        await way.lose_reply()
                case ClientFault.RESET:
                    for _ in range(_RESETS):
                        way.reset()
                        await self._progress(3, person)
                case ClientFault.SILENCE:
                    way.hold()
                    await asyncio.sleep(0.5)
                case ClientFault.ABSENCE:
                    way.hold()
                    await asyncio.sleep(self.manner.absence_seconds)
                case ClientFault.EXPIRY:
                    await self._expire(person)
            way.heal()
            await self._progress(10, person)

    async def _until_marked(self, person: Person) -> None:
        async with asyncio.timeout(self.manner.margin_seconds * 2):
            while not self.is_marked(person, person.session_number):  # noqa: ASYNC110  (of two)
                await asyncio.sleep(_LOOK_SECONDS)

    async def _expire(self, person: Person) -> None:
        before = person.session_number
        other = next(one for one in self.people if one is not person)
        async with asyncio.timeout(self.manner.margin_seconds * 2):
            while person.session_number == before:
                with suppress(BookieError):
                    await self.servers.expire(person.session, other.session)
                await asyncio.sleep(0.2)

    async def _progress(self, count: int, person: Person | None = None) -> None:
        """Return when somebody was answered so often again, or this one was."""
        people = self.people if person is None else [person]
        wanted = {one.name: one.answers + count for one in people}
        async with asyncio.timeout(self.manner.margin_seconds * 2):
            while all(p.answers < wanted[p.name] for p in people):  # noqa: ASYNC110  (of several)
                await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _opened(
    servers: Servers, seed: int, manner: Manner
) -> AsyncIterator[tuple[Run, MetadataStore]]:
    """The clients of a run, connected, and its witness."""
    run = Run(servers, seed, manner)
    with ExitStack() as proxies:
        async with AsyncExitStack() as stores:

            async def connect(ports: Sequence[int]) -> MetadataStore:
                uri, seconds = servers.uri(ports), manner.session_seconds
                async with asyncio.timeout(2 * manner.margin_seconds):
                    while True:
                        # Servers of a busy machine may take longer than a first attempt lasts.
                        with suppress(MetadataUnavailableError):
                            store = open_store(uri, session_timeout_seconds=seconds)
                            return await stores.enter_async_context(store)

            for number in range(_PEOPLE):
                name = f"c{number}"
                way = run.ways[name] = Way(servers.ports, proxies)
                session = await connect(way.ports)
                person = Person(
                    name,
                    manner.kind(session),
                    session,
                    run.recorder,
                    random.Random(f"{seed}/{number}"),
                    servers.reads_are_current,
                    session_of=servers.session_of,
                    pace_seconds=manner.pace_seconds,
                )
                person.leases = _leases(run, person)
                run.people.append(person)
            yield run, await connect(servers.ports)


def _leases(run: Run, person: Person) -> Callable[[int], bool]:
    return lambda session: run.is_marked(person, session)


async def record_under_faults(
    servers: Servers,
    seed: int,
    faults: Sequence[Fault],
    client_faults: Sequence[ClientFault],
    manner: Manner = Manner(),
) -> tuple[History, Counter[str]]:
    """Run clients through these faults; what they did and saw, and how often each fault was.

    Args:
        servers: whole ones.
        seed: chooses what the clients do, and whom a fault befalls. The servers keep a time of
            their own, so a seed gives similar histories.
        faults: what befalls the servers, one after the other.
        client_faults: what befalls clients meanwhile, one after the other.
        manner: how.

    Raises:
        AssertionError: the clients do not go on, or something outlives its session.
        TimeoutError: a watch does not see the end.
    """
    async with _opened(servers, seed, manner) as (run, other):
        splits = servers.splits_commits
        watchers = [Watcher("w", other, run.recorder, splits=splits)]
        watchers += [
            Watcher(person.name, person.store, run.recorder, splits=splits)
            for person in run.people[:2]
        ]
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as watching:
            for watcher in watchers:
                watching.create_task(watcher.follow())
                await watcher.stands.wait()
            async with asyncio.TaskGroup() as working:
                working.create_task(run.witness(other))
                for person in run.people:
                    working.create_task(run.mark_sessions(person))
                    working.create_task(person.use_registers(run.rounds()))
                    working.create_task(person.use_locks(run.rounds()))
                    working.create_task(person.draw_numbers(run.rounds()))
                async with asyncio.TaskGroup() as befalling:
                    befalling.create_task(run.befall_servers(faults))
                    befalling.create_task(run.befall_clients(client_faults))
                await run.settle()
                run.is_over.set()
            await write_fence(run.people[-1], watchers, run.recorder)
            # A watch that stands still for good is found by never seeing the end.
            limit.reschedule(asyncio.get_running_loop().time() + 2 * manner.margin_seconds)
        return run.recorder.history, run.counts

"""Clients that use a metadata store, and faults that they live through, written down as a history.

It runs on whatever stores it is given: real ones, or the one in memory in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from bookie.coordination.counters import Counter
from bookie.coordination.lock import Lock
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.errors import (
    BadVersionError,
    LockLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    OperationTimeoutError,
    SessionLostError,
)
from bookie.metadata.model import NOT_EXISTS, Change, ChangeKind, Put, Record, Resync, Stat
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from tests.conformance.faulty_store import FaultyStore
from tests.histories.history import (
    FOREVER,
    SOME_SESSION,
    Acquisition,
    Drawn,
    Effect,
    Gap,
    History,
    Notice,
    Outcome,
    Read,
    Seen,
    SessionEnd,
    Verb,
    Watched,
    Write,
)

REGISTERS = "/h"
NAMES = "abcd"
FENCE = "/h/fence"
LOCK = "/lock"
EFFECT = "/effect"
COUNTER = "/counter"
_KINDS = {
    ChangeKind.CREATED: Seen.CREATED,
    ChangeKind.MODIFIED: Seen.MODIFIED,
    ChangeKind.DELETED: Seen.DELETED,
}


class Recorder:
    """The history so far, and its clock: a number for each moment that matters."""

    def __init__(self) -> None:
        self.history: History = []
        self._ticks = itertools.count(1)

    def now(self) -> float:
        """A moment after all that were asked for before."""
        return float(next(self._ticks))


@dataclass
class Person:
    """One client of the store: a name, a session, and its own dice."""

    name: str
    store: FaultyStore
    session: MetadataStore
    recorder: Recorder
    dice: random.Random
    is_current: bool
    """True if the backend's reads show the newest state."""
    sessions: int = 1
    """The number of its session, where nothing but the test ends one."""
    session_of: Callable[[MetadataStore], int] | None = None
    """The mark that tells one session of a store from the next, if others end them."""
    leases: Callable[[int], bool] = lambda _: True
    """True if records may be leased in the session of this number."""
    pace_seconds: float = 0.0
    """A pause after each step."""
    answers: int = 0
    """How many operations were answered so far."""
    quiet: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by each operation of which it matters in which session it was done."""
    known: dict[str, Stat] = field(default_factory=dict)
    values: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def session_number(self) -> int:
        """Of the session that it has now."""
        return self.sessions if self.session_of is None else self.session_of(self.session)

    # ---- registers

    async def use_registers(self, steps: Iterable[object]) -> None:
        """Read, create, replace, take over and delete a few records at random."""
        for _ in steps:
            key = f"{REGISTERS}/{self.dice.choice(NAMES)}"
            async with self.quiet:
                match self.dice.randrange(6):
                    case 0 | 1:
                        await self._read(key)
                    case 2:
                        await self._write(Verb.CREATE, key, NOT_EXISTS)
                    case 3 | 4 if key in self.known:
                        await self._write(Verb.REPLACE, key, self.known[key].version)
                    case 5 if key in self.known:
                        await self._write(Verb.DELETE, key, self.known[key].version)
                    case _:
                        await self._read(key)
            await asyncio.sleep(self.pace_seconds)

    async def _read(self, key: str) -> None:
        is_synced = self.dice.randrange(3) == 0
        called = self.recorder.now()
        try:
            if is_synced:
                await self.store.sync()
            record = await self.store.get(key)
        except (MetadataUnavailableError, SessionLostError):
            return
        self.answers += 1
        read = _read(self.name, key, called, self.recorder.now(), record)
        if record is None:
            self.known.pop(key, None)
        else:
            self.known[key] = record.stat
        self.recorder.history.append(replace(read, is_current=self.is_current or is_synced))

    async def _write(self, verb: Verb, key: str, expected: int) -> None:
        value = f"{self.name}-{next(self.values)}"
        # Some are leased, and some of those are taken over, also from oneself.
        session = self.session_number
        ephemeral = (
            self.dice.randrange(2) == 0
            and (verb is Verb.CREATE or (verb is Verb.REPLACE and self.known[key].ephemeral))
            and self.leases(session)
        )
        write = Write(
            self.name,
            verb,
            key,
            called=self.recorder.now(),
            returned=FOREVER,
            outcome=Outcome.UNKNOWN,
            value="" if verb is Verb.DELETE else value,
            expected=None if verb is Verb.CREATE else expected,
            session=session if ephemeral else 0,
        )
        try:
            if verb is Verb.DELETE:
                await self.store.delete(key, version=expected)
                self.known.pop(key, None)
                write = replace(write, outcome=Outcome.OK)
            else:
                stat = await self.store.put(
                    key, value.encode(), version=expected, ephemeral=ephemeral
                )
                self.known[key] = stat
                write = replace(
                    write, outcome=Outcome.OK, version=stat.version, revision=_number(stat)
                )
        except (BadVersionError, NoSuchKeyError):
            write = replace(write, outcome=Outcome.CONFLICT)
        except SessionLostError:
            write = replace(write, outcome=Outcome.REFUSED)
        except MetadataUnavailableError:
            self._note(write)
            return
        self.answers += 1
        self._note(replace(write, returned=self.recorder.now()))

    def _note(self, write: Write) -> None:
        if write.session and write.session != self.session_number:
            # Whichever session it was, that may have ended at any time since.
            write = replace(write, session=SOME_SESSION)
            end = SessionEnd(self.name, SOME_SESSION, write.called, FOREVER)
            self.recorder.history.append(end)
        self.recorder.history.append(write)

    # ---- recipes

    async def use_locks(self, rounds: Iterable[object]) -> None:
        """Acquire one lock again and again, and do what it guards."""
        async with Participant(self.store) as participant:
            locks = LockManager(participant)
            for _ in rounds:
                await asyncio.sleep(self.pace_seconds)
                called = self.recorder.now()
                try:
                    lock = await locks.acquire(LOCK, timeout_seconds=30)
                except OperationTimeoutError:
                    continue
                await self._act(lock, called)

    async def _act(self, lock: Lock, called: float) -> None:
        tokens: dict[int, Acquisition] = {}
        for _ in range(self.dice.randrange(1, 5)):
            token = lock.token
            if token not in tokens:
                returned = self.recorder.now()
                tokens[token] = Acquisition(self.name, LOCK, called, returned, token)
            await self._do(lock, token)
            await asyncio.sleep(self.pace_seconds)
        ended = self.recorder.now()
        self.recorder.history += [replace(one, ended=ended) for one in tokens.values()]
        await lock.release()

    async def _do(self, lock: Lock, token: int) -> None:
        called = self.recorder.now()
        revision = -1
        try:
            done = await self.store.transaction([lock.check(), Put(EFFECT, self.name.encode())])
            assert done[1] is not None
            revision = _number(done[1])
        except MetadataUnavailableError:
            return
        except (BadVersionError, NoSuchKeyError, LockLostError, SessionLostError):
            pass
        returned = self.recorder.now()
        self.recorder.history.append(Effect(self.name, LOCK, token, called, returned, revision))

    async def draw_numbers(self, rounds: Iterable[object]) -> None:
        """Draw from one counter."""
        async with Participant(self.store) as participant:
            counter = Counter(participant, COUNTER)
            for _ in rounds:
                await asyncio.sleep(self.pace_seconds)
                called = self.recorder.now()
                try:
                    number = await counter.next()
                except (MetadataUnavailableError, SessionLostError):
                    continue
                returned = self.recorder.now()
                self.recorder.history.append(Drawn(self.name, COUNTER, called, returned, number))


class Watcher:
    """Mirrors the registers by a watch, until it saw the fence."""

    def __init__(
        self, name: str, store: MetadataStore, recorder: Recorder, *, splits: bool
    ) -> None:
        self._name = name
        self._store = store
        self._recorder = recorder
        self._splits = splits
        """The backend may deliver one commit in pieces."""
        self._notices: list[Notice | Gap] = []
        self._batches = itertools.count()
        self.mirror: dict[str, int] = {}
        self.stands = asyncio.Event()
        self.until = FOREVER
        """Set before the fence is written."""

    async def follow(self) -> None:
        """Watch to the end, and write down what was seen."""
        async with self._store.watch(REGISTERS) as changes:
            self.mirror = _revisions(await self._list())
            since = self._recorder.now()
            self.stands.set()
            while FENCE not in self.mirror:
                await self._take(await anext(changes))
        called = self._recorder.now()
        await self._store.sync()
        records = await self._list()
        returned = self._recorder.now()
        # It came after a sync, so that it is a current read of every key, also of those that are
        # not there.
        self._recorder.history += [
            _read(self._name, key, called, returned, records.get(key))
            for key in sorted({*records, FENCE, *(f"{REGISTERS}/{name}" for name in NAMES)})
        ]
        final = _revisions(records)
        self._recorder.history.append(
            Watched(
                self._name, REGISTERS, since, self.until, tuple(self._notices), self.mirror, final
            )
        )

    async def _take(self, change: Change) -> None:
        if isinstance(change, Resync):
            self._notices.append(Gap())
            self.mirror = _revisions(await self._list())
            return
        batch = next(self._batches)
        for event in change.events:
            revision = event.revision or 0
            number = revision if self._splits else batch
            self._notices.append(Notice(_KINDS[event.kind], event.key, revision, number))
            if event.kind is ChangeKind.DELETED:
                self.mirror.pop(event.key, None)
            else:
                self.mirror[event.key] = revision

    async def _list(self) -> dict[str, Record]:
        while True:
            try:
                return {record.key: record async for record in self._store.scan_children(REGISTERS)}
            except MetadataUnavailableError:
                await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Faults:
    """Faults of a session; None if the backend lacks one."""

    expire: Callable[[MetadataStore], Awaitable[None]]
    disconnect: Callable[[MetadataStore], Awaitable[None]] | None = None
    reconnect: Callable[[MetadataStore], Awaitable[None]] | None = None


class Nemesis:
    """Loses replies and requests, cuts sessions off, and ends them."""

    def __init__(self, people: list[Person], faults: Faults, recorder: Recorder, seed: int) -> None:
        self._people = people
        self._faults = faults
        self._recorder = recorder
        self._dice = random.Random(f"nemesis/{seed}")
        self.counts = dict.fromkeys(("reply", "request", "expiry", "outage"), 0)

    async def strike(self, times: int) -> None:
        """So many faults, one after the other."""
        for _ in range(times):
            person = self._dice.choice(self._people)
            match self._dice.randrange(8):
                case 0 | 1 | 2:
                    person.store.lost_replies += 1
                    self.counts["reply"] += 1
                case 3 | 4:
                    person.store.lost_requests += 1
                    self.counts["request"] += 1
                case 5 | 6:
                    await self._expire(person)
                case _:
                    await self._cut_off(person)
            for _ in range(self._dice.randrange(60)):
                await asyncio.sleep(0)

    async def _expire(self, person: Person) -> None:
        # No call is under way meanwhile, because its session would be unknown.
        async with person.quiet, person.session.session_events() as events:
            self.counts["expiry"] += 1
            called = self._recorder.now()
            await self._faults.expire(person.session)
            async for event in events:
                if event is SessionEvent.SESSION_REESTABLISHED:
                    break
            self._recorder.history.append(
                SessionEnd(person.name, person.sessions, called, self._recorder.now())
            )
            person.sessions += 1

    async def _cut_off(self, person: Person) -> None:
        if self._faults.disconnect is None or self._faults.reconnect is None:
            return
        self.counts["outage"] += 1
        async with person.session.session_events() as events:
            await self._faults.disconnect(person.session)
            await _until(events, SessionEvent.CONNECTION_LOST)
            for _ in range(self._dice.randrange(40)):
                await asyncio.sleep(0)
            await self._faults.reconnect(person.session)
            await _until(events, SessionEvent.RECONNECTED)


async def _until(events: AsyncIterator[SessionEvent], wanted: SessionEvent) -> None:
    async for event in events:
        if event is wanted:
            return


@dataclass(frozen=True)
class Load:
    """The amount of work."""

    people: int = 3
    watchers: int = 2
    steps: int = 60
    rounds: int = 5
    numbers: int = 15
    faults: int = 15


async def record_history(
    open_session: Callable[[], Awaitable[MetadataStore]],
    faults: Faults,
    seed: int,
    load: Load = Load(),
    *,
    is_current: bool = True,
    splits: bool = False,
) -> tuple[History, dict[str, int]]:
    """Run clients, watchers and faults on sessions of one store; what happened, and the faults.

    Args:
        open_session: a new session, which the caller closes.
        faults: what may be done to one.
        seed: of all dice; with virtual time, of the whole run.
        load: how much.
        is_current: whether the backend's reads show the newest state, also without a sync.
        splits: whether the backend may deliver one commit in pieces.
    """
    recorder = Recorder()
    people = []
    for number in range(load.people):
        session = await open_session()
        dice = random.Random(f"{seed}/{number}")
        people.append(
            Person(f"c{number}", FaultyStore(session), session, recorder, dice, is_current)
        )
    watchers = [
        Watcher(f"w{number}", await open_session(), recorder, splits=splits)
        for number in range(load.watchers)
    ]
    # One of those who are cut off and expire watches as well.
    watchers.append(Watcher("c0", people[0].session, recorder, splits=splits))
    nemesis = Nemesis(people, faults, recorder, seed)
    async with asyncio.TaskGroup() as watching:
        for watcher in watchers:
            watching.create_task(watcher.follow())
            await watcher.stands.wait()
        async with asyncio.TaskGroup() as working:
            working.create_task(nemesis.strike(load.faults))
            for person in people:
                working.create_task(person.use_registers(range(load.steps)))
                working.create_task(person.use_locks(range(load.rounds)))
                working.create_task(person.draw_numbers(range(load.numbers)))
        await write_fence(people[-1], watchers, recorder)
    return recorder.history, nemesis.counts


async def write_fence(person: Person, watchers: list[Watcher], recorder: Recorder) -> None:
    """The last write of a history: watchers end when they saw it."""
    for watcher in watchers:
        watcher.until = recorder.now()
    called = recorder.now()
    person.store.lost_replies = person.store.lost_requests = 0
    stat = await person.store.put(FENCE, b"fence", version=NOT_EXISTS)
    recorder.history.append(
        Write(
            person.name,
            Verb.CREATE,
            FENCE,
            called,
            recorder.now(),
            Outcome.OK,
            "fence",
            version=stat.version,
            revision=_number(stat),
        )
    )


def _number(stat: Stat) -> int:
    assert stat.revision is not None, "histories need order numbers"
    return stat.revision


def _revisions(records: dict[str, Record]) -> dict[str, int]:
    return {key: _number(record.stat) for key, record in records.items()}


def _read(client: str, key: str, called: float, returned: float, record: Record | None) -> Read:
    """The result of a read of the newest state."""
    if record is None:
        return Read(client, key, called, returned, None)
    stat = record.stat
    value = record.value.decode()
    return Read(client, key, called, returned, value, stat.version, _number(stat))

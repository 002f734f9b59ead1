"""Random operations of two sessions on two stores: memory and another backend, equal at each step.

A model written as plainly as possible says what both must answer. A deviation of a backend is
a documented difference, and looked up there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bookie.errors import (
    BadVersionError,
    BookieError,
    InvalidKeyError,
    KeyExistsError,
    KeyHasChildrenError,
    NoSuchKeyError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    Change,
    ChangeKind,
    Check,
    Delete,
    Operation,
    Put,
    Resync,
    Stat,
    ancestors,
)
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import BACKENDS, Backend, Difference, MemoryBackend

_KEYS = ("/a", "/a/b", "/a/b/c", "/a/d", "/a!", "/a0/b", "/e", "/e/f")
_SEQUENCE = "/s/n-"
_SESSIONS = 2
_TIMEOUT_SECONDS = 5.0

_keys = st.sampled_from(_KEYS)
_guards = st.sampled_from(["any", "create", "current", "stale"])
_sessions = st.integers(0, _SESSIONS - 1)


@dataclass(frozen=True)
class _Guarded:
    """An operation whose version each store knows by a token of its own."""

    operation: Operation
    guard: str


@dataclass
class _Held:
    value: bytes
    owner: int | None
    writes: int
    taken_over: bool = False


class _Model:
    """The answers that a store must give, written as plainly as possible."""

    def __init__(self) -> None:
        self.held: dict[str, _Held] = {}
        self.left: set[str] = set()
        """Parents whose last child went with its session: some backends still list them."""
        self.numbered = 0
        """Sequential records so far; the third is called ``/s/n-#3`` here."""

    def below(self, key: str) -> list[str]:
        return [other for other in self.held if other.startswith(key.rstrip("/") + "/")]

    def children(self, key: str, *, left: bool) -> list[str]:
        prefix = key.rstrip("/") + "/"
        there = [*self.held, *(self.left if left else ())]
        return sorted(
            {other[len(prefix) :].split("/")[0] for other in there if other.startswith(prefix)}
        )

    def hides(self, operation: Operation) -> bool:
        """True if only parents that are left lie below a key that may have no children."""
        needs_leaf = isinstance(operation, Delete) or (
            isinstance(operation, Put) and operation.ephemeral
        )
        left = any(parent.startswith(operation.key + "/") for parent in self.left)
        return needs_leaf and left and not self.below(operation.key)

    def expire(self, session: int) -> set[str]:
        """End a session; its records."""
        owned = {key for key, held in self.held.items() if held.owner == session}
        self.held = {k: h for k, h in self.held.items() if k not in owned}
        for key in owned:
            self.left.update(
                above
                for above in ancestors(key)
                if above not in self.held and not self.below(above)
            )
        return owned

    def error(self, wanted: _Guarded, session: int) -> type[BookieError] | None:
        operation, guard = wanted.operation, wanted.guard
        held = self.held.get(operation.key)
        if isinstance(operation, Delete) and held is None:
            return NoSuchKeyError
        if guard == "create" and held is not None:
            return KeyExistsError
        if guard in ("current", "stale") and (held is None or guard == "stale"):
            return BadVersionError
        match operation:
            case Delete():
                return KeyHasChildrenError if self.below(operation.key) else None
            case Put(ephemeral=True) if held is not None:
                if held.owner is None:
                    return KeyExistsError
                if held.owner != session and guard == "any":
                    return BadVersionError
            case Put() if held is None:
                if operation.ephemeral and self.below(operation.key):
                    return KeyHasChildrenError
                above = [key for key in self.held if operation.key.startswith(key + "/")]
                if any(self.held[key].owner is not None for key in above):
                    return InvalidKeyError
        return None

    def apply(self, operation: Operation, session: int) -> tuple[ChangeKind, str] | None:
        """The event that a watch must deliver."""
        match operation:
            case Delete():
                del self.held[operation.key]
                for above in ancestors(operation.key):
                    if above in self.held or self.children(above, left=True):
                        break
                    self.left.discard(above)
                return ChangeKind.DELETED, operation.key
            case Put():
                held = self.held.get(operation.key)
                self.left -= {operation.key, *ancestors(operation.key)}
                owner = held.owner if held else None
                taken_over = held is not None and operation.ephemeral and owner != session
                if operation.ephemeral:
                    owner = session
                self.held[operation.key] = _Held(
                    operation.value,
                    owner,
                    1 if held is None else held.writes + 1,
                    taken_over or (held is not None and held.taken_over),
                )
                return ChangeKind.CREATED if held is None else ChangeKind.MODIFIED, operation.key
            case Check():
                return None


@dataclass
class _Side:
    """One backend with its sessions, and the tokens that it gave out."""

    backend: Backend
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    stores: list[MetadataStore] = field(default_factory=list)
    stats: dict[str, Stat] = field(default_factory=dict)
    """By the model's key: what the last write returned."""
    numbers: dict[str, str] = field(default_factory=dict)
    """The backend's key of each sequential record -> the model's."""
    events: list[tuple[ChangeKind, str]] = field(default_factory=list)

    async def open(self) -> None:
        await self.stack.enter_async_context(self.backend)
        for _ in range(_SESSIONS):
            self.stores.append(await self.backend.open(session_timeout_seconds=_TIMEOUT_SECONDS))
        self.changes = await self.stack.enter_async_context(self.stores[0].watch("/"))
        self.session_events = [
            await self.stack.enter_async_context(store.session_events()) for store in self.stores
        ]

    def guarded(self, wanted: _Guarded) -> Operation:
        """The operation with the version token of this backend."""
        operation, stat = wanted.operation, self.stats.get(wanted.operation.key)
        version = {
            "any": None,
            "create": NOT_EXISTS,
            "current": 10**6 if stat is None else stat.version,
            "stale": 0 if stat is None else stat.version + 7,
        }[wanted.guard]
        match operation:
            case Put(key, value, _, ephemeral):
                return Put(key, value, version, ephemeral)
            case Delete(key):
                return Delete(key, version)
            case Check(key):
                assert version is not None
                return Check(key, version)

    def took(self, key: str, stat: Stat, *, created: bool, taken_over: bool) -> None:
        """Hold what a write returned against what was known."""
        before = self.stats.get(key)
        if before is not None and not created and not taken_over:
            assert stat.version > before.version
        if not taken_over:
            self.check_first(stat, created=created)
        if stat.revision is not None:
            others = [other.revision for other in self.stats.values()]
            assert all(other is not None and other <= stat.revision for other in others)
        self.stats[key] = stat

    def check_first(self, stat: Stat, *, created: bool) -> None:
        """True if the first version is told from later ones."""
        if created and self.backend.differs(Difference.PARENTS_AGE):
            return
        assert stat.first_version == created

    async def follow(self, expected: int) -> None:
        """Take what the watch tells, up to `expected` events in all."""
        async with asyncio.timeout(60):
            while len(self.events) < expected:
                change: Change = await anext(self.changes)
                assert not isinstance(change, Resync), "continuity was lost without an outage"
                self.events += [
                    (event.kind, self.numbers.get(event.key, event.key)) for event in change.events
                ]

    async def take_resync(self) -> None:
        """The watch lost its continuity, after what was told before."""
        async with asyncio.timeout(60):
            while not isinstance(change := await anext(self.changes), Resync):
                self.events += [
                    (event.kind, self.numbers.get(event.key, event.key)) for event in change.events
                ]

    async def expire(self, session: int) -> None:
        store = self.stores[session]
        await self.backend.expire(store)
        async with asyncio.timeout(60):
            while await anext(self.session_events[session]) is not (
                SessionEvent.SESSION_REESTABLISHED
            ):
                continue


class _Machine(RuleBasedStateMachine):
    """Memory and another backend, two sessions on each."""

    def __init__(self, make: Callable[[], list[Backend]]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = _Model()
        self.told: list[tuple[ChangeKind, str]] = []
        self.sides = [_Side(backend) for backend in make()]
        self.stay = any(side.backend.differs(Difference.PARENTS_STAY) for side in self.sides)

    @initialize()
    def open(self) -> None:
        for side in self.sides:
            self.runner.run(side.open())

    def teardown(self) -> None:
        for side in self.sides:
            if side.stores:
                self.runner.run(side.follow(len(self.told)))
                assert side.events == self.told
            self.runner.run(side.stack.aclose())
        self.runner.close()

    def _transact(self, session: int, wanted: list[_Guarded]) -> None:
        if self.stay and any(self.model.hides(one.operation) for one in wanted):
            return
        error = next(filter(None, (self.model.error(one, session) for one in wanted)), None)
        results: list[list[Stat | None]] = []
        for side in self.sides:
            operations = [side.guarded(one) for one in wanted]
            if error is not None:
                with pytest.raises(error) as caught:
                    self.runner.run(side.stores[session].transaction(operations))
                assert caught.type is error, side.backend.name
            else:
                results.append(self.runner.run(side.stores[session].transaction(operations)))
        if error is None:
            self._apply(session, [one.operation for one in wanted], results)

    def _apply(
        self, session: int, operations: list[Operation], results: list[list[Stat | None]]
    ) -> None:
        for place, operation in enumerate(operations):
            change = self.model.apply(operation, session)
            self.told += [] if change is None else [change]
            for side, stats in zip(self.sides, results, strict=True):
                stat = stats[place]
                assert (stat is None) == (not isinstance(operation, Put))
                if isinstance(operation, Delete):
                    del side.stats[operation.key]
                if stat is not None and change is not None:
                    held = self.model.held[operation.key]
                    created = change[0] is ChangeKind.CREATED
                    side.took(operation.key, stat, created=created, taken_over=held.taken_over)

    @rule(session=_sessions, key=_keys, guard=_guards, value=st.binary(max_size=4))
    def put(self, session: int, key: str, guard: str, value: bytes) -> None:
        self._transact(session, [_Guarded(Put(key, value), guard)])

    @rule(session=_sessions, key=_keys, guard=_guards)
    def put_ephemeral(self, session: int, key: str, guard: str) -> None:
        self._transact(session, [_Guarded(Put(key, b"e", ephemeral=True), guard)])

    @rule(session=_sessions, ephemeral=st.booleans())
    def put_sequential(self, session: int, ephemeral: bool) -> None:
        self.model.numbered += 1
        # Numbers of ephemeral records may begin anew: such names need a unique part.
        sequence = f"/t/n{self.model.numbered:04}-" if ephemeral else _SEQUENCE
        name = f"{sequence}#{self.model.numbered:04}"
        results: list[list[Stat | None]] = []
        for side in self.sides:
            before = max((key for key in side.numbers if key.startswith(sequence)), default="")
            put = side.stores[session].put(sequence, b"n", ephemeral=ephemeral, sequential=True)
            stat = self.runner.run(put)
            assert int(stat.key.removeprefix(sequence)) >= 0
            assert stat.key > before, "numbers grow"
            side.numbers[stat.key] = name
            results.append([stat])
        self._apply(session, [Put(name, b"n", ephemeral=ephemeral)], results)

    @rule(session=_sessions, key=_keys, guard=st.sampled_from(["any", "current", "stale"]))
    def delete(self, session: int, key: str, guard: str) -> None:
        self._transact(session, [_Guarded(Delete(key), guard)])

    @rule(
        session=_sessions,
        puts=st.lists(st.tuples(_keys, _guards), max_size=3),
        checks=st.lists(st.tuples(_keys, st.sampled_from(["create", "current"])), max_size=2),
    )
    def transact(
        self, session: int, puts: list[tuple[str, str]], checks: list[tuple[str, str]]
    ) -> None:
        operations: dict[str, _Guarded] = {}
        for key, guard in puts:
            operations[key] = _Guarded(Put(key, b"t"), guard)
        for key, guard in checks:
            operations.setdefault(key, _Guarded(Check(key, 0), guard))
        self._transact(session, list(operations.values()))

    @rule(session=_sessions)
    def expire(self, session: int) -> None:
        owned = self.model.expire(session)
        for side in self.sides:
            self.runner.run(side.expire(session))
            for key in owned:
                del side.stats[key]
            if session == 0 and side.backend.differs(Difference.EXPIRY_RESYNCS):
                self.runner.run(side.take_resync())
                side.events += [(ChangeKind.DELETED, key) for key in owned]
            # The order in which one session's records go is the backend's.
            self.runner.run(side.follow(len(self.told) + len(owned)))
            ends = side.events[len(self.told) :]
            assert sorted(ends, key=str) == sorted(
                ((ChangeKind.DELETED, key) for key in owned), key=str
            )
            side.events[len(self.told) :] = [(ChangeKind.DELETED, key) for key in sorted(owned)]
        self.told += [(ChangeKind.DELETED, key) for key in sorted(owned)]

    @invariant()
    def every_session_sees_the_model(self) -> None:
        for side in self.sides:
            self.runner.run(self._compare(side))

    async def _compare(self, side: _Side) -> None:
        actual = {name: key for key, name in side.numbers.items()}
        for session, store in enumerate(side.stores):
            await store.sync()
            for key in (*_KEYS, *actual):
                record = await store.get(actual.get(key, key))
                held = self.model.held.get(key)
                assert (record is None) == (held is None)
                if record is not None and held is not None:
                    stat = side.stats[key]
                    assert record.value == held.value
                    assert (record.version, record.stat.revision) == (stat.version, stat.revision)
                    assert record.ephemeral == (held.owner is not None)
                    assert record.created_by_self == (held.owner == session)
                    if not held.taken_over:
                        side.check_first(record.stat, created=held.writes == 1)
            for key in ("/", *_KEYS, "/s", "/t"):
                left = side.backend.differs(Difference.PARENTS_STAY)
                children = self.model.children(key, left=left)
                prefix = key.rstrip("/") + "/"
                found = [
                    side.numbers.get(prefix + name, prefix + name).removeprefix(prefix)
                    for name in await store.get_children(key)
                ]
                assert found == children
                assert await store.exists(key) == bool(key in self.model.held or children)
                records = [
                    side.numbers.get(record.key, record.key).removeprefix(prefix)
                    async for record in store.scan_children(key)
                ]
                assert records == [name for name in children if prefix + name in self.model.held]


_EXAMPLES = {"memory": 40, "local": 20, "etcd": 6, "zk": 6}
"""Runs of each pair; a backend with servers takes longer for each."""

_TIMES_OF_A_SOAK = 20


@pytest.mark.timeout(3600)  # a soak runs for minutes on each
@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_backend_answers_as_memory_does(
    name: str,
    is_soak: bool,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 160: outcomes, versions, listings and the events of a watch, after every step."""
    # Sessions end in every fourth step; nobody shall wait each time before there is a new one.
    monkeypatch.setattr("bookie.metadata.session.RETRY_SECONDS", 0.01)

    def make() -> list[Backend]:
        directory: Path = tmp_path_factory.mktemp("model")
        kinds: list[type[Backend]] = [MemoryBackend]
        if name != "memory":
            kinds.append(BACKENDS[name])
        return [kind(request, directory) for kind in kinds]

    class Machine(_Machine):
        def __init__(self) -> None:
            super().__init__(make)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=_EXAMPLES[name] * (_TIMES_OF_A_SOAK if is_soak else 1),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # On a server a failure takes too long to be made smaller.
            phases=(Phase.generate,) if name in ("etcd", "zk") else (Phase.generate, Phase.shrink),
        ),
    )

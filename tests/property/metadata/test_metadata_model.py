"""Random operations of two sessions against a dict: every backend gives the dict's answers."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
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
from bookie.metadata.connect import open_store
from bookie.metadata.local import LocalStore
from bookie.metadata.memory import MemoryStore
from bookie.metadata.store import (
    NOT_EXISTS,
    Change,
    ChangeKind,
    Check,
    Delete,
    MetadataStore,
    Operation,
    Put,
    Resync,
    SessionEvent,
    Stat,
)

_KEYS = ("/a", "/a/b", "/a/b/c", "/a/d", "/a!", "/a0/b", "/e", "/e/f")
_SESSIONS = 2
_names = itertools.count()

_keys = st.sampled_from(_KEYS)
_guards = st.sampled_from(["any", "create", "current", "stale"])
_sessions = st.integers(0, _SESSIONS - 1)


@dataclass
class _Held:
    value: bytes
    owner: int | None
    version: int


class _Model:
    """What a store must answer, written as plainly as possible."""

    def __init__(self) -> None:
        self.held: dict[str, _Held] = {}

    def below(self, key: str) -> list[str]:
        return [other for other in self.held if other.startswith(key.rstrip("/") + "/")]

    def children(self, key: str) -> list[str]:
        prefix = key.rstrip("/") + "/"
        return sorted({other[len(prefix) :].split("/")[0] for other in self.below(key)})

    def version(self, key: str, guard: str) -> int | None:
        held = self.held.get(key)
        match guard:
            case "any":
                return None
            case "create":
                return NOT_EXISTS
            case "current":
                return held.version if held else 10**9
            case _:
                return held.version - 1 if held else 0

    def error(self, operation: Operation, session: int) -> type[BookieError] | None:
        held = self.held.get(operation.key)
        if isinstance(operation, Delete) and held is None:
            return NoSuchKeyError
        if operation.version == NOT_EXISTS and held is not None:
            return KeyExistsError
        expected = operation.version if operation.version != NOT_EXISTS else None
        if expected is not None and (held is None or held.version != expected):
            return BadVersionError
        match operation:
            case Delete():
                return KeyHasChildrenError if self.below(operation.key) else None
            case Put(ephemeral=True) if held is not None:
                if held.owner is None:
                    return KeyExistsError
                if held.owner != session and operation.version is None:
                    return BadVersionError
            case Put() if held is None:
                if operation.ephemeral and self.below(operation.key):
                    return KeyHasChildrenError
                above = [key for key in self.held if operation.key.startswith(key + "/")]
                if any(self.held[key].owner is not None for key in above):
                    return InvalidKeyError
        return None

    def apply(self, operation: Operation, session: int, stat: Stat | None) -> None:
        match operation:
            case Delete():
                del self.held[operation.key]
            case Put():
                held = self.held.get(operation.key)
                owner = held.owner if held else None
                if operation.ephemeral:
                    owner = session
                assert stat is not None
                self.held[operation.key] = _Held(operation.value, owner, stat.version)
            case Check():
                pass


class _Machine(RuleBasedStateMachine):
    """One backend, two sessions, and a mirror fed by a watch."""

    def uri(self) -> str:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = _Model()
        self.stack = AsyncExitStack()
        self.stores: list[MetadataStore] = []
        self.mirror: dict[str, int] = {}
        self.last_version = 0
        self.runner.run(self._open())

    async def _open(self) -> None:
        uri = self.uri()
        for _ in range(_SESSIONS):
            self.stores.append(await self.stack.enter_async_context(open_store(uri)))
        self.changes = await self.stack.enter_async_context(self.stores[0].watch("/"))
        self.session_events = [
            await self.stack.enter_async_context(store.session_events()) for store in self.stores
        ]

    def teardown(self) -> None:
        self.runner.run(self._follow())
        assert self.mirror == {key: held.version for key, held in self.model.held.items()}
        self.runner.run(self.stack.aclose())
        self.runner.close()

    async def _follow(self) -> None:
        """Apply the watch up to the last commit."""
        async with asyncio.timeout(10):
            seen = 0
            end = await self.stores[0].put("/end", b"")
            while seen != end.revision:
                change: Change = await anext(self.changes)
                assert not isinstance(change, Resync)
                assert change.revision is not None
                assert change.revision > seen
                seen = change.revision
                for event in change.events:
                    assert (event.key in self.mirror) == (event.kind is not ChangeKind.CREATED)
                    if event.kind is ChangeKind.DELETED:
                        del self.mirror[event.key]
                    else:
                        assert event.revision is not None
                        self.mirror[event.key] = event.revision
        del self.mirror["/end"]

    def _transact(self, session: int, operations: list[Operation]) -> None:
        expected = next(filter(None, (self.model.error(o, session) for o in operations)), None)
        if expected is not None:
            with pytest.raises(expected) as caught:
                self.runner.run(self.stores[session].transaction(operations))
            assert caught.type is expected
            return
        stats = self.runner.run(self.stores[session].transaction(operations))
        for operation, stat in zip(operations, stats, strict=True):
            assert (stat is None) == (not isinstance(operation, Put))
            if stat is not None:
                assert stat.version > self.last_version
            self.model.apply(operation, session, stat)
        self.last_version = max([self.last_version, *(stat.version for stat in stats if stat)])

    @rule(session=_sessions, key=_keys, guard=_guards, value=st.binary(max_size=4))
    def put(self, session: int, key: str, guard: str, value: bytes) -> None:
        self._transact(session, [Put(key, value, self.model.version(key, guard))])

    @rule(session=_sessions, key=_keys, guard=_guards)
    def put_ephemeral(self, session: int, key: str, guard: str) -> None:
        self._transact(session, [Put(key, b"e", self.model.version(key, guard), ephemeral=True)])

    @rule(session=_sessions, key=_keys, guard=st.sampled_from(["any", "current", "stale"]))
    def delete(self, session: int, key: str, guard: str) -> None:
        self._transact(session, [Delete(key, self.model.version(key, guard))])

    @rule(
        session=_sessions,
        puts=st.lists(st.tuples(_keys, _guards), max_size=3),
        checks=st.lists(st.tuples(_keys, st.sampled_from(["create", "current"])), max_size=2),
    )
    def transact(
        self, session: int, puts: list[tuple[str, str]], checks: list[tuple[str, str]]
    ) -> None:
        operations: dict[str, Operation] = {}
        for key, guard in puts:
            operations[key] = Put(key, b"t", self.model.version(key, guard))
        for key, guard in checks:
            version = self.model.version(key, guard)
            assert version is not None
            operations.setdefault(key, Check(key, version))
        self._transact(session, list(operations.values()))

    @rule(session=_sessions)
    def expire(self, session: int) -> None:
        self.runner.run(self._expire(session))
        self.model.held = {k: h for k, h in self.model.held.items() if h.owner != session}

    async def _expire(self, session: int) -> None:
        store = self.stores[session]
        if isinstance(store, MemoryStore):
            store.expire_session()
        elif isinstance(store, LocalStore):
            identity = store._session
            await store._require_open().submit(lambda tree: tree.end_session(identity))
            store._wake.set()  # it would look by itself within a tick
        async with asyncio.timeout(10):
            while await anext(self.session_events[session]) is not (
                SessionEvent.SESSION_REESTABLISHED
            ):
                continue

    @invariant()
    def every_session_sees_the_model(self) -> None:
        self.runner.run(self._compare())

    async def _compare(self) -> None:
        for session, store in enumerate(self.stores):
            await store.sync()
            for key in _KEYS:
                record = await store.get(key)
                held = self.model.held.get(key)
                assert (record is None) == (held is None)
                if record is not None and held is not None:
                    assert (record.value, record.version) == (held.value, held.version)
                    assert record.ephemeral == (held.owner is not None)
                    assert record.created_by_self == (held.owner == session)
                assert await store.exists(key) == bool(held or self.model.below(key))
            for key in ("/", *_KEYS):
                children = self.model.children(key)
                assert await store.get_children(key) == children
                records = [record.name async for record in store.scan_children(key)]
                prefix = key.rstrip("/") + "/"
                assert records == [name for name in children if prefix + name in self.model.held]


class _MemoryMachine(_Machine):
    def uri(self) -> str:
        return f"memory://model-{next(_names)}"


class _LocalMachine(_Machine):
    def uri(self) -> str:
        self.directory = tempfile.mkdtemp(prefix="metadata-model-")
        return f"local://{self.directory}"

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


@pytest.mark.parametrize(
    ("machine", "examples"), [(_MemoryMachine, 60), (_LocalMachine, 25)], ids=["memory", "local"]
)
def test_a_backend_answers_as_the_model(machine: type[_Machine], examples: int) -> None:
    """Outcomes, versions, listings and the mirror of a watch, after every step."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

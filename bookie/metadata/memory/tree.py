"""The records and the sessions of all memory stores with one name."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bookie.env import Clock, SystemClock
from bookie.errors import SessionLostError
from bookie.metadata.evaluate import Deletion, StoredRecord, Write, evaluate
from bookie.metadata.model import Commit, Operation, Stat, WatchEvent, parent_of

if TYPE_CHECKING:
    from bookie.metadata.memory.backend import MemoryStore

_trees: dict[str, MemoryTree] = {}
_trees_lock = threading.Lock()


class MemoryTree:
    """The records of one store name. The callers of all methods must hold `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock: Clock = SystemClock()
        self.version = 0
        self.nodes: dict[str, StoredRecord] = {}
        self.children: dict[str, set[str]] = {}
        self.stores: list[MemoryStore] = []
        self._sessions_begun = 0
        self.alive: set[bytes] = set()

    def find(self, key: str) -> StoredRecord | None:
        return self.nodes.get(key)

    def has_children(self, key: str) -> bool:
        return bool(self.children.get(key))

    def begin_session(self) -> bytes:
        self._sessions_begun += 1
        session = self._sessions_begun.to_bytes(8, "big")
        self.alive.add(session)
        return session

    def end_session(self, session: bytes) -> None:
        """Remove a session and its ephemeral records, in one commit."""
        self.alive.discard(session)
        owned = sorted(key for key, node in self.nodes.items() if node.owner == session)
        if owned:
            self._commit(Deletion(key, session) for key in owned)

    def transact(self, operations: Sequence[Operation], session: bytes) -> list[Stat | None]:
        """Carry out all operations as one commit; after a `BookieError` nothing was written."""
        if session not in self.alive:
            raise SessionLostError("the session with the metadata store ended")
        effects = evaluate(operations, self, session, self.version + 1)
        self._commit(effect for effect in effects if effect is not None)
        return [
            self.nodes[effect.key].stat(effect.key, session) if isinstance(effect, Write) else None
            for effect in effects
        ]

    def _commit(self, effects: Iterable[Write | Deletion]) -> None:
        version = self.version + 1
        events = []
        for effect in effects:
            if isinstance(effect, Write):
                before = self.nodes.get(effect.key)
                self.nodes[effect.key] = effect.record(before, version, self.clock.now_ms())
                self._link(effect.key)
            else:
                del self.nodes[effect.key]
                self._unlink(effect.key)
            events.append(WatchEvent(effect.kind, effect.key, version))
        if events:
            self.version = version
            commit = Commit(version, tuple(events))
            for store in self.stores:
                store.deliver(commit)

    def _link(self, key: str) -> None:
        while key != "/":
            parent, name = parent_of(key), key.rpartition("/")[2]
            names = self.children.setdefault(parent, set())
            if name in names:
                return
            names.add(name)
            key = parent

    def _unlink(self, key: str) -> None:
        while key != "/" and key not in self.nodes and key not in self.children:
            parent, name = parent_of(key), key.rpartition("/")[2]
            names = self.children[parent]
            names.discard(name)
            if not names:
                del self.children[parent]
            key = parent


def tree_of(name: str) -> MemoryTree:
    """Return the records of the store `name`; the first call creates an empty store."""
    with _trees_lock:
        return _trees.setdefault(name, MemoryTree())


def forget_tree(name: str) -> None:
    """Forget the records of `name`: stores opened later begin empty, open stores keep them."""
    with _trees_lock:
        _trees.pop(name, None)

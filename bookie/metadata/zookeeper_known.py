"""Which node stands behind a key, as far as one connection has told.

It lets a write that expects a version go out at once: this says of which life of the record the
version speaks, and the server that there was no birth since. What it does not know costs a read.

Answers are learned when whoever asked has its turn, which may be after events that came behind
them; so deletions are remembered, and what they ended is not learned any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from bookie.metadata.keys import ROOT, parent_of
from bookie.metadata.records import NOT_EXISTS, Operation, Put
from bookie.metadata.zookeeper_births import KnownBirths, counters_of, is_for_one_life
from bookie.metadata.zookeeper_tree import Node, Scope, View, birth_of, data_version_of
from bookie.metadata.zookeeper_wire import ZnodeStat

_DELETIONS_MAX = 10_000
"""Deletions in each of the three parts in which they are remembered."""

_ZXID_MAX = 2**63 - 1


class KnownRecords:
    """The records that answers have told of and no event has ended since."""

    SIZE_MAX = 50_000

    def __init__(self, scope: Scope) -> None:
        self.births = KnownBirths()
        self._scope = scope
        self._nodes: dict[str, Node] = {}
        self._deletions: deque[dict[str, int]] = deque([{}], maxlen=3)

    def learn(self, key: str, stat: ZnodeStat) -> None:
        """A record was read or written."""
        for some in self._deletions:
            if stat.czxid < some.get(key, 0):
                return  # an event has overtaken the answer
        nodes = self._nodes
        if key not in nodes and len(nodes) >= self.SIZE_MAX:
            del nodes[next(iter(nodes))]
        nodes[key] = Node(stat.czxid, stat.version, stat.ephemeralOwner, True, 0)

    def forget(self, key: str) -> None:
        """It was deleted, or converted."""
        self._nodes.pop(key, None)

    def note_deletion(self, key: str, zxid: int) -> None:
        """An event says that the write `zxid` deleted it; not positive if the server is too old."""
        self.forget(key)
        self._deletions[-1][key] = zxid if zxid > 0 else _ZXID_MAX

    def note_quiet(self) -> None:
        """All that came together is handed out, and is learned before the next but one is."""
        if len(self._deletions[-1]) > _DELETIONS_MAX:
            self._deletions.append({})

    def ephemeral(self) -> list[str]:
        """The keys of those that end with a session."""
        return [key for key, node in self._nodes.items() if node.owner]

    def owned_by(self, session: int) -> list[tuple[str, int]]:
        """The keys below others of those that end with the session, and their versions."""
        return [
            (key, node.version)
            for key, node in self._nodes.items()
            if node.owner == session and parent_of(key) != ROOT
        ]

    def clear(self) -> None:
        """Events may have been missed."""
        self._nodes.clear()
        self.births.clear()

    def view(
        self, operations: Sequence[Operation], kept: Mapping[str, object], session: int
    ) -> View | None:
        """A view good enough to try the operations with; None if something must be read first.

        `kept` are the parents known to stay, below which sequential records may be created.
        """
        view = View()
        for operation in operations:
            node = self._nodes.get(operation.key)
            version = operation.version
            if isinstance(operation, Put) and operation.sequential:
                if parent_of(operation.key) not in kept:
                    return None
            elif isinstance(operation, Put) and version in (None, NOT_EXISTS):
                if node is not None and (version == NOT_EXISTS or operation.ephemeral):
                    return None
                if node is not None:
                    view.nodes[operation.key] = node
            elif node is None or (version is not None and birth_of(version) != node.birth):
                return None
            elif isinstance(operation, Put) and operation.ephemeral and node.owner != session:
                return None  # it is refused, or a take-over, which must know its guard
            else:
                view.nodes[operation.key] = _expected(node, version)
        return self._with_births(view, operations)

    def _with_births(self, view: View, operations: Sequence[Operation]) -> View | None:
        for operation in operations:
            if operation.key in view.nodes and is_for_one_life(operation):
                births = self.births.find(counters_of(self._scope.path(operation.key)))
                if births is None:
                    return None
                view.births.update(births)
        return view


def _expected(node: Node, version: int | None) -> Node:
    if version is None:
        return node
    return Node(node.birth, data_version_of(version), node.owner, True, 0)

"""A cache of records, from the answers and events of one connection.

With the cache, a write that expects a version needs no read before it. A version belongs to one
life of a record, from creation to deletion. The cache knows if an event has reported the end of
this life.

A coroutine may handle an answer after the events that followed the answer. So the cache remembers
deletions, and ignores an answer that is older than a deletion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookie.metadata.model import NOT_EXISTS, Operation, Put
from bookie.metadata.zookeeper.requests import ZnodeStat
from bookie.metadata.zookeeper.tree import Node, View, birth_of, data_version_of

_DELETIONS_MAX = 10_000
"""After this many deletions, a new part of the memory of deletions begins; three parts are kept."""

_ZXID_MAX = 2**63 - 1


class KnownRecords:
    """The records that answers have shown, until an event reports a record's deletion."""

    SIZE_MAX = 50_000

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._deletions: deque[dict[str, int]] = deque([{}], maxlen=3)

    def learn(self, key: str, stat: ZnodeStat) -> None:
        for some in self._deletions:
            if stat.czxid < some.get(key, 0):
                return  # an event that arrived before this answer is newer
        nodes = self._nodes
        if key not in nodes and len(nodes) >= self.SIZE_MAX:
            del nodes[next(iter(nodes))]
        nodes[key] = Node(stat.czxid, stat.version, stat.ephemeralOwner, True, 0)

    def forget(self, key: str) -> None:
        """Forget a record that was deleted, or whose node holds no record."""
        self._nodes.pop(key, None)

    def note_deletion(self, key: str, zxid: int) -> None:
        """Note that the write `zxid` deleted the record; servers before 3.9 send no zxid."""
        self.forget(key)
        self._deletions[-1][key] = zxid if zxid > 0 else _ZXID_MAX

    def note_quiet(self) -> None:
        """Start a new part of remembered deletions if the last part is full."""
        if len(self._deletions[-1]) > _DELETIONS_MAX:
            self._deletions.append({})

    def may_hold(self, view: View) -> bool:
        """False if an event has reported the deletion of a node of `view`.

        This check ignores events without a zxid, which servers before 3.9 send.
        """
        return not any(
            node is not None and node.birth < some.get(key, 0) < _ZXID_MAX
            for key, node in view.nodes.items()
            for some in self._deletions
        )

    def clear(self) -> None:
        """Forget all records, because events may have been missed."""
        self._nodes.clear()

    def view(self, operations: Sequence[Operation], session: int) -> View | None:
        """Return the cached nodes that the operations need; None if nodes must be read first."""
        view = View()
        for operation in operations:
            node = self._nodes.get(operation.key)
            version = operation.version
            if isinstance(operation, Put) and operation.sequential:
                continue
            if isinstance(operation, Put) and version in (None, NOT_EXISTS):
                if node is not None and (version == NOT_EXISTS or operation.ephemeral):
                    return None
                if node is not None:
                    view.nodes[operation.key] = node
            elif node is None or (version is not None and birth_of(version) != node.birth):
                return None
            elif isinstance(operation, Put) and operation.ephemeral and node.owner != session:
                return None  # this put will be refused, or needs the access control of the record
            else:
                view.nodes[operation.key] = _expected(node, version)
        return view


def _expected(node: Node, version: int | None) -> Node:
    if version is None:
        return node
    return Node(node.birth, data_version_of(version), node.owner, True, 0)

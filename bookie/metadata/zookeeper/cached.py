"""A cache of records, from the answers and events of one connection.

With the cache, a write that expects a version needs no read before it. A version is valid only from
the creation of a record to its deletion. The cache remembers if an event has reported this
deletion.

A coroutine may get to handle an answer only after the loop has handled later events. So the cache
remembers deletions, and ignores an answer that is older than the deletion of its record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookie.metadata.model import NOT_EXISTS, Operation, Put
from bookie.metadata.zookeeper.requests import ZnodeStat
from bookie.metadata.zookeeper.tree import Node, View, birth_of, data_version_of

_DELETIONS_MAX = 10_000
"""Deletions are remembered in parts of about this number; only the newest three parts are kept."""

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
                return  # this record was deleted after the answer
        nodes = self._nodes
        if key not in nodes and len(nodes) >= self.SIZE_MAX:
            del nodes[next(iter(nodes))]
        nodes[key] = Node(stat.czxid, stat.version, stat.ephemeralOwner, True, 0)

    def forget(self, key: str) -> None:
        """Forget the record of `key`: it was deleted, or its node is only a parent."""
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
        """True unless an event has reported that a node of `view` was deleted since.

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
                return None  # it will be refused, or must first read the record's access list
            else:
                view.nodes[operation.key] = _expected(node, version)
        return view


def _expected(node: Node, version: int | None) -> Node:
    if version is None:
        return node
    return Node(node.birth, data_version_of(version), node.owner, True, 0)

"""How records lie in ZooKeeper's tree, and what a transaction becomes there.

A record is a node with its value as data, at the scope's path and the record's key, so that other
tools find it where they expect it. ZooKeeper has no virtual parents; they are told apart by data:

================= ================================================================================
data              meaning
================= ================================================================================
null              a virtual parent: it exists for what lies below it, and is removed with the last
`KEPT`            likewise, but sequential records were numbered below it: it stays, because
                  ZooKeeper keeps the last number in the node
anything else     a record; an empty value is not null
================= ================================================================================

Containers would do the removal by themselves, but a container stays one when a record is put on
it, and would take that record along with its last child.

Nothing in ZooKeeper says whether a node is still the one that was read: its version begins at 0
again when it is deleted and created. For virtual parents that is settled by the scope's own node
(`Guard`): every write that makes, removes or converts one also writes that node, and whoever relies
on having seen one demands its version. For records it is settled by counters of births, see
`zookeeper_births`.

The same writes to the scope's node bracket what concerns virtual parents only, so that watches can
leave it out; see `zookeeper_changes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookie.errors import InvalidKeyError, UnsupportedError
from bookie.metadata.keys import ROOT, ancestors, parent_of
from bookie.metadata.records import NOT_EXISTS, Acl, Check, Delete, Operation, Put, Stat
from bookie.metadata.security import Access
from bookie.metadata.zookeeper_access import to_node_acl
from bookie.metadata.zookeeper_births import counter_of, counters_of, is_for_one_life
from bookie.metadata.zookeeper_wire import (
    ACL,
    CREATOR_ALL_ACL,
    EPHEMERAL,
    OPEN_ACL_UNSAFE,
    PERSISTENT,
    SEQUENTIAL,
    CheckVersion,
    CreateNode,
    DeleteNode,
    Multi,
    NodeOperation,
    SetData,
    ZnodeStat,
)

KEPT = b"\0bookie: parent of sequential records\0"
"""Data of a virtual parent that stays. No record has this value."""

ANY = -1
"""ZooKeeper's expected version that fits every node."""

REQUEST_BYTES_MAX = 1_000_000
"""The most bytes of one transaction as it is sent."""

_OVERHEAD_BYTES_MAX = 256
"""Of an operation beside path, data and its own access control list."""

_WITH_DATA = (CreateNode, SetData)

_DATA_VERSION_BITS = 32
_DATA_VERSION_MAX = 2**31 - 1


def version_of(stat: ZnodeStat) -> int:
    """The version of a record: the write that created its node, and ZooKeeper's own version of it.

    ZooKeeper compares only the latter. The former tells whether the version speaks of the node that
    was seen; that there is none other by now is what the counter of births says.
    """
    version: int = (stat.czxid << _DATA_VERSION_BITS) | stat.version
    return version


def birth_of(version: int) -> int:
    """The write that created the node of which a version speaks."""
    return version >> _DATA_VERSION_BITS


def data_version_of(version: int) -> int:
    """ZooKeeper's version within the node's life; one that fits none if it cannot be such."""
    found = version & ((1 << _DATA_VERSION_BITS) - 1)
    return min(found, _DATA_VERSION_MAX)


def stat_of(key: str, stat: ZnodeStat, session: int) -> Stat:
    """What the store says of a record."""
    return Stat(
        key=key,
        version=version_of(stat),
        revision=stat.mzxid,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        ephemeral=stat.ephemeralOwner != 0,
        created_by_self=stat.ephemeralOwner == session,
        first_version=stat.version == 0,
    )


def overtaken_stat(put: Put, operation: NodeOperation, zxid: int) -> Stat:
    """What a put left that was done, but whose answer was lost and that others wrote over since.

    Its version follows from that of before, or from its birth; where neither is known it is one
    that no record has. Whoever compares with it hears that it is not the latest.
    """
    if isinstance(operation, CreateNode):
        version = zxid << _DATA_VERSION_BITS
    elif put.version is not None and put.version != NOT_EXISTS:
        version = put.version + 1
    else:
        version = 0
    return Stat(
        put.key,
        version,
        zxid,
        created_ms=None,
        modified_ms=None,
        ephemeral=put.ephemeral,
        created_by_self=put.ephemeral,
        first_version=isinstance(operation, CreateNode),
    )


def is_virtual(data: bytes | None) -> bool:
    """Whether a node with this data is no record."""
    return data is None or data == KEPT


class Scope:
    """Where the keys of a store lie. `path` and `key` are inverses below the scope.

    Args:
        path: of the scope's own node.
        access: to whom nodes in the scope are open, unless a put says otherwise.
    """

    def __init__(self, path: str, access: Access = "open") -> None:
        self.root = path
        """The scope's own node."""
        self.acl: Sequence[ACL] = CREATOR_ALL_ACL if access == "user" else OPEN_ACL_UNSAFE
        """What nodes are made with."""

    def path(self, key: str) -> str:
        """The path of a key's node."""
        return self.root if key == ROOT else self.root + key

    def key(self, path: str) -> str:
        """The key of a path at or below the scope."""
        return path[len(self.root) :] or ROOT


def require_representable(operation: Operation) -> None:
    """Refuse what ZooKeeper cannot store.

    Raises:
        InvalidKeyError: the key has characters that ZooKeeper refuses, or the value is `KEPT`.
    """
    require_representable_key(operation.key)
    if isinstance(operation, Put) and operation.value == KEPT:
        raise InvalidKeyError(f"the value for {operation.key} is one that bookie uses itself")


def require_representable_key(key: str) -> None:
    """Likewise for a key alone. Source: PathUtils.validatePath."""
    if key.isascii() and key.isprintable():
        return
    for character in key:
        code = ord(character)
        if code <= 0x1F or 0x7F <= code <= 0x9F or 0xD800 < code < 0xF8FF or code > 0xFFF0:
            # Beyond the basic plane Java sees surrogates, which are refused as well.
            raise InvalidKeyError(
                f"the key {key!r} has the character {character!r}, which ZooKeeper refuses"
            )


# ---- the state before a transaction


class Node(NamedTuple):
    """A node as it was read, or as it is believed to be."""

    birth: int
    data_version: int
    owner: int
    is_record: bool
    children: int

    @property
    def version(self) -> int:
        """As `version_of`."""
        return self.birth << _DATA_VERSION_BITS | self.data_version


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """What `judge` must know of a record."""

    version: int
    owner: bytes


@dataclass(slots=True)
class View:
    """Nodes by key; those that are absent are there as None.

    Keys that are not there at all have not been looked at: a put takes their parents for existing.
    """

    nodes: dict[str, Node | None] = field(default_factory=dict)
    guard: int = ANY
    """The version of the scope's node, read before all others."""

    births: dict[str, int] = field(default_factory=dict)
    """The versions of the counters of births that matter, from before the nodes were seen."""

    acls: dict[str, tuple[Acl, ...]] = field(default_factory=dict)
    """Of records that may be taken over: who takes over keeps others out, and in, as before."""

    def find(self, key: str) -> JudgedRecord | None:
        """As `judge` asks."""
        node = self.nodes.get(key)
        if node is None or not node.is_record:
            return None
        owner = node.owner.to_bytes(8, "big", signed=True) if node.owner else b""
        return JudgedRecord(node.version, owner)

    def has_children(self, key: str) -> bool:
        """As `judge` asks."""
        node = self.nodes.get(key)
        return node is not None and node.children > 0


# ---- what a transaction becomes


@dataclass(slots=True)
class Plan:
    """Operations on nodes, and where the result of each put stands among theirs."""

    operations: list[NodeOperation] = field(default_factory=list)
    results: list[int | None] = field(default_factory=list)
    counters: int = 0
    """How many operations, the first ones, concern counters of births."""


class Planner:
    """Turns one transaction, judged against `view`, into operations on nodes.

    They fail if the view is not true any more. Virtual parents are made before what needs them, and
    a record of the transaction before those below it.
    """

    def __init__(
        self,
        scope: Scope,
        operations: Sequence[Operation],
        view: View,
        session: int,
        number_prefix: str = "",
    ) -> None:
        self._scope = scope
        self._operations = operations
        self._view = view
        self._session = session
        self._number_prefix = number_prefix
        self._plan = Plan(results=[None] * len(operations))
        self._puts = {
            operation.key: index
            for index, operation in enumerate(operations)
            if isinstance(operation, Put) and not operation.sequential
        }
        self._made: set[str] = set()
        self._brackets = 0
        self._is_guarded = False
        self._closed: NodeOperation | None = None
        """The end of the latest bracket."""
        self._demanded: dict[str, int] = {}
        self._born: set[str] = set()
        """Counters of births: the versions that they must have, and those to be written."""

    def plan(self) -> Plan:
        """The operations, in an order that ZooKeeper can follow.

        Raises:
            InvalidKeyError: they are too large for one request.
        """
        for index in range(len(self._operations)):
            self._do(index)
        counters = self._counters()
        plan = Plan(
            counters + self._plan.operations,
            [None if place is None else place + len(counters) for place in self._plan.results],
            len(counters),
        )
        _require_sendable(plan.operations)
        return plan

    def _counters(self) -> list[NodeOperation]:
        """Before all else: what the transaction itself creates does not speak against it."""
        return [
            SetData(counter, None, self._demanded.get(counter, ANY))
            if counter in self._born
            else CheckVersion(counter, self._demanded[counter])
            for counter in sorted(self._born.union(self._demanded))
        ]

    def _do(self, index: int) -> None:
        operation = self._operations[index]
        if operation.key in self._made:
            return
        node = self._view.nodes.get(operation.key)
        if node is not None and node.is_record and is_for_one_life(operation):
            for counter in counters_of(self._scope.path(operation.key)):
                self._demanded[counter] = self._view.births[counter]
        match operation:
            case Put(sequential=True):
                self._do_sequential(index, operation)
            case Put():
                self._made.add(operation.key)
                self._do_put(index, operation)
            case Delete():
                assert node is not None, "what is absent was refused before"
                self._add(DeleteNode(self._scope.path(operation.key), node.data_version))
            case Check():
                self._do_check(operation)

    def _do_put(self, index: int, put: Put) -> None:
        node = self._view.nodes.get(put.key)
        path = self._scope.path(put.key)
        if node is None:
            self._make_parents(put.key)
            self._create(index, put)
        elif not node.is_record:
            if put.acl is not None and node.children:
                raise UnsupportedError(
                    f"ZooKeeper cannot set access control in the transaction that puts {put.key},"
                    " because other keys lie below it; put it without, and then set_acl"
                )
            if put.ephemeral or put.acl is not None:
                self._virtually(DeleteNode(path, node.data_version), guarded=True)
                self._create(index, put)
            else:
                self._virtually(SetData(path, None, node.data_version), guarded=True)
                self._plan.results[index] = self._add(SetData(path, put.value, ANY))
        elif put.ephemeral and node.owner != self._session:
            self._take_over(index, put, node)
        else:
            expected = ANY
            if put.version is not None or put.ephemeral:
                expected = node.data_version
            self._plan.results[index] = self._add(SetData(path, put.value, expected))

    def _take_over(self, index: int, put: Put, node: Node) -> None:
        """Delete and create at once: ZooKeeper never changes the owner of a node.

        The new node is written once more, because it is not in its first version.
        """
        path = self._scope.path(put.key)
        if put.acl is None:
            put = replace(put, acl=self._view.acls.get(put.key))
        self._announce()
        self._add(DeleteNode(path, node.data_version))
        self._create(index, replace(put, value=b""))
        self._plan.results[index] = self._add(SetData(path, put.value, ANY))
        self._announce()

    def _do_sequential(self, index: int, put: Put) -> None:
        self._make_parents(put.key, is_sequential=True)
        self._create(index, put)

    def _do_check(self, check: Check) -> None:
        path = self._scope.path(check.key)
        if check.version != NOT_EXISTS:
            self._add(CheckVersion(path, data_version_of(check.version)))
            return
        node = self._view.nodes.get(check.key)
        if node is not None:
            self._virtually(CheckVersion(path, node.data_version), guarded=True)
            return
        # There is no check for absence, but a create that is taken back fails like one.
        self._make_parents(check.key)
        self._virtually(CreateNode(path, None, self._scope.acl), DeleteNode(path, ANY))

    def _make_parents(self, key: str, *, is_sequential: bool = False) -> None:
        nodes, parent = self._view.nodes, parent_of(key)
        for above in reversed(ancestors(key)):
            if above in self._made:
                continue
            node = nodes.get(above)
            is_numbered = is_sequential and above == parent
            if above not in nodes or (node is not None and (node.is_record or not is_numbered)):
                continue
            if above in self._puts:
                self._do(self._puts[above])
                continue
            self._made.add(above)
            path, data = self._scope.path(above), KEPT if is_numbered else None
            if node is None:
                self._born.add(counter_of(path))
                self._virtually(CreateNode(path, data, self._scope.acl))
            else:
                # Harmless if it is KEPT already.
                self._virtually(SetData(path, data, node.data_version), guarded=True)

    def _create(self, index: int, put: Put) -> None:
        flags = (EPHEMERAL if put.ephemeral else PERSISTENT) | (
            SEQUENTIAL if put.sequential else PERSISTENT
        )
        acl = self._scope.acl if put.acl is None else to_node_acl(put.acl)
        path = self._scope.path(put.key)
        if put.sequential:
            path += self._number_prefix
        else:
            self._born.add(counter_of(path))
        made = CreateNode(path, put.value, acl, flags)
        self._plan.results[index] = self._add(made)

    def _virtually(self, *operations: NodeOperation, guarded: bool = False) -> None:
        planned = self._plan.operations
        if planned and planned[-1] is self._closed and (self._is_guarded or not guarded):
            # The bracket that was just closed goes on.
            planned.pop()
            self._brackets -= 1
        else:
            self._announce(guarded=guarded)
        for operation in operations:
            self._add(operation)
        self._announce()
        self._closed = planned[-1]

    def _announce(self, *, guarded: bool = False) -> None:
        """Open or close a bracket; a guarded one fails if virtual parents changed since `view`."""
        expected = ANY
        if guarded and not self._is_guarded:
            # What this transaction itself wrote before counts; the server's count overflows.
            expected = (self._view.guard + self._brackets + 2**31) % 2**32 - 2**31
            self._is_guarded = True
        self._brackets += 1
        self._add(SetData(self._scope.root, None, expected))

    def _add(self, operation: NodeOperation) -> int:
        self._plan.operations.append(operation)
        return len(self._plan.operations) - 1


def _require_sendable(operations: Sequence[NodeOperation]) -> None:
    """A server ends the connection of who sends it more than 1 MiB (``jute.maxbuffer``)."""
    at_most = 0
    for operation in operations:
        at_most += _OVERHEAD_BYTES_MAX + 3 * len(operation.path)
        if isinstance(operation, _WITH_DATA) and operation.data is not None:
            at_most += len(operation.data)
    if at_most <= REQUEST_BYTES_MAX:
        return
    size = len(Multi(operations).serialize())
    if size > REQUEST_BYTES_MAX:
        raise InvalidKeyError(
            f"with the parents of its keys this takes {size} bytes in one request to ZooKeeper,"
            f" which takes at most {REQUEST_BYTES_MAX}"
        )


def removal(scope: Scope, key: str, data_version: int, guard: int) -> list[NodeOperation]:
    """Remove an empty virtual parent that was seen at `guard`."""
    return [
        SetData(scope.root, None, guard),
        DeleteNode(scope.path(key), data_version),
        SetData(scope.root, None, ANY),
    ]

"""Maps records to nodes of ZooKeeper's tree, and transactions to operations on nodes.

A record is a node with the record's value as its data. The node's path is the scope's path followed
by the record's key, as other tools expect. In ZooKeeper, each node needs an existing parent node.
So some nodes are parents without a record. The data of a node shows if the node is a record:

================= ================================================================================
data              meaning
================= ================================================================================
null or `PARENT`  a parent without a record; removed together with its last child
`KEPT`            a parent of persistent sequential records; it is never removed, because
                  ZooKeeper keeps the last number in the node
anything else     a record
================= ================================================================================

Some writes are internal: writes of parents, and the delete and create of a take-over. A transaction
marks internal writes: it writes the scope's own node once before and once after the internal
writes. `changes` recognises the events of internal writes by these marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from bookie.errors import BadRequestError, InvalidKeyError, UnsupportedError
from bookie.metadata.evaluate import Stored
from bookie.metadata.model import (
    NOT_EXISTS,
    ROOT,
    Acl,
    Check,
    Delete,
    Operation,
    Put,
    Stat,
    ancestors,
    parent_of,
)
from bookie.metadata.rights import Users, part_of, zookeeper_acl
from bookie.metadata.security import Access
from bookie.metadata.zookeeper.requests import (
    ACL,
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    CheckVersion,
    CreateNode,
    DeleteNode,
    Id,
    NodeOperation,
    Permissions,
    SetData,
    ZnodeStat,
)

PARENT = b"\0bookie: parent\0"
KEPT = b"\0bookie: parent of sequential records\0"
"""`PARENT` and `KEPT` are the data of nodes without a record; no record may have such a value."""

HOME = "/.bookie"
"""The node above all nodes that lie outside of scopes."""

LASTING_ACL = [ACL(Permissions.READ | Permissions.CREATE, Id("world", "anyone"))]
"""The access control of a node below which clients may create nodes, but may delete none."""

REMOVALS = f"{HOME}/removals"
"""The node that a transaction writes when it removes a parent or turns a parent into a record.

The write requires that `REMOVALS` still has the version that it had before the parent was read. To
require only the parent's own version is not enough, because its versions begin at 0 again if it is
deleted and created again.
"""

ANY = -1
"""The expected version that ZooKeeper accepts for every node."""

REQUEST_BYTES_MAX = 1_000_000
"""The most bytes of one transaction as sent to ZooKeeper."""

_OVERHEAD_BYTES_MAX = 64
"""The most bytes that an operation, or an access control entry, has beside its texts and data."""

_DATA_VERSION_BITS = 32
_DATA_VERSION_MAX = 2**31 - 1


def version_of(stat: ZnodeStat) -> int:
    """Return a record's version, which combines ZooKeeper's node version with the creation's zxid.

    ZooKeeper compares only the node version, which begins anew if a node is deleted and created
    again. The zxid of the creation distinguishes the old record from the new record.
    """
    version: int = (stat.czxid << _DATA_VERSION_BITS) | stat.version
    return version


def birth_of(version: int) -> int:
    """Extract, from a record's version, the zxid of the write that created its node."""
    return version >> _DATA_VERSION_BITS


def data_version_of(version: int) -> int:
    """Extract ZooKeeper's node version from a record's version; at most `_DATA_VERSION_MAX`."""
    found = version & ((1 << _DATA_VERSION_BITS) - 1)
    return min(found, _DATA_VERSION_MAX)


def stat_of(key: str, stat: ZnodeStat, session: int) -> Stat:
    """Return the `Stat` of a record, from the stat of its node."""
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
    """Return the result of a put whose answer was lost, if its record has changed since then.

    The record's version cannot be read any more. So it is computed from the put's expected version,
    or from the zxid if the put created the node. If neither is possible, the version is 0. No
    record has the version 0, so a later compare-and-set with it fails.
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


def has_no_record(data: bytes | None) -> bool:
    """True if a node with this data is only a parent, without a record."""
    return data is None or data in (PARENT, KEPT)


class Scope:
    """Converts keys of a store to paths of nodes (`path`) and back (`key`).

    Args:
        path: the path of the scope's own node.
        access: the users with access to a new node, if its put has no access control list of its
            own.
        users: for each kind of process, its users; used if `access` is ``kinds``.
    """

    def __init__(
        self, path: str, access: Access = "open", users: Users = MappingProxyType({})
    ) -> None:
        self.root = path
        """The path of the scope's own node."""
        self.has_kinds = access == "kinds"
        """True if a node's list depends on the part of the scope (`rights`) to which it belongs."""
        self._users = users
        self._acl: Sequence[ACL] = CREATOR_ALL_ACL if access == "user" else OPEN_ACL_UNSAFE
        self._acls: dict[str, Sequence[ACL]] = {}
        self.mark = SetData(path, PARENT, ANY)
        """The operation that marks internal writes: it stands before and after them."""

    def acl(self, key: str) -> Sequence[ACL]:
        """Return the access control list for a new node with this key."""
        if not self.has_kinds:
            return self._acl
        part = part_of(key)
        if part not in self._acls:
            self._acls[part] = to_node_acl(zookeeper_acl(part, self._users))
        return self._acls[part]

    def path(self, key: str) -> str:
        return self.root if key == ROOT else self.root + key

    def key(self, path: str) -> str:
        return path[len(self.root) :] or ROOT


def require_representable(operation: Operation) -> None:
    """Refuse an operation that ZooKeeper cannot store.

    Raises:
        InvalidKeyError: ZooKeeper refuses a character of the key, or the value is reserved for
            nodes without a record.
    """
    require_representable_key(operation.key)
    if isinstance(operation, Put) and has_no_record(operation.value):
        raise InvalidKeyError(f"the value for {operation.key} is one that bookie uses itself")


def require_representable_key(key: str) -> None:
    """Refuse a key that ZooKeeper cannot store.

    Source: PathUtils.validatePath.
    """
    if key.isascii() and key.isprintable():
        return
    for character in key:
        code = ord(character)
        if code <= 0x1F or 0x7F <= code <= 0x9F or 0xD800 < code < 0xF8FF or code > 0xFFF0:
            # Java sees a character beyond the basic plane as two surrogates, and ZooKeeper refuses
            # them.
            raise InvalidKeyError(
                f"the key {key!r} has the character {character!r}, which ZooKeeper refuses"
            )


# ---- access control

_PERMISSIONS = {"read": 1, "write": 2, "create": 4, "delete": 8, "admin": 16}


def to_node_acl(acl: Iterable[Acl]) -> list[ACL]:
    """Convert an access control list to ZooKeeper's form.

    Raises:
        BadRequestError: the list is empty.
    """
    found = [
        ACL(sum(_PERMISSIONS[name] for name in one.permissions), Id(one.scheme, one.id))
        for one in acl
    ]
    if not found:
        raise BadRequestError("an empty access control list locks everybody out; name a user")
    return found


def from_node_acl(acl: Iterable[ACL]) -> list[Acl]:
    """Convert an access control list from ZooKeeper's form."""
    return [
        Acl(
            one.id.scheme,
            one.id.id or "",
            frozenset(name for name, bit in _PERMISSIONS.items() if one.perms & bit),
        )
        for one in acl
    ]


# ---- the state before a transaction


class Node(NamedTuple):
    """The known facts about a node, from a read or from the cache."""

    birth: int
    data_version: int
    owner: int
    """The session that owns an ephemeral node; 0 for other nodes."""

    is_record: bool
    children: int

    @property
    def version(self) -> int:
        return self.birth << _DATA_VERSION_BITS | self.data_version


@dataclass(slots=True)
class View:
    """Nodes by key; a missing node has the value None, and a key that was not read is absent."""

    nodes: dict[str, Node | None] = field(default_factory=dict)
    acls: dict[str, tuple[Acl, ...]] = field(default_factory=dict)
    """The access control lists of records that may be taken over; the new node gets the same."""
    guard: int = 0
    """The version of `REMOVALS` before the parents were read; 0 if there is no such node."""

    def find(self, key: str) -> Stored | None:
        node = self.nodes.get(key)
        if node is None or not node.is_record:
            return None
        owner = node.owner.to_bytes(8, "big", signed=True) if node.owner else b""
        return Stored(node.version, owner)

    def has_children(self, key: str) -> bool:
        node = self.nodes.get(key)
        return node is not None and node.children > 0


# ---- a transaction as operations on nodes


@dataclass(slots=True)
class Plan:
    """Operations on nodes; for each put, `results` has the position of its operation."""

    operations: list[NodeOperation] = field(default_factory=list)
    results: list[int | None] = field(default_factory=list)
    numbered_below: set[str] = field(default_factory=set)
    """The keys below which the transaction puts persistent sequential records."""

    creates: list[CreateNode] = field(default_factory=list)


class Planner:
    """Turns one transaction, evaluated against `view`, into operations on nodes.

    If a node has changed since `view` was read, and the outcome would now be different, the
    operations fail. The operation on a record stands before the operations on records below it. A
    create fails if its parents are missing; then the caller makes the parents and tries again.
    """

    def __init__(
        self, scope: Scope, operations: Sequence[Operation], view: View, session: int
    ) -> None:
        self._scope = scope
        self._operations = operations
        self._view = view
        self._session = session
        self._is_guarded = False
        """True if the operations write `REMOVALS` already."""
        self._plan = Plan(results=[None] * len(operations))

    def plan(self) -> Plan:
        """Return the plan, with the operations in an order that ZooKeeper can execute.

        Raises:
            InvalidKeyError: the operations are too large for one request.
            UnsupportedError: ZooKeeper cannot set a put's access control list in the same
                transaction.
        """
        keys = [operation.key for operation in self._operations]
        for index in sorted(range(len(keys)), key=lambda place: keys[place].count("/")):
            self._do(index, self._operations[index])
        _require_sendable(self._plan.operations)
        return self._plan

    def _do(self, index: int, operation: Operation) -> None:
        path = self._scope.path(operation.key)
        match operation:
            case Put(sequential=True):
                if not operation.ephemeral and parent_of(operation.key) != ROOT:
                    self._plan.numbered_below.add(parent_of(operation.key))
                self._create(index, operation)
            case Put():
                self._do_put(index, operation, path)
            case Delete():
                node = self._view.nodes.get(operation.key)
                assert node is not None, "evaluate refuses the deletion of an absent record"
                delete = DeleteNode(path, node.data_version)
                if node.is_record:
                    self._add(delete)
                else:
                    self._silently(*self._end_of_parent(), delete)
            case Check():
                self._do_check(operation, path)

    def _do_put(self, index: int, put: Put, path: str) -> None:
        node = self._view.nodes.get(put.key)
        if node is None:
            self._create(index, put)
        elif not node.is_record:
            self._convert(index, put, path, node)
        elif put.ephemeral and node.owner != self._session:
            self._take_over(index, put, path, node)
        else:
            expected = ANY
            if put.version is not None or put.ephemeral:
                expected = node.data_version
            self._plan.results[index] = self._add(SetData(path, put.value, expected))

    def _convert(self, index: int, put: Put, path: str, node: Node) -> None:
        """Turn a node that is only a parent into a record."""
        if put.ephemeral or put.acl is not None:
            if node.children:
                raise UnsupportedError(
                    f"ZooKeeper cannot set access control in the transaction that puts {put.key},"
                    " because other keys lie below it; put it without, and then set_acl"
                )
            self._silently(*self._end_of_parent(), DeleteNode(path, node.data_version))
            self._create(index, put)
        else:
            self._silently(*self._end_of_parent(), SetData(path, PARENT, node.data_version))
            self._plan.results[index] = self._add(SetData(path, put.value, ANY))

    def _take_over(self, index: int, put: Put, path: str, node: Node) -> None:
        """Delete and create the node in one transaction, because ZooKeeper cannot change an owner.

        After its creation, the new node is written once more, so that its version is not that of a
        new record. If the old node had version 1, the new node is written twice. Otherwise it would
        have version 1, too, and another client's write that expects version 1 would succeed.
        """
        if put.acl is None:
            put = replace(put, acl=self._view.acls.get(put.key))
        self._add(self._scope.mark)
        self._add(DeleteNode(path, node.data_version))
        self._create(index, replace(put, value=b""))
        if node.data_version == 1:
            self._add(SetData(path, b"", ANY))
        self._plan.results[index] = self._add(SetData(path, put.value, ANY))
        self._add(self._scope.mark)

    def _end_of_parent(self) -> list[NodeOperation]:
        """Return a write of `REMOVALS` that fails if a parent was removed since `view` was read.

        The list is empty if the plan has this write already.
        """
        if self._is_guarded:
            return []
        self._is_guarded = True
        return [SetData(REMOVALS, b"", self._view.guard)]

    def _do_check(self, check: Check, path: str) -> None:
        if check.version != NOT_EXISTS:
            self._add(CheckVersion(path, data_version_of(check.version)))
        elif (node := self._view.nodes.get(check.key)) is not None:
            if not self._is_guarded:
                self._add(CheckVersion(REMOVALS, self._view.guard))
            self._add(CheckVersion(path, node.data_version))
        else:
            # ZooKeeper cannot check that a node is missing. So create the node and delete it again:
            # this fails if the node exists.
            paths = [path, *map(self._scope.path, self._missing_above(check.key))]
            self._silently(
                *(CreateNode(one, PARENT, self._acl_of(one)) for one in reversed(paths)),
                *(DeleteNode(one, ANY) for one in paths),
            )

    def _missing_above(self, key: str) -> list[str]:
        """Return the missing parents of `key`, except those that this transaction creates."""
        made = {one.key for one in self._operations if isinstance(one, Put)}
        nodes = self._view.nodes
        return [
            above
            for above in ancestors(key)
            if above in nodes and nodes[above] is None and above not in made
        ]

    def _create(self, index: int, put: Put) -> None:
        acl = self._scope.acl(put.key) if put.acl is None else to_node_acl(put.acl)
        path = self._scope.path(put.key)
        create = CreateNode(path, put.value, acl, put.ephemeral, put.sequential)
        self._plan.creates.append(create)
        self._plan.results[index] = self._add(create)

    def _acl_of(self, path: str) -> Sequence[ACL]:
        return self._scope.acl(self._scope.key(path))

    def _silently(self, *operations: NodeOperation) -> None:
        for operation in (self._scope.mark, *operations, self._scope.mark):
            self._add(operation)

    def _add(self, operation: NodeOperation) -> int:
        self._plan.operations.append(operation)
        return len(self._plan.operations) - 1


def _require_sendable(operations: Sequence[NodeOperation]) -> None:
    """Refuse a request above 1 MB, because servers disconnect above 1 MiB (``jute.maxbuffer``)."""
    size = 0
    for operation in operations:
        size += _OVERHEAD_BYTES_MAX + len(operation.path.encode())
        if isinstance(operation, CreateNode | SetData):
            size += len(operation.data)
        if isinstance(operation, CreateNode) and operation.acl is not OPEN_ACL_UNSAFE:
            size += sum(_OVERHEAD_BYTES_MAX + len(one.id.id.encode()) for one in operation.acl)
    if size > REQUEST_BYTES_MAX:
        raise InvalidKeyError(
            f"this takes about {size} bytes in one request to ZooKeeper, which takes at most"
            f" {REQUEST_BYTES_MAX}"
        )

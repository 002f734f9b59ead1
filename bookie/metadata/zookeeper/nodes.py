"""Reads of ZooKeeper's tree before a write, and after a write whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from bookie.errors import (
    BadRequestError,
    BookieError,
    InvalidKeyError,
    MetadataUnavailableError,
    NoSuchKeyError,
    UnauthorizedError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    SEQUENCE_DIGITS_MIN,
    Acl,
    Check,
    Delete,
    Operation,
    Put,
    ancestors,
    parent_of,
)
from bookie.metadata.zookeeper.client import LostError, NoAnswerError, NotSentError
from bookie.metadata.zookeeper.requests import (
    INVALID_ACL,
    NO_AUTH,
    NO_NODE,
    Exists,
    GetACL,
    GetChildren,
    GetData,
    NodeError,
    Request,
    SetACL,
    ZnodeStat,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import (
    KEPT,
    PARENT,
    REMOVALS,
    Node,
    Scope,
    View,
    from_node_acl,
    has_no_record,
    to_node_acl,
)

SEQUENCE_MAX = 2**31 - 2**20
"""From this number on, a sequential put is refused.

ZooKeeper's numbers turn negative at 2^31. This limit is lower, because some puts are sent before
the store has read how far the numbers are.
"""


class NodeReader:
    """Reads nodes below a scope, with many requests at the same time."""

    def __init__(self, link: ZooKeeperLink, scope: Scope) -> None:
        self._link = link
        self._scope = scope

    # ---- before a write

    async def view(self, operations: Sequence[Operation], deadline: float) -> View:
        """Read the nodes on which the outcome of a transaction depends.

        The nodes are not read in the same instant, but all after the call began.

        Raises:
            InvalidKeyError: ZooKeeper's numbers for a sequential record are used up.
        """
        keys = _keys_of(operations)
        stats = await self.ask([Exists(self._scope.path(key)) for key in keys], deadline)
        doubtful = [key for key, stat in zip(keys, stats, strict=True) if may_have_no_record(stat)]
        # Read the guard, the node `REMOVALS`, before the parents. If a parent is removed after it
        # was read, the guard then has a newer version.
        guard = [Exists(REMOVALS)] if doubtful else []
        asked = await self.ask(
            [*guard, *(GetData(self._scope.path(k)) for k in doubtful)], deadline
        )
        view = View()
        if doubtful and (seen := asked.pop(0)) is not None:
            view.guard = seen.version
        found = dict(zip(doubtful, asked, strict=True))
        for key, stat in zip(keys, stats, strict=True):
            if stat is None or (key in found and found[key] is None):
                view.nodes[key] = None
                continue
            data, latest = found.get(key, (b"?", stat))
            view.nodes[key] = Node(
                latest.czxid,
                latest.version,
                latest.ephemeralOwner,
                not has_no_record(data),
                latest.numChildren,
            )
        _require_numbers(operations, dict(zip(keys, stats, strict=True)))
        await self._read_acls(operations, view, deadline)
        return view

    async def _read_acls(
        self, operations: Sequence[Operation], view: View, deadline: float
    ) -> None:
        """Read the access control lists of ephemeral records that an ephemeral put replaces.

        But ZooKeeper shows the names of digest users only to admins. So if the scope has kinds of
        users, the list for the key's part is used instead.
        """
        keys = []
        for operation in operations:
            node = view.nodes.get(operation.key)
            if isinstance(operation, Put) and operation.ephemeral and node and node.owner:
                keys.append(operation.key)
        answers = await self.ask([GetACL(self._scope.path(key)) for key in keys], deadline)
        for key, answer in zip(keys, answers, strict=True):
            if answer is None:
                continue  # the record was deleted, so the write will be refused
            acl = from_node_acl(answer[0])
            if self._scope.has_kinds:
                acl = from_node_acl(self._scope.acl(key))
            elif any(one.scheme == "digest" and one.id.endswith(":x") for one in acl):
                raise UnauthorizedError(
                    f"{key} cannot be taken over: ZooKeeper hides its access control list from us"
                )
            view.acls[key] = tuple(acl)

    async def acl(self, key: str, deadline: float) -> list[Acl]:
        await self._require_record(key, deadline)
        try:
            acl, _ = await self._link.read(GetACL(self._scope.path(key)), deadline)
        except NodeError as error:
            raise refusal(error, key) from error
        return from_node_acl(acl)

    async def set_acl(self, key: str, acl: Sequence[Acl], deadline: float) -> None:
        node_acl = to_node_acl(acl)
        await self._require_record(key, deadline)
        try:
            # A repeated request changes nothing more, so send it like a read, which is repeated.
            await self._link.read(SetACL(self._scope.path(key), node_acl), deadline)
        except NodeError as error:
            raise refusal(error, key) from error

    async def _require_record(self, key: str, deadline: float) -> None:
        if (await self.view([Delete(key)], deadline)).find(key) is None:
            raise NoSuchKeyError(f"{key} does not exist")

    # ---- after a write whose answer was lost

    async def stat_written(
        self, put: Put, zxid: int, deadline: float
    ) -> tuple[str, ZnodeStat] | None:
        """Return the key and the stat of the record that `put` wrote in the transaction `zxid`.

        Return None if the record was deleted or written again.

        Raises:
            MetadataUnavailableError: this user may not read the record. Or a sequential record was
                deleted, so its number is unknown.
        """
        try:
            if put.sequential:
                return await self._numbered_by(put, zxid, deadline)
            stat = await self._link.read(Exists(self._scope.path(put.key)), deadline)
        except NodeError as error:
            raise MetadataUnavailableError(
                f"{put.key} was written; ZooKeeper refuses to show its state: error {error.code}"
            ) from error
        return (put.key, stat) if stat is not None and stat.mzxid == zxid else None

    async def _numbered_by(self, put: Put, zxid: int, deadline: float) -> tuple[str, ZnodeStat]:
        """Return the key and the stat of the sequential record that the write `zxid` created."""
        parent, name = parent_of(put.key), put.key.rpartition("/")[2]
        names = await self._link.read(GetChildren(self._scope.path(parent)), deadline)
        keys = [f"{parent.rstrip('/')}/{n}" for n in names if _is_numbered(n, name)]
        stats = await self.ask([Exists(self._scope.path(key)) for key in keys], deadline)
        for key, stat in zip(keys, stats, strict=True):
            if stat is not None and stat.czxid == zxid:
                return key, stat
        raise MetadataUnavailableError(
            f"{put.key} was written, and is gone; the answer with its number was lost"
        )

    # ----

    async def ask(self, reads: Iterable[Request], deadline: float) -> list[Any]:
        """Send all requests at once; return the answers, which are None for missing nodes."""
        if not (requests := list(reads)):
            return []
        while True:
            await self._link.usable(deadline)
            async with self._link.place(deadline):
                answers = [self._link.send(request).answer for request in requests]
                await asyncio.wait(answers)
            errors = [answer.exception() for answer in answers]
            if any(isinstance(error, NoAnswerError) for error in errors):
                raise MetadataUnavailableError("the metadata store does not answer")
            if any(isinstance(error, LostError | NotSentError) for error in errors):
                await asyncio.sleep(0)
                continue
            found = []
            for answer, error in zip(answers, errors, strict=True):
                if error is not None and not (
                    isinstance(error, NodeError) and error.code == NO_NODE
                ):
                    raise error
                found.append(None if error is not None else answer.result())
            return found


def _keys_of(operations: Sequence[Operation]) -> list[str]:
    """Return the keys whose nodes decide a transaction, including the keys above new records."""
    keys: dict[str, None] = {}
    for operation in operations:
        if not (isinstance(operation, Put) and operation.sequential):
            keys[operation.key] = None
        if isinstance(operation, Put) or (
            isinstance(operation, Check) and operation.version == NOT_EXISTS
        ):
            keys.update(dict.fromkeys(ancestors(operation.key)))
    return list(keys)


def _require_numbers(operations: Sequence[Operation], stats: dict[str, ZnodeStat | None]) -> None:
    for operation in operations:
        if isinstance(operation, Put) and operation.sequential:
            parent = parent_of(operation.key)
            stat = stats.get(parent)
            if stat is not None and numbers_used(stat) >= SEQUENCE_MAX:
                raise InvalidKeyError(f"ZooKeeper's numbers for records below {parent} are used up")


def numbers_used(stat: ZnodeStat) -> int:
    """Return the number of children created so far, which is the next sequential child's number.

    Source: DataNode.copyStat: `cversion` is twice this number minus the number of current children,
    in 32 bits.
    """
    return int((stat.cversion + stat.numChildren) % 2**32 // 2)


def may_have_no_record(stat: ZnodeStat | None) -> bool:
    """True if the node may be a parent without a record; to be certain, read the node's data."""
    if stat is None or stat.ephemeralOwner:
        return False
    return stat.dataLength in (0, len(PARENT), len(KEPT))


def _is_numbered(name: str, stem: str) -> bool:
    digits = name[len(stem) :]
    return name.startswith(stem) and len(digits) >= SEQUENCE_DIGITS_MIN and digits.isdigit()


def refusal(error: NodeError, key: str) -> BookieError:
    """Return our error for a refusal that does not depend on the state of the records."""
    if error.code == NO_AUTH:
        return UnauthorizedError(f"ZooKeeper denies us access to {key}")
    if error.code == INVALID_ACL:
        return BadRequestError(f"ZooKeeper does not accept the access control list for {key}")
    return MetadataUnavailableError(f"ZooKeeper refused to work on {key}: error {error.code}")

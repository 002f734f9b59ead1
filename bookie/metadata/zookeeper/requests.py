"""Requests to ZooKeeper, each an object with the method `ask`, which sends the request.

A `Multi` does several operations on nodes at once, or none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

__all__ = ["ACL", "CREATOR_ALL_ACL", "OPEN_ACL_UNSAFE", "Id", "Permissions", "ZnodeStat"]

OK = 0
RUNTIME_INCONSISTENCY = -2
UNIMPLEMENTED = -6
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111
INVALID_ACL = -114
"""Error codes of ZooKeeper's answers. Source: KeeperException.Code."""


class NodeError(Exception):
    """The server answered one request with the error `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class MultiRefusedError(NodeError):
    """The server did nothing, because the operation at `index` failed."""

    def __init__(self, index: int, code: int) -> None:
        super().__init__(code)
        self.index = index


class Request(Protocol):
    """A request to the server."""

    def ask(self, client: KazooClient) -> object: ...


@dataclass(frozen=True, slots=True)
class _OfPath:
    """A request whose only argument is a path."""

    path: str
    _call: ClassVar[str]

    def ask(self, client: KazooClient) -> object:
        return getattr(client, self._call)(self.path)


class Exists(_OfPath):
    """Ask for the stat of a node; the answer is None if there is no node."""

    _call = "exists_async"


class GetData(_OfPath):
    """Ask for the data and stat of a node."""

    _call = "get_async"


class GetChildren(_OfPath):
    """Ask for the names of the children of a node."""

    _call = "get_children_async"


class GetACL(_OfPath):
    """Ask for the access control list and stat of a node."""

    _call = "get_acls_async"


class Sync(_OfPath):
    """Wait until the server of our connection has all commits that its leader has now."""

    _call = "sync_async"


class SetACL(NamedTuple):
    """Replace the access control list of a node."""

    path: str
    acl: Sequence[ACL]

    def ask(self, client: KazooClient) -> object:
        return client.set_acls_async(self.path, list(self.acl))


# ---- operations, alone or in a transaction


class CreateNode(NamedTuple):
    """Create a node; the answer is its path, with its number if the node is sequential."""

    path: str
    data: bytes
    acl: Sequence[ACL] = OPEN_ACL_UNSAFE
    ephemeral: bool = False
    sequential: bool = False

    @property
    def is_numbered(self) -> bool:
        return self.sequential and not self.ephemeral

    def ask(self, client: KazooClient) -> object:
        path, data, acl, ephemeral, sequential = self
        return client.create_async(path, data, list(acl), ephemeral, sequential)


class SetData(NamedTuple):
    """Write the data of a node that has `version` (-1: any); the answer is the node's stat."""

    path: str
    data: bytes
    version: int

    def ask(self, client: KazooClient) -> object:
        return client.set_async(*self)


class DeleteNode(NamedTuple):
    """Delete a node that has `version` (-1: any)."""

    path: str
    version: int


class CheckVersion(NamedTuple):
    """Require that a node has `version`."""

    path: str
    version: int


NodeOperation: TypeAlias = CreateNode | SetData | DeleteNode | CheckVersion


class Multi(NamedTuple):
    """Do all operations at once, or none of them.

    The answer has one result per operation: the path of a create, the stat of a set, True for a
    delete or check.
    """

    operations: Sequence[NodeOperation]

    def ask(self, client: KazooClient) -> object:
        transaction: TransactionRequest = client.transaction()
        for operation in self.operations:
            match operation:
                case CreateNode(path, data, acl, ephemeral, sequential):
                    transaction.create(path, data, list(acl), ephemeral, sequential)
                case SetData():
                    transaction.set_data(*operation)
                case DeleteNode():
                    transaction.delete(*operation)
                case CheckVersion():
                    transaction.check(*operation)
        return transaction.commit_async()


def answer_of(request: Request, value: Any) -> Any:
    """Return the answer that kazoo's value contains.

    Raises:
        MultiRefusedError: the value shows that the server refused the `Multi`.
    """
    if isinstance(request, Multi):
        for index, result in enumerate(value):
            # The results of the operations before the failed one have the code 0, those after it
            # -2.
            if isinstance(result, KazooException) and (
                result.code not in (OK, RUNTIME_INCONSISTENCY)
            ):
                raise MultiRefusedError(index, result.code)
    return value

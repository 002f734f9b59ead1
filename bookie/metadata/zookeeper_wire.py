"""What kazoo's protocol lacks: watches on a whole tree, and transactions of all kinds.

Request bodies follow ZooKeeper's jute records (big endian; strings and buffers with a length of 4
bytes, -1 for null). Opcodes and flags are those of servers 3.6 and later.

Source: ZooDefs.OpCode, MultiOperationRecord, MultiResponse and AddWatchRequest of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from kazoo.protocol.serialization import (
    CheckVersion,
    Create2,
    Exists,
    GetACL,
    GetChildren,
    GetChildren2,
    GetData,
    SetACL,
    SetData,
    Sync,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.serialization import Delete as DeleteNode
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

__all__ = [
    "ACL",
    "CREATOR_ALL_ACL",
    "OPEN_ACL_UNSAFE",
    "AddWatch",
    "CheckVersion",
    "CreateNode",
    "DeleteNode",
    "Exists",
    "GetACL",
    "GetChildren",
    "GetChildren2",
    "GetData",
    "Id",
    "Multi",
    "MultiRefusedError",
    "NodeOperation",
    "Permissions",
    "Request",
    "SetACL",
    "SetData",
    "Sync",
    "ZnodeStat",
]

PERSISTENT = 0
EPHEMERAL = 1
SEQUENTIAL = 2
"""Flags of a create."""

OK = 0
RUNTIME_INCONSISTENCY = -2
CONNECTION_LOSS = -4
UNIMPLEMENTED = -6
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111
SESSION_EXPIRED = -112
INVALID_ACL = -114
AUTH_FAILED = -115
SESSION_MOVED = -118
"""Error codes of replies. Source: KeeperException.Code."""

_CREATE2 = 15
_MULTI = 14
_ERROR = -1
_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_DONE = _HEADER.pack(-1, 1, -1)


class Request(Protocol):
    """A request as kazoo's connection sends it."""

    @property
    def type(self) -> int: ...  # noqa: D102  (the opcode)

    def serialize(self) -> bytes | bytearray: ...  # noqa: D102  (the body)

    def deserialize(self, buffer: bytes, offset: int) -> object: ...  # noqa: D102  (of the answer)


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Watch a node and all below it until the connection ends; each change is told once."""

    path: str
    type: int = 106
    _PERSISTENT_RECURSIVE = 1

    def serialize(self) -> bytes:
        """The body."""
        return bytes(write_string(self.path) + _INT.pack(self._PERSISTENT_RECURSIVE))

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """The answer is empty."""


class CreateNode(NamedTuple):
    """Create a node; answered with its path (which has the number of a sequential one) and stat."""

    path: str
    data: bytes | None
    acl: Sequence[ACL] = OPEN_ACL_UNSAFE
    flags: int = PERSISTENT

    @property
    def type(self) -> int:
        """The opcode."""
        return _CREATE2

    def serialize(self) -> bytearray:
        """The body."""
        body: bytearray = Create2(self.path, self.data, self.acl, self.flags).serialize()
        return body

    def deserialize(self, buffer: bytes, offset: int) -> tuple[str, ZnodeStat]:
        """Path and stat."""
        path, offset = read_string(buffer, offset)
        return path, ZnodeStat._make(stat_struct.unpack_from(buffer, offset))


NodeOperation: TypeAlias = CreateNode | SetData | DeleteNode | CheckVersion
"""What a `Multi` is made of."""


class MultiRefusedError(Exception):
    """Nothing was done, because of the operation at `index`."""

    def __init__(self, index: int, code: int) -> None:
        super().__init__(index, code)
        self.index = index
        self.code = code


class Multi(NamedTuple):
    """All operations at once, or none.

    Answered with one result per operation: (path, stat) of a create, the stat of a set, None of a
    delete or check.
    """

    operations: Sequence[NodeOperation]
    type: int = _MULTI

    def serialize(self) -> bytearray:
        """The body: each operation behind a header, and a last header that says so."""
        body = bytearray()
        for operation in self.operations:
            body += _HEADER.pack(operation.type, 0, -1)
            body += operation.serialize()
        body += _DONE
        return body

    def deserialize(self, buffer: bytes, offset: int) -> list[object]:
        """The results, or `MultiRefusedError`."""
        results: list[object] = []
        refused: MultiRefusedError | None = None
        while True:
            kind, is_done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if is_done:
                break
            result: object = None
            if kind == _ERROR:
                (code,) = _INT.unpack_from(buffer, offset)
                offset += _INT.size
                # Those before it "failed" with 0, those after it with an inconsistency.
                if code not in (OK, RUNTIME_INCONSISTENCY) and refused is None:
                    refused = MultiRefusedError(len(results), code)
            elif kind == _CREATE2:
                path, offset = read_string(buffer, offset)
                result = (path, ZnodeStat._make(stat_struct.unpack_from(buffer, offset)))
                offset += stat_struct.size
            elif kind == SetData.type:
                result = ZnodeStat._make(stat_struct.unpack_from(buffer, offset))
                offset += stat_struct.size
            results.append(result)
        if refused is not None:
            raise refused
        return results

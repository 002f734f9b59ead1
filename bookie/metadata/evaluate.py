"""The rules of a transaction, which all backends share.

`evaluate` reads the state before a transaction. `evaluate` raises the error of the first condition
that fails, or returns the effects that the backend must write. `evaluate` itself writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from bookie.errors import (
    BadVersionError,
    InvalidKeyError,
    KeyExistsError,
    KeyHasChildrenError,
    NoSuchKeyError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    ChangeKind,
    Check,
    Delete,
    Operation,
    Put,
    Stat,
    ancestors,
    check_transaction,
    sequential_key,
)

NO_OWNER = b""
"""The value of `owner` in a persistent record, which belongs to no session."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The fields of a record that `evaluate` needs; `owner` is a session id, or `NO_OWNER`."""

    version: int
    owner: bytes


@dataclass(frozen=True, slots=True)
class StoredRecord(Stored):
    """A whole record, for backends in which a record's version is the number of a commit."""

    value: bytes
    version_at_creation: int
    created_ms: int
    modified_ms: int

    def stat(self, key: str, session: bytes) -> Stat:
        return Stat(
            key=key,
            version=self.version,
            revision=self.version,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
            ephemeral=bool(self.owner),
            created_by_self=self.owner == session,
            first_version=self.version == self.version_at_creation,
        )


class Tree(Protocol):
    """The state before a transaction, from which `evaluate` reads records."""

    def find(self, key: str) -> Stored | None:
        """Return the record of `key`, or None if there is no record."""

    def has_children(self, key: str) -> bool:
        """True if any key lies below `key`."""


@dataclass(frozen=True, slots=True)
class Write:
    """An effect: create or replace the record of `key`, with `value` and `owner`."""

    key: str
    value: bytes
    owner: bytes
    owner_before: bytes | None
    """The owner of the record that is replaced; None if the record is new."""

    @property
    def kind(self) -> ChangeKind:
        return ChangeKind.CREATED if self.owner_before is None else ChangeKind.MODIFIED

    def record(self, before: StoredRecord | None, version: int, now_ms: int) -> StoredRecord:
        """Return the record as commit `version` leaves it; with another owner, it counts as new."""
        if before is None or before.owner != self.owner:
            return StoredRecord(version, self.owner, self.value, version, now_ms, now_ms)
        return replace(before, version=version, value=self.value, modified_ms=now_ms)


@dataclass(frozen=True, slots=True)
class Deletion:
    """An effect: remove the record of `key`, which belongs to `owner_before`."""

    key: str
    owner_before: bytes
    kind: ClassVar[ChangeKind] = ChangeKind.DELETED


def evaluate(
    operations: Sequence[Operation], tree: Tree, session: bytes, number: int
) -> list[Write | Deletion | None]:
    """Return the effect of each operation, in order; for a `Check`, which has no effect, None.

    The keys of sequential records end with `number`, which must be greater than the number of every
    earlier commit.

    Raises:
        BadVersionError, KeyExistsError, NoSuchKeyError, KeyHasChildrenError, InvalidKeyError: see
            `MetadataStore.put` and `MetadataStore.delete`.
    """
    if any(isinstance(operation, Put) and operation.sequential for operation in operations):
        operations = [_numbered(operation, number) for operation in operations]
        check_transaction(operations)
    effects: list[Write | Deletion | None] = []
    for operation in operations:
        match operation:
            case Put():
                effects.append(_evaluate_put(operation, tree, session))
            case Delete():
                effects.append(_evaluate_delete(operation, tree))
            case Check():
                _require_version(operation.key, tree.find(operation.key), operation.version)
                effects.append(None)
    return effects


def _numbered(operation: Operation, number: int) -> Operation:
    if not isinstance(operation, Put) or not operation.sequential:
        return operation
    key = sequential_key(operation.key, number)
    return replace(operation, key=key, version=NOT_EXISTS, sequential=False)


def _evaluate_put(put: Put, tree: Tree, session: bytes) -> Write:
    stored = tree.find(put.key)
    if put.version is not None:
        _require_version(put.key, stored, put.version)
    if stored is None:
        _require_room(put, tree)
        return Write(put.key, put.value, session if put.ephemeral else NO_OWNER, None)
    if not put.ephemeral:
        return Write(put.key, put.value, stored.owner, stored.owner)
    if stored.owner == NO_OWNER:
        raise KeyExistsError(f"{put.key} exists and is not ephemeral")
    if stored.owner != session and put.version is None:
        raise BadVersionError(f"{put.key} belongs to another session")
    return Write(put.key, put.value, session, stored.owner)


def _require_room(put: Put, tree: Tree) -> None:
    if put.ephemeral and tree.has_children(put.key):
        raise KeyHasChildrenError(f"{put.key} has children and cannot be ephemeral")
    for ancestor in ancestors(put.key):
        above = tree.find(ancestor)
        if above is not None:
            # Check only the nearest existing ancestor: the ancestors above it have children, so
            # they are not ephemeral.
            if above.owner != NO_OWNER:
                raise InvalidKeyError(f"{put.key} cannot be created below ephemeral {ancestor}")
            return


def _evaluate_delete(delete: Delete, tree: Tree) -> Deletion:
    stored = tree.find(delete.key)
    if stored is None:
        raise NoSuchKeyError(f"{delete.key} does not exist")
    if delete.version is not None:
        _require_version(delete.key, stored, delete.version)
    if tree.has_children(delete.key):
        raise KeyHasChildrenError(f"{delete.key} has children")
    return Deletion(delete.key, stored.owner)


def _require_version(key: str, stored: Stored | None, expected: int) -> None:
    if stored is None:
        if expected != NOT_EXISTS:
            raise BadVersionError(f"{key} does not exist; version {expected} was expected")
    elif expected == NOT_EXISTS:
        raise KeyExistsError(f"{key} exists")
    elif stored.version != expected:
        raise BadVersionError(f"{key} has version {stored.version}; {expected} was expected")

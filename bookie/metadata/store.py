"""The interface of every metadata store, its values, and the limits that all backends share.

A store is a tree of records under absolute keys such as ``/ledgers/0000000000000000042``. The one
idea: a backend decides nothing. What a put, a delete or a transaction means is written down here
and in `judge`, so that code written on one backend runs on all of them (memory, a local LMDB
directory, and later ZooKeeper and etcd).

- **Versions** are opaque integers that grow with every commit of the store; a record has the
  version of the commit that wrote it last. ``NOT_EXISTS`` (-1) as an expected version means "must
  not exist".
- **Parents are virtual**: a key exists if it has a record or children. A record that has children
  cannot be deleted.
- **Ephemeral** belongs to the life of a record: it lives until its session ends. A plain put
  changes the value and never the owner; an ephemeral put with the right version takes a foreign
  record over. A persistent record never turns ephemeral. An ephemeral record has no children.
- **A transaction** is all or nothing. Its conditions are judged against the state before it, so it
  names each key once, and a key that it deletes or makes ephemeral has no other key of it below.
- **Watches** deliver every commit under a prefix once, in commit order, each commit whole; where
  that cannot be proven they deliver `Resync`, after which the consumer lists again.
- **A listing** is complete or raises; it never ends early.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from bookie.errors import BadRequestError, InvalidKeyError
from bookie.protocol.session import EXPIRY_EVENTS as EXPIRY_EVENTS  # noqa: PLC0414  (part of the interface)
from bookie.protocol.session import SessionEvent as SessionEvent  # noqa: PLC0414  (as above)

NOT_EXISTS = -1
"""As an expected version: the record must not exist."""

KEY_SIZE_BYTES_MAX = 480
"""The longest key, in bytes of UTF-8."""

VALUE_SIZE_BYTES_MAX = 512 * 1024
"""The largest value."""

TRANSACTION_OPERATIONS_MAX = 100
"""The most operations in one transaction."""

TRANSACTION_SIZE_BYTES_MAX = 768 * 1024
"""The most bytes of keys and values in one transaction (ZooKeeper refuses requests of 1 MiB)."""

ROOT = "/"
"""The parent of all keys; it has no record of its own."""


def check_key(key: str) -> str:
    """Return `key` if it may name a record.

    Raises:
        InvalidKeyError: it does not start with "/", ends with "/", has an empty, "." or ".."
            segment or a NUL character, is longer than `KEY_SIZE_BYTES_MAX`, or is not valid
            Unicode.
    """
    if not key.startswith("/") or key == ROOT:
        raise InvalidKeyError(f"the key {key!r} must start with a slash and name a record")
    if any(segment in ("", ".", "..") for segment in key[1:].split("/")):
        raise InvalidKeyError(f"the key {key!r} has an empty, '.' or '..' segment")
    if "\0" in key:
        raise InvalidKeyError(f"the key {key!r} contains a NUL character")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"the key {key!r} is not valid Unicode") from error
    if size > KEY_SIZE_BYTES_MAX:
        raise InvalidKeyError(f"a key of {size} bytes exceeds the limit of {KEY_SIZE_BYTES_MAX}")
    return key


def check_prefix(key: str) -> str:
    """Return `key` if it is the root or may name a record; else raise `InvalidKeyError`."""
    return key if key == ROOT else check_key(key)


def is_under(prefix: str, key: str) -> bool:
    """Whether `key` is `prefix` itself or lies below it. ``/a`` does not cover ``/ab``."""
    return prefix in (ROOT, key) or key.startswith(prefix + "/")


@dataclass(frozen=True, slots=True)
class Record:
    """One stored record. `created_by_self` is True for ephemeral records of the asking session."""

    key: str
    value: bytes
    version: int
    ephemeral: bool = False
    created_by_self: bool = False

    @property
    def name(self) -> str:
        """The last segment of the key."""
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record. `version`: None = create or replace, `NOT_EXISTS` = create, else replace it.

    With `ephemeral` the record belongs to the writing store's lease afterwards: it is created, was
    that store's already, or is another store's and `version` is its version (take-over).
    """

    key: str
    value: bytes
    version: int | None = None
    ephemeral: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        if len(self.value) > VALUE_SIZE_BYTES_MAX:
            raise InvalidKeyError(
                f"a value of {len(self.value)} bytes for {self.key} exceeds the limit of "
                f"{VALUE_SIZE_BYTES_MAX}"
            )
        if self.version is not None and self.version < NOT_EXISTS:
            raise BadRequestError(f"{self.version} is not a version")


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a record: the one of `version`, or any if None."""

    key: str
    version: int | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.version is not None and self.version < 0:
            raise BadRequestError(f"{self.version} is not the version of a record")


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a record has `version`, or that it does not exist (`NOT_EXISTS`)."""

    key: str
    version: int

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.version < NOT_EXISTS:
            raise BadRequestError(f"{self.version} is not a version")


Operation: TypeAlias = Put | Delete | Check


def check_transaction(operations: Sequence[Operation]) -> None:
    """Refuse what not every backend can do in one step.

    Raises:
        BadRequestError: too many operations, a key named twice, or a key below another one that the
            transaction deletes or makes ephemeral.
        InvalidKeyError: more than `TRANSACTION_SIZE_BYTES_MAX` of keys and values.
    """
    if len(operations) > TRANSACTION_OPERATIONS_MAX:
        raise BadRequestError(
            f"a transaction of {len(operations)} operations exceeds the limit of "
            f"{TRANSACTION_OPERATIONS_MAX}"
        )
    keys = {operation.key for operation in operations}
    if len(keys) != len(operations):
        raise BadRequestError("a transaction names a key more than once")
    leaves = {
        operation.key
        for operation in operations
        if isinstance(operation, Delete) or (isinstance(operation, Put) and operation.ephemeral)
    }
    for key in keys if leaves and len(keys) > 1 else ():
        for ancestor in ancestors(key):
            if ancestor in leaves:
                raise BadRequestError(
                    f"a transaction deletes {ancestor} or makes it ephemeral, and also names {key}"
                )
    size = sum(
        len(operation.key.encode()) + (len(operation.value) if isinstance(operation, Put) else 0)
        for operation in operations
    )
    if size > TRANSACTION_SIZE_BYTES_MAX:
        raise InvalidKeyError(
            f"a transaction of {size} bytes exceeds the limit of {TRANSACTION_SIZE_BYTES_MAX}"
        )


def parent_of(key: str) -> str:
    """The key one level up; `ROOT` for a top-level key."""
    return key.rpartition("/")[0] or ROOT


def ancestors(key: str) -> list[str]:
    """The keys above `key`, nearest first, without `ROOT`."""
    found = []
    key = key.rpartition("/")[0]
    while key:
        found.append(key)
        key = key.rpartition("/")[0]
    return found


class ChangeKind(enum.Enum):
    """What happened to a record."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One changed record.

    `version` is the record's new version; of a deletion, a version above all that the record had,
    or `NOT_EXISTS` where the backend cannot know it. A session that ends shows as deletions.
    """

    kind: ChangeKind
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of one transaction under the watched prefix, in its order; never empty."""

    version: int
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class Resync:
    """Changes may be missing from here: list again. Later commits follow as usual."""


Change: TypeAlias = Commit | Resync


class MetadataStore(ABC):
    """One session with a metadata store; an async context manager that begins and ends it.

    All methods run in the event loop that entered the context. Each raises `InvalidKeyError` for a
    key or value beyond the limits, `MetadataClosedError` outside the context and
    `MetadataUnavailableError` when the store does not answer; the outcome of a write is then
    unknown. A write that returned is durable (as durable as the backend is) and visible to every
    later read of this store object. A cancelled write may still happen.
    """

    session_timeout_seconds: float
    """After so long without a sign of life, others may end the store's lease."""

    @abstractmethod
    async def get(self, key: str) -> Record | None:
        """The record of `key`, or None."""

    @abstractmethod
    async def exists(self, key: str) -> bool:
        """Whether `key` has a record or children."""

    @abstractmethod
    async def get_children(self, key: str) -> list[str]:
        """The names one level below `key`, sorted, with those that only have children; complete."""

    @abstractmethod
    def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """The records one level below `key` with names greater than `after`, in name order.

        Records that exist during the whole scan appear exactly once; those that come or go
        meanwhile may appear. The scan raises if it cannot be completed.
        """

    async def put(
        self, key: str, value: bytes, *, version: int | None = None, ephemeral: bool = False
    ) -> int:
        """Write one record and return its new version; see `Put`.

        Raises:
            BadVersionError: the record has another version, or is foreign and ephemeral and no
                version was given to take it over.
            KeyExistsError: `version` is `NOT_EXISTS` and it exists, or a persistent record is in
                the way of an ephemeral one.
            KeyHasChildrenError: an ephemeral record cannot have the children that `key` has.
            InvalidKeyError: an ancestor is ephemeral.
            SessionLostError: the session ended before the write; nothing was written.
        """
        (result,) = await self.transaction([Put(key, value, version, ephemeral)])
        return result

    async def delete(self, key: str, *, version: int | None = None) -> None:
        """Delete one record.

        Raises:
            NoSuchKeyError: there is no record.
            BadVersionError: it has another version.
            KeyHasChildrenError: there are keys below it.
            SessionLostError: the session ended before the write; nothing was deleted.
        """
        await self.transaction([Delete(key, version)])

    @abstractmethod
    async def transaction(self, operations: Sequence[Operation]) -> list[int]:
        """Do all operations at once, or none.

        Returns one version per operation: a put's new version, a check's version, and for a delete
        the version of its event. Raises the error of the first operation whose condition fails, as
        `put` and `delete` do; a failed check is a BadVersionError.
        """

    @abstractmethod
    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Every commit under `prefix`, itself and own ones included, from entering the context on.

        To mirror a prefix: enter, list, then apply changes. A consumer that falls far behind gets
        one `Resync` instead of the backlog. The iterator raises `MetadataClosedError` when the
        store is closed.
        """

    @abstractmethod
    def session_events(self) -> AbstractAsyncContextManager[AsyncIterator[SessionEvent]]:
        """The session's events from entering the context on."""

    @abstractmethod
    async def sync(self) -> None:
        """Return when later reads see every commit that was finished before the call, by anyone."""

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begin the session."""

    @abstractmethod
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session: its ephemeral records are deleted when this returns."""

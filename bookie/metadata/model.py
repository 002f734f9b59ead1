"""The content of a metadata store: keys, records, operations on them, and changes for watches.

The limits and checks of this module are the same on every backend; a store applies them before it
sends a request.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from bookie.errors import BadRequestError, InvalidKeyError

# ---- keys

KEY_SIZE_BYTES_MAX = 480
"""The greatest size of a key, in bytes of UTF-8."""

ROOT = "/"
"""The parent of all keys; it has no record of its own."""

_PLAIN: Final = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[^/\0]+)+").fullmatch
"""Matches keys whose segments are valid. An ASCII key that matches needs no further check."""


def check_key(key: str) -> str:
    """Return `key` if `key` is valid as the key of a record.

    Raises:
        InvalidKeyError: the key does not start with "/", or ends with "/". Or the key has an
            empty, "." or ".." segment or a NUL character. Or the key is longer than
            `KEY_SIZE_BYTES_MAX`, or not valid Unicode.
        BadRequestError: the key is no string.
    """
    try:
        if len(key) <= KEY_SIZE_BYTES_MAX and key.isascii() and _PLAIN(key):
            return key
    except (TypeError, AttributeError):
        raise BadRequestError(f"a key must be a string, not {type(key).__name__}") from None
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


def check_listing(key: str, after: str) -> None:
    """Check that `key` of a listing is the root or a valid key, and that `after` is a string."""
    check_prefix(key)
    if not isinstance(after, str):
        raise BadRequestError(f"a name must be a string, not {type(after).__name__}")


def is_under(prefix: str, key: str) -> bool:
    """True if `key` is `prefix` itself or lies below it. ``/a`` does not cover ``/ab``."""
    return prefix in (ROOT, key) or key.startswith(prefix + "/")


def parent_of(key: str) -> str:
    """Return the key one level up, or `ROOT` for a top-level key."""
    return key.rpartition("/")[0] or ROOT


def ancestors(key: str) -> list[str]:
    """Return the keys above `key`, nearest first, without `ROOT`."""
    found = []
    key = key.rpartition("/")[0]
    while key:
        found.append(key)
        key = key.rpartition("/")[0]
    return found


# ---- records and operations

NOT_EXISTS = -1
"""The expected version of a record that must not exist."""

VALUE_SIZE_BYTES_MAX = 512 * 1024
"""The largest value of a record, in bytes."""

TRANSACTION_OPERATIONS_MAX = 100

TRANSACTION_SIZE_BYTES_MAX = 768 * 1024
"""The most bytes of keys and values in one transaction (ZooKeeper refuses requests of 1 MiB)."""

SEQUENCE_DIGITS_MIN = 10
SEQUENCE_DIGITS_MAX = 20
"""The smallest and the greatest number of digits at the end of a sequential key."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of a record apart from its value: versions, times and owner."""

    key: str
    version: int
    """An opaque token for compare-and-set; it grows over the life of one record."""

    revision: int | None
    """The number of the commit that wrote the record last; None if the number is unknown.

    The numbers of all commits of the store ascend. A lock uses this number as its fencing token.
    """

    created_ms: int | None
    """Creation time by the server's clock, informational; None if the backend has no times."""

    modified_ms: int | None
    """Time of the last write, by the same clock as `created_ms`."""

    ephemeral: bool
    """True if the store deletes the record when the session of its owner ends."""

    created_by_self: bool
    """True if the record is ephemeral and belongs to the session that reads it."""

    first_version: bool
    """True until the record's second write. After a take-over the value depends on the backend."""


@dataclass(frozen=True, slots=True)
class Record:
    """One stored record, as it was when it was read."""

    value: bytes
    stat: Stat

    @property
    def key(self) -> str:
        return self.stat.key

    @property
    def name(self) -> str:
        return self.stat.key.rpartition("/")[2]

    @property
    def version(self) -> int:
        return self.stat.version

    @property
    def ephemeral(self) -> bool:
        return self.stat.ephemeral

    @property
    def created_by_self(self) -> bool:
        return self.stat.created_by_self


ACL_PERMISSIONS = frozenset({"read", "write", "create", "delete", "admin"})
ACL_SCHEMES = frozenset({"digest", "sasl", "x509", "ip", "world", "auth"})


@dataclass(frozen=True, slots=True)
class Acl:
    """An entry of a record's access control list; only ZooKeeper has such lists.

    `scheme` is one of `ACL_SCHEMES`. `id` has the form that `scheme` demands (``user:base64
    digest``, a name, a certificate's subject, an address or network, ``anyone``). `permissions` is
    a subset of `ACL_PERMISSIONS`.
    """

    scheme: str
    id: str
    permissions: frozenset[str]

    def __post_init__(self) -> None:
        if self.scheme not in ACL_SCHEMES:
            raise BadRequestError(f"{self.scheme!r} is not a scheme of access control")
        if any("\ud800" <= character <= "\udfff" for character in self.id):
            raise BadRequestError(f"{self.id!r} has half of a character, which no name has")
        if not self.permissions or not self.permissions <= ACL_PERMISSIONS:
            raise BadRequestError(
                f"permissions must be some of {sorted(ACL_PERMISSIONS)}, not "
                f"{sorted(self.permissions)}"
            )

    @property
    def is_open(self) -> bool:
        """True if this entry alone lets everybody do everything."""
        return self.scheme == "world" and self.permissions == ACL_PERMISSIONS


def check_access(acl: Sequence[Acl]) -> tuple[Acl, ...]:
    """Check an access control list and return its entries as a tuple.

    Raises:
        BadRequestError: the value is no access control list.
    """
    if not isinstance(acl, Sequence) or not all(isinstance(one, Acl) for one in acl):
        raise BadRequestError("an access control list is a list of Acl")
    return tuple(acl)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record if it has `version`.

    `NOT_EXISTS` requires that there is no record. If `version` is None, the put creates or replaces
    the record.

    With `ephemeral`, the record afterwards belongs to the session of the store that carries out the
    put. With `ephemeral` and without `version`, the put creates the record, or replaces a record of
    the same session. With `ephemeral` and a `version` that matches another session's ephemeral
    record, the put takes over that record.

    With `sequential`, the put creates a record whose key is `key` followed by a number of at least
    `SEQUENCE_DIGITS_MIN` digits. `version` must then be None or `NOT_EXISTS`. The numbers of one
    `key` grow, and each number is used only once. To sort sequential keys, compare their numbers as
    integers: sorted as text, a number with more digits may come first.

    All ephemeral sequential records below one parent share one sequence of numbers, even if their
    keys differ. This sequence may begin anew when the parent has no children, so a number may be
    used again. If you need keys that are never used twice, put a unique part, such as a guid, into
    `key`.
    """

    key: str
    value: bytes
    version: int | None = None
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[Acl, ...] | None = None
    """The access control list of a record that the put creates; None means the default list."""

    def __post_init__(self) -> None:
        check_key(self.key)
        if not isinstance(self.value, bytes):
            raise BadRequestError(
                f"the value of {self.key} must be bytes, not {type(self.value).__name__}"
            )
        if len(self.value) > VALUE_SIZE_BYTES_MAX:
            raise InvalidKeyError(
                f"a value of {len(self.value)} bytes for {self.key} exceeds the limit of "
                f"{VALUE_SIZE_BYTES_MAX}"
            )
        if self.version is not None:
            _check_version(self.version, NOT_EXISTS)
        if type(self.ephemeral) is not bool or type(self.sequential) is not bool:
            raise BadRequestError("`ephemeral` and `sequential` of a put are True or False")
        if self.sequential:
            self._check_sequential()

    def _check_sequential(self) -> None:
        if self.version not in (None, NOT_EXISTS):
            raise BadRequestError(
                f"a sequential record is always a new one; {self.key} cannot have version "
                f"{self.version}"
            )
        size = len(self.key.encode()) + SEQUENCE_DIGITS_MAX
        if size > KEY_SIZE_BYTES_MAX:
            raise InvalidKeyError(
                f"a sequential key of up to {size} bytes exceeds the limit of {KEY_SIZE_BYTES_MAX}"
            )


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a record if it has `version`; None means any version."""

    key: str
    version: int | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.version is not None:
            _check_version(self.version, 0)


@dataclass(frozen=True, slots=True)
class Check:
    """Require that the record has `version`; `NOT_EXISTS` requires that there is no record."""

    key: str
    version: int

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_version(self.version, NOT_EXISTS)


def _check_version(version: object, least: int) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < least:
        raise BadRequestError(f"{version!r} is not the version of a record")


Operation: TypeAlias = Put | Delete | Check


def sequential_key(key: str, number: int) -> str:
    """Return the key of a sequential record: `key` followed by `number`."""
    return f"{key}{number:0{SEQUENCE_DIGITS_MIN}}"


def check_transaction(operations: Sequence[Operation]) -> None:
    """Refuse operations that some backend could not carry out in one transaction.

    Raises:
        BadRequestError: the value is no list of operations, or has more than
            `TRANSACTION_OPERATIONS_MAX`. Or two operations have the same key. Or a key lies below a
            key that the transaction deletes or makes ephemeral.
        InvalidKeyError: the total size of keys and values is more than
            `TRANSACTION_SIZE_BYTES_MAX`.
    """
    if not isinstance(operations, Sequence) or not all(
        isinstance(operation, Operation) for operation in operations
    ):
        raise BadRequestError("a transaction is a list of Put, Delete and Check")
    if len(operations) > TRANSACTION_OPERATIONS_MAX:
        raise BadRequestError(
            f"a transaction of {len(operations)} operations exceeds the limit of "
            f"{TRANSACTION_OPERATIONS_MAX}"
        )
    if len(operations) == 1:
        return  # the other checks need two operations; a single one is never too large
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


# ---- changes


class ChangeKind(enum.Enum):
    """The kind of a change. A take-over of a record by another session counts as MODIFIED."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One changed record. At the end of a session, each of its ephemeral records is DELETED.

    `revision` is the revision of the commit, or None if the backend does not know it. To learn the
    new value, read the record; the read may find a later state.
    """

    kind: ChangeKind
    key: str
    revision: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """One or more changes of one transaction at or below a watched prefix, in order.

    ZooKeeper does not show where a transaction ends. So on ZooKeeper one transaction may be
    delivered as several commits with the same revision, one after the other.
    """

    revision: int | None
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True)
class Resync:
    """A sign that the watch may have missed changes: the consumer must list the records again.

    After `Resync`, the watch continues with later commits.
    """


Change: TypeAlias = Commit | Resync

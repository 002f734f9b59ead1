"""The interface of every metadata store, its values, and the limits that all backends share.

A store is a tree of records under absolute keys such as ``/ledgers/0000000000000000042``. This
module and `evaluate` define the effects of a put, a delete and a transaction for all backends. So
code that works on one backend works on all backends: memory, a local directory, ZooKeeper and etcd.

- **Versions** are opaque integers for compare-and-set; they grow over the life of one record.
  ``NOT_EXISTS`` (-1) as an expected version means "must not exist". **Revisions** number the
  commits of the whole store: of two writes of any keys, the later one has the greater revision.
- **Parents are virtual**: a key exists if it has a record or children. A record that has children
  cannot be deleted.
- **An ephemeral record** lives until its session ends, and has no children. A plain put changes the
  value of an ephemeral record and keeps the owner. An ephemeral put with the right version takes
  over a record of another session. A persistent record never turns ephemeral.
- **A transaction** does all its operations or none. All conditions are checked against the state
  before the transaction. So each key may appear only once in a transaction. If a transaction
  deletes a key or makes it ephemeral, no key below it may appear.
- **Watches** deliver every commit under a prefix once, in commit order; a commit is never delivered
  in parts. If a watch may have missed commits, it delivers `Resync`, and the consumer lists the
  records again.
- **A listing** is complete, or raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Self

from bookie.errors import BadRequestError, KeyHasChildrenError, NoSuchKeyError, UnsupportedError
from bookie.metadata.model import (
    ROOT,
    TRANSACTION_OPERATIONS_MAX,
    Acl,
    Change,
    Check,
    Delete,
    Operation,
    Put,
    Record,
    Stat,
    check_access,
    check_key,
    check_prefix,
)
from bookie.metadata.session import SessionEvent

DELETIONS_MAX = TRANSACTION_OPERATIONS_MAX - 1
"""The most keys that `delete_recursive` deletes in a transaction, which also has one condition."""

_RECURSION_ROUNDS = 10
"""The most rounds of `delete_recursive`; a new round begins if other processes create keys."""


class MetadataStore(ABC):
    """One session with a metadata store; an async context manager begins and ends the session.

    All methods run in the event loop that entered the context. Each method raises `InvalidKeyError`
    for a key or value beyond the limits, and `MetadataClosedError` outside the context. Each method
    raises `MetadataUnavailableError` when the store does not answer; the outcome of a write is then
    unknown. When a write has returned, all later reads of this store object see it, and it is
    durable if the backend is durable. If the caller of a write is cancelled, the write may still
    happen.
    """

    backend: ClassVar[str]
    """The name of this kind of store, for error messages."""

    lists_wide_directories: ClassVar[bool] = True
    """True if this kind of store can list a hundred thousand children of one key."""

    has_access_control: ClassVar[bool] = False
    """True if each record has an access control list of its own."""

    session_timeout_seconds: float
    """After this time without a sign of life, the server or other processes may end the session."""

    @property
    @abstractmethod
    def is_session_certain(self) -> bool:
        """True unless the session is in doubt or lost; also True before the session begins.

        After a pause of the process, this property is False at once. The session's events come only
        in a later turn of the event loop. That is too late for a caller that must know now if the
        session is certain.
        """

    @abstractmethod
    async def get(self, key: str) -> Record | None:
        """Return the record of `key`, or None if there is no record."""

    @abstractmethod
    async def exists(self, key: str) -> bool:
        """True if `key` has a record or children."""

    @abstractmethod
    async def get_children(self, key: str) -> list[str]:
        """Return all names one level below `key`, sorted.

        A name may have no record, only children.
        """

    @abstractmethod
    def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        """Yield the records one level below `key` with names greater than `after`, sorted by name.

        Records that exist during the whole scan appear exactly once; records that are created or
        deleted meanwhile may appear. The scan raises an error if it cannot be completed.
        """

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        version: int | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        acl: Sequence[Acl] | None = None,
    ) -> Stat:
        """Write one record and return its new state; see `Put`.

        Raises:
            BadVersionError: the record has another version. Or `ephemeral` is True, `version` is
                None, and the record belongs to another session.
            KeyExistsError: `version` is `NOT_EXISTS` and the record exists. Or `ephemeral` is True
                and the existing record is persistent.
            KeyHasChildrenError: `ephemeral` is True, and `key` has children.
            InvalidKeyError: an ancestor is ephemeral.
            UnsupportedError: this kind of store has no access control, and `acl` was given.
            SessionLostError: the session ended before the write; nothing was written.
        """
        access = None if acl is None else check_access(acl)
        (stat,) = await self.transaction([Put(key, value, version, ephemeral, sequential, access)])
        assert stat is not None
        return stat

    async def delete(self, key: str, *, version: int | None = None) -> None:
        """Delete one record.

        Raises:
            NoSuchKeyError: there is no record.
            BadVersionError: the record has another version.
            KeyHasChildrenError: there are keys below `key`.
            SessionLostError: the session ended before the write; nothing was deleted.
        """
        await self.transaction([Delete(key, version)])

    async def delete_recursive(self, key: str, *, condition: Check | None = None) -> None:
        """Delete all keys below `key`, then the record of `key`. Missing keys are no error.

        Children are deleted before their parents, in several steps, which other processes can see.
        After a failure, some of the keys may remain; call the method again to continue. If `key` is
        the root, all records are deleted.

        Each step checks `condition` in its own transaction.

        Raises:
            KeyHasChildrenError: other processes kept creating keys below `key`.
            BadVersionError: `condition` failed in a step; this step and later steps did nothing.
        """
        check_prefix(key)
        if not isinstance(condition, Check | None):
            raise BadRequestError(f"a condition is a Check, not {type(condition).__name__}")
        for _ in range(_RECURSION_ROUNDS):
            await self._delete_below(key, condition)
            if not await self._is_there(key):
                return
            try:
                if key != ROOT:
                    await self._delete_if(condition, [key])
                    return
            except NoSuchKeyError:
                return
            except KeyHasChildrenError:
                continue
        raise KeyHasChildrenError(f"others keep creating keys below {key}")

    async def _is_there(self, key: str) -> bool:
        """True if a recursive deletion of `key` must still delete `key` or a key below it."""
        return await self.exists(key)

    async def _delete_if(self, condition: Check | None, some: Sequence[str]) -> None:
        # The first operation that fails decides which error is raised, so put the condition first.
        conditions = [] if condition is None else [condition]
        await self.transaction([*conditions, *map(Delete, some)])

    async def _delete_below(self, key: str, condition: Check | None) -> None:
        prefix = key.rstrip("/")
        found = [f"{prefix}/{name}" for name in await self.get_children(key)]
        for start in range(0, len(found), DELETIONS_MAX):
            some = found[start : start + DELETIONS_MAX]
            try:
                await self._delete_if(condition, some)
            except (NoSuchKeyError, KeyHasChildrenError):
                # Some keys do not exist or have children, so delete the keys one by one.
                for one in some:
                    await self._delete_tree(one, condition)

    async def _delete_tree(self, key: str, condition: Check | None) -> None:
        await self._delete_below(key, condition)
        try:
            await self._delete_if(condition, [key])
        except (NoSuchKeyError, KeyHasChildrenError):
            return  # there is no record, or a new child, which the next round finds

    @abstractmethod
    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """Carry out all operations in one commit, or no operation.

        Returns one result per operation: the record's new state for a put, None for a delete or a
        check. Raises the error of the first operation whose condition fails, as `put` and `delete`
        do. A failed `Check` raises BadVersionError, or KeyExistsError, which is a BadVersionError.
        """

    async def foreign_keys(self) -> list[bytes]:
        """Return the foreign keys: keys that another program wrote into the scope.

        A foreign key is not valid as the key of a record. Listings and watches skip foreign keys,
        and only `delete_foreign` deletes them. A key with a foreign key below it counts as a key
        with children. Only some servers can hold foreign keys.
        """
        return []

    async def delete_foreign(self) -> int:
        """Delete the foreign keys and return their number."""
        return 0

    async def enclosing_scopes(self, names: Collection[str]) -> list[str]:
        """Return the scopes around this scope that have a top-level record of one of `names`.

        A scope that this user may not read is left out. A scope can lie inside another scope only
        on servers where a scope is a path.
        """
        return []

    async def get_acl(self, key: str) -> list[Acl]:
        """Return the access control list of `key`'s record.

        Raises:
            UnsupportedError: this kind of store has no access control.
            NoSuchKeyError: there is no record.
        """
        check_key(key)
        raise self._no_access_control()

    async def set_acl(self, key: str, acl: Sequence[Acl]) -> None:
        """Replace the access control list of `key`'s record; raises the errors of `get_acl`."""
        check_key(key)
        check_access(acl)
        raise self._no_access_control()

    async def restrict(self) -> int:
        """Give all records the access control lists of `rights`; return how many lists changed.

        Raises:
            UnsupportedError: this kind of store has no access control.
            ConfigurationError: the settings name no users, or this user is no admin.
            UnauthorizedError: this user may not change the lists of some records.
        """
        raise self._no_access_control()

    def _refuse_acl(self, operations: Sequence[Operation]) -> None:
        """Raise UnsupportedError if an operation has an access control list."""
        for operation in operations:
            if isinstance(operation, Put) and operation.acl is not None:
                raise self._no_access_control()

    def _no_access_control(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.backend} has no access control by record; only ZooKeeper does"
        )

    @abstractmethod
    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Deliver every later commit at or below `prefix`, from the moment the context is entered.

        The commits of all processes are delivered. To mirror a prefix, enter the context, list the
        records, then apply the changes. A consumer that falls far behind gets one `Resync` in place
        of all the commits that wait for it. The iterator raises `MetadataClosedError` when the
        store is closed.
        """

    @abstractmethod
    def session_events(self) -> AbstractAsyncContextManager[AsyncIterator[SessionEvent]]:
        """Deliver all events of the session that occur after the context is entered."""

    @abstractmethod
    async def sync(self) -> None:
        """Wait until later reads see every commit that any process finished before this call."""

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Open the store; its session begins now, or with the first write or event consumer."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """End the session and delete its ephemeral records.

        If the store does not answer, the session and its records end later, by the timeout.
        """

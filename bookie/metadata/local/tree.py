"""The LMDB tables of a local store: the tree of records, the sessions and the commit log.

========== ============================== ====================================================
table      key                            value
========== ============================== ====================================================
records    key (UTF-8)                    version u64, version at creation u64, created ms i64,
                                          modified ms i64, owner 16 B (zero = persistent), value
children   parent key, NUL, child's name  empty; there for every child with a record or children
ephemerals session 16 B, key              empty
sessions   session 16 B                   JSON: timeout_ms, boot_id, pid
log        version u64                    per change: kind u8 (1 created, 2 deleted, 3 modified),
                                          size u16, key
meta       ``format``                     ``bookie-metadata 2``
meta       ``version``                    version u64 of the last commit
========== ============================== ====================================================

All integers are big endian. For its versions, the store has its own counter, without gaps. LMDB's
transaction ids are unsuitable, because a compacting copy of the file loses them. One record of the
log contains one whole commit, so a watcher never sees a part of a commit. The log keeps only the
newest `LOG_COMMITS_MAX` commits.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import lmdb

from bookie.errors import FormatError, MetadataUnavailableError, NewerFormatError, SessionLostError
from bookie.metadata.evaluate import NO_OWNER, Deletion, StoredRecord, Write, evaluate
from bookie.metadata.model import (
    KEY_SIZE_BYTES_MAX,
    ROOT,
    ChangeKind,
    Operation,
    Record,
    Stat,
    WatchEvent,
    parent_of,
)

LOG_COMMITS_MAX = 65_536
"""The number of commits that the log keeps. A watcher that needs older commits gets `Resync`."""

TABLES = ("records", "children", "ephemerals", "sessions", "log", "meta")

SESSION_SIZE_BYTES = 16

_HEADER = struct.Struct(">QQqq16s")
_VERSION = struct.Struct(">Q")
_CHANGE = struct.Struct(">BH")
_TIMEOUT_MS_MAX = 10**9  # far above the longest permitted session timeout
_ZERO_OWNER = bytes(SESSION_SIZE_BYTES)
_KINDS = {1: ChangeKind.CREATED, 2: ChangeKind.DELETED, 3: ChangeKind.MODIFIED}
_CODES = {kind: code for code, kind in _KINDS.items()}

LoggedCommit: TypeAlias = tuple[int, tuple[WatchEvent, ...]]
"""A commit's version and its changes."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A decoded value of the table `sessions`."""

    timeout_seconds: float
    boot_id: str
    pid: int


class TreeReader:
    """Reads the tables in an LMDB transaction, including the transaction's own writes."""

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database]) -> None:
        self._transaction = transaction
        self._tables = tables

    def _get(self, table: str, key: bytes) -> bytes | None:
        value = self._transaction.get(key, db=self._tables[table])
        return None if value is None else bytes(value)

    def _keys(self, table: str, prefix: bytes, start: bytes) -> Iterator[bytes]:
        """Yield the keys of `table` that begin with `prefix`, from `start` on."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            if not cursor.set_range(start):
                return
            for key in cursor.iternext(keys=True, values=False):
                found = bytes(key)
                if not found.startswith(prefix):
                    return
                yield found

    def format(self) -> bytes | None:
        return self._get("meta", b"format")

    def version(self) -> int:
        """Return the version of the last commit, or 0 before the first commit."""
        data = self._get("meta", b"version")
        return 0 if data is None else int(_VERSION.unpack(data)[0])

    def find(self, key: str) -> StoredRecord | None:
        data = self._get("records", key.encode())
        if data is None:
            return None
        return _decode_record(key, data)

    def record(self, key: str, session: bytes) -> Record | None:
        """Return the record of `key`; its `Stat` shows if `session` owns the record."""
        row = self.find(key)
        if row is None:
            return None
        return Record(row.value, row.stat(key, session))

    def has_children(self, key: str) -> bool:
        prefix = key.encode() + b"\0"
        return next(self._keys("children", prefix, prefix), None) is not None

    def child_names(self, key: str, after: str, limit: int) -> list[str]:
        """Return up to `limit` names below `key`, sorted, that are greater than `after`."""
        prefix = key.encode() + b"\0"
        floor = prefix + after.encode("utf-8", "surrogatepass")
        # Cut the start key, because LMDB refuses longer ones. All stored keys are shorter, so no
        # name is missed.
        start = floor[: KEY_SIZE_BYTES_MAX + 1]
        names = []
        for child in self._keys("children", prefix, start):
            if child > floor:
                names.append(child[len(prefix) :].decode())
                if len(names) == limit:
                    break
        return names

    def child_records(
        self, key: str, after: str, session: bytes, names_max: int, bytes_max: int
    ) -> tuple[list[Record], str | None]:
        """Return the first records below `key` with names greater than `after`, in order.

        Returns the records, and the name after which the next call must continue; None at the end.
        There are at most `names_max` records. The list ends early when the values together have
        `bytes_max` bytes or more.
        """
        parent = key.rstrip("/")
        names = self.child_names(key, after, names_max)
        records: list[Record] = []
        size = 0
        for name in names:
            record = self.record(f"{parent}/{name}", session)
            if record is not None:
                records.append(record)
                size += len(record.value)
                if size >= bytes_max:
                    return records, name
        return records, names[-1] if len(names) == names_max else None

    def sessions(self) -> dict[bytes, SessionRow]:
        found = {}
        with self._transaction.cursor(db=self._tables["sessions"]) as cursor:
            for session, data in cursor.iternext(keys=True, values=True):
                found[bytes(session)] = _decode_session(bytes(data))
        return found

    def has_session(self, session: bytes) -> bool:
        return self._get("sessions", session) is not None

    def commits_after(self, version: int, limit: int) -> list[LoggedCommit] | None:
        """Return up to `limit` commits after `version`, in order; None if a commit is missing."""
        commits: list[LoggedCommit] = []
        if version >= self.version():
            return commits
        with self._transaction.cursor(db=self._tables["log"]) as cursor:
            if not cursor.set_range(_VERSION.pack(version + 1)):
                return None
            for key, data in cursor.iternext(keys=True, values=True):
                (found,) = _VERSION.unpack(key)
                if found != version + 1:
                    return None
                commits.append((found, _decode_changes(found, bytes(data))))
                version = found
                if len(commits) == limit:
                    break
        return commits


class TreeWriter(TreeReader):
    """A write transaction of LMDB.

    The transaction may contain several commits of the store. No commit is split between
    transactions.
    """

    def __init__(
        self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database], now_ms: int
    ) -> None:
        super().__init__(transaction, tables)
        self._now_ms = now_ms
        self.has_committed = False
        """True if this transaction contains commits, so that sessions must be notified."""

    def _put(self, table: str, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value, db=self._tables[table])

    def _add(self, table: str, key: bytes) -> bool:
        """Add `key` to a table whose values are empty; return True if the key is new."""
        return bool(self._transaction.put(key, b"", overwrite=False, db=self._tables[table]))

    def _delete(self, table: str, key: bytes) -> None:
        self._transaction.delete(key, db=self._tables[table])

    def transact(self, operations: Sequence[Operation], session: bytes) -> list[Stat | None]:
        """Carry out all operations as one commit; after a `BookieError` nothing was written."""
        if not self.has_session(session):
            raise SessionLostError("the session with the metadata store ended")
        effects = evaluate(operations, self, session, self.version() + 1)
        stats: list[Stat | None] = [None] * len(effects)
        written = self._commit([effect for effect in effects if effect is not None])
        for place, effect in enumerate(effects):
            if isinstance(effect, Write):
                stats[place] = written[effect.key].stat(effect.key, session)
        return stats

    def begin_session(self, session: bytes, row: SessionRow) -> None:
        self._put("sessions", session, _encode_session(row))

    def end_session(self, session: bytes) -> None:
        """Remove a session and its ephemeral records in one commit.

        If the session has already ended, do nothing.
        """
        prefix = len(session)
        owned = [key[prefix:].decode() for key in self._keys("ephemerals", session, session)]
        self._commit([Deletion(key, session) for key in owned])
        self._delete("sessions", session)

    def write_format(self, text: bytes) -> None:
        self._put("meta", b"format", text)

    def _commit(self, effects: Sequence[Write | Deletion]) -> dict[str, StoredRecord]:
        """Carry out the effects as one commit; return the written records by key."""
        written: dict[str, StoredRecord] = {}
        if not effects:
            return written
        version = self.version() + 1
        changes = []
        for effect in effects:
            if isinstance(effect, Write):
                written[effect.key] = self._write(effect, version)
            else:
                self._remove(effect)
            changes.append((effect.kind, effect.key))
        packed = _VERSION.pack(version)
        self._put("log", packed, _encode_changes(changes))
        self._put("meta", b"version", packed)
        if version > LOG_COMMITS_MAX:
            # Versions have no gaps, so each new commit removes exactly one old commit from the log.
            self._delete("log", _VERSION.pack(version - LOG_COMMITS_MAX))
        self.has_committed = True
        return written

    def _write(self, write: Write, version: int) -> StoredRecord:
        before = self.find(write.key) if write.owner_before is not None else None
        record = write.record(before, version, self._now_ms)
        header = _HEADER.pack(
            version,
            record.version_at_creation,
            record.created_ms,
            record.modified_ms,
            record.owner or _ZERO_OWNER,
        )
        key = write.key.encode()
        self._put("records", key, header + write.value)
        if write.owner_before != write.owner:
            if write.owner_before:
                self._delete("ephemerals", write.owner_before + key)
            if write.owner:
                self._add("ephemerals", write.owner + key)
        if before is None:
            self._link(write.key)
        return record

    def _remove(self, deletion: Deletion) -> None:
        key = deletion.key.encode()
        self._delete("records", key)
        if deletion.owner_before:
            self._delete("ephemerals", deletion.owner_before + key)
        self._unlink(deletion.key)

    def _link(self, key: str) -> None:
        while key != ROOT:
            if not self._add("children", _child_key(key)):
                return
            key = parent_of(key)

    def _unlink(self, key: str) -> None:
        while key != ROOT:
            if self._get("records", key.encode()) is not None or self.has_children(key):
                return
            self._delete("children", _child_key(key))
            key = parent_of(key)


def _child_key(key: str) -> bytes:
    return parent_of(key).encode() + b"\0" + key.rpartition("/")[2].encode()


def _encode_changes(changes: Iterable[tuple[ChangeKind, str]]) -> bytes:
    parts = []
    for kind, key in changes:
        data = key.encode()
        parts += [_CHANGE.pack(_CODES[kind], len(data)), data]
    return b"".join(parts)


def _decode_changes(version: int, data: bytes) -> tuple[WatchEvent, ...]:
    """Decode the changes of commit `version`; raise FormatError if they are damaged."""
    events = []
    position = 0
    try:
        while position < len(data):
            code, size = _CHANGE.unpack_from(data, position)
            position += _CHANGE.size + size
            key = data[position - size : position].decode()
            events.append(WatchEvent(_KINDS[code], key, version))
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise FormatError(f"commit {version} of the metadata store is damaged") from error
    if position != len(data):
        raise FormatError(f"commit {version} of the metadata store is damaged: it is cut off")
    return tuple(events)


def _decode_record(key: str, data: bytes) -> StoredRecord:
    """Decode the record of `key`; raise FormatError if it is shorter than its header."""
    if len(data) < _HEADER.size:
        raise FormatError(f"the metadata key {key} is damaged: its record is cut off")
    version, at_creation, created_ms, modified_ms, owner = _HEADER.unpack_from(data)
    owner = NO_OWNER if owner == _ZERO_OWNER else owner
    value = data[_HEADER.size :]
    return StoredRecord(version, owner, value, at_creation, created_ms, modified_ms)


def _encode_session(row: SessionRow) -> bytes:
    data = {
        "timeout_ms": round(row.timeout_seconds * 1000),
        "boot_id": row.boot_id,
        "pid": row.pid,
    }
    return json.dumps(data).encode()


def _decode_session(data: bytes) -> SessionRow:
    """Decode the row of a session; raise FormatError if it is damaged."""
    try:
        row = json.loads(data)
        timeout_ms, boot_id, pid = row["timeout_ms"], row["boot_id"], row["pid"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise FormatError("a session of the metadata store is damaged") from error
    if type(timeout_ms) is not int or type(boot_id) is not str or type(pid) is not int:
        raise FormatError("a session of the metadata store is damaged")
    if not 0 <= timeout_ms <= _TIMEOUT_MS_MAX:
        raise FormatError(f"a session of the metadata store has a timeout of {timeout_ms} ms")
    return SessionRow(timeout_ms / 1000, boot_id, pid)


def check_format(text: bytes | None, expected: bytes, directory: str) -> None:
    """Compare the format of a store's directory with the format of this program.

    Raises:
        FormatError: the format is unknown, newer or older.
    """
    if text == expected:
        return
    name, _, number = expected.rpartition(b" ")
    found, _, found_number = (text or b"").rpartition(b" ")
    if found == name and found_number.zfill(9) < number.zfill(9):
        raise FormatError(f"the metadata store in {directory} has a format that is too old")
    if found == name:
        raise NewerFormatError(
            f"the metadata store in {directory} was written by a newer version of bookie"
        )
    raise FormatError(f"{directory} is an LMDB environment of something else")


def unavailable(directory: str, error: Exception) -> MetadataUnavailableError:
    """Return a MetadataUnavailableError that describes an `error` of LMDB."""
    if isinstance(error, lmdb.MapFullError):
        return MetadataUnavailableError(f"the metadata store in {directory} is full")
    return MetadataUnavailableError(f"the metadata store in {directory} failed: {error}")

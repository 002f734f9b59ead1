"""Copy a whole store into a file of lines and back, or into another store.

A copy leaves out records that belong to a session (registrations, locks), because the copied
records would not end with their owner's session. A copy writes the records of the top level last,
because they contain the cluster's identity. A target without this identity is used by no process,
so an interrupted copy does no harm. Simply repeat an interrupted copy: records that the target
already has with the same value stay. If the target has a record with another value, the copy raises
an error, unless `overwrite` is True.

**Sequential numbers** begin anew in the target. So a queued item that was copied would have a
higher number than items that are added later, and would be taken after them. Therefore `migrate`
and `import_records` refuse a store with queued items.

**Access control lists** are copied by `migrate`: a list that restricts a record in the source also
restricts the record in the target. A record that is open to all in the source gets the target's
default list. An export file contains no lists.

A file has one JSON object a line::

    {"format": "bookie metadata", "version": 1}
    {"key": "/ledgers/0000000000000000001", "value": "<base64>"}
    …
    {"records": 1, "sha256": "<of all lines before this one>"}

An export file was cut off or changed if its last line is missing or does not match the other lines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bookie.env import gather
from bookie.errors import (
    FormatError,
    KeyExistsError,
    MetadataError,
    NewerFormatError,
    NoSuchKeyError,
    UnsupportedError,
)
from bookie.metadata.model import (
    NOT_EXISTS,
    ROOT,
    SEQUENCE_DIGITS_MIN,
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Acl,
    Put,
    Record,
    check_prefix,
    parent_of,
)
from bookie.metadata.store import MetadataStore

FORMAT = "bookie metadata"
FORMAT_VERSION = 1

NARROW_CHILDREN_MAX = 20_000
"""The most children of one key, with long names, that every kind of store can list."""

_HOST_AND_PID = re.compile(rb"[\w.-]+:\d+").fullmatch
_QUEUED = re.compile(rf"(.*)/items/item-\d{{{SEQUENCE_DIGITS_MIN},}}").fullmatch
"""Matches the key of an item that waits in a queue (`bookie.coordination.queues`)."""

AccessList: TypeAlias = tuple[Acl, ...]
"""The access control list of a record; where None is allowed, None means the default list."""

Count = Callable[[int], None]
"""A callback that gets the number of records copied since the last call."""


@dataclass(slots=True)
class Copied:
    """The result of a copy: for each outcome, the number of records with this outcome."""

    written: int = 0
    equal: int = 0
    """The number of records that the target held already, with the same value."""
    skipped: int = 0
    """The number of records left out because they belong to sessions."""
    restricted: int = 0
    """The number of records that an access control list restricts in the source."""


async def export_lines(
    store: MetadataStore, key: str = ROOT, *, skipped: Callable[[str], None] = lambda _: None
) -> AsyncIterator[str]:
    """Yield the lines of an export of the record of `key` and all records below it.

    An error is raised if the export cannot be completed. The records are read one after another
    while the cluster may change them: to get the state of one moment, stop the cluster first.
    `skipped` is called with each key that belongs to a session.
    """
    seal = _Seal()
    yield seal.line({"format": FORMAT, "version": FORMAT_VERSION})
    async for record in walk(store, key):
        if record.ephemeral:
            skipped(record.key)
            continue
        value = base64.b64encode(record.value).decode()
        yield seal.line({"key": record.key, "value": value})
        seal.records += 1
    yield seal.last()


def parse_export(lines: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the keys and values of an export file, after its last line was verified.

    Raises:
        FormatError: the file is no export, was cut off, or was changed; the message names the line.
        NewerFormatError: a newer version of bookie wrote the file.
    """
    seal = _Seal()
    records: list[tuple[str, bytes]] = []
    for number, item in _objects(lines, seal):
        match item:
            case {"format": str(name), "version": int(version)} if number == 1:
                if name != FORMAT:
                    raise FormatError(f"line 1 says that the file is {name!r}, not {FORMAT!r}")
                if version > FORMAT_VERSION:
                    raise NewerFormatError(f"the file has format {version}, newer than ours")
            case {"key": str(key), "value": str(text)} if number > 1:
                try:
                    records.append((key, base64.b64decode(text, validate=True)))
                except ValueError as error:
                    raise FormatError(f"the value in line {number} is not base64") from error
            case {"records": int(count), "sha256": str(digest)} if number > 1:
                if count != len(records) or digest != seal.digest_before_last:
                    raise FormatError("the file was changed: its last line does not fit the others")
                return records
            case _:
                raise FormatError(f"line {number} is not one of an export of metadata")
    raise FormatError("the file was cut off: its last line is missing")


async def import_records(
    store: MetadataStore,
    records: Sequence[tuple[str, bytes]],
    *,
    overwrite: bool = False,
    count: Count = lambda _: None,
) -> Copied:
    """Write the records of an export file; the records of the top level are written last.

    Raises:
        MetadataError: an item of a queue is among the records; nothing was written.
        KeyExistsError: a record exists in the target with another value, and `overwrite` is false.
            Or a record in the target belongs to a session. The message names the record. Earlier
            writes stay.
    """
    for key, _ in records:
        _refuse_queued(key)
    writer = _Writer(store, Copied(), overwrite=overwrite, count=count)
    for key, value in records:
        await writer.add(key, value)
    await writer.finish()
    return writer.copied


async def migrate(
    source: MetadataStore,
    target: MetadataStore,
    *,
    live: bool = False,
    overwrite: bool = False,
    drop_acl: bool = False,
    count: Count = lambda _: None,
) -> Copied:
    """Copy all records of `source` to `target` and compare the two stores; `source` is unchanged.

    With `drop_acl`, restricted records may be copied, without their lists, to a target that has no
    access control by record.

    Raises:
        MetadataError: (before the first write) a session uses the source and `live` is false, or a
            record is an item of a queue. Or (before the first write) a key has more children than
            the target can list, or an access control list is hidden from this user. Or (after the
            copy) the two stores differ: another process wrote to a store, or the target had other
            records before.
        UnsupportedError: (before the first write) a record is restricted, and the target lacks
            access control by record.
        KeyExistsError: see `import_records`; or a restricted record has another access control
            list in the target.
    """
    await _require_movable(source, target, live=live, drop_acl=drop_acl)
    writer = _Writer(target, Copied(), overwrite=overwrite, count=count)
    async for record, acl in _walk_with_acl(source):
        if record.ephemeral:
            writer.copied.skipped += 1
        else:
            writer.copied.restricted += acl is not None
            await writer.add(record.key, record.value, acl if target.has_access_control else None)
    await writer.finish()
    async for difference in differences(source, target):
        raise MetadataError(
            f"{difference.key} differs after the copy: {_describe(difference.left)} in the source, "
            f"{_describe(difference.right)} in the target; stop all writers and migrate again"
        )
    if target.has_access_control:
        await _require_same_access(source, target)
    return writer.copied


def _refuse_queued(key: str) -> None:
    if match := _QUEUED(key):
        raise MetadataError(
            f"{key} is a queued item, and its order would be lost: numbers begin anew in a copy; "
            f"let consumers empty the queue {match[1]} first"
        )


async def _walk_with_acl(store: MetadataStore) -> AsyncIterator[tuple[Record, AccessList | None]]:
    """Yield each record with its access control list, or with None if the record is open to all."""
    if not store.has_access_control:
        async for record in walk(store):
            yield record, None
        return
    some: list[Record] = []
    async for record in walk(store):
        some.append(record)
        if len(some) == WINDOW:
            for found in await _with_acl(store, some):
                yield found
            some.clear()
    for found in await _with_acl(store, some):
        yield found


async def _with_acl(
    store: MetadataStore, records: Sequence[Record]
) -> list[tuple[Record, AccessList | None]]:
    lists = await gather(_restriction(store, record.key) for record in records)
    return list(zip(records, lists, strict=True))


async def _restriction(store: MetadataStore, key: str) -> AccessList | None:
    try:
        acl = await store.get_acl(key)
    except NoSuchKeyError:
        return None  # the record was deleted meanwhile; the later comparison shows the deletion
    if any(one.scheme == "digest" and one.id.endswith(":x") for one in acl):
        raise MetadataError(
            f"the access control list of {key} is hidden from this user; "
            "migrate as a user with the permission `admin`"
        )
    return None if any(one.is_open for one in acl) else tuple(acl)


async def _require_same_access(source: MetadataStore, target: MetadataStore) -> None:
    async for record, acl in _walk_with_acl(source):
        if acl is not None and not record.ephemeral:
            found = await target.get_acl(record.key)
            if set(found) != set(acl):
                raise MetadataError(f"{record.key} has another access control list in the target")


async def _require_movable(
    source: MetadataStore, target: MetadataStore, *, live: bool, drop_acl: bool
) -> None:
    """Raise an error, before the first write, if `migrate` cannot or must not copy the source."""
    children: Counter[str] = Counter()
    async for record, acl in _walk_with_acl(source):
        if record.ephemeral and not record.created_by_self and not live:
            raise MetadataError(
                f"the source is in use: {record.key} belongs to a live session{_process(record)}; "
                "stop all bookies and clients first"
            )
        if not record.ephemeral:
            _refuse_queued(record.key)
        if acl is not None and not target.has_access_control and not drop_acl:
            raise UnsupportedError(
                f"{record.key} is restricted to some users in the source, and {target.backend} has "
                "no access control by record; restrict the target itself and pass --drop-acl"
            )
        children[parent_of(record.key)] += 1
    for key, count in children.most_common(1):
        if count > NARROW_CHILDREN_MAX and not target.lists_wide_directories:
            raise MetadataError(
                f"{key} has {count} children, which {target.backend} could not list; at most "
                f"{NARROW_CHILDREN_MAX} can be moved there"
            )


def _process(record: Record) -> str:
    """Return a text that names the record's process if the value is ``HOST:PID``; else ""."""
    return f" of the process {record.value.decode()}" if _HOST_AND_PID(record.value) else ""


def _describe(value: bytes | None) -> str:
    return "no record" if value is None else f"{len(value)} bytes"


class _Writer:
    """Writes records in large transactions; the records of the top level are written last."""

    def __init__(
        self, store: MetadataStore, copied: Copied, *, overwrite: bool, count: Count
    ) -> None:
        self.copied = copied
        self._store = store
        self._overwrite = overwrite
        self._count = count
        self._top: list[Put] = []
        self._puts: list[Put] = []
        self._size_bytes = 0

    async def add(self, key: str, value: bytes, acl: AccessList | None = None) -> None:
        """Write one record, now or later in one transaction with other records."""
        put = Put(key, value, NOT_EXISTS, acl=acl)
        if parent_of(key) == ROOT:
            self._top.append(put)
        else:
            await self._together(put)

    async def finish(self) -> None:
        """Write all records that `add` has not written yet, the records of the top level last."""
        await self._flush()
        for put in self._top:
            await self._together(put)
        await self._flush()

    async def _together(self, put: Put) -> None:
        size = len(put.key.encode()) + len(put.value)
        full = len(self._puts) == TRANSACTION_OPERATIONS_MAX
        if full or self._size_bytes + size > TRANSACTION_SIZE_BYTES_MAX:
            await self._flush()
        self._puts.append(put)
        self._size_bytes += size

    async def _flush(self) -> None:
        puts, self._puts, self._size_bytes = self._puts, [], 0
        if not puts:
            return
        try:
            await self._store.transaction(puts)
        except (KeyExistsError, UnsupportedError):
            for put in puts:
                await self._write(put)
        else:
            self.copied.written += len(puts)
        self._count(len(puts))

    async def _write(self, put: Put) -> None:
        """Write one record on its own, because the target may already have it."""
        there = await self._store.get(put.key)
        if there is None:
            await self._create(put)
        elif there.ephemeral:
            raise KeyExistsError(f"{put.key} exists in the target and belongs to a session")
        else:
            is_equal = there.value == put.value
            if not is_equal:
                self._require_overwrite(f"{put.key} exists in the target with another value")
                await self._store.put(put.key, put.value, version=there.version)
            if put.acl is not None:
                await self._restrict(put.key, put.acl)
            self.copied.equal += is_equal
            self.copied.written += not is_equal
            return
        self.copied.written += 1

    async def _restrict(self, key: str, acl: AccessList) -> None:
        found = await self._store.get_acl(key)
        if set(found) == set(acl):
            return
        # An interrupted copy may leave a record that is open to all; see `_create`.
        if not any(one.is_open for one in found):
            self._require_overwrite(f"{key} has another access control list in the target")
        await self._store.set_acl(key, acl)

    def _require_overwrite(self, reason: str) -> None:
        if not self._overwrite:
            raise KeyExistsError(reason)

    async def _create(self, put: Put) -> None:
        try:
            await self._store.put(put.key, put.value, version=NOT_EXISTS, acl=put.acl)
        except UnsupportedError:
            # Records below this record were written earlier, so its node already exists, as a
            # parent. Its list cannot be set together with the value, so set the list afterwards.
            if put.acl is None:
                raise
            await self._store.put(put.key, put.value, version=NOT_EXISTS)
            await self._store.set_acl(put.key, put.acl)


@dataclass(slots=True)
class _Seal:
    """The data for a file's last line: the number of records and the digest of the lines so far."""

    records: int = 0
    digest_before_last: str = ""
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def line(self, item: object) -> str:
        """Encode `item` as one line, and add the line to the digest."""
        # JSON escapes line breaks in keys, so a line break always ends an item.
        text = json.dumps(item)
        self.take(text)
        return text

    def take(self, text: str) -> None:
        self.digest_before_last = self._hash.hexdigest()
        self._hash.update(text.encode() + b"\n")

    def last(self) -> str:
        return json.dumps({"records": self.records, "sha256": self._hash.hexdigest()})


def _objects(lines: Iterable[str], seal: _Seal) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        seal.take(text)
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"line {number} is not JSON") from error


# ---- all records of a store

WINDOW = 64
"""The number of keys that a walk reads at the same time."""


async def walk(store: MetadataStore, key: str = ROOT) -> AsyncIterator[Record]:
    """Yield the record of `key` and all records below it: parents first, names ascending.

    Records that exist during the whole walk appear exactly once; records that are created or
    deleted during the walk may appear. If the walk cannot be completed, an error is raised.
    """
    check_prefix(key)
    record = None if key == ROOT else await store.get(key)
    if record is not None:
        yield record
    async for found in _walk_below(store, key, await store.get_children(key)):
        yield found


async def _walk_below(store: MetadataStore, key: str, names: list[str]) -> AsyncIterator[Record]:
    prefix = key.rstrip("/")
    for start in range(0, len(names), WINDOW):
        keys = [f"{prefix}/{name}" for name in names[start : start + WINDOW]]
        asked: list[Coroutine[Any, Any, Record | list[str] | None]] = [
            *map(store.get, keys),
            *map(store.get_children, keys),
        ]
        found = await gather(asked)
        for one, record, below in zip(keys, found[: len(keys)], found[len(keys) :], strict=True):
            if isinstance(record, Record):
                yield record
            if isinstance(below, list):
                async for deeper in _walk_below(store, one, below):
                    yield deeper


@dataclass(frozen=True, slots=True)
class Difference:
    """A key with different values in two stores; the value None means: no record in this store."""

    key: str
    left: bytes | None
    right: bytes | None


async def differences(left: MetadataStore, right: MetadataStore) -> AsyncIterator[Difference]:
    """Yield the differences between two stores in the order of `walk`.

    Records that belong to sessions are left out.
    """
    ours, theirs = _persistent(left), _persistent(right)
    one, other = await anext(ours, None), await anext(theirs, None)
    while one is not None or other is not None:
        if other is None or (one is not None and _place(one) < _place(other)):
            assert one is not None
            yield Difference(one.key, one.value, None)
            one = await anext(ours, None)
        elif one is None or _place(other) < _place(one):
            yield Difference(other.key, None, other.value)
            other = await anext(theirs, None)
        else:
            if one.value != other.value:
                yield Difference(one.key, one.value, other.value)
            one, other = await anext(ours, None), await anext(theirs, None)


async def _persistent(store: MetadataStore) -> AsyncIterator[Record]:
    async for record in walk(store):
        if not record.ephemeral:
            yield record


def _place(record: Record) -> list[str]:
    """Return the sort key of a record in the order of `walk`."""
    return record.key.split("/")

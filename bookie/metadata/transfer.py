"""Copying a whole store: into a file of lines and back, or into another store.

What belongs to a session (registrations, locks) is never copied: it would outlive its owner. The
records of the top level, among them what makes a cluster one, are written last, so that nobody
takes half a copy for the whole. A copy that was cut off is made whole by doing it again: what is
there already with the same value is left alone, another value is an error and changes nothing.

A file has one JSON object a line::

    {"format": "bookie metadata", "version": 1}
    {"key": "/ledgers/0000000000000000001", "value": "<base64>"}
    …
    {"records": 1, "sha256": "<of all lines before this one>"}

A file without its last line, or whose last line does not fit, was cut off or changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bookie.errors import FormatError, KeyExistsError, MetadataError, NewerFormatError
from bookie.metadata.keys import ROOT, parent_of
from bookie.metadata.records import (
    NOT_EXISTS,
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Put,
)
from bookie.metadata.store import MetadataStore
from bookie.metadata.walk import differences, walk

FORMAT = "bookie metadata"
FORMAT_VERSION = 1

NARROW_CHILDREN_MAX = 20_000
"""Children of one key that every kind of store can list, with long names, in one answer."""

Count = Callable[[int], None]
"""Hears of each record that was dealt with."""


@dataclass(slots=True)
class Copied:
    """What a copy came to."""

    written: int = 0
    equal: int = 0
    """Records that were there already, with the same value."""
    skipped: int = 0
    """Records that belong to sessions."""


async def export_lines(
    store: MetadataStore, key: str = ROOT, *, skipped: Callable[[str], None] = lambda _: None
) -> AsyncIterator[str]:
    """The lines of a file with everything at and below `key`; raises rather than leave one out.

    It is what a walk saw, not one moment: stop the cluster for that. `skipped` hears the keys that
    belong to sessions.
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
    """Keys and values of a file; nothing of it is used before its last line was seen.

    Raises:
        FormatError: the file is not ours, cut off or changed; the message says which line.
        NewerFormatError: a newer version wrote it.
    """
    seal = _Seal()
    found: list[tuple[str, bytes]] = []
    for number, item in _objects(lines, seal):
        match item:
            case {"format": str(name), "version": int(version)} if number == 1:
                if name != FORMAT:
                    raise FormatError(f"line 1 says that the file is {name!r}, not {FORMAT!r}")
                if version > FORMAT_VERSION:
                    raise NewerFormatError(f"the file has format {version}, newer than ours")
            case {"key": str(key), "value": str(text)} if number > 1:
                try:
                    found.append((key, base64.b64decode(text, validate=True)))
                except ValueError as error:
                    raise FormatError(f"the value in line {number} is not base64") from error
            case {"records": int(records), "sha256": str(digest)} if number > 1:
                if records != len(found) or digest != seal.digest_before_last:
                    raise FormatError("the file was changed: its last line does not fit the others")
                return found
            case _:
                raise FormatError(f"line {number} is not one of an export of metadata")
    raise FormatError("the file was cut off: its last line is missing")


async def import_records(
    store: MetadataStore,
    records: Iterable[tuple[str, bytes]],
    *,
    overwrite: bool = False,
    count: Count = lambda _: None,
) -> Copied:
    """Write `records`; the top level last.

    Raises:
        KeyExistsError: a record has another value and `overwrite` is false; it is named, and what
            was written before stays.
    """
    copied = Copied()
    writer = _Writer(store, copied, overwrite=overwrite, count=count)
    last: list[tuple[str, bytes]] = []
    for key, value in records:
        if parent_of(key) == ROOT:
            last.append((key, value))
        else:
            await writer.add(key, value)
    await writer.flush()
    for key, value in last:
        await writer.add(key, value)
    await writer.flush()
    return copied


async def migrate(
    source: MetadataStore,
    target: MetadataStore,
    *,
    live: bool = False,
    overwrite: bool = False,
    count: Count = lambda _: None,
) -> Copied:
    """Copy everything from `source` to `target` and compare the two; `source` stays as it is.

    Raises:
        MetadataError: somebody still uses the source and `live` is false; the target cannot list
            that many children of one key; or the two differ after the copy, because somebody wrote
            to one of them.
        KeyExistsError: see `import_records`.
    """
    copied = Copied()
    writer = _Writer(target, copied, overwrite=overwrite, count=count)
    last: list[tuple[str, bytes]] = []
    await _require_movable(source, target, live=live)
    async for record in walk(source):
        if record.ephemeral:
            copied.skipped += 1
        elif parent_of(record.key) == ROOT:
            last.append((record.key, record.value))
        else:
            await writer.add(record.key, record.value)
    await writer.flush()
    for key, value in last:
        await writer.add(key, value)
    await writer.flush()
    async for difference in differences(source, target):
        raise MetadataError(
            f"{difference.key} differs after the copy: {_describe(difference.left)} in the source, "
            f"{_describe(difference.right)} in the target; stop whoever writes and do it again"
        )
    return copied


async def _require_movable(source: MetadataStore, target: MetadataStore, *, live: bool) -> None:
    """Refuse before anything is written what would be refused or could not be listed after it."""
    children: Counter[str] = Counter()
    async for record in walk(source):
        if record.ephemeral and not record.created_by_self and not live:
            raise MetadataError(
                f"the source is in use: {record.key} belongs to a live session; stop the bookies "
                "first"
            )
        children[parent_of(record.key)] += 1
    for key, count in children.most_common(1):
        if count > NARROW_CHILDREN_MAX and not target.lists_wide_directories:
            raise MetadataError(
                f"{key} has {count} children, which {target.backend} could not list; at most "
                f"{NARROW_CHILDREN_MAX} can be moved there"
            )


def _describe(value: bytes | None) -> str:
    return "no record" if value is None else f"{len(value)} bytes"


class _Writer:
    """Puts records in transactions as large as they may be."""

    def __init__(
        self, store: MetadataStore, copied: Copied, *, overwrite: bool, count: Count
    ) -> None:
        self._store = store
        self._copied = copied
        self._overwrite = overwrite
        self._count = count
        self._puts: list[Put] = []
        self._size_bytes = 0

    async def add(self, key: str, value: bytes) -> None:
        """Write one record, now or with the next ones."""
        size = len(key.encode()) + len(value)
        full = len(self._puts) == TRANSACTION_OPERATIONS_MAX
        if full or self._size_bytes + size > TRANSACTION_SIZE_BYTES_MAX:
            await self.flush()
        self._puts.append(Put(key, value, NOT_EXISTS))
        self._size_bytes += size

    async def flush(self) -> None:
        """Write what was gathered."""
        puts, self._puts, self._size_bytes = self._puts, [], 0
        if not puts:
            return
        try:
            await self._store.transaction(puts)
        except KeyExistsError:
            for put in puts:
                await self._write(put)
        else:
            self._copied.written += len(puts)
        self._count(len(puts))

    async def _write(self, put: Put) -> None:
        """Write one record that may be there already."""
        there = await self._store.get(put.key)
        if there is None:
            await self._store.put(put.key, put.value, version=NOT_EXISTS)
        elif there.value == put.value and not there.ephemeral:
            self._copied.equal += 1
            return
        elif self._overwrite and not there.ephemeral:
            await self._store.put(put.key, put.value, version=there.version)
        else:
            raise KeyExistsError(f"{put.key} exists in the target with another value")
        self._copied.written += 1


@dataclass(slots=True)
class _Seal:
    """The digest over the lines of a file."""

    records: int = 0
    digest_before_last: str = ""
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def line(self, item: object) -> str:
        """One line, which counts."""
        # Ours is the only separator of lines then, whatever is in a key.
        text = json.dumps(item)
        self.take(text)
        return text

    def take(self, text: str) -> None:
        """Count a line that was read."""
        self.digest_before_last = self._hash.hexdigest()
        self._hash.update(text.encode() + b"\n")

    def last(self) -> str:
        """The line that closes the file."""
        return json.dumps({"records": self.records, "sha256": self._hash.hexdigest()})


def _objects(lines: Iterable[str], seal: _Seal) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        seal.take(text)
        try:
            yield number, json.loads(text)
        except ValueError as error:
            raise FormatError(f"line {number} is not JSON") from error

"""Copying a whole store: into a file of lines and back, or into another store.

What belongs to a session (registrations, locks) is never copied: it would outlive its owner. The
records of the top level, among them what makes a cluster one, are written last, so that nobody
takes half a copy for the whole. A copy that was cut off is made whole by doing it again: what is
there already with the same value is left alone, another value is an error and changes nothing.

**Numbers of sequential records** go on: before the first record is written, the target is told to
number above all that the source has given, whatever became of them, and above all copied records
whose names end like one. So a copied queue keeps its order, and no number is given twice. The
greatest number is one for a whole store, as counters of single keys differ by backend.

A file has one JSON object a line::

    {"format": "bookie metadata", "version": 2}
    {"key": "/ledgers/0000000000000000001", "value": "<base64>"}
    …
    {"last_number": 17}
    {"records": 1, "sha256": "<of all lines before this one>"}

A file without its last line, or whose last line does not fit, was cut off or changed. Version 1 had
no last number.
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
    SEQUENCE_DIGITS_MAX,
    SEQUENCE_DIGITS_MIN,
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Put,
)
from bookie.metadata.store import MetadataStore
from bookie.metadata.walk import differences, walk

FORMAT = "bookie metadata"
FORMAT_VERSION = 2

NARROW_CHILDREN_MAX = 20_000
"""Children of one key that every kind of store can list, with long names, in one answer."""

_DIGITS_MAX = 15
"""Of the digits that a name ends with, as many may be a number. Far below `LAST_NUMBER_MAX`, so
that a copy of a copy finds room; greater numbers that stores have given they tell themselves."""

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
    last_number: int = 0
    """Sequential records of the target are numbered above it."""


@dataclass(slots=True)
class Exported:
    """What a file holds."""

    records: list[tuple[str, bytes]] = field(default_factory=list)
    """Keys and values."""
    last_number: int = 0
    """See `MetadataStore.last_number`; 0 in a file of version 1, which did not say."""


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
    yield seal.line({"last_number": await store.last_number()})
    yield seal.last()


def parse_export(lines: Iterable[str]) -> Exported:
    """What a file holds; nothing of it is used before its last line was seen.

    Raises:
        FormatError: the file is not ours, cut off or changed; the message says which line.
        NewerFormatError: a newer version wrote it.
    """
    seal = _Seal()
    found = Exported()
    is_numbered = False
    for number, item in _objects(lines, seal):
        match item:
            case {"format": str(name), "version": int(version)} if number == 1:
                if name != FORMAT:
                    raise FormatError(f"line 1 says that the file is {name!r}, not {FORMAT!r}")
                if version > FORMAT_VERSION:
                    raise NewerFormatError(f"the file has format {version}, newer than ours")
                is_numbered = version < 2  # which had no such line
            case {"last_number": int(last)} if number > 1 and not is_numbered:
                found.last_number, is_numbered = last, True
            case {"key": str(key), "value": str(text)} if number > 1:
                try:
                    found.records.append((key, base64.b64decode(text, validate=True)))
                except ValueError as error:
                    raise FormatError(f"the value in line {number} is not base64") from error
            case {"records": int(records), "sha256": str(digest)} if number > 1:
                if (
                    not is_numbered
                    or records != len(found.records)
                    or digest != seal.digest_before_last
                ):
                    raise FormatError("the file was changed: its last line does not fit the others")
                return found
            case _:
                raise FormatError(f"line {number} is not one of an export of metadata")
    raise FormatError("the file was cut off: its last line is missing")


async def import_records(
    store: MetadataStore,
    exported: Exported,
    *,
    overwrite: bool = False,
    count: Count = lambda _: None,
) -> Copied:
    """Write the records of a file; the top level last.

    Raises:
        MetadataError: the store did not take over the numbering.
        KeyExistsError: a record has another value and `overwrite` is false; it is named, and what
            was written before stays.
    """
    numbers = [_number_of(key) for key, _ in exported.records]
    copied = Copied(last_number=max(exported.last_number, *numbers, 0))
    await store.number_above(copied.last_number)
    writer = _Writer(store, copied, overwrite=overwrite, count=count)
    last: list[tuple[str, bytes]] = []
    for key, value in exported.records:
        if parent_of(key) == ROOT:
            last.append((key, value))
        else:
            await writer.add(key, value)
    await writer.flush()
    for key, value in last:
        await writer.add(key, value)
    await writer.flush()
    await _require_numbered_above(store, copied.last_number)
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
            that many children of one key; the two differ after the copy, because somebody wrote
            to one of them; or the target could give a number again.
        KeyExistsError: see `import_records`.
    """
    copied = Copied(last_number=await _require_movable(source, target, live=live))
    await target.number_above(copied.last_number)
    writer = _Writer(target, copied, overwrite=overwrite, count=count)
    last: list[tuple[str, bytes]] = []
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
    # With `live` numbers were given meanwhile.
    copied.last_number = max(copied.last_number, await source.last_number())
    await target.number_above(copied.last_number)
    await _require_numbered_above(target, copied.last_number)
    return copied


def _number_of(key: str) -> int:
    """The number that `key` ends with if it may be that of a sequential record, or more; else 0.

    How long it is cannot be told where what stands before ends with digits, too. Of too many only
    those count that every number has.
    """
    name = key.rpartition("/")[2]
    digits = len(name) - len(name.rstrip("0123456789"))
    if digits < SEQUENCE_DIGITS_MIN:
        return 0
    number = int(name[-min(digits, SEQUENCE_DIGITS_MAX) :])
    return number if number < 10**_DIGITS_MAX else number % 10**SEQUENCE_DIGITS_MIN


async def _require_numbered_above(store: MetadataStore, last: int) -> None:
    found = await store.last_number()
    if found < last:
        raise MetadataError(
            f"{store.backend} would number records from {found + 1} on, and numbers up to {last} "
            "were given in the source; do not use it"
        )


async def _require_movable(source: MetadataStore, target: MetadataStore, *, live: bool) -> int:
    """Refuse before anything is written what would be refused or could not be listed after it.

    Returns the number that the target has to number sequential records above.
    """
    children: Counter[str] = Counter()
    last = await source.last_number()
    async for record in walk(source):
        last = max(last, _number_of(record.key))
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
    return last


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

"""Every record of a store, in the order of the tree, and the difference between two stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

from bookie.env import together
from bookie.metadata.keys import ROOT, check_prefix
from bookie.metadata.records import Record
from bookie.metadata.store import MetadataStore

WINDOW = 64
"""Keys that are asked for at a time."""


async def walk(store: MetadataStore, key: str = ROOT) -> AsyncIterator[Record]:
    """`key`'s record and all below it, each parent before its children, names ascending.

    Records that exist during the whole walk appear exactly once; those that come or go meanwhile
    may appear. Raises if it cannot be completed.
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
        found = await together(asked)
        for one, record, below in zip(keys, found[: len(keys)], found[len(keys) :], strict=True):
            if isinstance(record, Record):
                yield record
            if isinstance(below, list):
                async for deeper in _walk_below(store, one, below):
                    yield deeper


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value is not the same in two stores; None stands for no record."""

    key: str
    left: bytes | None
    right: bytes | None


async def differences(left: MetadataStore, right: MetadataStore) -> AsyncIterator[Difference]:
    """Where two stores differ, ascending; records that belong to sessions are not compared."""
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
    """Where a walk comes by a record."""
    return record.key.split("/")

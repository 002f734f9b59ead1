"""Reading the streams of a store in tests: the next item, the next events, a whole listing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeVar

from bookie.metadata.model import Change, ChangeKind, Commit, Stat, WatchEvent
from bookie.metadata.store import MetadataStore

T = TypeVar("T")

CREATED, MODIFIED, DELETED = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED


async def next_item(stream: AsyncIterator[T]) -> T:
    """The next item; a store that is silent for ten seconds fails the test."""
    async with asyncio.timeout(60):
        return await anext(stream)


async def next_events(stream: AsyncIterator[Change], count: int = 1) -> list[WatchEvent]:
    """The next `count` events, which begin and end with commits."""
    events: list[WatchEvent] = []
    while len(events) < count:
        change = await next_item(stream)
        assert isinstance(change, Commit)
        assert {event.revision for event in change.events} == {change.revision}
        events += change.events
    assert len(events) == count
    return events


async def next_changes(
    stream: AsyncIterator[Change], count: int = 1
) -> list[tuple[ChangeKind, str]]:
    """Kinds and keys of the next `count` events."""
    return [(event.kind, event.key) for event in await next_events(stream, count)]


async def scan(store: MetadataStore, key: str, after: str = "") -> list[str]:
    """The names of the records below `key`."""
    return [record.name async for record in store.scan_children(key, after=after)]


def timeless(stat: Stat) -> Stat:
    """`stat` without its times, which some answers of some backends lack."""
    return replace(stat, created_ms=None, modified_ms=None)


async def assert_holds(store: MetadataStore, key: str, value: bytes, stat: Stat) -> None:
    """The record of `key` has `value`, and `stat` is what its last write returned."""
    record = await store.get(key)
    assert record is not None
    assert (record.value, timeless(record.stat)) == (value, timeless(stat))

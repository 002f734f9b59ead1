"""The numbers of sequential records of one parent, and copies of stores with queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.coordination.participant import Participant
from bookie.coordination.queues import Queue
from bookie.errors import MetadataError
from bookie.metadata.export import export_lines, import_records, migrate, parse_export
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import BACKENDS, Backend


async def test_ephemeral_records_of_one_parent_are_numbered_together(backend: Backend) -> None:
    """Whatever their keys and whoever puts them, as long as one of them is there."""
    stores = [await backend.open(), await backend.open()]
    numbers = []
    for name in ("b-", "a-", "b-", "c-"):
        for store in stores:
            stat = await store.put(f"/line/{name}", b"", ephemeral=True, sequential=True)
            numbers.append(int(stat.key.removeprefix(f"/line/{name}")))
    assert numbers == sorted(set(numbers))


@pytest.fixture(params=sorted(BACKENDS))
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """An empty store of each kind beside that of `store`."""
    (tmp_path / "target").mkdir()
    async with BACKENDS[request.param](request, tmp_path / "target") as backend:
        yield await backend.open()


@pytest.mark.parametrize("by_file", [False, True], ids=["migrate", "import"])
async def test_a_store_with_queued_items_is_not_copied(
    store: MetadataStore, target: MetadataStore, by_file: bool
) -> None:
    """Nothing is written as long as an item waits; the emptied queue works in the copy."""

    async def copy() -> None:
        if by_file:
            lines = [line async for line in export_lines(store)]
            await import_records(target, parse_export(lines))
        else:
            await migrate(store, target)

    await store.put("/LAYOUT", b"")
    async with Participant(store) as participant:
        queue = Queue(participant, "/some/queue")
        await queue.put(b"old")
        with pytest.raises(MetadataError, match="let consumers empty the queue /some/queue first"):
            await copy()
        assert await target.get_children("/") == []
        async with await queue.take():
            pass
    await copy()
    assert await target.exists("/LAYOUT")
    async with Participant(target) as participant:
        queue = Queue(participant, "/some/queue")
        await queue.put(b"new")
        async with await queue.take(timeout_seconds=20) as found:
            assert found.value == b"new"

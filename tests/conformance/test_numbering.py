"""The numbers of sequential records beyond a single key, and in copies of stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.errors import BadRequestError
from bookie.metadata.coordination.participant import Participant
from bookie.metadata.coordination.queues import Queue
from bookie.metadata.records import LAST_NUMBER_MAX, NOT_EXISTS, Put
from bookie.metadata.store import MetadataStore
from bookie.metadata.transfer import export_lines, import_records, migrate, parse_export
from tests.conformance.backends import BACKENDS, Backend


async def number(store: MetadataStore, key: str) -> int:
    """Put a sequential record; its number."""
    stat = await store.put(key, b"", sequential=True)
    return int(stat.key.removeprefix(key))


async def test_no_number_is_above_the_last_one(store: MetadataStore) -> None:
    """Whatever the key, and whether the record is there."""
    given = 0
    for key in ("/q/n-", "/q/m-", "/other/n-", "/q/n-", "/top-"):
        given = await number(store, key)
        assert await store.last_number() >= given
    await store.delete_recursive("/q")
    assert await store.last_number() >= given


@pytest.mark.parametrize("last", [1_000_000, 3_000_000_000, 12_345_678_901_234])
async def test_numbers_go_on_above_what_they_are_told(backend: Backend, last: int) -> None:
    """For keys that have numbers, for new ones, and for stores that open later."""
    async with backend.session() as store:
        before = await number(store, "/q/n-")
        await store.number_above(last)
        assert await store.last_number() >= last
        first = await number(store, "/q/n-")
        assert first > last > before
        assert await number(store, "/q/n-") > first
        assert await number(store, "/new/n-") > last
        transaction = [Put("/t/a-", b"", sequential=True), Put("/t/b", b"", NOT_EXISTS)]
        stat = (await store.transaction(transaction))[0]
        assert stat is not None
        assert int(stat.key.removeprefix("/t/a-")) > last
        await store.number_above(5)
        assert await number(store, "/q/n-") > first, "nothing is lowered"
    async with backend.session() as store:
        assert await number(store, "/newer/n-") > last
        assert await number(store, "/q/n-") > first


async def test_an_open_store_hears_of_it(backend: Backend) -> None:
    """Although it has seen smaller numbers of the same key."""
    store, other = await backend.open(), await backend.open()
    await number(store, "/q/n-")
    await number(other, "/q/n-")
    await other.number_above(10**6)
    assert await number(store, "/q/n-") > 10**6
    assert await number(store, "/new/n-") > 10**6
    again = await backend.open()
    assert await number(again, "/q/n-") > 10**6
    await other.number_above(10**12)
    assert await number(again, "/q/n-") > 10**12


async def test_numbers_that_are_too_long_are_refused(store: MetadataStore) -> None:
    with pytest.raises(BadRequestError):
        await store.number_above(LAST_NUMBER_MAX + 1)
    await store.number_above(LAST_NUMBER_MAX)
    given = await number(store, "/q/n-")
    assert given > LAST_NUMBER_MAX


@pytest.fixture(params=sorted(BACKENDS))
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """An empty store of each kind beside that of `store`."""
    (tmp_path / "target").mkdir()
    async with BACKENDS[request.param](request, tmp_path / "target") as backend:
        yield await backend.open()


@pytest.mark.parametrize("by_file", [False, True], ids=["migrate", "import"])
async def test_a_queue_goes_on_in_a_copy(
    store: MetadataStore, target: MetadataStore, by_file: bool
) -> None:
    """What was put before is taken before, and nothing is stuck or lost."""
    # Of ten digits, and the first is greater than that of the next eleven.
    await store.number_above(2_500_000_000)
    async with Participant(store) as participant:
        queue = Queue(participant, "/queue")
        for item in range(6):
            await queue.put(b"old %d" % item)
        for _ in range(2):
            async with await queue.take():
                pass
    gone = await number(store, "/ids/id-")
    await store.delete_recursive("/ids")
    if by_file:
        lines = [line async for line in export_lines(store)]
        copied = await import_records(target, parse_export(lines))
    else:
        copied = await migrate(store, target)
    assert copied.last_number >= gone
    assert await number(target, "/ids/id-") > gone
    async with Participant(target) as participant:
        queue = Queue(participant, "/queue")
        for item in range(3):
            await queue.put(b"new %d" % item)
        taken = []
        for _ in range(7):
            async with await queue.take(timeout_seconds=20) as found:
                taken.append(found.value)
        assert await queue.size() == 0
    assert taken == [b"old %d" % n for n in range(2, 6)] + [b"new %d" % n for n in range(3)]

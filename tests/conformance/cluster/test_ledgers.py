"""Ledger ids and ledger metadata: ids are unique, metadata stays, listings are complete."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.cluster import keys
from bookie.cluster.layout import FLAT, HIERARCHICAL, SHORT_ID_MAX, LedgerLayout
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    FormatError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from bookie.ids import MAX_ID
from bookie.ledger.catalog import ledger_ids
from bookie.ledger.catalog.ledger_ids import LedgerIdGenerator
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.model import Put
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.streams import next_item

LAYOUTS = pytest.mark.parametrize("layout", [FLAT, HIERARCHICAL], ids=lambda layout: layout.name)


def _metadata(ledger_id: int, **changes: int) -> LedgerMetadata:
    metadata = LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("bookie-1", "bookie-2", "bookie-3")),),
    )
    return replace(metadata, **changes)  # type: ignore[arg-type]  # integers only


async def _fill(store: MetadataStore, layout: LedgerLayout, ids: list[int]) -> None:
    for start in range(0, len(ids), 100):
        await store.transaction([Put(layout.key(i), b"") for i in ids[start : start + 100]])


async def _list(ledgers: LedgerManager) -> list[int]:
    return [ledger_id async for ledger_id in ledgers.list_ids()]


# ---- ids


async def test_two_times_two_thousand_ids_are_all_different(backend: Backend) -> None:
    """Case 123: ids that fit 31 bits, and ids that do not."""

    async def take(generator: LedgerIdGenerator) -> list[int]:
        return [await generator.next() for _ in range(2000)]

    stores = [await backend.open(), await backend.open()]
    taken: list[int] = []
    for bucket in (0, 1):
        async with asyncio.TaskGroup() as tasks:
            runs = [
                tasks.create_task(take(LedgerIdGenerator(store, bucket=bucket))) for store in stores
            ]
        for run in runs:
            assert run.result() == sorted(run.result())
            taken += run.result()
    assert len(set(taken)) == 8000
    assert max(taken) > 2**31
    assert all(0 <= ledger_id <= MAX_ID for ledger_id in taken)


async def test_ids_leave_a_counter_behind_and_nothing_else(store: MetadataStore) -> None:
    """Case 124."""
    generator = LedgerIdGenerator(store)
    assert [await generator.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert await store.get_children(keys.ID_BUCKETS) == ["000"]


async def test_a_counter_outlives_everything_around_it(backend: Backend) -> None:
    """Case 125."""
    async with backend.session() as store:
        first = await LedgerIdGenerator(store).next()
        await store.put(keys.ID_BUCKETS + "/999", b"0")
        await store.delete(keys.ID_BUCKETS + "/999")
    async with backend.session() as store:
        assert await LedgerIdGenerator(store).next() > first


async def test_ids_go_on_in_the_next_bucket(store: MetadataStore) -> None:
    """Case 123."""
    end = 1 << ledger_ids.BUCKET_BITS
    await store.put(keys.id_bucket(0), b"%d" % (end - 2))
    generator = LedgerIdGenerator(store)
    assert [await generator.next() for _ in range(4)] == [end - 2, end - 1, end, end + 1]
    await store.put(keys.id_bucket(ledger_ids.BUCKETS - 1), b"%d" % end)
    with pytest.raises(FormatError, match="used up"):
        await LedgerIdGenerator(store, bucket=ledger_ids.BUCKETS - 1).next()


# ---- one ledger


@LAYOUTS
async def test_ledger_metadata_changes_only_by_its_version(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Case 133."""
    ledgers = LedgerManager(store, layout)
    for missing in (
        ledgers.read(7),
        ledgers.write(_metadata(7), 3),
        ledgers.delete(7),
        ledgers.delete(7, 3),
    ):
        with pytest.raises(NoSuchLedgerError):
            await missing
    created = await ledgers.create(_metadata(7))
    assert created.value.c_token != 0
    with pytest.raises(LedgerExistsError):
        await ledgers.create(_metadata(7))
    assert await ledgers.read(7) == created
    closed = created.value.closed(41, 4100)
    with pytest.raises(BadVersionError):
        await ledgers.write(closed, created.version + 1)
    with pytest.raises(BadRequestError):
        await ledgers.write(closed, -1)
    with pytest.raises(BadVersionError):
        await ledgers.delete(7, created.version + 1)
    assert await ledgers.read(7) == created
    written = await ledgers.write(closed, created.version)
    assert written.version > created.version
    assert await ledgers.read(7) == written
    await ledgers.delete(7, written.version)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.read(7)
    assert not await store.exists(keys.LEDGERS), "no empty directory is left"


async def test_a_create_whose_answer_was_lost_is_recognised(store: MetadataStore) -> None:
    """Case 157."""
    ledgers = LedgerManager(store)
    mine = await ledgers.create(_metadata(7, c_token=77))
    assert await ledgers.create(_metadata(7, c_token=77)) == mine
    with pytest.raises(LedgerExistsError):
        await ledgers.create(_metadata(7, c_token=78))


@LAYOUTS
async def test_a_damaged_ledger_is_named_by_its_key(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    ledgers = LedgerManager(store, layout)
    await ledgers.create(_metadata(6))
    await store.put(layout.key(7), b"junk")
    with pytest.raises(FormatError, match=layout.key(7)) as caught:
        await ledgers.read(7)
    assert "\n" not in str(caught.value)
    damaged: list[int] = []
    assert [one.value.ledger_id async for one in ledgers.list_readable(damaged.append)] == [6]
    assert damaged == [7]
    record = await store.get(layout.key(7))
    assert record is not None
    assert record.value == b"junk"


@LAYOUTS
async def test_a_damaged_ledger_hides_no_other_from_who_shows_them(
    store: MetadataStore, layout: LedgerLayout, caplog: pytest.LogCaptureFixture
) -> None:
    ledgers = LedgerManager(store, layout)
    for ledger_id in (6, 8):
        await ledgers.create(_metadata(ledger_id))
    await store.put(layout.key(7), b"junk")
    damaged: list[int] = []
    listing = ledgers.list_readable(damaged.append)
    assert [found.value.ledger_id async for found in listing] == [6, 8]
    assert damaged == [7]
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert layout.key(7) in line.getMessage()
    assert await _list(ledgers) == [6, 7, 8], "it is there for who deletes what is not"


@LAYOUTS
async def test_a_ledger_is_watched_from_its_creation_to_its_end(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Case 133."""
    ledgers = LedgerManager(store, layout)
    async with ledgers.watch(7) as states, ledgers.watch(7) as others:
        assert await next_item(states) is None
        created = await ledgers.create(_metadata(7))
        assert await next_item(states) == created
        await ledgers.create(_metadata(70))
        written = await ledgers.write(created.value.closed(1, 10), created.version)
        assert await next_item(states) == written
        await ledgers.delete(7)
        assert await next_item(states) is None
        assert await next_item(others) is None


# ---- listings


@LAYOUTS
async def test_a_listing_has_every_ledger_in_order(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Cases 126, 127, 132."""
    ledgers = LedgerManager(store, layout)
    assert await _list(ledgers) == []
    expected: list[int] = []
    for more in ([0], [1], [*range(2, 2000)], [SHORT_ID_MAX, SHORT_ID_MAX + 1, 2**40 + 5, MAX_ID]):
        await _fill(store, layout, more)
        expected += more
        assert await _list(ledgers) == expected
    for after in (-1, 0, 1998, SHORT_ID_MAX - 1, SHORT_ID_MAX, 2**40, MAX_ID):
        found = [ledger_id async for ledger_id in ledgers.list_ids(after)]
        assert found == [ledger_id for ledger_id in expected if ledger_id > after]


@LAYOUTS
async def test_a_listing_with_metadata_is_what_single_reads_say(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Case 127."""
    ledgers = LedgerManager(store, layout)
    created = [await ledgers.create(_metadata(ledger_id)) for ledger_id in (3, 9, 2**40)]
    damaged: list[int] = []
    assert [found async for found in ledgers.list_readable(damaged.append)] == created
    assert [found async for found in ledgers.list_readable(damaged.append, 3)] == created[1:]
    assert not damaged


@LAYOUTS
async def test_deleting_what_was_just_listed_ends_no_listing(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Cases 128, 129."""
    ledgers = LedgerManager(store, layout)
    await _fill(store, layout, [*range(300), 2**40])
    seen = []
    async for ledger_id in ledgers.list_ids():
        seen.append(ledger_id)
        await ledgers.delete(ledger_id)
    assert seen == [*range(300), 2**40]
    assert await _list(ledgers) == []


@LAYOUTS
async def test_what_was_there_before_is_in_every_listing(
    backend: Backend, layout: LedgerLayout, is_soak: bool
) -> None:
    """Case 131: ten writers create and delete while ten others list; for two seconds in a soak."""
    stores = [await backend.open() for _ in range(4)]
    clock = asyncio.get_running_loop().time
    until = clock() + (2.0 if is_soak else 0.0)
    kept = [*range(0, 1100, 11), *range(2**40, 2**40 + 220, 11)]
    await _fill(stores[0], layout, kept)
    for store in stores:
        await store.sync()
    done = asyncio.Event()

    async def churn(store: MetadataStore, residue: int) -> None:
        ledgers = LedgerManager(store, layout)
        turn = 0
        while not done.is_set():
            # Between what is kept, and nobody else's.
            for ledger_id in (11 * (turn % 100) + residue, 2**40 + 11 * (turn % 20) + residue):
                await ledgers.create(_metadata(ledger_id))
                await ledgers.delete(ledger_id)
            turn += 1

    async def check(store: MetadataStore) -> None:
        ledgers = LedgerManager(store, layout)
        listings = 0
        while listings < 2 or clock() < until:
            listings += 1
            found = await _list(ledgers)
            assert found == sorted(set(found))
            assert set(kept) <= set(found)

    async with asyncio.TaskGroup() as tasks:
        for residue in range(1, 11):
            tasks.create_task(churn(stores[residue % 2], residue))
        async with asyncio.TaskGroup() as checks:
            for number in range(10):
                checks.create_task(check(stores[number % 4]))
        done.set()


@LAYOUTS
async def test_a_listing_that_fails_midway_raises(
    store: MetadataStore, layout: LedgerLayout
) -> None:
    """Case 161: it never ends as if it were complete."""
    await _fill(store, layout, [*range(50), 2**40])
    names, calls, broken_at = store.get_children, 0, 1000

    async def get_children(key: str) -> list[str]:
        nonlocal calls
        calls += 1
        if calls == broken_at:
            raise MetadataUnavailableError("the metadata store does not answer")
        return await names(key)

    store.get_children = get_children  # type: ignore[method-assign]
    ledgers = LedgerManager(store, layout)
    assert await _list(ledgers) == [*range(50), 2**40]
    for call in range(1, calls + 1):
        calls, broken_at = 0, call
        with pytest.raises(MetadataUnavailableError):
            await _list(ledgers)


@LAYOUTS
async def test_ids_are_listed_without_reading_a_record(
    store: MetadataStore, layout: LedgerLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(store, layout, [*range(50), 2**40])

    def refuse(*_arguments: object) -> None:
        raise AssertionError("a record is read")

    monkeypatch.setattr(store, "get", refuse)
    monkeypatch.setattr(store, "scan_children", refuse)
    assert await _list(LedgerManager(store, layout)) == [*range(50), 2**40]


@pytest.mark.parametrize("stranger", ["zz", "0", "L0001"])
@LAYOUTS
async def test_a_stranger_among_the_ledgers_fails_the_listing(
    store: MetadataStore, layout: LedgerLayout, stranger: str
) -> None:
    """Case 161."""
    await _fill(store, layout, [1])
    await store.put(f"{keys.LEDGERS}/{stranger}", b"")
    with pytest.raises(BookieError, match=f"{keys.LEDGERS}/{stranger}"):
        await _list(LedgerManager(store, layout))

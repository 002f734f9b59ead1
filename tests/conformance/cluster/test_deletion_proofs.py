"""Proof of deletions: left in the same step, found in a few reads, taken back, swept."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import FLAT, HIERARCHICAL, SHORT_ID_MAX
from bookie.env import SystemClock
from bookie.errors import BadVersionError, LedgerExistsError, NoSuchLedgerError
from bookie.ids import MAX_ID
from bookie.ledger.catalog.deletion_proofs import DAY_MS, find_days
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.catalog.removal import nuke_cluster
from bookie.ledger.deletion_proof import decode_proof
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.export import export_lines, import_records, parse_export
from bookie.metadata.model import Record
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend

WEEK_SECONDS = 7 * 86400.0
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
IDS = [7, SHORT_ID_MAX + 1, MAX_ID]


class SetClock(SystemClock):
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.ms = NOON_MS

    def now_ms(self) -> int:
        """The time that the test sets."""
        return self.ms


@pytest.fixture(name="clock")
def _clock() -> SetClock:
    return SetClock()


@pytest.fixture(name="ledgers", params=[FLAT, HIERARCHICAL], ids=lambda layout: layout.name)
def _ledgers(
    request: pytest.FixtureRequest, store: MetadataStore, clock: SetClock
) -> LedgerManager:
    return LedgerManager(store, request.param, clock)


def _metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("b1",)),),
    )


async def _delete(ledgers: LedgerManager, *ids: int) -> None:
    for ledger_id in ids:
        await ledgers.create(_metadata(ledger_id))
        await ledgers.delete(ledger_id)


async def test_a_deletion_leaves_proof(store: MetadataStore, ledgers: LedgerManager) -> None:
    """Of exactly that ledger, with the time and the process; the listing has neither."""
    await ledgers.create(_metadata(8))
    await _delete(ledgers, *IDS)
    assert await ledgers.find_deleted([*IDS, 8, 9]) == set(IDS)
    assert [ledger_id async for ledger_id in ledgers.list_ids()] == [8]
    assert await find_days(store) == [20_000]
    layout = await ledgers._read_layout()
    record = await store.get(layout.under(keys.deletions_of(20_000)).key(7))
    assert record is not None
    proof = decode_proof(record.value)
    assert proof.deleted_at_ms == NOON_MS
    assert proof.deleted_by


async def test_a_deletion_that_fails_leaves_no_proof(
    store: MetadataStore, ledgers: LedgerManager
) -> None:
    """Proof and deletion are one step."""
    created = await ledgers.create(_metadata(7))
    with pytest.raises(BadVersionError):
        await ledgers.delete(7, created.version + 1)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.delete(8)
    assert await ledgers.find_deleted([7, 8]) == set()
    assert not await store.exists(keys.DELETED)


async def test_an_id_is_refused_while_there_is_proof(
    store: MetadataStore, ledgers: LedgerManager, clock: SetClock
) -> None:
    """Bookies may hold entries of the ledger that had it, however many days ago that was."""
    await _delete(ledgers, 7)
    for days in (0, 1, 6):
        clock.ms = NOON_MS + days * DAY_MS
        with pytest.raises(LedgerExistsError, match="ledger 7 was deleted; an id is used once"):
            await ledgers.create(_metadata(7))
    clock.ms = 20_008 * DAY_MS
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 100) == 1
    created = await ledgers.create(_metadata(7))
    assert await ledgers.read(7) == created


async def test_an_id_that_is_used_meanwhile_is_refused(
    store: MetadataStore, ledgers: LedgerManager, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for proofs and the creation, somebody whose clock is a day off has it."""
    proofs = LedgerManager._proofs

    async def and_then(self: LedgerManager, ids: Collection[int]) -> dict[int, list[Record]]:
        found = await proofs(self, ids)
        monkeypatch.undo()
        clock.ms += DAY_MS
        await _delete(ledgers, 7)
        clock.ms -= DAY_MS
        return found

    monkeypatch.setattr(LedgerManager, "_proofs", and_then)
    with pytest.raises(LedgerExistsError, match="was deleted"):
        await ledgers.create(_metadata(7))
    with pytest.raises(NoSuchLedgerError):
        await ledgers.read(7)


async def test_a_ledger_is_read_by_its_token(ledgers: LedgerManager) -> None:
    """Another ledger with the same id is not the one that is looked for."""
    created = await ledgers.create(_metadata(7))
    token = created.value.c_token
    assert await ledgers.read(7, token) == await ledgers.read_latest(7, token) == created
    await ledgers.delete(7)
    await ledgers.create(_metadata(7), is_fresh=True)
    for read in (ledgers.read, ledgers.read_latest):
        with pytest.raises(NoSuchLedgerError, match="another one has its id"):
            await read(7, token)


async def test_a_proof_that_cannot_be_read_proves_nothing(
    store: MetadataStore, ledgers: LedgerManager
) -> None:
    await _delete(ledgers, 7)
    key = (await ledgers._read_layout()).under(keys.deletions_of(20_000)).key(7)
    await store.put(key, b"junk")
    assert await ledgers.find_deleted([7]) == set()


async def test_old_proofs_are_swept_a_few_at_a_time(
    store: MetadataStore, ledgers: LedgerManager, clock: SetClock
) -> None:
    """A day counts from its end; newer days stay, and so do ledgers."""
    await ledgers.create(_metadata(3))
    await _delete(ledgers, *range(10, 20))
    clock.ms += DAY_MS
    await _delete(ledgers, *range(20, 25))
    clock.ms = 20_008 * DAY_MS - 1
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 100) == 0
    clock.ms += 1
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 4) == 4
    assert await ledgers.find_deleted(range(10, 20)) == set(range(14, 20))
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 100) == 6
    assert await find_days(store) == [20_001]
    assert await ledgers.find_deleted(range(10, 25)) == set(range(20, 25))
    assert [ledger_id async for ledger_id in ledgers.list_ids()] == [3]
    clock.ms += DAY_MS
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 100) == 5
    assert not await store.exists(keys.DELETED)


async def test_a_clock_that_was_ahead_leaves_nothing_for_ever(
    store: MetadataStore, ledgers: LedgerManager, clock: SetClock
) -> None:
    """Proofs of days to come go as well, but those of tomorrow stay: clocks differ."""
    for day in (20_001, 20_002, 30_000):
        clock.ms = day * DAY_MS
        await _delete(ledgers, day)
    clock.ms = NOON_MS
    assert await ledgers.sweep_deletions(WEEK_SECONDS, 100) == 2
    assert await find_days(store) == [20_001]


async def test_many_may_sweep_at_the_same_time(
    backend: Backend, store: MetadataStore, ledgers: LedgerManager, clock: SetClock
) -> None:
    """One that is overtaken stops without an error, and a few more sweeps end it."""
    await _delete(ledgers, *range(150))
    clock.ms += 30 * DAY_MS
    layout = await ledgers._read_layout()
    sweepers = [LedgerManager(await backend.open(), layout, clock) for _ in range(3)]
    for _ in range(10):
        async with asyncio.TaskGroup() as tasks:
            for sweeper in sweepers:
                tasks.create_task(sweeper.sweep_deletions(WEEK_SECONDS, 40))
    assert not await store.exists(keys.DELETED)


async def test_proofs_belong_to_the_cluster(store: MetadataStore, tmp_path: Path) -> None:
    """They are removed with it, and are copied with it."""
    await initialize_cluster(store)
    ledgers = LedgerManager(store)
    await _delete(ledgers, 7)
    async with open_store(f"memory://{tmp_path.name}") as other:
        lines = [line async for line in export_lines(store)]
        await import_records(other, parse_export(lines))
        assert await LedgerManager(other, await ledgers._read_layout()).find_deleted([7]) == {7}
    assert await nuke_cluster(store)
    assert await store.get_children("/") == []

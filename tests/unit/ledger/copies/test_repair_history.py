"""The last repairs of workers: bounded, never in the way, and harmless when damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.env import SystemClock, beside
from bookie.errors import FormatError, MetadataUnavailableError, NewerFormatError
from bookie.ledger.copies import repair_history
from bookie.ledger.copies.repair_history import (
    REPAIRS_KEPT,
    STRANGERS_MAX,
    RepairHistory,
    ended_repairs,
    forget_strangers,
)
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.underreplicated import EndedRepair, decode_history, encode_history
from bookie.metadata.connect import open_store
from bookie.metadata.model import Stat
from bookie.metadata.store import MetadataStore

NOW_MS = 1_700_000_000_000
ONE = EndedRepair(7, "repaired", 3, 300, 0.5, "", NOW_MS)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as found:
        await initialize_cluster(found)
        yield found


def _outcome(ledger_id: int, outcome: str = "repaired", detail: str = "") -> RepairOutcome:
    return RepairOutcome(ledger_id, "b1", outcome, 1, 10, detail)


async def _until(store: MetadataStore, count: int) -> list[tuple[str, EndedRepair]]:
    async with asyncio.timeout(60):
        while True:
            found, _ = await ended_repairs(store)
            if len(found) == count:
                return found
            await asyncio.sleep(0.01)


def test_a_history_is_decoded_as_it_was_encoded() -> None:
    repairs = [ONE, EndedRepair(8, "no-spare", 0, 0, 12.25, "why\n\N{SNOWMAN}", NOW_MS + 1)]
    assert decode_history(encode_history(repairs)) == repairs
    assert encode_history([ONE]) == (
        b'{"format":"bookie-repair-history","repairs":[{"detail":"","ended_ms":1700000000000,'
        b'"entries":3,"ledger_id":7,"outcome":"repaired","packet_bytes":300,"seconds":0.5}],'
        b'"version":1}'
    )


@pytest.mark.parametrize(
    "change",
    [
        {"ledger_id": -1},
        {"outcome": None},
        {"entries": "3"},
        {"seconds": True},
        {"ended_ms": 1 << 62},
    ],
)
def test_a_damaged_history_is_refused(change: dict[str, object]) -> None:
    record = json.loads(encode_history([ONE]))
    record["repairs"][0] |= change
    with pytest.raises(FormatError):
        decode_history(json.dumps(record).encode())
    for whole in ({"repairs": 3}, {"repairs": [3]}, {"format": "other"}):
        with pytest.raises(FormatError):
            decode_history(json.dumps(record | whole).encode())
    with pytest.raises(NewerFormatError):
        decode_history(json.dumps(record | {"version": 2}).encode())


async def test_what_ended_is_written_and_outlives_the_worker(store: MetadataStore) -> None:
    found: list[tuple[str, EndedRepair]] = []
    for ledger_id in (1, 2):
        history = RepairHistory(store, "b1")
        async with beside([history.run()]):
            history.note(ledger_id, [_outcome(ledger_id), _outcome(ledger_id, "was-fine")], 1.23456)
            found = await _until(store, ledger_id)
    assert [(worker, one.ledger_id) for worker, one in found] == [("b1", 2), ("b1", 1)]
    assert (found[0][1].outcome, found[0][1].entries, found[0][1].seconds) == ("repaired", 2, 1.235)


async def test_the_end_of_a_worker_writes_what_is_left(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_history, "WRITE_SECONDS_MIN", 1e6)
    history = RepairHistory(store, "b1")
    async with beside([history.run()]):
        history.note(1, [_outcome(1)], 1.0)
        await _until(store, 1)
        history.note(2, [_outcome(2)], 1.0)
    assert len((await ended_repairs(store))[0]) == 2


async def test_only_the_last_repairs_are_kept(store: MetadataStore) -> None:
    """And of one that fails again and again the last one."""
    history = RepairHistory(store, "b1")
    for ledger_id in range(REPAIRS_KEPT + 10):
        history.note(ledger_id, [_outcome(ledger_id)], 1.0)
    for attempt in range(50):
        history.note(5, [_outcome(5, "no-spare", f"attempt {attempt}" + "x" * 1000)], 1.0)
        history.note_error(6, "away", 1.0)
    history.note(9, [], 1.0)
    async with beside([history.run()]):
        found = await _until(store, REPAIRS_KEPT)
    assert {one.ledger_id for _, one in found} == {5, 6, *range(12, REPAIRS_KEPT + 10)}
    (failed,) = [one for _, one in found if one.outcome == "no-spare"]
    assert failed.detail.startswith("attempt 49x")
    assert len(failed.detail) == repair_history.DETAIL_CHARACTERS_MAX


async def test_a_store_that_is_away_loses_nothing(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_history, "WRITE_SECONDS_MIN", 0.01)
    put, failures = store.put, 0

    async def failing(key: str, value: bytes) -> Stat:
        nonlocal failures
        failures += 1
        if failures < 4:
            raise MetadataUnavailableError("away")
        return await put(key, value)

    monkeypatch.setattr(store, "put", failing)
    history = RepairHistory(store, "b1")
    async with beside([history.run()]):
        history.note(1, [_outcome(1)], 1.0)
        await _until(store, 1)
    assert failures == 4


async def test_damage_is_named_and_written_over(store: MetadataStore) -> None:
    for worker in ("b1", "b2"):
        await store.put(f"{keys.REPAIR_HISTORY}/{worker}", b"damaged")
    assert await ended_repairs(store) == ([], ["b1", "b2"])
    history = RepairHistory(store, "b1")
    async with beside([history.run()]):
        history.note(1, [_outcome(1)], 1.0)
        await _until(store, 1)
    assert (await ended_repairs(store))[1] == ["b2"]


@pytest.mark.parametrize("worker", ["a host/with a slash:7", "", "..", "x" * 1000])
async def test_any_name_of_a_worker_will_do(store: MetadataStore, worker: str) -> None:
    history = RepairHistory(store, worker)
    async with beside([history.run()]):
        history.note(1, [_outcome(1)], 1.0)
        await _until(store, 1)


async def test_workers_that_are_gone_for_good_are_forgotten(store: MetadataStore) -> None:
    """The record of a bookie stays. Those of others go when they are old, damaged or too many."""
    now = SystemClock().now_ms()
    old = encode_history([EndedRepair(1, "repaired", 1, 1, 1.0, "", now - 8 * 86_400_000)])
    new = encode_history([EndedRepair(1, "repaired", 1, 1, 1.0, "", now)])
    ahead = encode_history([EndedRepair(1, "repaired", 1, 1, 1.0, "", now + 10**12)])
    for worker, value in (("b1", old), ("old:1", old), ("new:1", new), ("bad:1", b"x")):
        await store.put(f"{keys.REPAIR_HISTORY}/{worker}", value)
    assert sorted(await forget_strangers(store, {"b1"}, now)) == ["bad:1", "old:1"]
    assert await store.get_children(keys.REPAIR_HISTORY) == ["b1", "new:1"]
    for number in range(STRANGERS_MAX + 5):
        await store.put(f"{keys.REPAIR_HISTORY}/host:{number}", ahead)
    assert len(await forget_strangers(store, {"b1"}, now)) == 6
    assert len(await store.get_children(keys.REPAIR_HISTORY)) == STRANGERS_MAX + 1

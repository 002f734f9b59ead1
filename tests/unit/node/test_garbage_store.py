"""A metadata store that went back in time: nothing is deleted until an operator confirms it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.errors import (
    BadRequestError,
    WrongClusterError,
)
from bookie.metadata.connect import open_store
from bookie.node.garbage import RoundOutcome
from tests.unit.node.garbage_place import Listing, Place, collecting


@pytest.fixture(name="place")
async def _place(tmp_path: Path) -> AsyncIterator[Place]:
    async with collecting(tmp_path) as place:
        yield place


async def test_a_store_with_lower_counters_stops_everything(place: Place) -> None:
    """Deletions with proof, too; after a restart, and when the counters are high again."""
    await place.create(range(1, 6))
    await place.count_ids_to(100)
    await place.round()
    await place.delete([1])
    await place.count_ids_to(99)
    metrics = place.room.machine.metrics
    for counter in (99, 99, 100, 200):
        await place.count_ids_to(counter)
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
        assert "went back in time" in place.collector.stopped
        assert "is 99, and was 100" in place.collector.stopped
        assert metrics.garbage_stopped._value.get() == 1
        place.restart()
    assert await place.stored() == [1, 2, 3, 4, 5]
    await place.round()
    with pytest.raises(BadRequestError, match="in doubt"):
        place.collector.wake(force=True)
    assert (await place.round(force=True)).deleted == 0
    told: list[str] = []
    place.collector.on_store_doubt = lambda: told.append(place.collector.store_doubt)
    await place.collector.confirm_store()
    assert told == [""], "the registration says it at once"
    assert metrics.garbage_stopped._value.get() == 0
    place.restart()
    assert (await place.round()).deleted == 1
    await place.count_ids_to(199)
    assert (await place.round()).outcome is RoundOutcome.STOPPED, (
        "the confirmed store counts from now"
    )


async def test_an_older_store_is_confirmed_as_it_is(place: Place) -> None:
    """Its ledgers that are gone wait as any others, and too many of them stop again."""
    await place.create(range(1, 6))
    await place.count_ids_to(100)
    await place.round()
    await place.count_ids_to(50)
    await place.lose([1, 2])
    await place.round()
    await place.collector.confirm_store()
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted, report.absent) == (RoundOutcome.STOPPED, 0, 2)
        assert "2 of 5 ledgers are absent" in place.collector.stopped
    with pytest.raises(BadRequestError, match="nothing to confirm"):
        await place.collector.confirm_store()


async def test_a_store_that_goes_back_while_it_is_listed_is_noticed(place: Place) -> None:
    """It is looked at once more, before anything is deleted."""
    await place.create([1, 2])
    await place.count_ids_to(100)
    await place.round()
    await place.delete([1])
    place.ledgers.counter_while_listing = 99
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
    assert await place.stored() == [1, 2]


async def test_a_counter_that_is_gone_or_unreadable_deletes_nothing(place: Place) -> None:
    await place.create([1, 2])
    await place.count_ids_to(100)
    await place.round()
    await place.delete([1])
    await place.store.put(keys.id_bucket(0), b"junk")
    assert (await place.round()).outcome is RoundOutcome.ABORTED
    await place.store.delete(keys.id_bucket(0))
    assert (await place.round()).outcome is RoundOutcome.STOPPED
    assert await place.stored() == [1, 2]


def _cookie(number: int) -> Cookie:
    return Cookie("b1", ("/j",), ("/l",), "i", "u", CookieState.READY, state_number=number)


async def test_the_cookie_of_the_bookie_never_goes_back(place: Place) -> None:
    """One of a lower state number, or none at all, is that of an older store."""
    cookies = CookieManager(place.store)
    await place.create([1, 2])
    version = (await cookies.create(_cookie(6))).version
    await place.round()
    version = (await cookies.write(_cookie(7), version)).version
    assert (await place.round()).outcome is RoundOutcome.DONE
    await place.delete([1])
    version = (await cookies.write(_cookie(6), version)).version
    assert (await place.round()).outcome is RoundOutcome.STOPPED
    assert "the state number 6, and had 7" in place.collector.stopped
    await place.collector.confirm_store()
    assert (await place.round()).deleted == 1
    await place.delete([2])
    await cookies.delete("b1", version)
    assert (await place.round()).outcome is RoundOutcome.STOPPED
    assert "no cookie of this bookie" in place.collector.stopped
    assert await place.stored() == [2]


async def test_an_empty_listing_stops_everything(place: Place) -> None:
    """If the cluster had ledgers once, and no proof says why they are gone."""
    await place.create([1, 2, 3])
    await place.round()
    await place.delete([1])
    await place.lose([2, 3])
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
        assert "lists no ledger at all" in place.collector.stopped
    assert await place.stored() == [1, 2, 3]


async def test_the_last_ledger_that_disappears_while_another_waits(place: Place) -> None:
    """Then the listing is empty as well."""
    await place.create([1, 2])
    await place.lose([1])
    await place.round()
    await place.delete([2])
    assert (await place.round()).outcome is RoundOutcome.STOPPED
    assert await place.stored() == [1, 2]


async def test_an_empty_store_stops_everything(place: Place) -> None:
    """An empty store cannot be confirmed. While a store is being removed, collection stops."""
    await place.create([1, 2])
    await place.count_ids_to(100)
    await place.round()
    await place.store.put(keys.REMOVAL, b"")
    await place.store.delete(keys.INSTANCE_ID)
    assert (await place.round()).outcome is RoundOutcome.ABORTED
    await place.store.delete_recursive("/")
    for _ in range(2):
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
        assert "holds no cluster any more" in place.collector.stopped
    with pytest.raises(WrongClusterError):
        await place.collector.confirm_store()
    assert place.collector.stopped
    assert await place.stored() == [1, 2]


async def test_a_memory_that_is_damaged_is_a_doubt(place: Place) -> None:
    await place.create([1, 2])
    await place.round()
    await place.delete([1])
    await place.room.engine.integrity.put({b"garbage/memory": b"junk"})
    place.restart()
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
    assert "is damaged" in place.collector.stopped
    await place.collector.confirm_store()
    assert (await place.round()).deleted == 1


async def test_a_store_of_another_cluster_deletes_nothing(tmp_path: Path, place: Place) -> None:
    """However empty it looks."""
    await place.create(range(1, 4))
    async with open_store(f"memory://{tmp_path.name}-other") as other:
        await initialize_cluster(other)
        place.ledgers = Listing(other, place.clock)
        place.restart()
        for _ in range(6):
            report = await place.round()
            assert report.outcome is RoundOutcome.ABORTED
            assert "another cluster" in report.reason
    assert await place.stored() == [1, 2, 3]

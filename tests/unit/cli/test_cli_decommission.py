"""``bookie cluster decommission`` and ``bookie repair status``, on a store without bookies.

Operators cancel a decommission, or give the command twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bookie.cli import repair
from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.layout import read_layout
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.daemon.cluster_health import _checks_of_repair
from bookie.errors import BadRequestError
from bookie.ledger.catalog import dependents
from bookie.ledger.copies.departures import Departures, RepairFailures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.underreplicated import NOT_RECOVERED
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore


@pytest.fixture
async def store(uri: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetadataStore]:
    """A cluster that knows b1 and b2; a wait looks often."""
    monkeypatch.setattr(repair, "WAIT_SECONDS", 0.01)
    async with open_store(uri) as store:
        instance_id = await initialize_cluster(store)
        for number in (1, 2):
            cookie = Cookie(
                bookie_id=f"b{number}",
                instance_id=instance_id,
                unique_id=f"{number:032}",
                state=CookieState.READY,
                journal_dirs=("/j",),
                ledger_dirs=("/l",),
            )
            await CookieManager(store).create(cookie)
        yield store


def _registered(store: MetadataStore) -> BookieRegistration:
    return BookieRegistration(store, Registration("b1", (Endpoint("bookie", "h", 1, "grpc"),)))


async def test_a_cancellation_ends_those_that_wait(store: MetadataStore) -> None:
    leaving = Departures(store, keys.LEAVING_BOOKIES)
    async with _registered(store), store.watch(keys.LEAVING_BOOKIES) as changes:
        wait = asyncio.get_running_loop().create_task(repair._leave(store, "b1", wait=True))
        async with asyncio.timeout(60):
            await anext(changes)
            assert await leaving.names() == {"b1"}
            await repair._cancel(store, "b1")
            with pytest.raises(BadRequestError, match=r"bookie b1 stays: .* cancelled"):
                await wait
    assert await leaving.names() == set()
    assert "b1" in await CookieManager(store).bookie_ids()


async def test_a_ledger_that_cannot_be_read_keeps_the_bookie(store: MetadataStore) -> None:
    """It may name the bookie."""
    key = (await read_layout(store)).key(7)
    await store.put(key, b"damaged")
    await Departures(store, keys.LEAVING_BOOKIES).add("b1")
    is_done, told = await repair._decommission(store, "b1")
    assert not is_done
    assert "the metadata of 1 ledgers (7) cannot be read: they may name b1" in told
    await store.delete(key)
    assert (await repair._decommission(store, "b1"))[0]


async def test_two_commands_end_together(
    store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    async with asyncio.timeout(60):
        async with _registered(store), store.watch(keys.LEAVING_BOOKIES) as changes:
            loop = asyncio.get_running_loop()
            waits = [loop.create_task(repair._leave(store, "b1", wait=True)) for _ in range(2)]
            await anext(changes)
        for wait in waits:
            await wait
    assert capsys.readouterr().out.count("bookie b1 has left the cluster") == 2
    assert await CookieManager(store).bookie_ids() == ["b2"]
    assert await Departures(store, keys.LEAVING_BOOKIES).names() == set()


async def test_a_bookie_that_changes_its_cookie_is_forgotten_a_look_later(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bookie that was busy writes late, in the middle of its own removal."""
    cookies, listed = CookieManager(store), dependents.find_dependents

    async def list_and_change(*args: Any) -> dependents.Dependents:
        monkeypatch.undo()
        monkeypatch.setattr(repair, "WAIT_SECONDS", 0.01)
        found = await cookies.read("b1")
        assert found is not None
        await cookies.write(found.value, found.version)
        return await listed(*args)

    monkeypatch.setattr(dependents, "find_dependents", list_and_change)
    async with asyncio.timeout(60):
        await repair._leave(store, "b1", wait=True)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "bookie b1 has just changed its cookie, and is not forgotten yet",
        "bookie b1 has left the cluster",
    ]
    assert await cookies.bookie_ids() == ["b2"]


async def test_a_failure_that_outlived_its_mark_does_not_count(store: MetadataStore) -> None:
    """A worker that lost its lock notes a failure after the ledger was repaired."""
    await UnderreplicationManager(store).mark(7, ["b1"])
    for ledger_id in (7, 8):
        await RepairFailures(store).add(ledger_id, "refused", "b1 is away")
    await RepairFailures(store).add(9, NOT_RECOVERED, "too few bookies answered")
    status = await repair._status(store)
    assert (status["marked_ledgers"], status["failing_ledgers"]) == (1, 2)
    assert [one["ledger_id"] for one in await repair._list(store, 10)] == [7, 9]
    *_, check = await _checks_of_repair(store)
    assert (check.healthy, check.count) == (False, 2)

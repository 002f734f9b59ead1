"""Recovery while bookies are dead: another bookie of the cluster takes over, on real bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster.cookies import CookieManager
from bookie.errors import BookieError, LedgerRecoveryError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.calls import Calls
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.recover.driver import ADDS_BEHIND_MAX, _RecoveryDriver, recover_ledger
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.recover.recovery_events import RecoveryAddAnswered, RecoveryEvent, SendAdd
from bookie.metadata.model import Check
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.fake_pool import FakePool, fake_pool, metadata_of, packed
from tests.unit.ledger.real_cluster import RealCluster, until


async def ledger_with_a_dead_bookie(bk: BookKeeper, cluster: RealCluster, spares: int = 1) -> int:
    """A ledger 3/3/3 whose last entry only two bookies have; the third is dead.

    The client's writers replace nobody: its own change would be a race with the recovery.
    """
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
    for number in range(3, 3 + spares):
        await cluster.start(number)
    await writer.append_many([b"%d" % number for number in range(10)])
    await cluster.stop(2)

    async def append_in_vain() -> None:
        with pytest.raises(BookieError):
            await writer.append(b"10")

    bk._connected.pool.spawn(append_in_vain(), "append")
    pending = writer._machine.window.pending
    await until(lambda: bool(pending) and pending[-1].acked.bit_count() == 2)
    return writer.ledger_id


async def read_back(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read()]


async def test_a_spare_takes_over_from_a_dead_bookie(cluster: RealCluster) -> None:
    """The ledger is closed, on the spare from the first entry on that it stored."""
    async with connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as bk:
        ledger_id = await ledger_with_a_dead_bookie(bk, cluster)
        reader = await bk.open_ledger(ledger_id, recover=True)
        assert reader.last_entry_id == 10
        first, tail = reader.metadata.fragments
        assert sorted(first.bookies) == ["b0", "b1", "b2"]
        assert 0 < tail.first_entry_id <= 10
        assert sorted(tail.bookies) == ["b0", "b1", "b3"]
        assert await read_back(bk, ledger_id) == [b"%d" % number for number in range(11)]
        await cluster.stop(0)
        await cluster.stop(1)
        last = await bk.open_ledger(ledger_id)
        assert [entry.payload async for entry in last.read(10, 10)] == [b"10"]


async def test_without_a_spare_recovery_fails_until_there_is_one(cluster: RealCluster) -> None:
    """3/3/3, one dead: the ledger stays as it is, and the error says what is missing."""
    async with connect(cluster.uri, add_timeout_seconds=0.5, changes_per_minute_max=0) as bk:
        ledger_id = await ledger_with_a_dead_bookie(bk, cluster, spares=0)
        with pytest.raises(LedgerRecoveryError, match="no other bookie can take over"):
            await bk.open_ledger(ledger_id, recover=True)
        await cluster.start(3)
        await until(lambda: "b3" in bk.bookies())
        assert (await bk.open_ledger(ledger_id, recover=True)).last_entry_id == 10


async def test_recoveries_that_choose_different_bookies_agree(cluster: RealCluster) -> None:
    """Three clients recover at once, with two spares: one end, one list of fragments."""
    async with (
        connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as bk,
        connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as second,
        connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as third,
    ):
        ledger_id = await ledger_with_a_dead_bookie(bk, cluster, spares=2)
        async with asyncio.TaskGroup() as tasks:
            opened = [
                tasks.create_task(client.open_ledger(ledger_id, recover=True))
                for client in (bk, second, third)
            ]
        results = [task.result().metadata for task in opened]
        assert results[0].last_entry_id == 10
        assert results == [results[0]] * 3
        assert await read_back(bk, ledger_id) == [b"%d" % number for number in range(11)]


class RenewingLedgers(LedgerManager):
    """Right before the first close, the newcomer's cookie gets another incarnation."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self._cookies = CookieManager(store)
        self.renewed = ""

    async def write(
        self, metadata: LedgerMetadata, version: int, conditions: Sequence[Check] = ()
    ) -> Versioned[LedgerMetadata]:
        if conditions and not self.renewed:
            self.renewed = conditions[0].key.rpartition("/")[2]
            found = await self._cookies.read(self.renewed)
            assert found is not None
            await self._cookies.write(replace(found.value, incarnation="other"), found.version)
        return await super().write(metadata, version, conditions)


async def test_a_newcomer_that_loses_its_state_before_the_close_does_not_count(
    cluster: RealCluster,
) -> None:
    """It is renewed between the last look at its cookie and the write: stored again elsewhere."""
    async with connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as bk:
        ledger_id = await ledger_with_a_dead_bookie(bk, cluster, spares=2)
        entered = bk._connected
        ledgers = RenewingLedgers(cluster.store)
        found = await ledgers.read(ledger_id)
        closed = await recover_ledger(found, entered.pool, ledgers, entered.ensembles)
        assert ledgers.renewed in {"b3", "b4"}
        (other,) = {"b3", "b4"} - {ledgers.renewed}
        assert sorted(closed.value.last_fragment.bookies) == ["b0", "b1", other]
        assert closed == await entered.ledgers.read(ledger_id)


async def test_a_new_start_of_a_newcomer_only_costs_another_attempt(cluster: RealCluster) -> None:
    """Its cookie changes and its incarnation does not: closed with the same bookie."""

    class Restarting(RenewingLedgers):
        async def write(
            self, metadata: LedgerMetadata, version: int, conditions: Sequence[Check] = ()
        ) -> Versioned[LedgerMetadata]:
            if conditions and not self.renewed:
                self.renewed = "b3"
                found = await self._cookies.read("b3")
                assert found is not None
                number = found.value.state_number + 1
                await self._cookies.write(replace(found.value, state_number=number), found.version)
            return await super().write(metadata, version, conditions)

    async with connect(cluster.uri, add_timeout_seconds=1, changes_per_minute_max=0) as bk:
        ledger_id = await ledger_with_a_dead_bookie(bk, cluster)
        entered = bk._connected
        ledgers = Restarting(cluster.store)
        found = await ledgers.read(ledger_id)
        closed = await recover_ledger(found, entered.pool, ledgers, entered.ensembles)
        assert ledgers.renewed
        assert sorted(closed.value.last_fragment.bookies) == ["b0", "b1", "b3"]


class SilentLane:
    async def request(self, _request_id: int, _data: bytes) -> tuple[Status, str]:
        await asyncio.Event().wait()
        raise AssertionError("nothing wakes it")


class NoCookies:
    async def read_latest(self, _bookie_id: str) -> None:
        return None


class NoEnsembles:
    cookies = NoCookies()


async def test_a_silent_bookie_is_sent_no_more_than_a_few_batches() -> None:
    """The others' acks let recovery go on; what a dead bookie was sent stays in memory."""
    async with fake_pool() as pool, Calls[RecoveryEvent]() as calls:
        driver = driver_of(pool, calls)
        for number in range(ADDS_BEHIND_MAX + 1):
            driver.begin(SendAdd(number, 0, "b0", packed(number, 1)))
        answer = await calls.next()
        assert isinstance(answer, RecoveryAddAnswered)
        assert (answer.round, answer.status) == (ADDS_BEHIND_MAX, Status.IO_ERROR)


def driver_of(pool: FakePool, calls: Calls[RecoveryEvent]) -> _RecoveryDriver:
    """A driver whose bookies never answer an add."""
    connection = pool.connection("b0")
    connection.recovery = lambda _incarnation: SilentLane()  # type: ignore[attr-defined]
    machine = LedgerRecovery(metadata_of(), 0)
    return _RecoveryDriver(
        machine, pool.pool, cast("LedgerManager", None), cast("Ensembles", NoEnsembles()), calls
    )

"""The lanes of a writer whose bookies change; the store and the bookies do as the test says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import pytest

from bookie.config import ClientSettings
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.exchange import ChooseNewcomers
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.write.handle import WriterHandle
from bookie.ledger.write.writer_events import SlotConnected, SlotLost, SpanDomains, WriterEvent
from bookie.ledger.write.writer_lanes import WriterLanes
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.fake_pool import (
    LEDGER_ID,
    UNNAMED,
    FakeLane,
    FakePool,
    fake_pool,
    metadata_of,
)

BOOKIES = ("b0", "b1", "b2")


class Owner:
    """A writer that only listens."""

    def __init__(self) -> None:
        self.events: list[WriterEvent] = []

    def take(self, event: WriterEvent) -> None:
        if not isinstance(event, SpanDomains):
            self.events.append(event)


class Quarantined:
    """Bookies in quarantine."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def put(self, bookie_id: str) -> None:
        self.names.append(bookie_id)


class Registered:
    """Registered bookies."""

    def incarnation(self, bookie_id: str) -> str:
        return f"registered {bookie_id}"


class ScriptedEnsembles:
    """It finds no newcomers; the test says who newcomers are."""

    def __init__(self) -> None:
        self.quarantine = Quarantined()
        self.directory = Registered()
        self.known: list[Mapping[str, str]] = []
        """At each question for newcomers: the incarnations that the writer knew."""
        self.told: dict[str, asyncio.Future[str | None]] = defaultdict(
            asyncio.get_running_loop().create_future
        )
        """By newcomer: its incarnation."""

    def newcomers_or_renewed(
        self, _ensemble: object, _slots: int, _size: int, incarnations: Mapping[str, str]
    ) -> dict[int, str]:
        self.known.append(dict(incarnations))
        return {}

    def ack_domains(self, _bookies: object) -> None:
        return None

    async def incarnation_of_newcomer(self, bookie_id: str) -> str | None:
        return await self.told[bookie_id]

    @property
    def ensembles(self) -> Ensembles:
        """The stand-in."""
        return cast("Ensembles", self)


def joined_lanes(pool: FakePool, ensembles: ScriptedEnsembles, owner: Owner) -> WriterLanes:
    """The lanes to b0, b1 and b2, all up."""
    lanes = WriterLanes(owner, LEDGER_ID, pool.pool, BOOKIES, UNNAMED, ensembles.ensembles)
    lanes.join(())
    owner.events.clear()
    return lanes


def lane_of(pool: FakePool, bookie_id: str, incarnation: str = "") -> FakeLane:
    return pool.connection(bookie_id).plain(incarnation)


async def turns() -> None:
    """Let the loop turn."""
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_lane_of_a_replaced_bookie_is_left() -> None:
    """The client does not reconnect to it for this ledger."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        assert len(lane_of(pool, "b2").users) == 1
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        assert lane_of(pool, "b2").users == []
        assert len(lane_of(pool, "b1").users) == 1
        ensembles.told["b3"].set_result("")
        await turns()
        assert len(lane_of(pool, "b3").users) == 1
        lanes.leave()
        assert lane_of(pool, "b3").users == []


async def test_a_newcomer_that_was_replaced_before_it_was_known_does_not_join() -> None:
    """The store was away for a while, and two changes of one slot wait for it."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        lanes.replace({2: "b4"}, [0, 0, 2], 0)
        await turns()
        ensembles.told["b4"].set_result("")
        await turns()
        ensembles.told["b3"].set_result("")
        await turns()
        assert lane_of(pool, "b3").users == []
        assert owner.events == [SlotConnected(2, 2)]
        lanes.send(2, (1, b""), lambda *_: None)
        assert (len(lane_of(pool, "b3").sent), len(lane_of(pool, "b4").sent)) == (0, 1)


async def test_a_newcomer_does_not_join_a_writer_that_left() -> None:
    """The lanes would reconnect for nobody."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        lanes.leave()
        ensembles.told["b3"].set_result("")
        await turns()
        assert lane_of(pool, "b3").users == []


async def test_a_failed_bookie_is_put_into_quarantine_once() -> None:
    """Asking again prolongs nothing; another failure does."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        names = ensembles.quarantine.names
        lanes.choose(ChooseNewcomers(BOOKIES, 0b100), 3)
        lanes.choose(ChooseNewcomers(BOOKIES, 0b100), 3)
        assert names == ["b2"]
        lanes.choose(ChooseNewcomers(BOOKIES, 0b110), 3)
        assert names == ["b2", "b1"]
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        ensembles.told["b3"].set_result("")
        lanes.choose(ChooseNewcomers(("b0", "b1", "b3"), 0b110), 3)
        assert names == ["b2", "b1", "b3"]


async def test_a_newcomer_without_a_cookie_is_lost() -> None:
    """An operator removed it. It is not offered its own slot before it registers anew."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        ensembles.told["b3"].set_result(None)
        await turns()
        assert owner.events == [SlotLost(2, 1)]
        lanes.choose(ChooseNewcomers(("b0", "b1", "b3"), 0b100), 3)
        assert ensembles.known[-1]["b3"] == "registered b3"


async def test_the_incarnation_of_a_newcomer_is_remembered() -> None:
    """Its lane means this incarnation, and with another one it may take its own slot again."""
    async with fake_pool() as pool:
        ensembles, owner = ScriptedEnsembles(), Owner()
        lanes = joined_lanes(pool, ensembles, owner)
        lanes.replace({2: "b3"}, [0, 0, 1], 0)
        ensembles.told["b3"].set_result("first")
        await turns()
        assert len(lane_of(pool, "b3", "first").users) == 1
        lanes.choose(ChooseNewcomers(("b0", "b1", "b3"), 0b100), 3)
        assert ensembles.known[-1]["b3"] == "first"


@pytest.mark.parametrize("changes", [0, 1, 7])
async def test_the_setting_limits_the_changes_of_a_writer(changes: int) -> None:
    """With 0 nobody is asked for newcomers at all."""
    async with fake_pool(ClientSettings(changes_per_minute_max=changes)) as pool:
        ensembles = ScriptedEnsembles()
        created, ledgers = Versioned(metadata_of(), 0), cast("LedgerManager", None)
        writer = WriterHandle(created, pool.pool, ledgers, UNNAMED, ensembles.ensembles)
        writer.start()
        append = pool.tasks.create_task(writer.append(b"a"))
        await turns()
        pool.lane(2).answer(Status.READ_ONLY)
        await turns()
        assert len(ensembles.known) == (1 if changes else 0)
        assert writer._machine.replacements.left == changes
        pool.lane(0).answer()
        pool.lane(1).answer()
        assert await append == 0
        writer.abandon()

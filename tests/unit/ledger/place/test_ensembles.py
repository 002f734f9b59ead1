"""The bookies that a client may choose, and their incarnations, with a scripted store."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest

from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.registration_record import Registration
from bookie.errors import BookieError, FormatError, MetadataUnavailableError
from bookie.ledger.place import ANYWHERE, Placement
from bookie.ledger.place import ensembles as module
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.place.placement_view import PlacementView
from bookie.ledger.quorum import Quorum
from bookie.metadata.versioned import Versioned


class ScriptedDirectory:
    """Bookies b0 … b4, which have the incarnation "one"."""

    def __init__(self) -> None:
        self.registered = {f"b{n}": Registration(f"b{n}", (), incarnation="one") for n in range(5)}
        self.arrived: Counter[str] = Counter()

    def bookies(self) -> dict[str, Registration]:
        return self.registered

    def all(self) -> dict[str, Registration]:
        return self.registered

    def incarnation(self, bookie_id: str) -> str:
        return self.registered[bookie_id].incarnation

    def arrivals(self, bookie_id: str) -> int:
        return self.arrived[bookie_id]


class ScriptedCookies:
    """Cookies, and errors that come before them."""

    def __init__(self) -> None:
        self.incarnations = {f"b{n}": "one" for n in range(5)}
        self.errors: list[BookieError] = []

    async def read(self, bookie_id: str) -> Versioned[Cookie] | None:
        if self.errors:
            raise self.errors.pop(0)
        if bookie_id not in self.incarnations:
            return None
        incarnation = self.incarnations[bookie_id]
        cookie = Cookie(bookie_id, (), (), "", "", CookieState.READY, incarnation)
        return Versioned(cookie, 0)


class Anywhere:
    """No policy."""

    def now(self) -> Placement:
        return ANYWHERE


class Stage:
    """The bookies of one client, and what they stand on."""

    def __init__(self) -> None:
        self.directory, self.cookies = ScriptedDirectory(), ScriptedCookies()
        self.ensembles = Ensembles(
            cast("BookieDirectory", self.directory),
            cast("PlacementView", Anywhere()),
            cast("CookieManager", self.cookies),
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_who_lost_its_cookie_since_is_another(stage: Stage) -> None:
    """A removed cookie and another incarnation both say that the bookie was not kept."""
    learnt = await stage.ensembles.incarnations(["b0", "b1", "b2"])
    assert await stage.ensembles.lost_since(learnt) == set()
    del stage.cookies.incarnations["b1"]
    stage.cookies.incarnations["b2"] = "two"
    assert await stage.ensembles.lost_since(learnt) == {"b1", "b2"}
    assert await stage.ensembles.lost_since({"b1": ""}) == set(), "it had none: nothing is compared"


async def test_a_newcomer_without_a_readable_cookie_is_nobody(stage: Stage) -> None:
    """Removed, or damaged."""
    assert await stage.ensembles.incarnation_of_newcomer("b3") == "one"
    del stage.cookies.incarnations["b3"]
    assert await stage.ensembles.incarnation_of_newcomer("b3") is None
    stage.cookies.errors = [FormatError("garbage")]
    assert await stage.ensembles.incarnation_of_newcomer("b4") is None


async def test_a_newcomer_is_asked_for_until_the_store_answers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away says nothing about the bookie: the question is repeated."""
    monkeypatch.setattr(module, "_REREAD_SECONDS_MIN", 0.001)
    stage.cookies.errors = [MetadataUnavailableError("away")] * 3
    assert await stage.ensembles.incarnation_of_newcomer("b3") == "one"
    assert not stage.cookies.errors


async def test_nobody_in_quarantine_is_chosen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is for new ledgers and for slots. It ends with time, or when the bookie registers."""
    ensembles = stage.ensembles
    ensembles.quarantine.put("b3")
    assert ensembles.quarantine.members() == {"b3"}
    assert ensembles.newcomers(("b0", "b1", "b2"), [0, 1], 3).keys() <= {0, 1}
    assert set(ensembles.newcomers(("b0", "b1", "b2"), [0, 1], 3).values()) == {"b4"}
    assert set(ensembles.choose(Quorum(4, 3, 2), allow_degraded=False)) == {"b0", "b1", "b2", "b4"}
    stage.directory.arrived["b3"] += 1
    assert ensembles.quarantine.members() == set()
    monkeypatch.setattr(module, "QUARANTINE_SECONDS", 0.0)
    ensembles.quarantine.put("b3")
    await asyncio.sleep(0)
    assert ensembles.quarantine.members() == set()


async def test_a_renewed_bookie_may_take_its_own_slot_again(stage: Stage) -> None:
    """It needs another incarnation than the writer knows. Spares come first."""
    ensembles = stage.ensembles
    everybody = tuple(stage.directory.registered)

    def found(known: dict[str, str]) -> dict[int, str]:
        return ensembles.newcomers_or_renewed(everybody, 0b100, 3, known)

    assert found({"b2": "one"}) == {}
    assert found({"b2": "older"}) == {2: "b2"}
    assert found({}) == {}, "nobody knows whether it is another one"
    spare = ensembles.newcomers_or_renewed(("b0", "b1", "b2"), 0b100, 3, {"b2": "older"})
    assert spare[2] in {"b3", "b4"}

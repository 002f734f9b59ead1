"""Repair against everything that may happen meanwhile, in all orders that small worlds allow.

Auditor, replicator, reclaimer and rebalance are the product's own code (`repair_doors`). Most
worlds are seen whole; the others are cut after `Scope.transitions`, and in a soak after many times
as many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bookie.errors import BadVersionError
from tests.explorer.explored_repair import LOCK, MARK
from tests.explorer.explorer import searched
from tests.explorer.repair_doors import begin_of
from tests.explorer.repair_scopes import REPAIR_SCOPES
from tests.explorer.replayed import Answer, Ended, Question, Raised, View, Work
from tests.sim.summary import PROPERTY

pytestmark = pytest.mark.model

SOAK = 25
"""A soak takes so many times as many transitions."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Workers tell in the log of each repair that fails."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", REPAIR_SCOPES)
def test_no_order_breaks_a_rule_of_repair(
    name: str, is_soak: bool, record_property: Callable[[str, object], None]
) -> None:
    scope = REPAIR_SCOPES[name]
    most = scope.transitions
    if is_soak:
        most *= SOAK
        scope = replace(scope, shows=(*scope.shows, *scope.shows_in_a_soak))
    record_property(PROPERTY, f"explorer, {name}: {searched(scope, most)}")


SEEN = View((("b1", "i0"),))


def test_equal_answers_lead_to_the_same_question() -> None:
    """And what the code has not looked at makes no difference."""
    work = Work(begin_of("repair", "r1"))
    first = work.begin(SEEN)
    assert work.begin(View(())) == first, "nothing was asked about the registrations"
    asked = work.at(first)
    assert isinstance(asked, Question)
    assert asked.about == (MARK,)
    unlocked = work.after(first, Answer(None, SEEN))
    assert work.after(first, Answer(None, View(()))) == unlocked
    locking = work.at(unlocked)
    assert isinstance(locking, Question)
    assert locking.about == (LOCK,)
    ended = work.at(work.after(unlocked, Answer(None, SEEN)))
    assert isinstance(ended, Ended), "there is no mark, so nothing to do"


def test_an_error_is_an_answer() -> None:
    work = Work(begin_of("exchange", "b0>b1"))
    node = work.after(work.begin(SEEN), Answer(Raised(BadVersionError), SEEN))
    ended = work.at(node)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, BadVersionError)

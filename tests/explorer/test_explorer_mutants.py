"""The explorer bites: machines with one broken rule are caught within a scope's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write.writer import LedgerWriter
from tests.explorer.explored_world import Scope
from tests.explorer.explorer import FoundError, explore
from tests.property.ledger import test_protocol_mutants as broken
from tests.sim.summary import PROPERTY

pytestmark = pytest.mark.model

TRANSITIONS_MAX = 60_000


def _writer(machine: type[LedgerWriter], entries: int = 1, silences: int = 0) -> Scope:
    """One change of the ensemble, without recoverers."""
    return Scope(
        writer=machine,
        entries=entries,
        spares=1,
        changes=1,
        timers=1,
        silences=silences,
        recoverers=0,
    )


def _recovery(
    machine: type[LedgerRecovery],
    entries: int = 1,
    spares: int = 1,
    wipes: int = 0,
    recoverers: int = 1,
) -> Scope:
    """One change of the ensemble by recovery."""
    return Scope(
        sizes=(2, 2, 2),
        recovery=machine,
        entries=entries,
        spares=spares,
        drops=1,
        wipes=wipes,
        recoverers=recoverers,
    )


CASES = [
    Scope(recovery=broken.OneDenialIsEnough),
    Scope(recovery=broken.SilenceIsDenial, drops=2),
    Scope(sizes=(2, 2, 2), recovery=broken.ReadsWithoutFence),
    Scope(recovery=broken.CoverageOfOne),
    Scope(recovery=broken.DoesNotStoreAgain),
    Scope(recovery=broken.LooksNoFurther),
    _recovery(broken.PublishesNoTail),
    _recovery(broken.KeepsAcksAcrossItsChange, spares=2),
    _recovery(broken.TrustsItsNewcomers, wipes=1),
    replace(_recovery(broken.ReadsItsNewEnsemble, entries=2), short_reads=True),
    _recovery(broken.PublishesBeforeItCloses, recoverers=2),
    _recovery(broken.StartsAtTheLac, entries=2),
    Scope(writer=broken.AcksOneShort),
    Scope(writer=broken.IgnoresFences),
    Scope(writer=broken.TellsLacTooEarly, entries=2),
    Scope(writer=broken.ConfirmsOutOfOrder, sizes=(3, 2, 2), entries=2),
    Scope(writer=broken.CountsVoidAcks, wipes=1),
    _writer(broken.CountsReplacedBookies),
    _writer(broken.KeepsAcksAcrossTheChange),
    _writer(broken.HearsFormerEpochs),
    _writer(broken.BeginsAtTheLac, entries=2),
    replace(_writer(broken.BeginsTooLate, entries=2), sizes=(2, 2, 2)),
    _writer(broken.TakesSilenceForFailure, silences=1),
    _writer(broken.ProposesAnother, silences=1),
]


def name_of(scope: Scope) -> str:
    machines: list[type] = [scope.writer, scope.recovery]
    return next(m.__name__ for m in machines if m not in (LedgerWriter, LedgerRecovery))


@pytest.mark.parametrize("scope", CASES, ids=name_of)
def test_a_broken_rule_is_found(
    scope: Scope, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(FoundError) as caught:
        explore(scope, TRANSITIONS_MAX)
    found = caught.value
    line = f"explorer, {name_of(scope)}: caught after {found.transitions} transitions: {found.rule}"
    record_property(PROPERTY, line)


def test_a_search_by_breadth_finds_a_shortest_way() -> None:
    scope = _writer(broken.CountsReplacedBookies)
    with pytest.raises(FoundError) as deep:
        explore(scope, TRANSITIONS_MAX)
    with pytest.raises(FoundError) as wide:
        explore(scope, TRANSITIONS_MAX, breadth=True)
    assert len(wide.value.trace) <= len(deep.value.trace)
    assert wide.value.trace[0] == ("append",)

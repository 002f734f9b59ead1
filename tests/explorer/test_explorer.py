"""Every life of a small cluster: the machines are tried in all orders that each scope allows.

A search ends when all states are seen, or when its transitions are spent. Together the scopes may
take BOOKIE_TEST_EXPLORER_TRANSITIONS, by default some 350 000, and 16 million in a soak.
The end of the run prints for each scope how many states there were, and how often interesting
things came up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write.delivery import Delivery
from bookie.ledger.write.ensemble_change import Replacements
from bookie.ledger.write.ownership import LedgerOwnership
from bookie.ledger.write.pacing import PacedSlot, Pacing
from bookie.ledger.write.pending import BatchWindow
from bookie.ledger.write.slots import Slots
from bookie.ledger.write.writer import LedgerWriter
from tests.explorer.explored_machines import FIELDS
from tests.explorer.explored_state import ExploredState
from tests.explorer.explored_world import Scope
from tests.explorer.explorer import explore, orbit_of, searched
from tests.sim.summary import PROPERTY

pytestmark = pytest.mark.model

TRANSITIONS_OF_A_SOAK = 16_000_000
"""The share of a small scope is not used up: some 6 million are taken."""

_CHANGED = ("change by the writer committed",)
_RECOVERED = ("closed by recovery", "entry stored again", "add refused after a fence")
_RECOVERY_CHANGED = (*_RECOVERED, "change by recovery committed")

SCOPES = {
    "one recoverer": Scope(shows=_RECOVERED, transitions=75_000),
    "one recoverer, 2/2/2, a lost answer": Scope(sizes=(2, 2, 2), drops=1, shows=_RECOVERED),
    "two recoverers, 2/2/2": Scope(
        sizes=(2, 2, 2), recoverers=2, shows=(*_RECOVERED, "conflict of recovery")
    ),
    "two recoverers, 3/3/2": Scope(recoverers=2, shows=(*_RECOVERED, "conflict of recovery")),
    "change by the writer, store silent": Scope(
        spares=1,
        changes=1,
        timers=1,
        silences=1,
        recoverers=0,
        entries=2,
        transitions=35_000,
        shows=(
            *_CHANGED,
            "lost compare-and-set found done",
            "late compare-and-set done",
            "acknowledged during a change",
            "OK of a former bookie",
        ),
    ),
    "change by the writer against a recoverer": Scope(
        spares=1,
        changes=1,
        timers=1,
        silences=1,
        transitions=35_000,
        shows=(*_CHANGED, *_RECOVERED, "change by the writer found the ledger taken"),
    ),
    "wiped bookie, one recoverer": Scope(
        wipes=1, shows=(*_RECOVERED, "writer told of a loss", "fence answered in limbo")
    ),
    "wiped bookie, change by the writer": Scope(
        wipes=1,
        changes=1,
        spares=1,
        recoverers=0,
        entries=2,
        shows=(*_CHANGED, "writer told of a loss", "its own successor"),
    ),
    "change by recovery": Scope(sizes=(2, 2, 2), spares=1, drops=1, shows=_RECOVERY_CHANGED),
    "change by recovery, wiped bookie": Scope(
        sizes=(2, 2, 2),
        spares=1,
        drops=1,
        wipes=1,
        transitions=30_000,
        shows=(*_RECOVERY_CHANGED, "newcomers lost"),
    ),
    "change by recovery, 3/3/2, two entries": Scope(
        spares=1,
        entries=2,
        drops=2,
        shows=_RECOVERED,
    ),
    "change by recovery, short reads": Scope(
        sizes=(2, 2, 2), spares=1, entries=2, drops=1, short_reads=True, shows=_RECOVERY_CHANGED
    ),
    "striped, two entries": Scope(sizes=(3, 2, 2), entries=2, shows=_RECOVERED),
    "the writer closes, a stream breaks": Scope(
        sizes=(2, 2, 2), breaks=1, copies=1, closes=True, shows=("closed by the writer",)
    ),
    "a bookie holds the writer to a rate": Scope(
        sizes=(2, 2, 2),
        spares=1,
        changes=1,
        timers=1,
        limited=2,
        entries=2,
        recoverers=0,
        transitions=12_000,
        shows=("paced", "no longer paced", *_CHANGED),
    ),
    "a recoverer dies, another follows": Scope(
        sizes=(2, 2, 2), spares=1, recoverers=2, crashes=1, drops=1, shows=_RECOVERY_CHANGED
    ),
    "all at once": Scope(
        spares=1,
        entries=2,
        recoverers=2,
        changes=1,
        breaks=1,
        drops=1,
        silences=1,
        timers=1,
        wipes=1,
        crashes=1,
        shows=("closed by recovery", "writer told of a loss"),
    ),
}


def transitions_of(scope: Scope, *, is_soak: bool) -> int:
    """The scope's share of what all may take."""
    usual = sum(one.transitions for one in SCOPES.values())
    in_all = os.environ.get("BOOKIE_TEST_EXPLORER_TRANSITIONS")
    total = int(in_all) if in_all else TRANSITIONS_OF_A_SOAK if is_soak else usual
    return total * scope.transitions // usual


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCOPES)
def test_no_order_of_events_breaks_a_rule(
    name: str, is_soak: bool, record_property: Callable[[str, object], None]
) -> None:
    scope = SCOPES[name]
    most = transitions_of(scope, is_soak=is_soak)
    record_property(PROPERTY, f"explorer, {name}: {searched(scope, most)}")


def test_copies_and_keys_know_every_attribute() -> None:
    """A new attribute of a machine must be copied, and be in the key, before this may pass."""
    state = ExploredState(Scope())
    writer = state.writer
    recovery = LedgerRecovery(state.store.metadata, 0)
    parts = [writer, writer.delivery, writer.window, writer.slots, writer.ownership]
    for part in [*parts, writer.replacements, writer.delivery.pacing, recovery]:
        assert set(vars(part)) == FIELDS[type(part).__name__], type(part).__name__
    assert {one.name for one in fields(PacedSlot)} == FIELDS["PacedSlot"]
    classes = (Delivery, BatchWindow, Slots, LedgerOwnership, Replacements, Pacing, PacedSlot)
    known = {kind.__name__ for kind in (*classes, LedgerWriter, LedgerRecovery)}
    assert known == FIELDS.keys()


@pytest.mark.parametrize("name", ["one recoverer, 2/2/2, a lost answer", "change by recovery"])
def test_symmetry_leaves_nothing_out(name: str) -> None:
    """Without the reduction, every state is one of those seen with it, under other names."""
    orbits: list[set[frozenset[int]]] = [set(), set()]
    for reduces, seen in zip((False, True), orbits, strict=True):
        scope = replace(SCOPES[name], reduces=reduces)

        def visit(state: ExploredState, seen: set[frozenset[int]] = seen) -> None:
            seen.add(orbit_of(state))

        assert explore(scope, 100_000, visit=visit).is_complete
    assert orbits[0] == orbits[1]

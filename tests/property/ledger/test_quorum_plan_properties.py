"""Another write quorum of any closed ledger: who owes an entry by the new metadata owns it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bookie.ledger.copies.quorum_plan import (
    check_write_quorum,
    classes_of,
    slot_duties,
    with_write_quorum,
)
from bookie.ledger.copies.replica_plan import (
    count_of,
    duties,
    intersection,
    quorum_of,
    runs_by_residue,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState

SIZE_MAX = 7
NAMES = [f"b{number}" for number in range(12)]


@st.composite
def _ledgers(draw: st.DrawFn) -> LedgerMetadata:
    """Closed ledgers; also empty ones, and with fragments that begin behind the end."""
    ensemble = draw(st.integers(1, SIZE_MAX))
    write = draw(st.integers(1, ensemble))
    ack = draw(st.integers(0, write))
    last = draw(st.integers(-1, 40))
    starts = sorted(draw(st.sets(st.integers(1, 45), max_size=4)))
    choose = random.Random(draw(st.integers(0, 1000)))
    fragments = tuple(
        Fragment(first, tuple(choose.sample(NAMES, ensemble))) for first in [0, *starts]
    )
    return LedgerMetadata(
        7,
        ensemble,
        write,
        ack,
        LedgerState.CLOSED,
        fragments,
        last_entry_id=last,
        length=last + 1,
    )


def _changed(draw: st.DataObject, old: LedgerMetadata) -> LedgerMetadata:
    write = draw.draw(st.integers(max(1, old.ack_quorum_size), SIZE_MAX + 2))
    check_write_quorum(old, write)
    grown = max(0, write - old.ensemble_size)
    newcomers = {
        one.first_entry_id: [name for name in NAMES if name not in one.bookies][:grown]
        for one in old.fragments
    }
    return with_write_quorum(old, write, newcomers)


def _members(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    bookies = metadata.fragment_of(entry_id).bookies
    return [bookies[slot] for slot in quorum_of(metadata).write_set(entry_id)]


@given(_ledgers(), st.data())
def test_each_entry_is_on_its_new_write_set(old: LedgerMetadata, data: st.DataObject) -> None:
    """After the plan: what a bookie had by the old layout, and what the plan gives to it."""
    new = _changed(data, old)
    owned = {
        (name, entry_id)
        for entry_id in range(old.last_entry_id + 1)
        for name in _members(old, entry_id)
    }
    for duty in slot_duties(old, new):
        added = duty.added(duty.first_entry_id, duty.last_entry_id)
        whole = duty.owed(duty.first_entry_id, duty.last_entry_id)
        assert intersection(whole, added) == added
        given_ids = {one for first, last in added for one in range(first, last + 1)}
        assert not {(duty.bookie_id, one) for one in given_ids} & owned, "copied in vain"
        owned |= {(duty.bookie_id, one) for one in given_ids}
        # Each run of a copy has one write set, by the layout of the sources.
        runs = list(runs_by_residue(classes_of(old), added))
        covered: list[int] = []
        for run, first, last in runs:
            ids = [one for one in range(first, last + 1) if run.contains(one)]
            assert len({frozenset(_members(old, one)) for one in ids}) == 1
            covered += ids
        assert sorted(covered) == sorted(given_ids)
    for entry_id in range(old.last_entry_id + 1):
        members = _members(new, entry_id)
        assert len(set(members)) == new.write_quorum_size
        for name in members:
            assert (name, entry_id) in owned, f"{name} lacks entry {entry_id}"


@given(_ledgers(), st.data())
def test_the_duties_of_the_plan_are_those_of_the_metadata(
    old: LedgerMetadata, data: st.DataObject
) -> None:
    """The plan's slots owe what an audit of the new metadata asks for."""
    new = _changed(data, old)
    everything = [(0, max(0, old.last_entry_id))]
    planned: dict[str, int] = {}
    for duty in slot_duties(old, new):
        owed = count_of(duty.owed(duty.first_entry_id, duty.last_entry_id))
        planned[duty.bookie_id] = planned.get(duty.bookie_id, 0) + owed
    for name, count in planned.items():
        wanted = duties(new, name, everything) if old.last_entry_id >= 0 else []
        assert count == count_of(wanted)


@given(_ledgers(), st.data())
def test_a_former_reader_finds_a_copy_and_no_proof_of_absence(
    old: LedgerMetadata, data: st.DataObject
) -> None:
    """Even if the members that are none any more have removed their copies."""
    new = _changed(data, old)
    assert new.fragments[0].bookies[: old.ensemble_size] == old.fragments[0].bookies
    needed = quorum_of(old).negatives_needed
    for entry_id in range(old.last_entry_id + 1):
        before, after = _members(old, entry_id), set(_members(new, entry_id))
        assert after.intersection(before)
        assert len([name for name in before if name not in after]) < needed

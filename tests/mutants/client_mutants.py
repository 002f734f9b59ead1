"""Bugs of what a client does with ledgers, where the models of `property` do not look."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPAIR = "tests/unit/ledger/copies/test_replica_repair.py::test_"
MOVE = "tests/unit/ledger/copies/test_replica_move.py::test_"
SERVICE = "tests/unit/repair/test_repair_service.py::test_"
ABSENCE = "tests/unit/repair/test_absence.py::test_"
MOVING = "bookie/ledger/copies/replica_move.py"

CLIENT_MUTANTS = (
    Mutant(
        "a repair stores under any incarnation",
        "bookie/ledger/copies/entry_copier.py",
        ".recovery(await self._incarnations.of(target))",
        '.recovery("")',
        (f"{REPAIR}a_bookie_of_another_incarnation_is_given_nothing",),
        "A repair is told as done, and a bookie that is being replaced had its entries.",
    ),
    Mutant(
        "a swap does not check the newcomer's cookie",
        MOVING,
        "await client.ledgers.write(swapped, found.version, conditions)",
        "await client.ledgers.write(swapped, found.version)",
        (f"{MOVE}a_newcomer_may_lose_its_data_in_the_last_moment",),
        "The metadata names a bookie that lost the copies which it had just taken.",
    ),
    Mutant(
        "a swap takes any incarnation of the newcomer",
        MOVING,
        "if cookie is None or cookie.value.incarnation != incarnation:",
        "if cookie is None:",
        (f"{MOVE}a_newcomer_that_lost_its_data_is_not_named",),
        "The metadata names a bookie that lost the copies which it had just taken.",
    ),
    Mutant(
        "a swap overwrites the metadata that it read first",
        MOVING,
        "swapped = with_newcomers(found.value, fragment.first_entry_id, newcomers)",
        "swapped = with_newcomers(metadata, fragment.first_entry_id, newcomers)",
        (f"{MOVE}a_change_of_the_ledger_meanwhile_is_kept",),
        "What another client wrote into the metadata meanwhile is lost.",
    ),
    Mutant(
        "a swap does not look whether the fragment has moved",
        MOVING,
        "if (fragment, last) not in settled_fragments(found.value):",
        "if False:",
        (f"{MOVE}the_second_of_two_movers_changes_nothing",),
        "Two movers undo each other's work, for ever.",
    ),
    Mutant(
        "a swap trusts the copy without the newcomer's listing",
        MOVING,
        "if lacking := count_of(difference(owed, stored)):",
        "if lacking := 0:",
        (f"{MOVE}a_newcomer_without_all_entries_is_not_named",),
        "The metadata names a bookie that lacks entries.",
    ),
    Mutant(
        "the last fragment of an open ledger counts as settled",
        "bookie/ledger/copies/replica_plan.py",
        "        elif following is not None:\n            yield fragment, last\n",
        "        else:\n            yield fragment, last\n",
        (f"{MOVE}the_last_fragment_of_an_open_ledger_stays",),
        "A repair takes a bookie out of a ledger under its writer, which ends.",
    ),
    Mutant(
        "a mark goes although a repair failed",
        "bookie/repair/replicator.py",
        "failed = [one for one in outcomes if not one.is_whole]",
        "failed = [one for one in outcomes if False]",
        (f"{SERVICE}without_a_spare_the_reason_is_recorded",),
        "A ledger without all its copies looks whole.",
    ),
    Mutant(
        "a split of the network counts as many lost bookies",
        "bookie/repair/absence.py",
        "if len(away.intersection(known)) > share_max * len(known):",
        "if False:",
        (f"{ABSENCE}nobody_is_lost_during_a_split",),
        "Half of the cluster copies all that the other half has.",
    ),
    Mutant(
        "a leaving bookie is no source",
        "bookie/ledger/copies/entry_copier.py",
        "return [name for name in dict.fromkeys(others) if name != self.target]",
        "return [name for name in dict.fromkeys(others) if name != self.target][1:]",
        (f"{SERVICE}a_leaving_bookie_serves_as_a_source",),
        "The only copy of a ledger cannot leave its bookie.",
    ),
    Mutant(
        "a bookie does not ask for what it cannot read",
        "bookie/node/integrity_check.py",
        "is_suspect = state.limbo or (bool(self._damage) and ledger_id not in self._read)",
        "is_suspect = state.limbo",
        (f"{SERVICE}entries_that_cannot_be_read_come_back",),
        "Damage stays until a reader meets it.",
    ),
)

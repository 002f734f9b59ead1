"""Bugs of what a client does with ledgers, where the models of `property` do not look."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REPAIR = "tests/unit/ledger/copies/test_replica_repair.py::test_"

CLIENT_MUTANTS = (
    Mutant(
        "a repair stores under any incarnation",
        "bookie/ledger/copies/replica_repair.py",
        ".recovery(await self._incarnations.of(bookie_id))",
        '.recovery("")',
        (f"{REPAIR}a_bookie_of_another_incarnation_is_given_nothing",),
        "A repair is told as done, and a bookie that is being replaced had its entries.",
    ),
)

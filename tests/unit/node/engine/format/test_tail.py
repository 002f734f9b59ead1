"""Torn or corrupt: the table covers every combination, once."""

from __future__ import annotations

from itertools import product

import pytest

from bookie.node.engine.format.tail import (
    TAIL_RULES,
    TailEvidence,
    Verdict,
    evaluate,
    gather_evidence,
)

COMBINATIONS = [TailEvidence(*answers) for answers in product((False, True), repeat=4)]


@pytest.mark.parametrize("evidence", COMBINATIONS)
def test_exactly_one_row_decides(evidence: TailEvidence) -> None:
    """Every combination of the witnesses has one row; any witness at all means corruption."""
    rows = [rule for rule in TAIL_RULES if rule.matches(evidence)]
    assert len(rows) == 1
    assert evaluate(evidence) is rows[0]
    assert rows[0].because
    any_witness = (
        evidence.mark_beyond
        or evidence.later_block_durable_beyond
        or evidence.successor_says_ended_beyond
        or evidence.left_by_no_crash
    )
    assert rows[0].verdict is (Verdict.CORRUPT if any_witness else Verdict.TORN)


def test_every_row_decides_something() -> None:
    """No row is dead."""
    assert {evaluate(evidence).because for evidence in COMBINATIONS} == {
        rule.because for rule in TAIL_RULES
    }


@pytest.mark.parametrize(
    ("mark", "later", "successor"), list(product((None, 999, 1000, 1001), repeat=3))
)
def test_only_offsets_above_the_block_are_evidence(
    mark: int | None, later: int | None, successor: int | None
) -> None:
    """A witness that ends exactly where the bad block starts knows nothing of it."""
    evidence = gather_evidence(
        1000,
        mark_offset=mark,
        later_durable_upto=later,
        successor_end=successor,
        left_by_no_crash=False,
    )
    assert evidence == TailEvidence(mark == 1001, later == 1001, successor == 1001, False)

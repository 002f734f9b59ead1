"""The corruption matrix on a real bookie: every cell comes to what the table says, every time.

And never, whatever the cell: wrong bytes, a fence that is forgotten, an exception that is not ours,
a process that dies or hangs, or a second or third start that comes to something worse.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.cells import Cell, all_cells
from tests.matrix.document import DOCUMENT, rendered
from tests.matrix.pool import Answer, run_all
from tests.matrix.table import RULES, Outcome, rule_for

CELLS = list(all_cells())

pytestmark = pytest.mark.timeout(1800)
"""The first test waits for all cells."""


def case_of(number: int, cell: Cell) -> Answer:
    """Two starts, and three for every sixteenth cell: what the second leaves is started on, too."""
    return {"cell": [cell.thing, cell.place, cell.damage], "starts": 3 if number % 16 == 0 else 2}


@pytest.fixture(name="answers", scope="module")
def _answers(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Answer]:
    cases = [case_of(number, cell) for number, cell in enumerate(CELLS)]
    return dict(zip(CELLS, run_all(cases, tmp_path_factory.mktemp("matrix")), strict=True))


def outcome_of(finding: Answer) -> Outcome:
    """What one start came to."""
    if finding["refused"]:
        return Outcome.REFUSE
    if finding["rebuilt"]:
        return Outcome.REBUILD
    if finding["integrity"]:
        return Outcome.INTEGRITY
    if finding["caught_by_digest"]:
        return Outcome.DIGEST
    if finding["denied"] or finding["undeleted"]:
        return Outcome.TRUNCATE
    return Outcome.IO_ERROR if finding["errors"] else Outcome.SERVE


def findings_of(answer: Answer) -> list[Answer]:
    """What each start came to."""
    findings = answer["findings"]
    assert isinstance(findings, list)
    return findings


def after(outcome: Outcome) -> Outcome:
    """What a later start comes to: an index is rebuilt once, the doubt stays."""
    return Outcome.INTEGRITY if outcome is Outcome.REBUILD else outcome


def check_promises(cell: Cell, finding: Answer, outcome: Outcome) -> None:
    """What is promised whatever the outcome, and what this outcome allows."""
    denied, wrong = finding["denied"], finding["wrong"]
    assert wrong == []
    # Of a recovery add that is lost the entry's first copy is left, which was acknowledged, too.
    assert finding["old_bytes"] == 0 or cell.thing == "recovery"
    if outcome is Outcome.TRUNCATE:
        # Only what the last block said, which nothing vouched for.
        assert isinstance(denied, list)
        assert all(f"ledger {cell.probe}" in promise for promise in denied)
    else:
        assert denied == []
    if outcome not in {Outcome.INTEGRITY, Outcome.REBUILD, Outcome.REFUSE}:
        assert outcome is Outcome.TRUNCATE or finding["undeleted"] == 0


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.thing}-{cell.place}-{cell.damage}")
def test_a_cell_comes_to_what_the_table_says(cell: Cell, answers: dict[Cell, Answer]) -> None:
    """At the first start and at the next ones; a refusal is the same sentence again."""
    answer = answers[cell]
    assert "findings" in answer, answer
    first, *later = findings_of(answer)
    expected = rule_for(cell).outcome
    assert outcome_of(first) is expected, first
    check_promises(cell, first, expected)
    for finding in later:
        assert outcome_of(finding) is after(expected), finding
        assert finding["refused"] == first["refused"]
        check_promises(cell, finding, after(expected))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.thing}-{cell.place}-{cell.damage}")
def test_exactly_one_rule_speaks_about_a_cell(cell: Cell) -> None:
    """The table has no holes and no contradictions."""
    assert len([rule for rule in RULES if rule.matches(cell)]) == 1


def test_every_rule_speaks_about_some_cell() -> None:
    """No row of the table is dead."""
    assert {rule_for(cell) for cell in CELLS} == set(RULES)


def test_the_document_is_the_table() -> None:
    """`python -m tests.matrix.document` writes it anew."""
    assert Path(DOCUMENT).read_text(encoding="utf-8") == rendered()

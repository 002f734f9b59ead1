"""The corruption matrix on a real bookie: every cell comes to what the table says, every time.

Some outcomes are wrong in every cell: wrong bytes, a forgotten fence, a foreign exception, a
process that dies or hangs. A second or third start must come to nothing worse.

The long run (``--hypothesis-profile=soak``) starts a bookie on every cell of the table. The others
take a sample, the same every time (`sample`). It has every two coordinates that meet in some cell,
and several cells of every rule.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.matrix.cells import Cell, all_cells
from tests.matrix.document import DOCUMENT, rendered
from tests.matrix.pool import Answer, run_all
from tests.matrix.table import RULES, Outcome, Rule, rule_for
from tests.sim.summary import PROPERTY

CELLS = list(all_cells())
CELLS_OF_A_RULE = 4
"""Or all that a rule has, if it has fewer."""

pytestmark = pytest.mark.timeout(1800)
"""The first test waits for all cells."""


def case_of(number: int, cell: Cell) -> Answer:
    """Two starts, and three for every sixteenth cell: each on what the one before has left."""
    return {"cell": [cell.thing, cell.place, cell.damage], "starts": 3 if number % 16 == 0 else 2}


def cells_of(config: pytest.Config) -> list[Cell]:
    """The cells that this run starts a bookie on."""
    soaking = config.getoption("hypothesis_profile", None) == "soak"
    return CELLS if soaking else sample()


def sample() -> list[Cell]:
    """Cells that together show each pair of coordinates, and each rule `CELLS_OF_A_RULE` times."""
    chosen: list[Cell] = []
    pairs: set[tuple[str, ...]] = set()
    rules: Counter[Rule] = Counter()
    for cell in random.Random(0).sample(CELLS, len(CELLS)):
        found = pairs_of(cell)
        rule = rule_for(cell)
        if found <= pairs and rules[rule] >= CELLS_OF_A_RULE:
            continue
        pairs |= found
        rules[rule] += 1
        chosen.append(cell)
    return sorted(chosen, key=CELLS.index)


def pairs_of(cell: Cell) -> set[tuple[str, ...]]:
    """Its coordinates, two at a time."""
    return {
        ("thing, damage", cell.thing, cell.damage),
        ("thing, place", cell.thing, cell.place),
        ("place, damage", cell.place, cell.damage),
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each cell of this run."""
    if "cell" in metafunc.fixturenames:
        cells = cells_of(metafunc.config)
        names = [f"{cell.thing}-{cell.place}-{cell.damage}" for cell in cells]
        metafunc.parametrize("cell", cells, ids=names)


@pytest.fixture(name="answers", scope="module")
def _answers(pytestconfig: pytest.Config) -> dict[Cell, Answer]:
    cells = cells_of(pytestconfig)
    cases = [case_of(number, cell) for number, cell in enumerate(cells)]
    return dict(zip(cells, run_all(cases), strict=True))


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


def test_one_rule_speaks_about_each_cell_and_each_rule_about_some() -> None:
    """Each cell stands in the table once and has one rule, and each rule has a cell."""
    assert len(set(CELLS)) == len(CELLS)
    found = {cell: [rule for rule in RULES if rule.matches(cell)] for cell in CELLS}
    assert [cell for cell, rules in found.items() if len(rules) != 1] == []
    assert {rule for rules in found.values() for rule in rules} == set(RULES)


def test_the_sample_leaves_out_no_rule_and_no_pair_of_coordinates() -> None:
    """The gate starts a bookie on these."""
    chosen = sample()
    assert len(set(chosen)) == len(chosen) < len(CELLS) / 2
    assert {pair for cell in chosen for pair in pairs_of(cell)} == {
        pair for cell in CELLS for pair in pairs_of(cell)
    }
    there, taken = (Counter(map(rule_for, cells)) for cells in (CELLS, chosen))
    assert {rule for rule in RULES if taken[rule] < min(CELLS_OF_A_RULE, there[rule])} == set()


def test_a_line_says_how_many_cells_were_started_and_how_often(
    answers: dict[Cell, Answer], request: pytest.FixtureRequest
) -> None:
    """At the end of the run, and what the table has them come to."""
    starts = [len(findings_of(answer)) for answer in answers.values() if "findings" in answer]
    assert len(starts) == len(answers)
    assert min(starts) >= 2
    seen = Counter(rule_for(cell).outcome.name for cell in answers)
    line = f"corruption matrix: {len(starts)} of {len(CELLS)} cells, {sum(starts)} starts"
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()))
    request.node.user_properties.append((PROPERTY, f"{line}: {outcomes}"))


def test_the_document_is_the_table() -> None:
    """`python -m tests.matrix.document` writes it anew."""
    assert Path(DOCUMENT).read_text(encoding="utf-8") == rendered()

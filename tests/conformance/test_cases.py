"""Every numbered behaviour is shown by a test, or it is written down why not."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.cases import CASES, NOT_OURS, cases_of, named_in, spans

_TESTS = Path(__file__).resolve().parents[1]


def test_every_case_is_shown_or_explained() -> None:
    """No case is forgotten, and no reason outlives the test that made it wrong."""
    shown: dict[int, list[str]] = {}
    for test, cases in named_in(_TESTS):
        for case in cases:
            shown.setdefault(case, []).append(test)
    excused = {case for numbers in NOT_OURS for case in numbers}
    assert spans(set(CASES) - shown.keys() - excused) == ""
    assert spans(shown.keys() - set(CASES)) == ""
    assert {case: shown[case] for case in excused & shown.keys()} == {}


def test_a_docstring_names_its_cases() -> None:
    """Single numbers, lists and spans are understood."""
    assert cases_of("Case 5.") == {5}
    assert cases_of("Something. Cases 5, 7-9, 12.") == {5, 7, 8, 9, 12}
    assert cases_of("Nothing.") == cases_of(None) == set()
    assert spans({1, 2, 3, 7}) == "1-3, 7"

"""Hundreds of random damages: the bookie starts, doubts, or refuses in one sentence.

Never a traceback, a dead or a hanging process, wrong bytes, or a second start that is worse. What
was durable may be unavailable and is never denied: behind the last entry of a killed bookie stand
blocks that vouch for it.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings

from tests.matrix.pool import Answer, run_all

CASES = 250
CASES_SOAK = 50_000


def problem_of(answer: Answer) -> str:
    """Why an answer is wrong; empty if it is right."""
    findings = answer.get("findings")
    if not isinstance(findings, list):
        return str(answer)
    for finding in findings:
        if finding["wrong"] or finding["denied"]:
            return str(finding)
        doubtful = finding["rebuilt"] or finding["integrity"] or finding["refused"]
        lost = finding["undeleted"] or finding["old_bytes"]
        if lost and not doubtful:
            return str(finding)
        if finding["refused"] != findings[0]["refused"]:
            return f"{findings[0]} and then {finding}"
    return ""


def kind_of(answer: Answer) -> str:
    """In one word what the first start came to."""
    first = answer["findings"][0]  # type: ignore[index]  # a list of findings
    for name in ("refused", "rebuilt", "integrity", "caught_by_digest", "errors"):
        if first[name]:
            return name
    return "served"


@pytest.mark.timeout(36_000)
def test_random_damage() -> None:
    """Each seed is a case that can be looked at by itself."""
    soaking = settings().max_examples > 1000
    cases: list[Answer] = [
        {"seed": n, "starts": 2} for n in range(CASES_SOAK if soaking else CASES)
    ]
    answers = run_all(cases)
    problems = {
        seed: (answer.get("words"), problem)
        for seed, answer in enumerate(answers)
        if (problem := problem_of(answer))
    }
    assert not problems, "\n".join(f"seed {seed}: {text}" for seed, text in problems.items())
    seen = Counter(map(kind_of, answers))
    print("random damage:", dict(seen))
    assert seen.keys() >= {
        "refused",
        "rebuilt",
        "integrity",
        "caught_by_digest",
        "errors",
        "served",
    }

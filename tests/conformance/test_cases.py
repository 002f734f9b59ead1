"""Every numbered behaviour is shown by a test, or it is written down why not."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.backends import BACKENDS
from tests.conformance.cases import (
    CASES,
    NOT_OURS,
    NOT_SHOWN,
    backends_of,
    cases_of,
    named_in,
    spans,
)

_TESTS = Path(__file__).resolve().parents[1]


def test_every_case_is_shown_or_explained() -> None:
    """Each case has a test or a reason on each backend, and each reason is still true."""
    shown: dict[str, set[int]] = {name: set() for name in BACKENDS}
    for _, backends, cases in named_in(_TESTS):
        for backend in backends:
            shown[backend] |= cases
    excused = {case for numbers in NOT_OURS for case in numbers}
    for backend, found in shown.items():
        reasons = excused | NOT_SHOWN[backend].keys()
        assert (backend, spans(set(CASES) - found - reasons)) == (backend, "")
        assert (backend, spans(found - set(CASES))) == (backend, "")
        assert (backend, spans(found & reasons)) == (backend, "")


def test_the_backends_of_a_test_are_known_by_its_file_and_what_it_asks_for() -> None:
    """A test of one backend, of those that can be cut off, of all."""
    assert backends_of(Path("interop/test_etcd_watches.py"), {"store"}) == {"etcd"}
    assert backends_of(Path("interop/test_zookeeper_lives.py"), {"store"}) == {"zk"}
    assert backends_of(Path("unit/test_metadata_local.py"), set()) == {"local"}
    cut_off = backends_of(Path("conformance/test_sessions.py"), {"new_cut_off_backend"})
    assert cut_off == {"memory", "etcd", "zk"}
    assert backends_of(Path("conformance/test_records.py"), {"store"}) == set(BACKENDS)
    assert backends_of(Path("unit/test_protocol_session.py"), set()) == set(BACKENDS)


def test_a_docstring_names_its_cases() -> None:
    """Single numbers, lists and spans are understood."""
    assert cases_of("Case 5.") == {5}
    assert cases_of("Something. Cases 5, 7-9, 12.") == {5, 7, 8, 9, 12}
    assert cases_of("Nothing.") == cases_of(None) == set()
    assert spans({1, 2, 3, 7}) == "1-3, 7"

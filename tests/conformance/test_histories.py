"""Histories of clients under faults on every backend go through the checker of histories."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.backends import Backend, Difference
from tests.histories.checker import check
from tests.histories.history import Acquisition, Drawn, Effect, Outcome, Read, Watched, Write
from tests.histories.late_versions import check_late_versions
from tests.histories.workload import Faults, record_history


@pytest.mark.parametrize("seed", range(3))
async def test_histories_under_faults_are_good(backend: Backend, seed: int) -> None:
    """Case 159: see `tests.histories.checker` for the rules."""
    faults = Faults(
        backend.expire,
        backend.disconnect if backend.can_disconnect else None,
        backend.reconnect if backend.can_disconnect else None,
    )

    history, struck = await record_history(
        lambda: backend.open(session_timeout_seconds=5.0),
        faults,
        seed,
        is_current=backend.name != "zk",
        splits=backend.differs(Difference.COMMITS_SPLIT),
    )
    late = backend.differs(Difference.LATE_VERSIONS)
    assert "\n".join((check_late_versions if late else check)(history)) == ""
    kinds = Counter(type(entry) for entry in history)
    assert min(kinds[kind] for kind in (Write, Read, Acquisition, Effect, Drawn)) >= 10
    assert kinds[Watched] == 3
    outcomes = Counter(entry.outcome for entry in history if isinstance(entry, Write))
    assert outcomes[Outcome.CONFLICT] >= 3
    assert struck["expiry"] >= 1

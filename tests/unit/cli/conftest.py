"""What tests of commands share."""

from __future__ import annotations

import pytest

from tests.unit.cli.cli_store import new_uri


@pytest.fixture
def uri(monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store, which the environment names."""
    uri = new_uri()
    monkeypatch.setenv("BOOKIE_METADATA", uri)
    return uri

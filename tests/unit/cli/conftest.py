"""Fixtures for the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.cli_store import new_uri
from tests.unit.cli.command_process import CommandProcess, running_command_process


@pytest.fixture
def uri(monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store, which the environment names."""
    uri = new_uri()
    monkeypatch.setenv("BOOKIE_METADATA", uri)
    return uri


@pytest.fixture(scope="session")
def command_process() -> Iterator[CommandProcess]:
    """A process for commands on real clusters."""
    with running_command_process() as process:
        yield process

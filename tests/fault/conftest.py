"""A bookie to start as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.daemon_process import Home, new_home


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """A bookie that has never run."""
    return await new_home(tmp_path)

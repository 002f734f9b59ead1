"""A bookie to abuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.abuse.target import Target, target_in


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    """A bookie with the settings by default."""
    async with target_in(tmp_path) as target:
        yield target

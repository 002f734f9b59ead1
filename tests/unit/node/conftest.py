"""A bookie for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.node.node_room import Room, serving
from tests.unit.storage.machine import Machine


@pytest.fixture(name="room")
async def _room(tmp_path: Path) -> AsyncIterator[Room]:
    async with serving(Machine(tmp_path / "m")) as room:
        yield room

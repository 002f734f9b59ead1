"""A machine and an engine on it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.node.engine.engine import Engine
from tests.unit.node.engine.machine import Machine


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="engine")
async def _engine(machine: Machine) -> AsyncIterator[Engine]:
    async with machine.engine() as engine:
        yield engine

"""What tests of real file systems share: a namespace for their mounts, and devices in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.devices import MIB, enter_private_mounts, memory

RAM_BYTES_MAX = 3072 * MIB


@pytest.fixture(scope="session", autouse=True)
def _private_mounts() -> None:
    """Once for all tests of this directory: no mount of theirs is seen outside, or outlives it."""
    enter_private_mounts()


@pytest.fixture(name="ram")
def _ram(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory for the images of devices."""
    with memory(tmp_path / "ram", RAM_BYTES_MAX) as path:
        yield path

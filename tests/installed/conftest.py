"""The environments that all tests of installed packages share, made at first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.installed.environments import built_wheel, installed


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel."""
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and nothing else that was asked for."""
    return installed(wheel, tmp_path_factory.mktemp("plain") / "venv")


@pytest.fixture(scope="session")
def with_spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel with `[spark]`."""
    return installed(wheel, tmp_path_factory.mktemp("spark") / "venv", "spark")

"""The environments that all tests of installed packages share, made at first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.installed.environments import built_wheel, installed

SECONDS_MAX = 1800
"""Of a test, with the environments that it is the first to need."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests time: half a gigabyte comes through a slow network."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


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

"""What simulations share: quiet logs, and figures for the summary of a run (`summary.py`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.sim.summary import IMAGES, PROPERTY


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of engines die in here, and each would say so."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line at the end of the run, whatever was captured and whichever process ran it."""

    def note(line: str) -> None:
        request.node.user_properties.append((PROPERTY, line))

    return note


@pytest.fixture
def count_images(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Count so many crash images to the total that is printed at the end of the run."""

    def count(images: int) -> None:
        request.node.user_properties.append((IMAGES, images))

    return count

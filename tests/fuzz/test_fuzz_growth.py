"""The largest messages that the server's limit lets through take neither memory nor time.

A few bytes of a repeated field become an object each. So a message of 8 MiB could become a GiB.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookie.config import RpcSettings
from tests.fuzz.table import TARGETS
from tests.fuzz.target import bounded_growth, watched

FIELDS = range(1, 16)
"""The fields whose tags have one byte; our messages have few others."""

WIRE = [name for name in TARGETS if name.startswith("wire.")]


def repeated(size: int) -> Iterator[bytes]:
    """Messages of one field, very often: numbers, empty messages, packed numbers."""
    for field in FIELDS:
        yield bytes((field << 3, 1)) * (size // 2)
        yield bytes((field << 3 | 2, 0)) * (size // 2)
        yield bytes((field << 3 | 2, 0xFC, 0xFF, 0xFF, 0x03)) + b"\1" * (2**23 - 4)


@pytest.mark.parametrize("name", WIRE)
def test_the_largest_messages(name: str) -> None:
    """Each is taken or refused within the bounds of every other input."""
    target = TARGETS[name]
    with watched(target):
        for data in repeated(RpcSettings().message_bytes_max):
            with bounded_growth(f"{name} of {data[:8]!r}…"):
                target.answer(data)

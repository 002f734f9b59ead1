"""The harness finds each kind of fault in a parser that has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.fuzz.target import (
    CPU_SECONDS_MAX,
    GROWTH_BYTES_MAX,
    HangError,
    Target,
    bounded_growth,
    watched,
)


def hangs(_data: bytes) -> None:
    while True:
        pass


def is_slow(_data: bytes) -> None:
    end = time.thread_time() + 1.1 * CPU_SECONDS_MAX
    while time.thread_time() < end:
        pass


def grows(_data: bytes) -> None:
    bytes(b"x" * (GROWTH_BYTES_MAX + (8 << 20)))


def raises(_data: bytes) -> None:
    raise KeyError("a foreign error")


@pytest.mark.parametrize(
    ("parse", "error"),
    [(hangs, HangError), (is_slow, AssertionError), (grows, AssertionError), (raises, KeyError)],
)
def test_a_fault_of_a_parser(parse: Callable[[bytes], Any], error: type[Exception]) -> None:
    """Each is told, and the process goes on."""
    seconds = 0.2 if parse is hangs else 60.0
    target = Target("odd", parse, [b""], (ValueError,), hangs_after_seconds=seconds)
    with pytest.raises(error), watched(target), bounded_growth("odd"):
        target.check(b"data")


def test_a_value_that_its_encoder_loses() -> None:
    """The encoder writes something else."""
    target = Target(
        "odd", bytes.decode, [b""], (ValueError,), encode=lambda text: text.upper().encode()
    )
    assert target.check(b"AB")
    assert not target.check(b"\xff")
    with pytest.raises(AssertionError, match="differ"):
        target.check(b"aB")

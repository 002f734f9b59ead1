"""The memory of garbage collection after a restart."""

from __future__ import annotations

import struct

import pytest

from bookie.errors import FormatError
from bookie.node.garbage_memory import (
    Absence,
    GarbageMemory,
    decode_absence,
    decode_memory,
    encode_absence,
    encode_memory,
)

MEMORY = GarbageMemory({0: 91, 3: 7}, 5, True, 12.5, "why", "why not", 90)
BYTES = (
    b'{"absent_stop":"why not","absent_stop_local":90,"cookie_number":5,"counters":[[0,91],[3,7]],'
    b'"format":"bookie-garbage","has_listed":true,"observed_seconds":12.5,"store_doubt":"why",'
    b'"version":1}'
)


def test_a_memory_has_exactly_these_bytes() -> None:
    assert encode_memory(MEMORY) == BYTES
    assert decode_memory(BYTES) == MEMORY
    assert decode_memory(encode_memory(GarbageMemory())) == GarbageMemory()


@pytest.mark.parametrize(
    ("part", "by"),
    [
        (b"91", b"null"),
        (b"[0,91]", b"[0]"),
        (b"12.5", b"-1"),
        (b"12.5", b"1e999"),
        (b":5,", b":-5,"),
        (b":90,", b":true,"),
        (b'"why not"', b"1"),
        (b'"version":1', b'"version":2'),
    ],
)
def test_a_damaged_memory_is_refused(part: bytes, by: bytes) -> None:
    assert part in BYTES
    with pytest.raises(FormatError):
        decode_memory(BYTES.replace(part, by, 1))


def test_an_absence_has_sixteen_bytes() -> None:
    absence = Absence(12.5, 1_728_000_000_000)
    assert encode_absence(absence) == struct.pack("<dq", 12.5, 1_728_000_000_000)
    assert decode_absence(encode_absence(absence)) == absence


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(17), struct.pack("<dq", float("nan"), 0)])
def test_a_damaged_absence_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_absence(data)

"""Entries from files and pipes, and the figures of a load."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from bookie.cli import entries
from bookie.cli.bench import Measured, percentile_of
from bookie.cli.entries import Cutter, entries_in
from bookie.errors import BadRequestError
from bookie.ids import ENTRY_SIZE_BYTES_MAX


def cut(content: bytes, chunk_bytes: int, read_bytes: int) -> list[bytes]:
    """All entries of `content`, read in parts of `read_bytes`."""
    cutter = Cutter(chunk_bytes)
    found = []
    for at in range(0, len(content), read_bytes):
        found += cutter.cut(content[at : at + read_bytes])
    return found + cutter.end()


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"\n", [b""]),
        (b"one\n\nthree\nfour", [b"one", b"", b"three", b"four"]),
        (b"\r\n\0\n", [b"\r", b"\0"]),
    ],
)
@pytest.mark.parametrize("read_bytes", [1, 3, 1 << 20])
def test_lines_lose_only_their_end(content: bytes, wanted: list[bytes], read_bytes: int) -> None:
    """Each line is an entry, wherever a read ends; a last line without its end is one too."""
    assert cut(content, 0, read_bytes) == wanted


@pytest.mark.parametrize("read_bytes", [1 << 16, 1 << 20])
def test_an_endless_line_is_refused_when_no_entry_can_hold_it(read_bytes: int) -> None:
    """After 4 MiB, and not at the end of what may be a device; each byte is looked at once."""
    cutter = Cutter(0)
    assert cutter.cut(b"first\nsecond") == [b"first"]
    part = b"x" * read_bytes
    for _ in range(ENTRY_SIZE_BYTES_MAX // read_bytes - 1):
        assert cutter.cut(part) == []
    with pytest.raises(BadRequestError, match="line 2 is longer than the 4194304 bytes"):
        cutter.cut(part)
    longest = b"y" * ENTRY_SIZE_BYTES_MAX
    assert cut(longest + b"\n" + longest, 0, read_bytes) == [longest, longest]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("read_bytes", [5, 8, 1 << 20])
def test_pieces_are_the_file(size: int, read_bytes: int) -> None:
    """Pieces of the wanted size, the last one shorter; together they are the file."""
    content = os.urandom(size)
    pieces = cut(content, 8, read_bytes)
    assert b"".join(pieces) == content
    assert [len(piece) for piece in pieces] == [8] * (size // 8) + [size % 8] * (size % 8 > 0)


async def test_a_file_comes_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read a group at a time, to its end."""
    monkeypatch.setattr(entries, "GROUP_BYTES", 10)
    (tmp_path / "file").write_bytes(b"abc\n" * 10)
    with (tmp_path / "file").open("rb") as source:
        groups = [group async for group in entries_in(source, 0)]
    assert len(groups) > 1
    assert [line for group in groups for line in group] == [b"abc"] * 10


async def test_lines_of_a_pipe_do_not_wait_for_more() -> None:
    """The content of a pipe is taken at once: a typed line is appended immediately."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source:
        async with aclosing(entries_in(source, 0)) as groups:
            os.write(write_end, b"first\nsec")
            assert await anext(groups) == [b"first"]
            os.write(write_end, b"ond\n")
            os.close(write_end)
            assert [group async for group in groups] == [[b"second"]]


async def test_nobody_is_left_waiting_for_a_pipe() -> None:
    """A cancelled read of a silent pipe ends at once."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb"):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(entries_in(source, 0)))
            await asyncio.sleep(0)
            waiting.cancel()
        assert waiting.cancelled()


@pytest.mark.parametrize(
    ("percentile", "value"), [(50, 50), (99, 99), (99.9, 100), (1, 1), (0.1, 1), (100, 100)]
)
def test_percentile_is_a_value_that_was_measured(percentile: float, value: int) -> None:
    """The nearest rank: no value is invented between two."""
    assert percentile_of([float(number) for number in range(1, 101)], percentile) == value
    assert percentile_of([7.0], percentile) == 7.0


def test_load_is_recorded_with_units() -> None:
    """Figures carry their unit in their name."""
    measured = Measured(1000, 1_000_000, 2.0, [0.001] * 99 + [0.5])
    assert measured.record() == {
        "entries": 1000,
        "bytes": 1_000_000,
        "seconds": 2.0,
        "entries_per_second": 500,
        "megabytes_per_second": 0.5,
        "p50_ms": 1.0,
        "p95_ms": 1.0,
        "p99_ms": 1.0,
        "p999_ms": 500.0,
        "max_ms": 500.0,
    }

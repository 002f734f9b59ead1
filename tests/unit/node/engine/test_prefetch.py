"""Which requests make a bookie ask the device for more than was wanted."""

from __future__ import annotations

from bookie.node.engine.engine import Engine
from bookie.node.engine.prefetch import AHEAD_BYTES, FILES_MAX, SEQUEL_BYTES_MIN, Prefetcher
from tests.unit.node.engine.machine import KIB, MIB, Machine, add, ids_of, read


def test_only_a_sequel_is_worth_it() -> None:
    """One request, another elsewhere, and short ones ask for nothing."""
    prefetcher = Prefetcher()
    assert prefetcher.missed(1, MIB, 0) == (0, 0)
    assert prefetcher.missed(1, MIB, 10 * MIB) == (0, 0)
    assert prefetcher.missed(2, MIB, 11 * MIB) == (0, 0)
    for offset in range(0, 10 * SEQUEL_BYTES_MIN, SEQUEL_BYTES_MIN // 2):
        assert prefetcher.missed(3, SEQUEL_BYTES_MIN // 2, offset) == (0, 0)
    assert prefetcher.missed(1, MIB, 11 * MIB) == (12 * MIB, AHEAD_BYTES)


def test_entries_of_other_ledgers_may_stand_between() -> None:
    """A gap is no larger than the request."""
    prefetcher = Prefetcher()
    prefetcher.missed(1, MIB, 0)
    prefetcher.missed(2, MIB, 0)
    assert prefetcher.missed(1, MIB, 2 * MIB) == (3 * MIB, AHEAD_BYTES)
    assert prefetcher.missed(2, MIB, 2 * MIB + 1) == (0, 0)


def test_a_sequence_is_asked_for_once() -> None:
    """For all misses and hits: each byte behind the first two requests, and none twice."""
    prefetcher = Prefetcher()
    asked: list[tuple[int, int]] = []
    for number, offset in enumerate(range(0, 64 * MIB, MIB)):
        due = prefetcher.is_due(1, MIB, offset)
        if due or number < 5:
            start, size = prefetcher.missed(1, MIB, offset)
            if size:
                asked.append((start, size))
    assert len(asked) > 10
    assert [start for start, _ in asked] == [
        2 * MIB + index * AHEAD_BYTES for index in range(len(asked))
    ]
    assert asked[-1][0] + AHEAD_BYTES > 64 * MIB


def test_files_are_forgotten() -> None:
    """The oldest first."""
    prefetcher = Prefetcher()
    for number in range(FILES_MAX + 1):
        prefetcher.missed(number, MIB, 0)
    assert prefetcher.missed(0, MIB, MIB) == (0, 0)
    assert prefetcher.missed(FILES_MAX, MIB, MIB)[1] == AHEAD_BYTES


async def test_a_cold_range_is_asked_for_ahead(machine: Machine, engine: Engine) -> None:
    """The second answer asks for more; what is read is right."""
    for first in range(0, 200, 10):
        await add(engine, 7, range(first, first + 10), size=10 * KIB)
    machine.disk.cold = True
    for first in range(0, 200, 20):
        assert ids_of(await read(engine, 7, first, first + 19)) == list(range(first, first + 20))
    assert "prefetch" in machine.disk.names_called(".journal")


async def test_short_cold_reads_ask_for_nothing(machine: Machine, engine: Engine) -> None:
    """The kernel's own read-ahead is enough for them."""
    await add(engine, 7, range(40), size=10 * KIB)
    machine.disk.cold = True
    for first in range(0, 40, 4):
        assert ids_of(await read(engine, 7, first, first + 3)) == list(range(first, first + 4))
    assert "prefetch" not in machine.disk.names_called(".journal")

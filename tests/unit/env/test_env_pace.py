"""The pace of background work, in virtual time: the rate of this moment counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bookie.env.pace import Pace
from bookie.testing.simulation.loop import Mode, simulated_loop

MIB = 1 << 20


class Rate:
    """The setting, in bytes a second; 0 is no bound."""

    now = MIB

    def __call__(self) -> int:
        return self.now


def run(main: Coroutine[Any, Any, None]) -> None:
    loop = simulated_loop(1, Mode.FIFO)
    try:
        loop.run(main)
    finally:
        loop.close()


async def _ends(pace: Pace, sizes: list[int]) -> list[float]:
    """The times at which each of some users, one after the other, may go on."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    times = []
    for size in sizes:
        await pace.spend(size)
        times.append(round(loop.time() - begin, 2))
    return times


def test_each_waits_for_the_bytes_before_it() -> None:
    async def main() -> None:
        pace = Pace(Rate())
        assert await _ends(pace, [MIB, 3 * MIB, MIB, MIB // 2, 1]) == [0, 1, 4, 5, 5.5]
        await asyncio.sleep(1000)
        assert await _ends(pace, [MIB, MIB]) == [0, 1], "an idle time is no credit"

    run(main())


def test_users_share_the_rate() -> None:
    async def main() -> None:
        pace = Pace(Rate())
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(_ends(pace, [MIB] * 5)) for _ in range(4)]
        assert sorted(time for one in ends for time in one.result()) == list(range(20))
        assert loop.time() == pytest.approx(19)

    run(main())


@pytest.mark.parametrize("after", [0, 100 * MIB])
def test_a_corrected_rate_frees_those_that_wait(after: int) -> None:
    """At a byte a second, one batch is a debt of days."""

    async def main() -> None:
        rate = Rate()
        rate.now = 1
        pace = Pace(rate)
        loop = asyncio.get_running_loop()
        await pace.spend(MIB)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(pace.spend(MIB)) for _ in range(3)]
            await asyncio.sleep(100)
            assert not any(one.done() for one in waiting)
            rate.now = after
            begin = loop.time()
        assert loop.time() - begin <= 2

    run(main())


def test_a_lower_rate_counts_for_those_that_wait() -> None:
    async def main() -> None:
        rate = Rate()
        pace = Pace(rate)
        loop = asyncio.get_running_loop()
        await pace.spend(100 * MIB)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pace.spend(1))
            await asyncio.sleep(49.5)
            rate.now = MIB // 10
        assert 500 <= loop.time() <= 560

    run(main())


def test_without_a_bound_nobody_waits() -> None:
    async def main() -> None:
        rate = Rate()
        pace = Pace(rate)
        await pace.spend(1000 * MIB)
        rate.now = 0
        assert await _ends(pace, [MIB] * 3) == [0, 0, 0]
        rate.now = MIB
        assert await _ends(pace, [MIB, 1]) == [0, 1], "the former debt is forgotten"

    run(main())

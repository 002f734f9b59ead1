"""A wait that is cut short or measured anew, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookie.env import Pause
from bookie.testing.simulation.loop import simulated_loop


def waited(
    act: Callable[[Pause, list[float]], Coroutine[Any, Any, None]], seconds: float = 10.0
) -> tuple[bool, float]:
    """Result and duration of a wait of `seconds`, while somebody acted on it."""

    async def main() -> tuple[bool, float]:
        pause, length = Pause(), [seconds]
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            other = tasks.create_task(act(pause, length))
            began = loop.time()
            ended = await pause.wait(lambda: length[0])
            took = loop.time() - began
            other.cancel()
        return ended, took

    return simulated_loop().run(main())


def test_it_lasts_as_long_as_it_should() -> None:
    async def nothing(pause: Pause, length: list[float]) -> None:
        pass

    assert waited(nothing) == (False, 10.0)
    assert waited(nothing, 0.0) == (False, 0.0)


def test_it_can_be_ended() -> None:
    async def end(pause: Pause, length: list[float]) -> None:
        await asyncio.sleep(3)
        pause.end()

    assert waited(end) == (True, 3.0)


def test_it_goes_by_its_new_length_from_where_it_began() -> None:
    """Longer, shorter, or shorter than what has passed already; other wakes change nothing."""

    def change(to: float) -> tuple[bool, float]:
        async def act(pause: Pause, length: list[float]) -> None:
            await asyncio.sleep(2)
            pause.measure_again()
            await asyncio.sleep(2)
            length[0] = to
            pause.measure_again()

        return waited(act)

    assert change(20.0) == (False, 20.0)
    assert change(5.0) == (False, 5.0)
    assert change(1.0) == (False, 4.0)


def test_an_end_before_the_wait_counts_once_and_can_be_forgotten() -> None:
    async def main() -> list[bool]:
        pause = Pause()
        pause.end()
        told = [await pause.wait(lambda: 1.0), await pause.wait(lambda: 1.0)]
        pause.end()
        pause.clear()
        pause.measure_again()
        return [*told, await pause.wait(lambda: 1.0)]

    assert simulated_loop().run(main()) == [True, False, False]

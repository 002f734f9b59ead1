"""The budget of bytes in flight: first come first served, and nothing is lost by leaving."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.env.budget import ByteBudget
from tests.unit.node.engine.machine import until


async def test_who_comes_first_is_served_first() -> None:
    """A small request does not overtake a large one."""
    budget = ByteBudget(100)
    await budget.take(80)
    order: list[int] = []

    async def take(size: int) -> None:
        await budget.take(size)
        order.append(size)

    async with asyncio.TaskGroup() as tasks:
        for size in (50, 10, 60):
            tasks.create_task(take(size))
            await asyncio.sleep(0)
        assert not budget.try_take(10), "others wait already"
        assert budget.used == 80
        budget.give_back(80)
        await until(lambda: len(order) == 2)
        assert order == [50, 10]
        budget.give_back(50)
    assert order == [50, 10, 60]
    assert budget.used == 70


async def test_more_than_everything_is_served_alone() -> None:
    """Otherwise it would wait for ever."""
    budget = ByteBudget(100)
    await budget.take(1)
    assert not budget.try_take(500)
    budget.give_back(1)
    assert budget.try_take(500)
    assert not budget.try_take(1)
    budget.give_back(500)
    assert budget.try_take(100)
    with pytest.raises(AssertionError, match="more bytes"):
        budget.give_back(101)


async def test_leaving_the_line_lets_the_next_one_in() -> None:
    """Its place is free at once."""
    budget = ByteBudget(100)
    await budget.take(60)
    async with asyncio.TaskGroup() as tasks:
        large = tasks.create_task(budget.take(90))
        await asyncio.sleep(0)
        small = tasks.create_task(budget.take(30))
        await asyncio.sleep(0)
        large.cancel()
        await small
    assert budget.used == 90


async def test_leaving_while_bytes_come_back_is_no_error() -> None:
    """The cancelled one is passed over before it hears of its cancellation."""
    budget = ByteBudget(100)
    await budget.take(100)
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(budget.take(10))
        await asyncio.sleep(0)
        leaving.cancel()
        budget.give_back(100)
        await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert budget.used == 0


async def test_leaving_with_bytes_in_hand_gives_them_back() -> None:
    """They were granted in the same moment."""
    budget = ByteBudget(100)
    await budget.take(100)
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(budget.take(10))
        await asyncio.sleep(0)
        budget.give_back(100)
        leaving.cancel()
        await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert budget.used == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 150)),
        st.tuples(st.just("give"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("run"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(steps)
def test_nothing_leaks_whatever_happens(sequence: list[tuple[str, int]]) -> None:
    """After everything was given back or cancelled, everything is free and nobody waits."""

    async def play() -> None:
        budget = ByteBudget(100)
        tasks: deque[tuple[int, asyncio.Task[None]]] = deque()
        async with asyncio.TaskGroup() as group:
            for action, number in sequence:
                if action == "take":
                    tasks.append((number, group.create_task(budget.take(number))))
                elif action == "run":
                    for _ in range(number):
                        await asyncio.sleep(0)
                elif tasks:
                    tasks.rotate(-(number % len(tasks)))
                    size, task = tasks.popleft()
                    if action == "cancel" and not task.done():
                        task.cancel()
                        await asyncio.wait([task])
                    elif task.done() and not task.cancelled():
                        budget.give_back(size)
                    else:
                        tasks.append((size, task))
                held = sum(size for size, task in tasks if task.done() and not task.cancelled())
                assert held <= budget.used <= max(100, *[s for s, _ in tasks], 150)
            while tasks:
                # Not in the order of the line: who waits may stand before who holds.
                waiting = [task for _, task in tasks]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for size, task in [item for item in tasks if item[1].done()]:
                    tasks.remove((size, task))
                    if not task.cancelled():
                        budget.give_back(size)
        assert budget.used == 0
        assert budget.try_take(100)

    asyncio.run(play())

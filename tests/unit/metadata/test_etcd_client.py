"""How many calls to etcd are under way at once."""

from __future__ import annotations

import asyncio

from bookie.metadata.etcd_client import Turns


async def _turn(turns: Turns, had: list[int], number: int, end: asyncio.Event) -> None:
    await turns.take()
    try:
        had.append(number)
        await end.wait()
    finally:
        turns.give_back()


async def test_turns_are_had_in_line_and_never_more_than_there_are() -> None:
    turns, had, ends = Turns(2), list[int](), [asyncio.Event() for _ in range(5)]
    async with asyncio.TaskGroup() as tasks:
        for number, end in enumerate(ends):
            tasks.create_task(_turn(turns, had, number, end))
        for number, end in enumerate(ends):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert had == list(range(min(number + 2, 5)))
            end.set()


async def test_a_turn_of_a_cancelled_caller_goes_to_the_next_in_line() -> None:
    """Whether it waited still, or had its turn already and did not know it."""
    turns, had, end = Turns(1), list[int](), asyncio.Event()
    await turns.take()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_turn(turns, had, number, end)) for number in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        turns.give_back()
        waiting[1].cancel()
        end.set()
    assert had == [2, 3]
    await asyncio.wait_for(turns.take(), 60)

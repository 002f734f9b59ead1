"""Turns of the event loop: how much ordinary work fits into one, and whose work is next."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from bookie.env.turns import UNITS_PER_HURRIED_TURN, Turns


async def worker(turns: Turns, line: str, units: int, done: list[str]) -> None:
    """One piece of work."""
    await turns.take(units, line)
    done.append(line)


async def test_what_does_not_fit_waits_for_the_next_turn() -> None:
    """A turn that comes has all of its units again."""
    turns = Turns(3)
    assert [turns.try_take(1) for _ in range(4)] == [True, True, True, False]
    await asyncio.sleep(0)
    assert turns.try_take(5)
    assert not turns.try_take(1)
    await asyncio.sleep(0)
    assert turns.try_take(3)


async def test_lines_take_turns() -> None:
    """A line with many pieces of work gets as much as a line with one."""
    turns, done = Turns(2), list[str]()
    async with asyncio.TaskGroup() as tasks:
        for line in "aaaaaabbc":
            tasks.create_task(worker(turns, line, 1, done))
        assert turns.try_take(2)
    assert "".join(done) == "abcabaaaa"


async def test_work_that_waits_is_not_overtaken() -> None:
    """Not even by work that would take nothing."""
    turns, done, overtakes = Turns(2), list[str](), list[bool]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker(turns, "a", 1, done))
        asyncio.get_running_loop().call_soon(lambda: overtakes.append(turns.try_take(0)))
        assert turns.try_take(2)
    assert (overtakes, done) == ([False], ["a"])


async def test_a_cancelled_wait_takes_no_units() -> None:
    """The others of its line, and those of other lines, have the whole turn."""
    turns, done = Turns(1), list[str]()
    async with asyncio.TaskGroup() as tasks:
        gone = [tasks.create_task(worker(turns, "b", 1, done)) for _ in range(3)]
        tasks.create_task(worker(turns, "a", 1, done))
        assert turns.try_take(1)
        await asyncio.sleep(0)
        for one in gone:
            one.cancel()
    assert done == ["a"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.try_take(1)


async def test_a_turn_is_bounded_while_much_work_waits() -> None:
    """What is urgent comes between two small parts of it."""
    turns, done, at = Turns(4), list[str](), list[int]()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(worker(turns, "greedy", 1, done))
        while len(done) < 100:
            at.append(len(done))
            await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(at)) <= 4


async def test_turns_are_short_while_calls_come() -> None:
    """This one and the next one; then they are as long as before."""
    turns = Turns(8)
    turns.hurry()
    for most in (UNITS_PER_HURRIED_TURN, UNITS_PER_HURRIED_TURN, 8):
        assert [turns.try_take(1) for _ in range(9)].count(True) == most
        await asyncio.sleep(0)


async def test_a_hurry_does_not_lengthen_a_turn() -> None:
    """A turn without units left stays so."""
    turns = Turns(3)
    assert turns.try_take(3)
    turns.hurry()
    assert not turns.try_take(1)

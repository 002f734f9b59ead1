"""The line of appends that wait for room."""

from __future__ import annotations

import asyncio

import pytest

from bookie.ledger.write.in_flight import InFlightWindow


async def enter(room: InFlightWindow, name: int, entered: list[int]) -> None:
    """Append one entry of one byte."""
    if room.is_blocked:
        await room.wait()
    entered.append(name)
    room.take(1, 1)


@pytest.mark.parametrize("bounds", [(2, 1000), (1000, 2)])
async def test_turns_come_in_order_and_within_the_bounds(bounds: tuple[int, int]) -> None:
    """However room comes back, callers enter in the order in which they called."""
    room, entered = InFlightWindow(*bounds), list[int]()
    async with asyncio.TaskGroup() as group:
        for name in range(10):
            group.create_task(enter(room, name, entered))
        held = 0
        for given_back in (1, 2, 1, 2, 2, 2):
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(entered) - held == 2
            room.give_back(given_back, given_back)
            held += given_back
    assert entered == list(range(10))


async def test_nobody_overtakes_the_line() -> None:
    """A caller that comes while the first in line has been called, but has not run, goes behind."""
    room, entered = InFlightWindow(1, 1000), list[int]()
    room.take(1, 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(enter(room, 1, entered))
        await asyncio.sleep(0)
        room.give_back(1, 1)
        assert room.is_blocked
        group.create_task(enter(room, 2, entered))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert entered == [1]
        room.give_back(1, 1)
    assert entered == [1, 2]


async def test_a_place_that_was_taken_is_kept() -> None:
    """Also while there is room; whoever leaves it unused holds nobody back."""
    room, entered = InFlightWindow(10, 1000), list[int]()
    async with asyncio.TaskGroup() as group:
        with room.turn() as turn, room.turn():
            group.create_task(enter(room, 2, entered))
            await asyncio.sleep(0)
            await room.wait(turn)
            entered.append(1)
            room.take(1, 1)
            await asyncio.sleep(0)
            assert entered == [1]
    assert entered == [1, 2]
    assert not room.is_blocked


@pytest.mark.parametrize("called", [False, True])
async def test_who_gives_up_holds_nobody_back(called: bool) -> None:
    """A cancelled caller leaves the line, also when its turn had come."""
    room, entered = InFlightWindow(1, 1000), list[int]()
    room.take(1, 1)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(enter(room, 1, entered))
        group.create_task(enter(room, 2, entered))
        await asyncio.sleep(0)
        if called:
            room.give_back(1, 1)
        first.cancel()
        await asyncio.sleep(0)
        if not called:
            room.give_back(1, 1)
    assert entered == [2]
    assert room.is_blocked


async def test_the_end_lets_all_in() -> None:
    """A writer that has ended lets all waiting callers in."""
    room, entered = InFlightWindow(1, 1000), list[int]()
    room.take(1, 1)
    async with asyncio.TaskGroup() as group:
        for name in range(3):
            group.create_task(enter(room, name, entered))
        await asyncio.sleep(0)
        room.let_all_in()
    assert entered == [0, 1, 2]
    assert not room.is_blocked

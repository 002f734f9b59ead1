"""Timers of a client whose event loop is held up: what arrived meanwhile is looked at first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from bookie.errors import BookieError, NotEnoughBookiesError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.calls import PART_SECONDS, Timers
from bookie.ledger.exchange import StartTimer, TimerId
from bookie.ledger.write.handle import WriterHandle
from bookie.metadata.versioned import Versioned
from bookie.wire.deadlines import LATE_SECONDS
from tests.held_up import Loop, in_virtual_time
from tests.unit.ledger.fake_pool import UNNAMED, fake_pool, metadata_of


class Fired:
    """When each timer ran out."""

    def __init__(self, loop: Loop) -> None:
        self.at: dict[TimerId, float] = {}
        self._loop = loop
        self.timers = Timers(self._on_fired)

    def _on_fired(self, timer: TimerId) -> None:
        assert timer not in self.at
        self.at[timer] = self._loop.now


@pytest.mark.parametrize("seconds", [0.05, 0.5, 0.7, 5.0])
def test_a_timer_runs_out_when_it_says(seconds: float) -> None:
    """Longer or shorter than a part, and not at all when it is cancelled or started anew."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        for number in range(3):
            fired.timers.start(StartTimer(("add", number), seconds))
        await asyncio.sleep(seconds / 2)
        fired.timers.cancel(("add", 1))
        fired.timers.start(StartTimer(("add", 2), seconds))
        await asyncio.sleep(10)
        assert fired.at == pytest.approx({("add", 0): seconds, ("add", 2): 1.5 * seconds})

    in_virtual_time(test)


@pytest.mark.parametrize("held_up_seconds", [0.9, 6.0, 3600.0])
@pytest.mark.parametrize("seconds", [0.2, 2.0, 5.0])
def test_time_in_which_the_loop_stood_still_counts_once(
    seconds: float, held_up_seconds: float
) -> None:
    """However long it was, no more than a part of it, so that there is time for what arrived."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        fired.timers.start(StartTimer(("add", 0), seconds))
        loop.hold_up(held_up_seconds)
        await asyncio.sleep(10)
        looked = fired.at["add", 0] - held_up_seconds
        assert looked >= min(seconds, PART_SECONDS) - LATE_SECONDS
        assert looked >= seconds - PART_SECONDS
        assert looked <= seconds + PART_SECONDS + LATE_SECONDS

    in_virtual_time(test)


def test_a_loop_that_is_always_late_has_timeouts() -> None:
    """There is one part more than usual, not one after each that was late."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        fired.timers.start(StartTimer(("add", 0), 5.0))
        turns = 0
        while not fired.at:
            loop.hold_up(1.0)
            turns += 1
            await asyncio.sleep(0)
        assert 11 <= turns <= 22  # a part takes up to two turns

    in_virtual_time(test)


async def outcome_of(append: Awaitable[int]) -> int | BookieError:
    try:
        return await append
    except BookieError as error:
        return error


@pytest.mark.parametrize("answered", [False, True])
def test_an_answer_that_came_while_the_loop_stood_still_counts(answered: bool) -> None:
    """The program blocks the loop for longer than the add timeout, with an append under way."""

    async def test(loop: Loop) -> None:
        async with fake_pool() as pool:
            created = Versioned(metadata_of(), 0)
            writer = WriterHandle(created, pool.pool, cast("LedgerManager", None), UNNAMED)
            writer.start()
            append = pool.tasks.create_task(outcome_of(writer.append(b"x")))
            for _ in range(4):  # until it is sent
                await asyncio.sleep(0)
            assert pool.lane(0).sent
            loop.hold_up(60)
            for _ in range(10):  # the turns that an answer needs to come from its socket
                await asyncio.sleep(0)
            if answered:
                for slot in range(3):
                    pool.lane(slot).answer()
                assert await append == 0
            else:
                assert isinstance(await append, NotEnoughBookiesError)

    in_virtual_time(test)

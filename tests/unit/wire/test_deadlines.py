"""One timer for many calls: each is cancelled when its own time is over, and no other."""

from __future__ import annotations

import asyncio

import pytest

from bookie.wire.deadlines import GRACE_SECONDS, Deadlines
from tests.held_up import Loop, in_virtual_time

LONG = 3600.0


class Call:
    """Notes when it is cancelled."""

    def __init__(self, order: list[Call]) -> None:
        self._order = order
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        """As a call of gRPC."""
        self._order.append(self)
        self.cancelled.set()


async def test_calls_end_in_the_order_of_their_deadlines() -> None:
    """Also when a later call has the earlier one."""
    order: list[Call] = []
    deadlines = Deadlines()
    late, early, never = Call(order), Call(order), Call(order)
    deadlines.start(never, LONG)
    deadlines.start(late, 0.02)
    deadlines.start(early, 0.001)
    await late.cancelled.wait()
    assert order == [early, late]
    assert [deadlines.stop(call) for call in (early, late, never)] == [False, False, True]
    deadlines.close()


async def test_a_call_that_was_taken_out_is_left_alone() -> None:
    """The timer that was its finds the next one."""
    order: list[Call] = []
    deadlines = Deadlines()
    done, slow = Call(order), Call(order)
    deadlines.start(done, 0.001)
    deadlines.start(slow, 0.01)
    assert deadlines.stop(done)
    assert not deadlines.stop(done)
    await slow.cancelled.wait()
    assert order == [slow]


async def test_after_the_last_call_a_new_one_has_its_own_time() -> None:
    """The timer starts anew when nothing was left to wait for."""
    order: list[Call] = []
    deadlines = Deadlines()
    for _ in range(3):
        call = Call(order)
        deadlines.start(call, 0.001)
        await call.cancelled.wait()
    assert len(order) == 3


async def test_nothing_is_cancelled_after_the_end() -> None:
    """Whoever closes the channel ends its calls, which are still known to be in time."""
    order: list[Call] = []
    deadlines = Deadlines()
    call = Call(order)
    deadlines.start(call, 0.001)
    deadlines.close()
    await asyncio.sleep(0.01)
    assert order == []
    assert deadlines.stop(call)


def test_what_came_while_the_loop_stood_still_is_looked_at_first() -> None:
    """Who is due then gets a moment more, once; the next one has its own time."""

    async def test(loop: Loop) -> None:
        order: list[Call] = []
        deadlines = Deadlines()
        answered, silent, later = Call(order), Call(order), Call(order)
        deadlines.start(answered, 5.0)
        deadlines.start(silent, 5.0)
        deadlines.start(later, 3700.0)
        loop.hold_up(3600.0)
        for _ in range(10):  # the turns that an answer needs to come from its socket
            await asyncio.sleep(0)
        assert deadlines.stop(answered)
        assert order == []
        await silent.cancelled.wait()
        assert loop.now == pytest.approx(3600.0 + GRACE_SECONDS)
        await later.cancelled.wait()
        assert loop.now == pytest.approx(3700.0)
        assert order == [silent, later]

    in_virtual_time(test)


def test_a_loop_that_is_always_late_has_deadlines() -> None:
    """Nobody is spared twice."""

    async def test(loop: Loop) -> None:
        order: list[Call] = []
        deadlines = Deadlines()
        deadlines.start(Call(order), 5.0)
        for _ in range(10):
            loop.hold_up(5.0)
            await asyncio.sleep(0)
        assert len(order) == 1

    in_virtual_time(test)

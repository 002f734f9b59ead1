"""One timer for many calls: each is cancelled when its own time is over, and no other."""

from __future__ import annotations

import asyncio

import pytest

from bookie.wire.deadlines import LATE_SECONDS, PART_SECONDS, Deadlines
from tests.held_up import Loop, in_virtual_time

LONG = 3600.0


class Call:
    """Notes when it is cancelled."""

    def __init__(self, order: list[Call]) -> None:
        self._order = order
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        """Cancelled like a call of gRPC."""
        self._order.append(self)
        self.cancelled.set()


async def test_calls_end_in_the_order_of_their_deadlines() -> None:
    """Also when a later call has the earlier one."""
    order: list[Call] = []
    deadlines: Deadlines[Call] = Deadlines()
    late, early, never = Call(order), Call(order), Call(order)
    deadlines.start(never, LONG)
    deadlines.start(late, 0.02)
    deadlines.start(early, 0.001)
    await late.cancelled.wait()
    assert order == [early, late]
    assert [deadlines.stop(call) for call in (early, late, never)] == [False, False, True]
    deadlines.abandon()


async def test_a_call_that_was_taken_out_is_left_alone() -> None:
    """The timer that was its finds the next one."""
    order: list[Call] = []
    deadlines: Deadlines[Call] = Deadlines()
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
    deadlines: Deadlines[Call] = Deadlines()
    for _ in range(3):
        call = Call(order)
        deadlines.start(call, 0.001)
        await call.cancelled.wait()
    assert len(order) == 3


async def test_nothing_is_cancelled_after_the_end() -> None:
    """Whoever closes the channel ends its calls, which are still known to be in time."""
    order: list[Call] = []
    deadlines: Deadlines[Call] = Deadlines()
    call = Call(order)
    deadlines.start(call, 0.001)
    deadlines.abandon()
    await asyncio.sleep(0.01)
    assert order == []
    assert deadlines.stop(call)


def test_what_came_while_the_loop_stood_still_is_looked_at_first() -> None:
    """The pause counts as one part of a deadline, for all of them."""

    async def test(loop: Loop) -> None:
        order: list[Call] = []
        deadlines: Deadlines[Call] = Deadlines()
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
        assert loop.now == pytest.approx(3600.0 + 5.0 - PART_SECONDS)
        await later.cancelled.wait()
        assert loop.now == pytest.approx(3600.0 + 3700.0 - PART_SECONDS)
        assert order == [silent, later]

    in_virtual_time(test)


def test_a_loop_that_is_always_late_has_deadlines() -> None:
    """No call is spared twice."""

    async def test(loop: Loop) -> None:
        order: list[Call] = []
        deadlines: Deadlines[Call] = Deadlines()
        deadlines.start(Call(order), PART_SECONDS)
        for _ in range(10):
            loop.hold_up(5.0)
            await asyncio.sleep(0)
        assert len(order) == 1

    in_virtual_time(test)


class Fired:
    """The time at which each timer ran out."""

    def __init__(self, loop: Loop) -> None:
        self.at: dict[str, float] = {}
        self._loop = loop
        self.timers: Deadlines[str] = Deadlines(self._on_fired)

    def _on_fired(self, timer: str) -> None:
        assert timer not in self.at
        self.at[timer] = self._loop.now


@pytest.mark.parametrize("seconds", [0.05, 0.5, 0.7, 5.0])
def test_a_timer_runs_out_when_it_says(seconds: float) -> None:
    """Longer or shorter than a part, and not at all when it is cancelled or started anew."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        for number in range(3):
            fired.timers.start(f"add {number}", seconds)
        await asyncio.sleep(seconds / 2)
        assert fired.timers.stop("add 1")
        fired.timers.start("add 2", seconds)
        await asyncio.sleep(10)
        assert fired.at == pytest.approx({"add 0": seconds, "add 2": 1.5 * seconds})

    in_virtual_time(test)


@pytest.mark.parametrize("held_up_seconds", [0.9, 6.0, 3600.0])
@pytest.mark.parametrize("seconds", [0.2, 2.0, 5.0])
def test_time_in_which_the_loop_stood_still_counts_once(
    seconds: float, held_up_seconds: float
) -> None:
    """However long it was, no more than a part of it, so that there is time for what arrived."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        fired.timers.start("add 0", seconds)
        loop.hold_up(held_up_seconds)
        await asyncio.sleep(10)
        looked = fired.at["add 0"] - held_up_seconds
        assert looked >= min(seconds, PART_SECONDS) - LATE_SECONDS
        assert looked >= seconds - PART_SECONDS
        assert looked <= seconds + PART_SECONDS + LATE_SECONDS

    in_virtual_time(test)


def test_a_loop_that_is_always_late_has_timeouts() -> None:
    """There is one part more than usual, not one after each that was late."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        fired.timers.start("add 0", 5.0)
        turns = 0
        while not fired.at:
            loop.hold_up(1.0)
            turns += 1
            await asyncio.sleep(0)
        assert 11 <= turns <= 22  # a part takes up to two turns

    in_virtual_time(test)


def test_a_deadline_that_begins_after_a_pause_has_its_own_time() -> None:
    """The loop has not noticed the pause yet when the deadline begins."""

    async def test(loop: Loop) -> None:
        fired = Fired(loop)
        fired.timers.start("before", 5.0)
        loop.hold_up(60.0)
        fired.timers.start("after", 5.0)
        await asyncio.sleep(10)
        assert fired.at == pytest.approx({"before": 60.0 + 4.5, "after": 60.0 + 5.0})

    in_virtual_time(test)

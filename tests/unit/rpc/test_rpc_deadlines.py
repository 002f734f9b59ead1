"""One timer for many calls: each is cancelled when its own time is over, and no other."""

from __future__ import annotations

import asyncio

from bookie.rpc.deadlines import Deadlines

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

"""The simulated loop is an event loop like any other, in virtual time and in the seed's order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie.testing.simulation.loop import Mode, SimulationStuckError, simulated_loop
from bookie.testing.simulation.workers import SimulatedWorkers

MODES = list(Mode)


@pytest.mark.parametrize("mode", MODES)
def test_time_jumps_to_the_next_timer(mode: Mode) -> None:
    loop = simulated_loop(1, mode)

    async def main() -> list[float]:
        times = []
        for seconds in (3600.0, 0.5, 0.0):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert loop.run(main()) == [3600.0, 3600.5, 3600.5]


@pytest.mark.parametrize("mode", MODES)
def test_timeouts_groups_and_locks_work(mode: Mode) -> None:
    loop = simulated_loop(2, mode)
    lock_holders: list[int] = []

    async def hold(number: int, lock: asyncio.Lock) -> int:
        async with lock:
            lock_holders.append(number)
            await asyncio.sleep(1)
            assert lock_holders[-1] == number
        return number

    async def main() -> None:
        lock = asyncio.Lock()
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(hold(number, lock)) for number in range(5)]
        assert [task.result() for task in made] == list(range(5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await loop.create_future()
        with pytest.raises(ExceptionGroup):
            await fail_together()

    async def fail_together() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(10**6))
            tasks.create_task(fail())

    async def fail() -> None:
        raise ValueError

    loop.run(main())
    assert sorted(lock_holders) == list(range(5))
    assert loop.time() == 15.0
    assert loop.unfinished() == []


def test_a_deadlock_is_found_at_once() -> None:
    loop = simulated_loop()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(SimulationStuckError, match="main"):
        loop.run(main())
    for task in loop.unfinished():
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run(asyncio.wait_for(loop.unfinished()[0], None))


def test_what_nobody_handles_fails_the_run() -> None:
    loop = simulated_loop()

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="Exception in callback"):
        loop.run(main())


def order_of_steps(seed: int, mode: Mode) -> list[int]:
    """Which of three tasks ran in which turn."""
    loop = simulated_loop(seed, mode)
    order: list[int] = []

    async def walk(number: int) -> None:
        for _ in range(4):
            order.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(walk(number))

    loop.run(main())
    return order


def test_a_seed_chooses_the_order_and_fifo_is_asyncio() -> None:
    assert order_of_steps(1, Mode.FIFO) == [0, 1, 2] * 4
    for mode in (Mode.UNIFORM, Mode.PRIORITY):
        orders = {tuple(order_of_steps(seed, mode)) for seed in range(20)}
        assert len(orders) > 5
        assert order_of_steps(7, mode) == order_of_steps(7, mode)


@pytest.mark.parametrize("seed", range(20))
def test_threads_keep_their_order_and_let_others_run(seed: int) -> None:
    loop = simulated_loop(seed, Mode.UNIFORM)
    workers = SimulatedWorkers(loop, seed, interleaving=0.7)
    handled: list[int] = []
    posted: list[int] = []
    failures: list[BaseException] = []

    def handle(items: list[int], post: Callable[[int], None]) -> None:
        for item in items:
            workers.pause()
            handled.append(item)
            post(item)
            if item == 17:
                raise OSError(5, "the device failed")

    async def main() -> None:
        worker = workers.batch_worker("w", handle, posted.append, failures.append)
        for item in range(20):
            worker.submit(item)
            await asyncio.sleep(0.0003)
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(workers.run("index", int, str(item))) for item in range(3)]
        assert [task.result() for task in made] == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            await workers.run("read", lambda: 1 // 0)
        await asyncio.sleep(1)

    loop.run(main())
    assert handled == posted == list(range(18))
    assert [str(error) for error in failures] == ["[Errno 5] the device failed"]

"""What a new watcher of a ledger is told first, and in which order when thousands are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

from bookie.node.lac_watch import FIRST_UPDATES_MAX, FirstUpdates
from bookie.wire.commands import LacState


def greedy(_: LacState) -> None:
    """The watcher of thousands of ledgers."""


def modest(_: LacState) -> None:
    """The watcher of one."""


async def test_few_at_a_time_and_each_watcher_in_turn() -> None:
    """A greedy watcher delays another by what is under way, and no more."""
    told: list[tuple[object, int]] = []
    under_way, most = 0, 0
    moments: Iterator[int] = count()

    async def tell(ledger_id: int, callback: object) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(1 + next(moments) % 3):  # some take longer than others
            await asyncio.sleep(0)
        told.append((callback, ledger_id))
        under_way -= 1

    async with asyncio.TaskGroup() as tasks:
        updates = FirstUpdates(tell, tasks.create_task)
        for ledger_id in range(4096):
            updates.add(ledger_id, greedy)
        updates.add(9999, modest)
    assert most == FIRST_UPDATES_MAX
    assert sorted(ledger_id for callback, ledger_id in told if callback is greedy) == [*range(4096)]
    assert told.index((modest, 9999)) <= 2 * FIRST_UPDATES_MAX


async def test_what_fails_gives_its_place_back() -> None:
    """The failure is the task's, and goes to whoever spawned it."""
    places = asyncio.Semaphore(0)

    async def tell(ledger_id: int, _: object) -> None:
        await places.acquire()
        if ledger_id < FIRST_UPDATES_MAX:
            raise OSError(ledger_id)

    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    updates = FirstUpdates(tell, lambda work: tasks.append(loop.create_task(work)))
    for ledger_id in range(FIRST_UPDATES_MAX):
        updates.add(ledger_id, greedy)
    for _ in range(FIRST_UPDATES_MAX + 1):
        places.release()
    await asyncio.wait(tasks)
    assert [type(task.exception()) for task in tasks] == [OSError] * FIRST_UPDATES_MAX
    updates.add(FIRST_UPDATES_MAX, modest)
    await tasks[-1]
    assert len(tasks) == FIRST_UPDATES_MAX + 1


async def test_what_is_no_longer_watched_is_forgotten() -> None:
    """Subscribed again and again, a ledger waits once; the others keep their order."""
    told: list[tuple[object, int]] = []
    slow = asyncio.Event()

    async def tell(ledger_id: int, callback: object) -> None:
        told.append((callback, ledger_id))
        await slow.wait()

    async with asyncio.TaskGroup() as tasks:
        updates = FirstUpdates(tell, tasks.create_task)
        for ledger_id in range(FIRST_UPDATES_MAX):
            updates.add(ledger_id, greedy)
        updates.remove(0, greedy)  # under way, so there is nothing to forget
        for _ in range(1000):
            for ledger_id in (101, 102, 103, 102):
                updates.add(ledger_id, greedy)
            updates.remove(101, greedy)
            updates.remove(101, greedy)
            updates.add(104, modest)
            updates.remove(104, modest)
        assert len(updates) == 2
        slow.set()
    assert told[FIRST_UPDATES_MAX:] == [(greedy, 102), (greedy, 103)]
    assert len(updates) == 0

"""Fences, the last add confirmed, and those who watch it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.config import NodeSettings
from bookie.entry.entry import pack_lac
from bookie.errors import BadRequestError, ShuttingDownError
from bookie.ids import NO_ENTRY, Status
from bookie.node.lac_watch import FIRST_UPDATES_MAX
from bookie.wire.commands import LacState
from tests.unit.node.engine.machine import DIGESTER, KEY, Machine, batch, until
from tests.unit.node.node_room import Room, add, add_command, ids_of, read, read_command, serving

OK = Status.OK


class Heard:
    """The updates of a watcher."""

    def __init__(self) -> None:
        self.updates: list[LacState] = []

    def __call__(self, update: LacState) -> None:
        self.updates.append(update)

    def of(self, ledger_id: int) -> list[tuple[int, bool]]:
        """LAC and fence, update by update."""
        return [(u.max_lac, u.fenced) for u in self.updates if u.ledger_id == ledger_id]


async def test_a_fence_says_where_the_ledger_may_end(room: Room) -> None:
    """The last entry's packet, the explicit LAC's, the highest LAC; plain adds end."""
    await add(room.bookie, 7, range(10), lac=6)
    packet = pack_lac(7, 8, DIGESTER)
    await room.bookie.write_lac(7, KEY, packet)
    for reply in (await room.bookie.read_lac(7, KEY), await room.bookie.fence(7, KEY)):
        assert reply.status is OK
        assert reply.last_entry == bytes(batch(7, [9], lac=6).payload)
        assert (reply.lac_packet, reply.max_lac) == (packet, 8)
    assert reply.fenced
    assert (await add(room.bookie, 7, [10])).status is Status.FENCED
    assert (await room.bookie.write_lac(7, KEY, packet)).status is Status.FENCED
    assert (await add(room.bookie, 7, [10], recovery=True)).status is OK
    again = await room.bookie.fence(7, KEY)
    assert again.last_entry == bytes(batch(7, [10]).payload)


async def test_reading_a_lac_does_not_fence(room: Room) -> None:
    """Reading the LAC of an unknown ledger does not create it."""
    assert (await room.bookie.read_lac(7, KEY)).status is Status.NO_SUCH_LEDGER
    page, _ = await room.engine.ledgers(-1, 10)
    assert page == []
    await add(room.bookie, 7, [0])
    assert not (await room.bookie.read_lac(7, KEY)).fenced
    assert (await add(room.bookie, 7, [1])).status is OK


@pytest.mark.parametrize("request_", ["fence", "read", "read last"])
@pytest.mark.parametrize("known", [False, True])
async def test_no_answer_to_a_fence_comes_before_it_is_durable(
    room: Room, request_: str, known: bool
) -> None:
    """Negative ones and those to a second fencer included."""
    if known:
        await add(room.bookie, 7, range(3))
    hold = room.machine.disk.hold("fdatasync", ".journal")

    async def ask() -> object:
        match request_:
            case "fence":
                return await room.bookie.fence(7, KEY)
            case "read":
                return await room.bookie.read(read_command(7, 50, 50, fence=True))
            case _:
                return await room.bookie.read(read_command(7, -1, -1, fence=True))

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask()) for _ in range(2)]
        await asyncio.to_thread(hold.wait_reached)
        await until(lambda: len(room.engine._queue.pending) == 2)
        assert not any(task.done() for task in asking)
        forgotten = room.machine.without_power("forgotten")
        hold.release()
    async with serving(forgotten) as after:
        assert (await add(after.bookie, 7, [9])).status is OK, "it was not durable yet"
    async with serving(room.machine.without_power("kept")) as after:
        assert (await add(after.bookie, 7, [9])).status is Status.FENCED


async def test_a_fencing_read_sees_what_was_accepted_before_it(room: Room) -> None:
    """Durable or not; and its fence outlives the reader that went away."""
    await add(room.bookie, 7, [0])
    hold = room.machine.disk.hold("fdatasync", ".journal")
    accepted = room.bookie.add(add_command(batch(7, [1])))
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(room.bookie.read(read_command(7, 1, 1, fence=True)))
        leaving = tasks.create_task(room.bookie.fence(8, KEY))
        await asyncio.to_thread(hold.wait_reached)
        await until(lambda: room.engine.known(8) is not None)
        leaving.cancel()
        hold.release()
    assert ids_of(reading.result()) == [1]
    assert (await accepted).status is OK
    assert (await add(room.bookie, 8, [0])).status is Status.FENCED


async def test_watchers_hear_of_every_advance_and_of_the_fence(room: Room) -> None:
    """The present state comes first. Adds that advance no LAC are silent."""
    heard = Heard()
    watcher = room.bookie.watch(heard)
    await add(room.bookie, 7, [0])
    watcher.subscribe(7)
    watcher.subscribe(7)
    watcher.subscribe(8)
    await until(lambda: len(heard.updates) == 2)
    assert heard.of(7) == [(NO_ENTRY, False)]
    assert [u.status for u in heard.updates if u.ledger_id == 8] == [Status.NO_SUCH_LEDGER]
    await add(room.bookie, 7, [1], lac=0)
    await add(room.bookie, 7, [2], lac=0)
    await room.bookie.write_lac(7, KEY, pack_lac(7, 2, DIGESTER))
    await room.bookie.write_lac(7, KEY, pack_lac(7, 1, DIGESTER))
    await add(room.bookie, 9, [0])
    await room.bookie.fence(7, KEY)
    await room.bookie.fence(7, KEY)
    assert heard.of(7) == [(NO_ENTRY, False), (0, False), (2, False), (2, True)]
    # The packet comes along where it is what the LAC is known by.
    proof = pack_lac(7, 2, DIGESTER)
    assert [u.lac_packet for u in heard.updates if u.ledger_id == 7] == [b"", b"", proof, proof]
    await add(room.bookie, 7, [5], lac=3, recovery=True)
    assert (heard.updates[-1].max_lac, heard.updates[-1].lac_packet) == (3, b"")
    await room.bookie.fence(8, KEY)
    assert heard.of(8)[-1] == (NO_ENTRY, True)
    assert heard.of(9) == []


async def test_a_first_add_is_heard_of_too(room: Room) -> None:
    """Also if it has to load the ledger, or to compare, before it is accepted."""
    heard = Heard()
    watcher = room.bookie.watch(heard)
    watcher.subscribe(7)
    await until(lambda: heard.updates)
    await add(room.bookie, 7, [5, 9], lac=4)
    await add(room.bookie, 7, [8], lac=7)
    assert heard.of(7) == [(NO_ENTRY, False), (4, False), (7, False)]


async def test_who_unsubscribed_hears_nothing(room: Room) -> None:
    """Not even the first update, which was on its way."""
    heard, other = Heard(), Heard()
    watcher, others = room.bookie.watch(heard), room.bookie.watch(other)
    watcher.subscribe(7)
    others.subscribe(7)
    watcher.unsubscribe(7)
    watcher.unsubscribe(7)
    await until(lambda: other.updates)
    await add(room.bookie, 7, [1], lac=0)
    assert heard.updates == []
    assert other.of(7)[-1] == (0, False)
    others.close()
    others.close()
    await add(room.bookie, 7, [2], lac=1)
    assert other.of(7)[-1] == (0, False)
    assert room.machine.metrics.lac_watches._value.get() == 0


async def test_first_updates_that_wait_are_forgotten_with_their_watches(room: Room) -> None:
    """By the end of a subscription, and by the end of the watcher."""
    watcher, waiting = room.bookie.watch(Heard()), room.bookie._first_updates
    for _ in range(3):
        for ledger_id in range(FIRST_UPDATES_MAX + 10):
            watcher.subscribe(ledger_id)
        assert len(waiting) >= 10
        for ledger_id in range(FIRST_UPDATES_MAX + 5):
            watcher.unsubscribe(ledger_id)
        assert len(waiting) == 5
        watcher.close()
        assert len(waiting) == 0


async def test_watches_are_bounded(tmp_path: Path) -> None:
    """Over all watchers together; room comes back when one ends."""
    async with serving(Machine(tmp_path / "m"), NodeSettings(lac_watches_max=3)) as room:
        one, two = room.bookie.watch(Heard()), room.bookie.watch(Heard())
        for ledger_id in (1, 2):
            one.subscribe(ledger_id)
        two.subscribe(1)
        with pytest.raises(BadRequestError):
            two.subscribe(5)
        one.close()
        two.subscribe(5)
        for ledger_id in (-1, 2**63):
            with pytest.raises(BadRequestError):
                two.subscribe(ledger_id)
        room.bookie.stop_accepting()
        with pytest.raises(ShuttingDownError):
            two.subscribe(6)


async def test_a_fence_of_a_deleted_ledger_says_that_there_is_none(room: Room) -> None:
    """Its adds are refused already; no answer before that is durable."""
    await add(room.bookie, 7, [0])
    hold = room.machine.disk.hold("fdatasync", ".journal")
    state = await room.engine.load(7)
    room.engine.delete(state, room.machine.clock.now_ms())
    async with asyncio.TaskGroup() as tasks:
        fencing = tasks.create_task(room.bookie.fence(7, KEY))
        await asyncio.to_thread(hold.wait_reached)
        await asyncio.sleep(0)
        assert not fencing.done()
        hold.release()
    assert fencing.result().status is Status.NO_SUCH_LEDGER
    assert (await read(room.bookie, 7, 0, 0)).status is Status.NO_SUCH_LEDGER


@pytest.mark.parametrize("key", [b"k" * 65, b"k" * 1000])
async def test_keys_that_no_ledger_has_are_refused(room: Room, key: bytes) -> None:
    """Before anything is looked at."""
    assert (await room.bookie.fence(7, key)).status is Status.BAD_REQUEST
    assert (await room.bookie.read_lac(7, key)).status is Status.BAD_REQUEST
    for ledger_id in (-1, 2**63):
        assert (await room.bookie.fence(ledger_id, KEY)).status is Status.BAD_REQUEST
        assert (await room.bookie.read_lac(ledger_id, KEY)).status is Status.BAD_REQUEST

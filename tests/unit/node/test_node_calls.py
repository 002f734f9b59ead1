"""No Python work per entry: a thousand entries cost as many calls as sixteen."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import pack_batch
from bookie.ids import Status
from tests.unit.node.engine.machine import DIGESTER, batch
from tests.unit.node.node_room import Room, add_command, read_command

FEW, MANY = 16, 1024
RATIO_MAX = 1.2
TESTS = str(Path(__file__).parents[2])
PACKAGE = str(Path(sys.modules["bookie"].__file__ or "").parent)


class Calls:
    """Python calls, by function, in every thread that started while this was set."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call" and not frame.f_code.co_filename.startswith(TESTS):
            self.counted[frame.f_code.co_qualname] += 1

    async def of(self, action: Callable[[], Awaitable[object]]) -> Counter[str]:
        """The calls until `action` is complete; a garbage collection's not among them."""
        gc.collect()
        gc.disable()
        self.counted.clear()
        self.on = True
        try:
            await action()
        finally:
            self.on = False
            gc.enable()
        return Counter(self.counted)


@pytest.fixture(name="calls", autouse=True)
def _calls() -> Iterator[Calls]:
    # Set before the room's threads are born: a profile function belongs to a thread.
    with profiled() as calls:
        yield calls


@contextmanager
def profiled() -> Iterator[Calls]:
    """Count calls in this thread and in those that start meanwhile."""
    calls, before = Calls(), sys.getprofile()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def compare(few: Counter[str], many: Counter[str]) -> None:
    """Fail with the functions that were called more often."""
    assert few.total() > 0
    assert many.total() <= RATIO_MAX * few.total(), (many - few).most_common(10)


def entries(ledger_id: int, first: int, count: int, kind: str) -> EntryBatch:
    """`count` entries: of one size, of many sizes, or with gaps between their ids."""
    match kind:
        case "uniform":
            sizes = [100] * count
        case _:
            sizes = [20 + 7 * (i % 90) for i in range(count)]
    if kind == "striped":
        return batch(ledger_id, range(first * 3, (first + count) * 3, 3), size=50)
    return pack_batch(ledger_id, first, -1, 0, [bytes(size) for size in sizes], DIGESTER)


KINDS = ["uniform", "mixed", "striped"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_add_costs_the_same(room: Room, calls: Calls, kind: str) -> None:
    """From the decision to the acknowledgement, in the loop and in the journal thread."""
    counted = []
    first = 0
    for count in (FEW, FEW, MANY):
        command = add_command(entries(7, first, count, kind))
        first += count

        async def act() -> None:
            assert (await room.bookie.add(command)).status is Status.OK  # noqa: B023 (run at once)
            # The journal thread notes its figures after the answer; they are part of this add, and
            # no part of the next one.
            assert (await room.bookie.force(7)).status is Status.OK

        counted.append(await calls.of(act))
    compare(counted[1], counted[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["cache", "index", "cold"])
async def test_a_range_read_costs_the_same(room: Room, calls: Calls, kind: str, place: str) -> None:
    """From the write cache, from the index, and by a read thread."""
    for ledger_id, count in ((7, FEW), (8, MANY)):
        assert (await room.bookie.add(add_command(entries(ledger_id, 0, count, kind)))).status is (
            Status.OK
        )
    if place != "cache":
        await room.engine.checkpoint()
    room.machine.disk.cold = place == "cold"
    stripe = {"stripe_modulus": 3, "stripe_count": 1} if kind == "striped" else {}
    counted = []
    for ledger_id, count in ((7, FEW), (7, FEW), (8, MANY), (8, MANY)):
        last = 3 * count - 1 if kind == "striped" else count - 1
        command = read_command(ledger_id, 0, last, **stripe)

        async def act() -> None:
            reply = await room.bookie.read(command)  # noqa: B023 (run at once)
            assert reply.batch is not None
            assert reply.batch.count == count  # noqa: B023 (run at once)

        counted.append(await calls.of(act))
    compare(counted[1], counted[3])


async def test_a_comparison_of_duplicates_costs_the_same(room: Room, calls: Calls) -> None:
    """A resend is answered without work per entry, too."""
    counted = []
    for ledger_id, count in ((7, FEW), (7, FEW), (8, MANY), (8, MANY)):
        command = add_command(entries(ledger_id, 0, count, "mixed"))
        await room.bookie.add(command)

        async def act() -> None:
            assert (await room.bookie.add(command)).status is Status.OK  # noqa: B023 (run at once)
            # The journal thread notes its figures after the answer; they are part of this add, and
            # no part of the next one.
            assert (await room.bookie.force(7)).status is Status.OK

        counted.append(await calls.of(act))
    compare(counted[1], counted[3])


async def test_a_checkpoint_costs_a_call_a_page_at_most(room: Room, calls: Calls) -> None:
    """It works on pages of 64 entries, and on new ones all at once."""
    counted = []
    for ledger_id, count in ((7, FEW), (8, MANY)):
        await room.bookie.add(add_command(entries(ledger_id, 0, count, "mixed")))
        counted.append(await calls.of(room.engine.checkpoint))
    assert counted[1].total() <= RATIO_MAX * counted[0].total() + MANY // 64


async def test_reading_many_small_adds_costs_a_bounded_number_of_calls(
    room: Room, calls: Calls
) -> None:
    """A thousand lone appends are folded into few tables, written or not."""
    for i in range(MANY):
        await room.bookie.add(add_command(entries(7, i, 1, "uniform")))

    async def act() -> None:
        reply = await room.bookie.read(read_command(7, 0, MANY - 1))
        assert reply.batch is not None
        assert reply.batch.count == MANY

    counted = await calls.of(act)
    assert counted.total() < 3 * 64 + 200, counted.most_common(5)


def test_the_count_sees_the_package(calls: Calls) -> None:
    """A profile that counts nothing would prove anything."""
    calls.on = True
    batch_of_one = pack_batch(1, 0, -1, 0, [b"x"], DIGESTER)
    calls.on = False
    assert batch_of_one.count == 1
    assert calls.counted["pack_batch"] == 1
    assert PACKAGE

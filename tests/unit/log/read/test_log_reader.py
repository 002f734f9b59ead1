"""The reader of a partition: from every start, across every change, without a gap or a repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from bookie.api import BookKeeper
from bookie.errors import (
    BadRequestError,
    FormatError,
    LogTruncatedError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.read.ledger_runs import SMALL_RUN_BYTES
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogPosition, LogRecord, encode_log_record
from tests.unit.ledger.real_cluster import until
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog


async def offsets_of(reader: LogReader) -> list[int]:
    """The offsets of all records, whose values must tell the same."""
    found = [record async for record in reader]
    assert [int(record.value) for record in found] == [record.offset for record in found]
    return [record.offset for record in found]


@asynccontextmanager
async def following(reader: LogReader) -> AsyncIterator[list[int]]:
    """The offsets that a follower has seen, which grow during the block."""
    seen: list[int] = []

    async def follow() -> None:
        async with aclosing(reader.records()) as records:
            async for record in records:
                assert int(record.value) == record.offset
                seen.append(record.offset)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        yield seen
        task.cancel()


def saw(seen: list[int], end: int, start: int = 0) -> Callable[[], bool]:
    """True if exactly ``start … end - 1`` were seen."""
    return lambda: seen == list(range(start, end))


def tasks_now() -> set[str]:
    """Names of the tasks that read something."""
    prefixes = ("reader of orders", "entries of", "metadata of", "read ")
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(prefixes)}


# -- starts ----------------------------------------------------------------------------------------


async def test_an_empty_log(log: HandMadeLog) -> None:
    """It has no head yet."""
    assert await offsets_of(log.reader()) == []
    assert await offsets_of(log.reader(start="latest")) == []
    assert await offsets_of(log.reader(start_time=5)) == []
    assert await log.reader().lag() == 0


async def test_every_way_to_start(log: HandMadeLog) -> None:
    """Two closed ledgers of 3 and 4 records, and an open one of 2."""
    await log.fill(3, 4)
    writer = await log.add()
    await log.append(writer, 2)
    first, second, third = (one.ledger_id for one in (await log.head()).ranges)
    everything = list(range(9))
    assert await offsets_of(log.reader()) == everything
    assert await offsets_of(log.reader(start="earliest")) == everything
    assert await offsets_of(log.reader(start="latest")) == []
    for offset in range(12):
        assert await offsets_of(log.reader(start=offset)) == everything[offset:]
        assert await offsets_of(log.reader(start_time=offset)) == everything[offset:]
        assert await offsets_of(log.reader(end=offset)) == everything[:offset]
    assert await offsets_of(log.reader(start=(second, 1))) == everything[4:]
    assert await offsets_of(log.reader(start=(first, 3))) == everything[3:]
    assert await offsets_of(log.reader(start=(third, 1))) == everything[8:]
    assert await offsets_of(log.reader(start=LogPosition(second, 1, 4))) == everything[4:]
    assert await offsets_of(log.reader(start=1, end=(second, 2))) == everything[1:5]
    assert await log.reader(start=4).lag() == 5


@pytest.mark.parametrize(
    "options",
    [
        {"start": "begin"},
        {"start": -1},
        {"start": True},
        {"start": 1.5},
        {"start": object()},
        {"start": (1,)},
        {"start": (1, -1)},
        {"start": 1, "start_time": 1},
        {"start_time": "now"},
        {"end": "latest"},
        {"on_truncated": "ignore"},
    ],
)
async def test_wrong_arguments(log: HandMadeLog, options: dict[str, object]) -> None:
    """They are refused before anything is read."""
    with pytest.raises(BadRequestError):
        log.reader(**options)


async def test_an_end_while_following(log: HandMadeLog) -> None:
    """A follower stops before the end, in a closed ledger and in an open one."""
    await log.fill(3)
    writer = await log.add()
    await log.append(writer, 4)
    assert await offsets_of(log.reader(follow=True, end=3)) == [0, 1, 2]
    assert await offsets_of(log.reader(follow=True, end=5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_range_without_records(log: HandMadeLog, follow: bool) -> None:
    """It ends where it begins, or before; also in an open ledger, by time and by position."""
    await log.fill(3)
    await log.append(await log.add(), 4)
    first, second = (one.ledger_id for one in (await log.head()).ranges)
    for start in range(9):
        for end in range(start + 1):
            for begin in ({"start": start}, {"start_time": start}):
                if start < 7 or not follow:
                    assert await offsets_of(log.reader(**begin, end=end, follow=follow)) == []
    for place, before in (((second, 1), (second, 1)), ((second, 2), (first, 1)), ((first, 2), 0)):
        assert await offsets_of(log.reader(start=place, end=before, follow=follow)) == []


async def test_batches_and_positions(log: HandMadeLog) -> None:
    """A batch holds consecutive records, and the reader's place is behind it."""
    await log.fill(3, 3)
    reader = log.reader(start=1)
    assert "next_offset=1" in repr(reader)
    assert reader.position is None
    batches = [list(batch) async for batch in reader.batches()]
    assert [record.offset for batch in batches for record in batch] == [1, 2, 3, 4, 5]
    assert "next_offset=6" in repr(reader)
    ledger_id = (await log.head()).ranges[1].ledger_id
    assert log.reader(start=LogPosition(ledger_id, 2, 5)).next_offset == 5
    assert str(reader.position) == str(LogPosition(ledger_id, 2, 5))


async def test_keys_headers_and_control_records(log: HandMadeLog) -> None:
    """Everything of a record is read. A control record takes an offset and is not shown."""
    writer = await log.add()
    await log.append(writer, 1, key=b"k", headers={"h": b"v"})
    control = encode_log_record(LogRecord(5, b"for writers"), is_control=True)
    await log.append_payloads(writer, [control])
    await log.append(writer, 1)
    found = [record async for record in log.reader()]
    assert [record.offset for record in found] == [0, 2]
    assert (found[0].key, found[0].headers) == (b"k", {"h": b"v"})
    reader = log.reader(start=1, end=2)
    assert await offsets_of(reader) == []
    assert reader.next_offset == 2


async def test_an_entry_that_is_no_record(log: HandMadeLog) -> None:
    """The error names it; a reader can be sent past it."""
    writer = await log.add()
    await log.append_payloads(writer, [b"something else"])
    await log.append(writer, 1)
    reader = log.reader()
    with pytest.raises(FormatError, match=f"entry 0 of ledger {writer.ledger_id}"):
        await offsets_of(reader)
    reader.seek(1)
    assert await offsets_of(reader) == [1]


async def test_a_wrong_password(one_bk: BookKeeper, log: HandMadeLog) -> None:
    """The ledgers of a log have its password."""
    await one_bk.create_log("secret", policy=ONE_COPY)
    async with one_bk.open_log("secret", password=b"p") as writer:
        await writer.append(b"0")
    definition = await log.client.definition(LogName.parse("secret"))
    partition = LogPartition(LogName.parse("secret"))
    assert await offsets_of(LogReader(log.client, partition, definition, password=b"p")) == [0]
    with pytest.raises(UnauthorizedError):
        await offsets_of(LogReader(log.client, partition, definition))


# -- following -------------------------------------------------------------------------------------


async def test_a_follower_sees_each_record(log: HandMadeLog) -> None:
    """From before the first ledger, over a roll, to the records after it."""
    async with following(log.reader(follow=True)) as seen:
        first = await log.add()
        await log.append(first, 2)
        await until(saw(seen, 2))
        second = await log.add()  # a roll: two ranges are open
        await log.append(second, 2)
        await log.close(first)
        await until(saw(seen, 4))
        await log.append(second, 1)
        await until(saw(seen, 5))
    assert tasks_now() == set()


async def test_a_closed_ledger_whose_range_is_open(log: HandMadeLog) -> None:
    """The ledgers' metadata decide: the next range begins where the CLOSED ledger ends."""
    first, second = await log.add(), await log.add()
    await log.append(first, 3)
    await log.append(second, 2)
    assert await offsets_of(log.reader()) == [0, 1, 2]  # the end of the first one is not decided
    await first.close()
    assert len((await log.head()).open_ranges) == 2
    assert await offsets_of(log.reader()) == [0, 1, 2, 3, 4]
    assert await offsets_of(log.reader(start=4)) == [4]
    assert await offsets_of(log.reader(start_time=4)) == [4]
    assert await offsets_of(log.reader(start=(second.ledger_id, 1))) == [4]
    assert await log.reader().lag() == 5
    async with following(log.reader(follow=True)) as seen:
        await until(saw(seen, 5))
        await log.append(second, 1)
        await until(saw(seen, 6))


async def test_an_entry_of_the_second_open_range(log: HandMadeLog) -> None:
    """Its offset is unknown while the first ledger is open: the reader waits for its end."""
    first, second = await log.add(), await log.add()
    await log.append(first, 2)
    reader = log.reader(start=(second.ledger_id, 1), follow=True)
    async with following(reader) as seen:
        await until(lambda: "reader of orders#0" in tasks_now())
        assert reader.next_offset is None
        await first.close()
        await log.append(second, 2)
        await log.close_range(first)
        await until(saw(seen, 4, 3))


async def test_empty_ledgers_leave_the_chain(log: HandMadeLog) -> None:
    """A follower of an empty ledger goes on when it is dropped and deleted."""
    await log.fill(2)
    async with following(log.reader(follow=True)) as seen:
        for _ in range(3):
            empty = await log.add()
            await until(lambda: "reader of orders#0" in tasks_now())
            await log.close(empty)
        writer = await log.add()
        await log.append(writer, 1)
        await until(saw(seen, 3))


async def test_takeovers_while_reading(one_bk: BookKeeper, log: HandMadeLog) -> None:
    """Owners come without a word to the one before; all records are seen once."""
    async with following(log.reader(follow=True)) as seen:
        for owner in range(4):
            writer = await one_bk.open_log("orders")
            for at in range(3):
                await writer.append(b"%d" % (3 * owner + at))
        await until(saw(seen, 12))
        async with one_bk.open_log("orders"):
            pass  # the ledger of the last owner is closed
    assert await offsets_of(log.reader()) == list(range(12))


async def test_rolls_while_reading(one_bk: BookKeeper, log: HandMadeLog) -> None:
    """The writer goes on in other ledgers while it appends; nothing shows."""
    async with following(log.reader(follow=True)) as seen, one_bk.open_log("orders") as writer:
        for turn in range(5):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(
                    writer.append_many([b"%d" % (20 * turn + at) for at in range(20)])
                )
                tasks.create_task(writer.roll())
        await until(saw(seen, 100))
    assert await offsets_of(log.reader()) == list(range(100))


async def test_many_followers_from_many_places(one_bk: BookKeeper, log: HandMadeLog) -> None:
    """All see the same records from their start on."""
    await log.fill(2, 2)
    readers = [log.reader(start=start, follow=True) for start in range(8)]
    seen: list[list[int]] = [[] for _ in readers]

    async def follow(at: int) -> None:
        async for record in readers[at]:
            seen[at].append(record.offset)
            if record.offset == 9:
                return

    async with asyncio.TaskGroup() as tasks:
        for at in range(len(readers)):
            tasks.create_task(follow(at))
        async with one_bk.open_log("orders") as writer:
            for offset in range(4, 10):
                await writer.append(b"%d" % offset)
    assert seen == [list(range(start, 10)) for start in range(8)]


# -- truncation ------------------------------------------------------------------------------------


async def test_a_start_before_the_earliest(log: HandMadeLog) -> None:
    """It is an error that tells the earliest offset; "earliest" and `skip` begin there.

    An entry that no range has may be in another ledger now, so `skip` does not leave it out.
    """
    await log.fill(3, 3)
    await log.truncate(4)
    with pytest.raises(LogTruncatedError) as caught:
        await offsets_of(log.reader(start=1))
    assert caught.value.earliest_offset == 4
    assert await offsets_of(log.reader()) == [4, 5]
    assert await offsets_of(log.reader(start_time=1)) == [4, 5]
    assert await offsets_of(log.reader(start=1, on_truncated="skip")) == [4, 5]
    for mode in ("raise", "skip"):
        with pytest.raises(LogTruncatedError):
            await offsets_of(log.reader(start=(12345, 0), on_truncated=mode))
    with pytest.raises(LogTruncatedError):
        await offsets_of(log.reader(end=(12345, 0)))


@pytest.mark.parametrize("skips", [False, True])
async def test_truncation_at_the_position(log: HandMadeLog, skips: bool) -> None:
    """The ledger that comes next is gone when the reader gets there. It is not read ahead."""
    await log.fill(2, 2, 2, width=SMALL_RUN_BYTES)
    reader = log.reader(on_truncated="skip" if skips else "raise")
    async with aclosing(reader.records()) as records:
        assert (await anext(records)).offset == 0
        await log.truncate(4)
        assert (await anext(records)).offset == 1
        if skips:
            assert [record.offset async for record in records] == [4, 5]
        else:
            with pytest.raises(LogTruncatedError) as caught:
                await anext(records)
            assert caught.value.earliest_offset == 4
    assert reader.next_offset == (6 if skips else 2)


async def test_truncation_before_the_position(log: HandMadeLog) -> None:
    """A reader does not notice that what it has read goes."""
    await log.fill(2, 2, 2)
    async with aclosing(log.reader(start=3).records()) as records:
        assert (await anext(records)).offset == 3
        await log.truncate(4)
        assert [record.offset async for record in records] == [4, 5]


async def test_truncation_of_all_while_following(log: HandMadeLog) -> None:
    """A follower at the end goes on with what comes."""
    await log.fill(3)
    async with following(log.reader(follow=True)) as seen:
        await until(saw(seen, 3))
        await log.truncate(3)
        await log.fill(2)
        await until(saw(seen, 5))


async def test_a_ledger_that_somebody_deleted(log: HandMadeLog) -> None:
    """The log still names it: that is no truncation."""
    await log.fill(1, 1)
    second = (await log.head()).ranges[1].ledger_id
    await log.client.ledgers.ledgers.delete(second)
    reader = log.reader()
    with pytest.raises(NoSuchLedgerError):
        await offsets_of(reader)
    assert reader.next_offset == 1
    with pytest.raises(NoSuchLedgerError, match="the log names it"):
        await offsets_of(log.reader(start_time=1))


async def test_a_log_that_is_deleted(log: HandMadeLog) -> None:
    """A follower that waits is told."""
    await log.fill(1)
    name = log.partition.name
    async with aclosing(log.reader(follow=True).records()) as records:
        assert (await anext(records)).offset == 0

        async def wait() -> None:
            with pytest.raises(NoSuchLogError):
                await anext(records)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait())
            await until(lambda: "reader of orders#0" in tasks_now())
            await log.client.logs.mark_deleted(name)
            await log.client.logs.remove(name)


# -- seek, one iteration, cancellation -------------------------------------------------------------


async def test_seek_back_and_forth(log: HandMadeLog) -> None:
    """The next record comes from the new place, within a batch, too."""
    await log.fill(4, 4)
    reader = log.reader()
    seen: list[int] = []
    async with aclosing(reader.records()) as records:
        async for record in records:
            seen.append(record.offset)
            if len(seen) == 2:
                reader.seek(5)
            elif len(seen) == 4:
                reader.seek(1)
            elif len(seen) == 6:
                reader.seek(time=7)
            elif len(seen) == 7:
                reader.seek("earliest")
            elif len(seen) == 9:
                reader.seek("latest")
    assert seen == [0, 1, 5, 6, 1, 2, 7, 0, 1]
    assert reader.next_offset == 8


async def test_seek_between_batches(log: HandMadeLog) -> None:
    """A batch that was handed out is whole; the next one comes from the new place."""
    await log.fill(2, 2)
    reader = log.reader()
    async with aclosing(reader.batches()) as batches:
        assert [record.offset for record in await anext(batches)] == [0, 1]
        reader.seek(3)
        assert [record.offset for record in await anext(batches)] == [3]
        reader.seek(1)
        assert [[record.offset for record in batch] async for batch in batches] == [[1], [2, 3]]


@pytest.mark.parametrize("is_open", [False, True])
async def test_seek_wakes_who_waits(log: HandMadeLog, is_open: bool) -> None:
    """A follower at the end, of a ledger or of the head, goes to the new place at once."""
    await log.fill(2)
    if is_open:
        await log.add()
    reader = log.reader(follow=True, start="latest")
    async with aclosing(reader.records()) as records:
        for offset in (1, 0, 1):

            async def wait() -> int:
                return (await anext(records)).offset

            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(wait())
                await until(lambda: "reader of orders#0" in tasks_now())
                reader.seek(offset)
            assert waiting.result() == offset
            assert reader.next_offset == offset + 1
            # The rest of the batch comes first; a seek to the end drops it.
            reader.seek("latest")
    assert tasks_now() == set()


async def test_one_iteration_at_a_time(log: HandMadeLog) -> None:
    """A reader has one place. A new iteration goes on where the last one was left."""
    await log.fill(5)
    reader = log.reader()
    async with aclosing(reader.records()) as records:
        assert (await anext(records)).offset == 0
        assert (await anext(records)).offset == 1
        with pytest.raises(BadRequestError, match="already"):
            await anext(reader.records())
    assert await offsets_of(reader) == [2, 3, 4]
    assert await offsets_of(reader) == []


@pytest.mark.parametrize("turns", range(40))
async def test_cancellation_at_any_point(log: HandMadeLog, turns: int) -> None:
    """Nothing is left behind, and no record is lost or seen twice."""
    await log.fill(2, 2)
    first = await log.add()
    await log.append(first, 2)
    reader = log.reader(follow=True)
    seen = []

    async def follow() -> None:
        async with aclosing(reader.records()) as records:
            async for record in records:
                seen.append(record.offset)  # noqa: PERF401  (others look while it grows)

    for _ in range(3):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follow())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        assert tasks_now() == set()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        await until(saw(seen, 6))
        task.cancel()

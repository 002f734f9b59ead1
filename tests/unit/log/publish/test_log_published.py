"""Reading published ranges: many small ones, of ledgers that are open, in any order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from bookie.errors import NoSuchEntryError
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.head.log_ranges import LedgerRun, runs_from
from bookie.log.read.ledger_runs import RUNS_AHEAD_MAX, LedgerReaders, read_runs
from bookie.log.record.log_record import LogRecord, encode_log_record
from tests.unit.ledger.real_cluster import until
from tests.unit.log.hand_made_log import HandMadeLog


def published(writer: WriterHandle, first: int, last: int, end_ms: int) -> LogRange:
    """A range as a publisher describes it."""
    return LogRange(writer.ledger_id, first, last, 0, end_ms, 50 * (last - first + 1))


async def values_of(log: HandMadeLog, **options: object) -> list[bytes]:
    return [record.value async for record in log.reader(**options)]


async def test_only_what_is_published_is_seen(log: HandMadeLog) -> None:
    """Two publishers take turns. What lies between their ranges was given up."""
    a, b = await log.create(), await log.create()
    for writer, name in ((a, b"a"), (b, b"b")):
        records = [LogRecord(at, b"%s%d" % (name, at)) for at in range(10)]
        await log.append_records(writer, records)
    await log.publish(published(a, 0, 1, 1), published(b, 0, 0, 0))
    await log.publish(published(a, 4, 5, 5))
    await log.publish(published(b, 3, 4, 4), published(a, 6, 6, 6))
    expected = [b"a0", b"a1", b"b0", b"a4", b"a5", b"b3", b"b4", b"a6"]
    assert await values_of(log) == expected
    assert [r.offset async for r in log.reader()] == list(range(8))
    for start in range(8):
        assert await values_of(log, start=start, end=start + 3) == expected[start : start + 3]
    assert await values_of(log, start=(a.ledger_id, 5)) == expected[4:]
    assert await values_of(log, start_time=2) == expected[3:]


async def test_times_of_what_was_not_published(log: HandMadeLog) -> None:
    """The greatest time in a ledger includes entries that were given up; it is no record's."""
    writer = await log.create()
    await log.append_records(writer, [LogRecord(1, b"0"), LogRecord(50, b"given up")])
    await log.append_records(writer, [LogRecord(2, b"1"), LogRecord(60, b"2"), LogRecord(3, b"3")])
    await log.publish(published(writer, 0, 0, 1), published(writer, 2, 4, 60))
    assert await values_of(log, start_time=40) == [b"2", b"3"]
    assert await values_of(log, start_time=2) == [b"1", b"2", b"3"]
    assert await values_of(log, start_time=61) == []


async def test_a_follower_of_publishers(log: HandMadeLog) -> None:
    """Each publication wakes it; nothing else does."""
    writer = await log.create()
    seen: list[bytes] = []

    async def follow() -> None:
        async with aclosing(log.reader(follow=True).records()) as records:
            async for record in records:
                seen.append(record.value)  # noqa: PERF401  (others look while it grows)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        for at in range(5):
            await log.append_records(writer, [LogRecord(at, b"%d" % at)])
            await log.publish(published(writer, at, at, at))
            await until(lambda: len(seen) > at)  # noqa: B023  (called in this turn)
        task.cancel()
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_entries_beyond_the_lac(log: HandMadeLog) -> None:
    """A published entry is acknowledged. A reader need not see it in the ledger's LAC."""
    writer = await log.create()
    await log.append_payloads(writer, [encode_log_record(LogRecord(1, b"x"))])
    handle = await LedgerReaders(log.client.ledgers).open(writer.ledger_id)
    assert handle.last_add_confirmed == -1  # no bookie was asked
    async with aclosing(handle.read_acknowledged(0, 0)) as batches:
        assert [len(batch) async for batch in batches] == [1]
    async with aclosing(handle.read_acknowledged(0, 1)) as batches:
        assert len(await anext(batches)) == 1
        with pytest.raises(NoSuchEntryError):
            await anext(batches)
    async with aclosing(handle.read_acknowledged(5, 4)) as batches:
        assert [batch async for batch in batches] == []


class CountingReaders(LedgerReaders):
    """Notes which ledgers are opened, and how often."""

    def __init__(self, log: HandMadeLog) -> None:
        super().__init__(log.client.ledgers)
        self.opened: list[int] = []

    async def open(self, ledger_id: int) -> ReaderHandle:
        self.opened.append(ledger_id)
        return await super().open(ledger_id)


async def test_small_runs_are_read_ahead_within_a_bound(log: HandMadeLog) -> None:
    """While the consumer works on the first, a few more are read, and not all."""
    await log.fill(*[1] * 20)
    runs = runs_from((await log.head()).ranges, 0)
    readers = CountingReaders(log)
    async with aclosing(read_runs(runs, readers)) as found:
        assert (await anext(found)).offset == 0
        assert len(readers.opened) <= RUNS_AHEAD_MAX
        assert [one.offset async for one in found] == list(range(1, 20))
    assert len(readers.opened) == 20
    large = [replace(run, size_bytes=None) for run in runs]
    readers = CountingReaders(log)
    async with aclosing(read_runs(large, readers)) as found:
        await anext(found)
        assert len(readers.opened) == 1


async def test_a_failure_comes_after_what_is_before_it(log: HandMadeLog) -> None:
    """The third of eight runs cannot be read: the first two are delivered."""
    await log.fill(*[1] * 8)
    runs = runs_from((await log.head()).ranges, 0)
    wrong = LedgerRun(runs[2].ledger_id, 0, 3, 2, 10)
    seen: list[int] = []

    async def read() -> None:
        broken = [*runs[:2], wrong, *runs[3:]]
        async with aclosing(read_runs(broken, CountingReaders(log))) as found:
            async for one in found:
                seen.append(one.offset)  # noqa: PERF401  (an error ends it)

    with pytest.raises(NoSuchEntryError):
        await read()
    assert seen == [0, 1]

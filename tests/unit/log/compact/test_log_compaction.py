"""Compactions on real bookies: the same records before, during and afterwards."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest

from bookie.api import BookKeeper, LogPolicy, NewRecord, connect
from bookie.errors import LogTruncatedError
from bookie.ids import Status
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.compaction import PublishedCompaction
from bookie.log.compact.plan import CompactionLimits
from bookie.log.publish import publisher as publisher_module
from bookie.log.record.log_record import LogPosition, LogRecord, greatest_timestamp_ms
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until
from tests.unit.log.appending import numbers
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog
from tests.unit.log.tidy.compacting import SMALL_LEDGERS, compact
from tests.unit.log.written_logs import head_of, left_over

EACH_ONE = LogPolicy(roll_bytes=1, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
"""Each batch of appends is followed by a roll."""


def plain(records: Sequence[LogRecord]) -> list[tuple[object, ...]]:
    """Records without the ledgers that they are in."""
    return [(*one[:5], one.offset, one.partition) for one in records]


async def records_of(bk: BookKeeper, log: str, **options: object) -> list[LogRecord]:
    return [one async for one in bk.read_log(log, **options)]  # type: ignore[arg-type]


async def rolled_log(bk: BookKeeper, ledgers: int) -> list[LogRecord]:
    """A log of a writer, closed: ledgers of 10 records of a producer, and a snapshot each."""
    await bk.create_log("orders", policy=ONE_COPY)
    async with bk.open_log("orders") as log:
        for number in range(ledgers):
            for at in range(10):
                await log.append(
                    b"%d" % (10 * number + at),
                    key=b"k%d" % at,
                    headers={"h": b"x"},
                    timestamp=1000 + random.Random(at + number).randrange(500),
                    producer=("p", 10 * number + at),
                )
            await log._partitions[0].roll()
    return await records_of(bk, "orders")


async def ledgers_of(bk: BookKeeper) -> list[int]:
    return [one async for one in bk.list_ledgers()]


async def test_a_log_is_the_same_in_fewer_ledgers(
    one_bk: BookKeeper, one_bookie: RealCluster
) -> None:
    """Records, offsets, times, positions; control records are copied with the others."""
    before = await rolled_log(one_bk, 8)
    head = await head_of(one_bookie.store, "orders")
    times = {
        at: [one.offset for one in await records_of(one_bk, "orders", start_time=at)]
        for at in range(995, 1505, 5)
    }
    assert len(head.ranges) == 8
    done = await compact(one_bk, "orders")
    assert done == [PublishedCompaction(1, sum(one.size_bytes or 0 for one in head.ranges[:-1]))]
    after = await head_of(one_bookie.store, "orders")
    assert after.ranges[1:] == head.ranges[-1:]
    joined = after.ranges[0]
    assert (joined.base_offset, joined.end_offset) == (0, head.ranges[-1].base_offset)
    assert joined.end_ms == head.ranges[-2].end_ms
    assert await left_over(one_bk, one_bookie.store, "orders") == set()
    assert len(await ledgers_of(one_bk)) == 2
    found = await records_of(one_bk, "orders")
    assert plain(found) == plain(before)
    assert found[0].ledger_id == joined.ledger_id
    for at, offsets in times.items():
        read = await records_of(one_bk, "orders", start_time=at)
        assert [one.offset for one in read] == offsets, at
    # Positions in the old ledgers stay valid.
    for one in before[::7]:
        assert plain(await records_of(one_bk, "orders", start=one.position)) == plain(
            [each for each in before if each.offset >= one.offset]
        )
        assert plain(await records_of(one_bk, "orders", start=one.offset))[0] == plain([one])[0]
    with pytest.raises(LogTruncatedError, match="compacted, and then its offset finds it"):
        await records_of(one_bk, "orders", start=(before[0].ledger_id, 1))
    kept = before[-1]
    found = await records_of(one_bk, "orders", start=(kept.ledger_id, kept.entry_id))
    assert found == [kept]
    assert await compact(one_bk, "orders") == []


async def test_entries_are_copied_byte_for_byte(
    one_bk: BookKeeper, one_bookie: RealCluster
) -> None:
    await rolled_log(one_bk, 4)
    payloads: list[bytes] = []
    for one in (await head_of(one_bookie.store, "orders")).ranges[:-1]:
        reader = await one_bk.open_ledger(one.ledger_id)
        payloads += [entry.payload async for entry in reader.read()]
    await compact(one_bk, "orders")
    joined = (await head_of(one_bookie.store, "orders")).ranges[0]
    reader = await one_bk.open_ledger(joined.ledger_id)
    assert [entry.payload async for entry in reader.read()] == payloads
    assert reader.metadata.is_closed
    tags = reader.metadata.custom_metadata
    assert set(tags) == {"bookie.log", "bookie.log.partition", "bookie.log.created_ms"}
    assert int(tags["bookie.log.created_ms"]) <= reader.metadata.ctime_ms


async def test_a_writer_goes_on_and_knows_its_producers(one_bk: BookKeeper) -> None:
    """Before, between and after compactions, and the next owner after them."""
    await rolled_log(one_bk, 3)
    log = await one_bk.open_log("orders")
    first = await log.append(b"30", producer=("p", 30))
    assert (await compact(one_bk, "orders"))[0].joined == 1
    assert await log.append(b"30", producer=("p", 30)) == first
    known = await log.append(b"9", producer=("p", 9))
    assert known.offset == 10  # a snapshot is at offset 0
    for number in range(31, 36):
        await log.append(b"%d" % number, producer=("p", number))
        await log._partitions[0].roll()
    assert (await compact(one_bk, "orders"))[0].joined == 1
    await log.append(b"36", producer=("p", 36))
    epoch = log.epoch()
    await log.close()
    async with one_bk.open_log("orders") as again:
        assert again.epoch() == epoch + 1
        assert (await again.append(b"36", producer=("p", 36))).offset < again.next_offset()
        await again.append(b"37", producer=("p", 37))
        assert (await compact(one_bk, "orders"))[0].joined == 1
        await again.append(b"38", producer=("p", 38))
    values = [one.value for one in await records_of(one_bk, "orders")]
    assert values == numbers(0, 39)


async def test_appends_rolls_and_compactions_at_the_same_time(one_bk: BookKeeper) -> None:
    """A follower sees each record once, in order."""
    await one_bk.create_log("orders", policy=EACH_ONE)
    seen: list[LogRecord] = []
    joined = 0

    async def follow() -> None:
        async with aclosing(one_bk.read_log("orders", follow=True)) as records:
            async for one in records:
                seen.append(one)
                if len(seen) == 150:
                    return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        async with one_bk.open_log("orders") as log:
            appending = tasks.create_task(_append_all(log, numbers(0, 150)))
            while not appending.done():
                joined += sum(one.joined for one in await compact(one_bk, "orders"))
                await asyncio.sleep(0)
    assert joined > 1
    assert [one.value for one in seen] == numbers(0, 150)
    assert [one.offset for one in seen] == list(range(150))
    assert plain(await records_of(one_bk, "orders")) == plain(seen)


async def _append_all(log: object, values: Sequence[bytes]) -> None:
    for value in values:
        await log.append(value)  # type: ignore[attr-defined]


# ---- readers that know the old ledgers


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_reader_goes_on_whose_ledgers_are_replaced(
    log: HandMadeLog, one_bk: BookKeeper, one_bookie: RealCluster, forgets: bool
) -> None:
    """It has read a part of a ledger. The bookie may have deleted the rest, or not yet."""
    await log.fill(*[300] * 6, width=1000)
    readers = [log.reader(follow=follow, end=1800) for follow in (False, True)]
    readers.append(log.reader(start=LogPosition(1, 1, 450)))
    readers.append(log.reader(start_time=777))
    streams = [one.batches() for one in readers]
    found = [[one.offset for one in await anext(stream)] for stream in streams]
    old = [one.ledger_id for one in (await log.head()).ranges[:-1]]
    limits = CompactionLimits(small_bytes=10_000_000, target_bytes=10_000_000)
    assert (await compact(one_bk, "orders", limits))[0].joined == 1
    if forgets:
        engine = one_bookie.bookies[0]._engine
        for ledger_id in old:
            reply = await engine.delete(await engine.load(ledger_id), 1)
            assert reply.status is Status.OK
    for offsets, stream in zip(found, streams, strict=True):
        async for batch in stream:
            offsets += [one.offset for one in batch]
        assert offsets == list(range(offsets[0], 1800))
    assert [offsets[0] for offsets in found] == [0, 0, 450, 777]


async def test_a_follower_at_the_end_does_not_notice(log: HandMadeLog, one_bk: BookKeeper) -> None:
    await log.fill(5, 5, 5)
    writer = await log.add()
    await log.append(writer, 2)
    seen: list[int] = []

    async def follow() -> None:
        async for one in log.reader(follow=True, start=3, end=22):
            seen.append(one.offset)  # noqa: PERF401  (others look while it grows)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await until(lambda: len(seen) == 14)
        assert (await compact(one_bk, "orders"))[0].joined == 1
        await log.append(writer, 3)
        await log.close(writer)
        await log.fill(2)
    assert seen == list(range(3, 22))


async def test_readers_whose_chunks_are_written_anew(
    one_bk: BookKeeper, one_bookie: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that a reader remembers name ledgers that are gone."""
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    await published_log(one_bk, batches=50, times=lambda batch, at: 100 * batch + at)
    before = await records_of(one_bk, "orders")
    assert (await head_of(one_bookie.store, "orders")).next_chunk == 11
    readers = [
        await one_bk.log_reader("orders", start=start, follow=True, end=100)
        for start in range(0, 100, 7)
    ]
    streams = [one.batches() for one in readers]
    found = [list(await anext(stream)) for stream in streams]
    assert (await compact(one_bk, "orders", CompactionLimits(1000, 1000)))[0].joined > 1
    head = await head_of(one_bookie.store, "orders")
    assert head.first_chunk == 11
    for start, records, stream in zip(range(0, 100, 7), found, streams, strict=True):
        async for batch in stream:
            records.extend(batch)
        assert plain(records) == plain(before[start:])


# ---- transactional logs


async def published_log(bk: BookKeeper, *, batches: int, times: object) -> None:
    """Batches of two publishers with a ledger for each batch; each has one record."""
    await bk.create_log("orders", transactional=True, policy=EACH_ONE)
    publisher = bk.publisher("orders")
    for batch in range(batches):
        ranges = []
        for at in range(2):
            async with await bk.open_range_writer("orders", "job") as writer:
                moment = times(batch, at)  # type: ignore[operator]
                await writer.append_many([NewRecord(b"%d" % batch, b"k", {}, moment)])
                ranges.append(await writer.cut())
        assert await publisher.publish("job", batch, [one for one in ranges if one is not None])


@pytest.mark.parametrize("seed", range(6))
async def test_times_are_found_that_go_back_between_publishers(
    one_bk: BookKeeper, one_bookie: RealCluster, seed: int
) -> None:
    """Each range knows its own greatest time only. In the joined one it must not go back."""
    draw = random.Random(seed)
    await one_bk.create_log("orders", transactional=True, policy=EACH_ONE)
    publisher = one_bk.publisher("orders")
    for batch in range(12):
        async with await one_bk.open_range_writer("orders", "job") as writer:
            records = [
                NewRecord(b"%d" % at, None, {}, draw.randrange(1, 40))
                for at in range(draw.randrange(1, 5))
            ]
            await writer.append_many(records)
            one = await writer.cut()
        assert one is not None
        assert await publisher.publish("job", batch, [one])
    before = await records_of(one_bk, "orders")
    assert (await compact(one_bk, "orders"))[0].joined == 1
    assert plain(await records_of(one_bk, "orders")) == plain(before)
    for wanted in range(42):
        linear = [at for at, one in enumerate(before) if one.timestamp_ms >= wanted]
        expected = list(range(linear[0], len(before))) if linear else []
        found = await records_of(one_bk, "orders", start_time=wanted)
        assert [one.offset for one in found] == expected, wanted
    joined = (await head_of(one_bookie.store, "orders")).ranges[0]
    reader = await one_bk.open_ledger(joined.ledger_id)
    greatest = [greatest_timestamp_ms(entry.payload) async for entry in reader.read()]
    assert all(one <= other for one, other in pairwise(greatest))
    assert greatest[-1] == joined.end_ms


async def test_a_publisher_goes_on_with_a_ledger_that_was_compacted(
    one_bk: BookKeeper,
) -> None:
    """Ranges of an open ledger are copied; what comes later in it is published as ever."""
    await one_bk.create_log("orders", transactional=True, policy=ONE_COPY)
    publisher = one_bk.publisher("orders")
    async with (
        await one_bk.open_range_writer("orders", "job") as one,
        await one_bk.open_range_writer("orders", "job") as other,
    ):
        for batch in range(6):
            ranges = []
            for writer in (one, other):
                await writer.append_many([b"%d" % batch])
                ranges.append(await writer.cut())
            if batch == 4:
                assert (await compact(one_bk, "orders"))[0].joined == 1
            assert await publisher.publish("job", batch, [r for r in ranges if r is not None])
    found = await records_of(one_bk, "orders")
    assert [one.value for one in found] == [b"%d" % (at // 2) for at in range(12)]
    assert [one.offset for one in found] == list(range(12))
    assert len({one.ledger_id for one in found}) == 3


async def test_the_place_of_an_entry_that_was_copied_elsewhere(one_bk: BookKeeper) -> None:
    """An earlier range of its ledger is left, and the place behind that one is another."""
    await one_bk.create_log("orders", transactional=True, policy=ONE_COPY)
    publisher = one_bk.publisher("orders")
    async with (
        await one_bk.open_range_writer("orders", "job") as one,
        await one_bk.open_range_writer("orders", "job") as other,
    ):
        large = bytes(2 * SMALL_LEDGERS.small_bytes)
        parts = [(one, large), (other, b"1"), (one, b"2"), (other, b"3"), (other, b"4")]
        for batch, (writer, value) in enumerate(parts):
            await writer.append_many([value])
            cut = await writer.cut()
            assert cut is not None
            assert await publisher.publish("job", batch, [cut])
        before = await records_of(one_bk, "orders")
        assert (await compact(one_bk, "orders"))[0].joined == 1
    kept, copied, last = before[0], before[2], before[-1]
    assert (copied.ledger_id, copied.entry_id) == (kept.ledger_id, kept.entry_id + 1)
    for skip in ("raise", "skip"):
        with pytest.raises(LogTruncatedError, match="its offset finds it"):
            await records_of(
                one_bk, "orders", start=(copied.ledger_id, copied.entry_id), on_truncated=skip
            )
    found = await records_of(one_bk, "orders", start=(kept.ledger_id, kept.entry_id))
    assert plain(found) == plain(before)
    assert await records_of(one_bk, "orders", start=(last.ledger_id, last.entry_id + 1)) == []


# ---- what goes wrong


async def test_a_group_that_goes_while_it_is_copied(log: HandMadeLog, one_bk: BookKeeper) -> None:
    """Its copy is deleted at once, and nothing is called a failure."""
    await log.fill(5, 5, 5, 5)
    maintenance = one_bk.maintenance()
    (group,) = (await maintenance.plan_compaction("orders", SMALL_LEDGERS)).groups
    await log.truncate(10)
    copied = await maintenance.copy_group(group)
    assert copied.after is None
    assert "does not exist" in copied.reason
    ledgers = await ledgers_of(one_bk)
    assert ledgers == [one.ledger_id for one in (await log.head()).ranges]
    done = await maintenance.publish_compaction(log.partition, [copied])
    assert done == PublishedCompaction(overtaken=1)


async def test_a_password_is_needed_and_kept(one_bk: BookKeeper) -> None:
    await one_bk.create_log("orders", policy=EACH_ONE)
    async with one_bk.open_log("orders", password=b"secret") as log:
        for value in numbers(0, 6):
            await log.append(value)
            await log._partitions[0].roll()
    maintenance = one_bk.maintenance()
    (group,) = (await maintenance.plan_compaction("orders", SMALL_LEDGERS)).groups
    refused = await maintenance.copy_group(group)
    assert refused.after is None
    assert "password" in refused.reason
    copied = await maintenance.copy_group(group, b"secret")
    done = await maintenance.publish_compaction(group.partition, [copied, refused])
    assert (done.joined, done.overtaken) == (1, 1)
    found = await records_of(one_bk, "orders", password=b"secret")
    assert [one.value for one in found] == numbers(0, 6)


@pytest.mark.parametrize("step", ["copied", "published", "deleted"])
async def test_a_killed_driver(tmp_path: Path, step: str) -> None:
    """The log stays readable. The next compaction and a sweep leave nothing over."""
    uri = f"local://{tmp_path}/metadata"
    async with real_cluster(tmp_path / "bookies", 1, uri=uri) as cluster, connect(uri) as bk:
        before = await rolled_log(bk, 5)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.unit.log.compact.compacting_process",
                uri,
                "orders",
                step,
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().strip() == step
        process.kill()
        await process.wait()
        assert plain(await records_of(bk, "orders")) == plain(before)
        again = await compact(bk, "orders")
        assert [one.joined for one in again] == ([1] if step == "copied" else [])
        swept = await bk.sweep_logs(older_than_seconds=0)
        assert not swept.failures
        assert (len(swept.ledgers) > 0) == (step != "deleted")
        assert plain(await records_of(bk, "orders")) == plain(before)
        assert await left_over(bk, cluster.store, "orders") == set()
        definition = await bk._logs.definition(LogName.parse("orders"))
        partition = LogPartition(LogName.parse("orders"))
        head = (await bk._logs.logs.read_head(partition, definition.log_id)).value
        assert len(head.ranges) == 2

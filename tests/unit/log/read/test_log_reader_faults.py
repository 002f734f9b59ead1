"""Readers whose metadata are old, fail, or change in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.errors import (
    ClientClosedError,
    LogTruncatedError,
    MetadataUnavailableError,
    NoSuchLogError,
    SessionLostError,
)
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_metadata import LogHead
from bookie.log.catalog.logs import LogManager, LogName, LogPartition
from bookie.log.read.head_watch import HeadWatch
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.real_cluster import real_cluster, until
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog


class OddLogs(LogManager):
    """Shows old heads first, and fails as often as it is told."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.old_heads: list[Versioned[LogHead]] = []
        self.failures: list[Exception] = []

    async def read_latest_head(self, partition: LogPartition, log_id: str) -> Versioned[LogHead]:
        if self.old_heads:
            return self.old_heads.pop(0)
        return await super().read_latest_head(partition, log_id)

    @asynccontextmanager
    async def watch_head(
        self, partition: LogPartition, log_id: str
    ) -> AsyncIterator[AsyncIterator[Versioned[LogHead]]]:
        if self.failures:
            raise self.failures.pop(0)
        async with super().watch_head(partition, log_id) as heads:
            yield heads


@pytest.fixture
def odd(log: HandMadeLog) -> OddLogs:
    """The metadata that readers of `log` see; changes use the real one."""
    odd = OddLogs(log.client.store)
    log.client.logs = odd
    return odd


async def offsets(log: HandMadeLog, **options: object) -> list[int]:
    return [record.offset async for record in log.reader(**options)]


@pytest.mark.parametrize("truncated_before", [2, 3])
async def test_truncated_between_the_head_and_the_ledger(
    log: HandMadeLog, odd: OddLogs, truncated_before: int
) -> None:
    """A reader from the earliest record begins at the new one; a reader of an offset fails."""
    await log.fill(2, 2)
    old = await log.metadata.read_head(log.partition, log.definition.log_id)
    await log.truncate(truncated_before)
    odd.old_heads = [old]
    assert await offsets(log) == list(range(truncated_before, 4))
    odd.old_heads = [old]
    with pytest.raises(LogTruncatedError):
        await offsets(log, start=1)
    odd.old_heads = [old]
    assert await offsets(log, start=1, on_truncated="skip") == list(range(truncated_before, 4))
    odd.old_heads = [old]
    assert await offsets(log, start_time=0) == list(range(truncated_before, 4))


async def test_an_empty_ledger_that_an_old_head_names(log: HandMadeLog, odd: OddLogs) -> None:
    """Its end, its deletion and what comes after it are learned one by one."""
    await log.fill(2)
    empty = await log.add()
    old = await log.metadata.read_head(log.partition, log.definition.log_id)
    await log.close(empty)
    await log.fill(1)
    for start in ("earliest", 2, (empty.ledger_id, 0)):
        odd.old_heads = [old]
        found = await offsets(log, start=start)
        assert found == ([0, 1, 2] if start == "earliest" else [2])
    odd.old_heads = [old]
    assert await offsets(log, start="latest") == []
    odd.old_heads = [old]
    assert await offsets(log, start_time=2) == [2]


async def test_a_watch_goes_on_after_failures(log: HandMadeLog, odd: OddLogs) -> None:
    """A store that does not answer is asked again. What is wrong for ever is raised."""
    odd.failures = [MetadataUnavailableError("away"), SessionLostError("lost")]
    watch = HeadWatch(odd, log.partition, log.definition.log_id, retry_seconds=0.001)
    assert not (await watch.next()).value.ranges
    assert not odd.failures
    await log.add()
    assert len((await watch.next()).value.ranges) == 1
    await log.metadata.mark_deleted(log.partition.name)
    await log.metadata.remove(log.partition.name)
    with pytest.raises(NoSuchLogError):
        await watch.next()
    await watch.close()


async def test_a_client_that_is_closed(tmp_path: Path) -> None:
    """A waiting reader gets an error, at the head and at the end of a ledger."""
    async with real_cluster(tmp_path, 1) as cluster:
        for opens in (False, True):
            async with connect(cluster.uri) as client:
                name = f"log-{opens}"
                await client.create_log(name, policy=ONE_COPY)
                partition = LogPartition(LogName.parse(name))
                definition = await client._logs.definition(partition.name)
                log = HandMadeLog(client._logs, partition, definition)
                await log.fill(1)
                if opens:
                    await log.add()
                seen: list[int] = []

                await see_the_end_of(client, log, seen)


async def see_the_end_of(client: BookKeeper, log: HandMadeLog, seen: list[int]) -> None:
    """Close the client while a reader waits."""

    async def read() -> None:
        async for record in log.reader(follow=True):
            seen.append(record.offset)  # noqa: PERF401  (others look while it grows)

    async def follow() -> None:
        with pytest.raises(ClientClosedError):
            await read()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await until(lambda: seen == [0])
        await client.aclose()


class Story:
    """A log that changes step by step, as a seed draws it, in ways that the rules allow."""

    def __init__(self, log: HandMadeLog, seed: int) -> None:
        self.log = log
        self.draw = random.Random(seed)
        self.open: list[WriterHandle] = []
        """Ledgers whose ranges are open, the oldest first; the first may be CLOSED."""
        self.first_is_closed = False

    async def step(self, low: int) -> None:
        """One step. Everything before the offset `low` may be truncated."""
        what = self.draw.choice(["append", "append", "add", "close", "close range", "truncate"])
        if what == "append" and self.open:
            if len(self.open) == 1 and self.first_is_closed:
                return
            await self.log.append(self.open[-1], self.draw.randrange(1, 4))
        elif what == "add" and len(self.open) < 2:
            self.open.append(await self.log.add())
        elif what == "close" and self.open and not self.first_is_closed:
            await self.open[0].close()
            self.first_is_closed = True
        elif what == "close range" and self.first_is_closed:
            await self.log.close_range(self.open.pop(0))
            self.first_is_closed = False
        elif what == "truncate":
            closed = [one for one in (await self.log.head()).ranges if not one.is_open]
            end = closed[-1].end_offset if closed else None
            if end is not None:
                await self.log.truncate(min(low, end))

    async def finish(self) -> None:
        """Close everything."""
        while self.open:
            if not self.first_is_closed:
                await self.open[0].close()
            await self.log.close_range(self.open.pop(0))
            self.first_is_closed = False


@pytest.mark.parametrize("seed", range(25))
async def test_followers_through_any_story(log: HandMadeLog, seed: int) -> None:
    """Each sees every record after its start once and in order, despite the faults."""
    story = Story(log, seed)
    seen: list[list[int]] = []
    starts: list[int] = []

    async def follow(into: list[int], start: int) -> None:
        async with aclosing(log.reader(start=start, follow=True).records()) as records:
            async for record in records:
                assert int(record.value) == record.offset
                into.append(record.offset)

    async with asyncio.TaskGroup() as tasks:
        followers = []
        for turn in range(40):
            low = min(
                (start + len(one) for one, start in zip(seen, starts, strict=True)), default=0
            )
            await story.step(low)
            if turn % 10 == 5:
                seen.append([])
                starts.append(
                    story.draw.randrange((await log.head()).start_offset, log.next_offset + 1)
                )
                followers.append(tasks.create_task(follow(seen[-1], starts[-1])))
            for _ in range(story.draw.randrange(30)):
                await asyncio.sleep(0)
        await story.finish()
        end = log.next_offset
        await until(lambda: all(len(one) == end - s for one, s in zip(seen, starts, strict=True)))
        for task in followers:
            task.cancel()
    assert seen == [list(range(start, end)) for start in starts]
    assert await offsets(log) == list(range((await log.head()).start_offset, end))

"""Consumers and members of a group in random episodes, which record all that they do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from bookie.api import BookKeeper
from bookie.errors import BookieError, NoSuchCursorError
from bookie.log.catalog.logs import LogPartition
from bookie.log.consume.group import GroupMember
from bookie.log.record.log_record import LogRecord
from tests.fault.log_actors import Record, logs_of, moment, pause, seen
from tests.ledger_history.ledger_events import EventOutcome
from tests.log_history.log_events import (
    CursorCommitted,
    CursorReset,
    CursorSeen,
    CursorTaken,
    ReadingBegan,
    RecordsRead,
)

BILLING = "billing"
"""The cursor of lone consumers, on partition 0."""


def group_of(log: str) -> str:
    """The group that consumes a log, and its cursors. Episodes have groups of their own."""
    return f"workers-{log}"


@dataclass(slots=True)
class Holding:
    """What a consumer does while it holds a cursor in one epoch."""

    partition: str
    cursor: str
    handle: str
    epoch: int
    record: Record

    def taken(self, offset: int, called: int) -> None:
        """The cursor is held, and the reading begins there."""
        self.record(
            CursorTaken(
                partition=self.partition,
                handle=self.handle,
                cursor=self.cursor,
                epoch=self.epoch,
                offset=offset,
                called=called,
                returned=moment(),
                outcome=EventOutcome.OK,
            )
        )
        begun = ReadingBegan(
            partition=self.partition, handle=self.handle, offset=offset, called=moment()
        )
        self.record(begun)

    def got(self, record: LogRecord) -> None:
        """A record was given out."""
        at = moment()
        self.record(
            RecordsRead(
                partition=self.partition,
                handle=self.handle,
                called=at,
                returned=at,
                outcome=EventOutcome.OK,
                records=seen([record]),
            )
        )

    @contextmanager
    def committing(self, offset: int) -> Iterator[None]:
        """Around a commit."""
        commit = CursorCommitted(
            partition=self.partition,
            handle=self.handle,
            cursor=self.cursor,
            epoch=self.epoch,
            offset=offset,
            called=moment(),
        )
        self.record(commit)
        try:
            yield
            commit = replace(commit, outcome=EventOutcome.OK)
        except BaseException as error:
            commit = replace(commit, error=type(error).__name__)
            raise
        finally:
            self.record(replace(commit, returned=moment()))


@dataclass(slots=True)
class ConsumingActor:
    """Consumes partition 0 with a cursor that others want as well."""

    name: str
    bk: BookKeeper
    log: str
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with suppress(BookieError, TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0.3, 2)):
                    await self.consume(None)
            await pause(self.rng, 0.1)

    async def consume(self, until: int | None) -> None:
        """Consume up to an offset, or for ever."""
        called = moment()
        async with self.bk.consume(
            self.log, cursor=BILLING, partition=0, on_truncated="skip"
        ) as consumer:
            text = str(consumer.partition)
            handle = f"{self.name}/{called}"
            holding = Holding(text, BILLING, handle, consumer.token, self.record)
            holding.taken(consumer.committed, called)
            self.count("cursor taken")
            if until is not None and consumer.position >= until:
                return
            async for record in consumer:
                holding.got(record)
                if self.rng.random() < 0.2:
                    with holding.committing(record.offset + 1):
                        await consumer.commit()
                if self.rng.random() < 0.05:
                    await pause(self.rng, 0.1)
                if until is not None and record.offset + 1 >= until:
                    return


@dataclass(slots=True)
class GroupActor:
    """A member of the group, which comes and goes."""

    name: str
    bk: BookKeeper
    log: str
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None
    holdings: dict[tuple[LogPartition, int], Holding] = field(default_factory=dict)
    joined: int = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with suppress(BookieError, TimeoutError):
                async with asyncio.timeout(self.rng.uniform(0.5, 2.5)):
                    await self._work()
            await pause(self.rng, 0.2)

    async def _work(self) -> None:
        self.joined += 1
        # It is made before it exists: the callback names it.
        members: list[GroupMember] = []
        called = moment()

        def on_change(partitions: frozenset[LogPartition]) -> None:
            self.count("rebalance")
            for partition in partitions:
                self._note_token(members[0], partition, called)

        member = self.bk.join_group(
            group_of(self.log),
            logs=[self.log],
            member=self.name,
            on_change=on_change,
            on_truncated="skip",
        )
        members.append(member)
        async with member:
            async for found in member:
                holding = self.holdings[found.log_partition, found.token]
                holding.got(found.record)
                if self.rng.random() < 0.2:
                    with holding.committing(found.record.offset + 1):
                        await member.commit(found)

    def _note_token(self, member: GroupMember, partition: LogPartition, called: int) -> None:
        cursor = member._consumers[partition].cursor
        key = partition, cursor.token
        if key not in self.holdings:
            handle = f"{self.name}/{partition}/{cursor.token}"
            holding = Holding(str(partition), group_of(self.log), handle, cursor.token, self.record)
            self.holdings[key] = holding
            # It is called before anything is committed in this epoch.
            holding.taken(cursor.committed, called)


@dataclass(slots=True)
class CursorActor:
    """Looks at the cursors, and resets one now and then."""

    bk: BookKeeper
    partitions: tuple[LogPartition, ...]
    rng: random.Random
    record: Record
    count: Callable[[str], object] = lambda _: None
    pause_seconds: float = 0.15

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with suppress(BookieError):
                await self.look()
                if self.rng.random() < 0.15:
                    await self._reset()
            await asyncio.sleep(self.pause_seconds)

    async def look(self) -> None:
        """Record each cursor as of now."""
        for partition in self.partitions:
            for cursor in (BILLING, group_of(str(partition.name))):
                with suppress(NoSuchCursorError):
                    self.record(await self._read(partition, cursor))

    async def _read(self, partition: LogPartition, cursor: str) -> CursorSeen:
        logs = logs_of(self.bk)
        called = moment()
        await logs.store.sync()
        found = await logs.logs.read_cursor(partition, cursor)
        return CursorSeen(
            partition=str(partition),
            handle=cursor,
            cursor=cursor,
            called=called,
            returned=moment(),
            outcome=EventOutcome.OK,
            version=found.version,
            epoch=found.value.epoch,
            offset=found.value.offset,
        )

    async def _reset(self) -> None:
        partition = self.partitions[0]
        before = await self._read(partition, BILLING)
        event = CursorReset(
            partition=str(partition),
            handle="reset",
            called=moment(),
            cursor=BILLING,
            after_epoch=before.epoch,
        )
        self.record(event)
        to = self.rng.choice(["earliest", "latest", before.offset // 2])
        await self.bk.cursors(str(partition.name)).reset(BILLING, to, partition=partition.number)  # type: ignore[arg-type]
        after = await self._read(partition, BILLING)
        self.record(replace(event, until_epoch=after.epoch, outcome=EventOutcome.OK))
        self.count("reset")

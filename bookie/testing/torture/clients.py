"""The reading clients of ``bookie torture``: readers, consumers with a cursor, and a group.

Each client has its own connection. If a bookie fails or a session ends, the client tries again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing

from bookie.api import BookKeeper, LogRecord
from bookie.errors import BookieError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.testing.torture.judge import PartitionHistory, Seen
from bookie.testing.torture.writer import connect_privately, sequence_of

CURSOR = "consumer"
GROUP = "members"
MEMBERS = 2
TURN_BATCHES_MAX = 30
"""The largest number of batches that a consumer or group member reads before a new consumer or
member takes its place."""

_PAUSE_SECONDS = 0.1


class TortureClients:
    """The reading clients of one log; `histories` gets all records that the clients receive."""

    def __init__(
        self, uri: str, log: str, histories: Mapping[int, PartitionHistory], seed: int
    ) -> None:
        self._uri = uri
        self._log = log
        self._histories = histories
        self._chance = random.Random(seed)  # noqa: S311  (faults, no secrets)

    def works(self) -> list[Coroutine[None, None, None]]:
        """Return a coroutine for each client; each coroutine runs until it is cancelled."""
        return [
            *(self._follow(f"reader {number}", number) for number in self._histories),
            self._follow("reader of all", None),
            *(self._consume(number) for number in self._histories),
            *(self._belong() for _ in range(MEMBERS)),
            self._watch_cursors(),
        ]

    async def _follow(self, name: str, partition: int | None) -> None:
        """Read the log from its first record on, until cancelled."""
        for number in self._histories if partition is None else [partition]:
            self._histories[number].readers[name] = []
        async with connect_privately(self._uri) as bk:
            reader = await bk.log_reader(self._log, partition=partition, follow=True)
            while True:
                try:
                    async with aclosing(reader.batches()) as batches:
                        async for batch in batches:
                            for record in batch:
                                self._histories[record.partition].readers[name].append(seen(record))
                except BookieError:
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _consume(self, partition: int) -> None:
        """Run one consumer after another, all with the same cursor."""
        async with connect_privately(self._uri) as bk:
            while True:
                try:
                    async with bk.consume(self._log, cursor=CURSOR, partition=partition) as one:
                        turn = self._turn()
                        async for batch in one.batches():
                            self._note(CURSOR, partition, batch.records)
                            await one.commit()
                            turn -= 1
                            if not turn:
                                break
                except BookieError:
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _belong(self) -> None:
        async with connect_privately(self._uri) as bk:
            while True:
                try:
                    async with bk.join_group(GROUP, logs=[self._log]) as member:
                        turn = self._turn()
                        async for batch in member.batches():
                            self._note(GROUP, batch.partition.number, batch.records)
                            await member.commit(batch)
                            turn -= 1
                            if not turn:
                                break
                except BookieError:
                    await asyncio.sleep(_PAUSE_SECONDS)

    def _turn(self) -> int:
        return self._chance.randint(1, TURN_BATCHES_MAX)

    def _note(self, cursor: str, partition: int, records: Sequence[LogRecord]) -> None:
        consumed = self._histories[partition].consumed.setdefault(cursor, set())
        consumed.update(record.offset for record in records)

    async def _watch_cursors(self) -> None:
        """Record the offsets of all cursors repeatedly, until cancelled."""
        async with connect_privately(self._uri) as bk:
            while True:
                await self.look_at_cursors(bk)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def look_at_cursors(self, bk: BookKeeper) -> None:
        logs, name = bk._logs.logs, LogName.parse(self._log)
        for number, history in self._histories.items():
            try:
                cursors = await logs.cursors(LogPartition(name, number))
            except BookieError:
                continue
            for cursor, found in cursors.items():
                history.commits.setdefault(cursor, []).append(found.value.offset)

    def behind(self) -> list[str]:
        """Return a sentence for each reader and cursor that is not at the end of the log."""
        found = []
        for number, history in self._histories.items():
            for name, records in history.readers.items():
                if len(records) < len(history.log):
                    found.append(f"{name} has {len(records)} of {len(history.log)} records")
            end = history.log[-1][0] + 1 if history.log else 0
            for cursor in (CURSOR, GROUP):
                offset = history.commits.get(cursor, [0])[-1]
                if offset < end:
                    found.append(
                        f"the cursor {cursor} of partition {number} is at {offset} of {end}"
                    )
        return found


def seen(record: LogRecord) -> Seen:
    """Return a record's offset and its writer's number; -1 if no writer wrote the value."""
    return record.offset, sequence_of(record.partition, record.value)


async def read_all(bk: BookKeeper, log: str, partition: int) -> list[Seen]:
    """Return all records of a partition; all writers must have ended before this call."""
    reader = await bk.log_reader(log, partition=partition)
    async with aclosing(reader.batches()) as batches:
        return [seen(record) async for batch in batches for record in batch]

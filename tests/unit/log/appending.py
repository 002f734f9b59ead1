"""Appends and faults that tests of a log's writer share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from bookie.api import BookKeeper, LogPolicy, LogPosition, LogWriter
from bookie.errors import BookieError
from bookie.log.log_client import LogClient
from tests.conformance.faulty_store import FaultyStore

SMALL = LogPolicy(roll_bytes=1000)


def logs_of(bk: BookKeeper) -> LogClient:
    """The client's access to logs."""
    return bk._logs


def faulty(bk: BookKeeper) -> FaultyStore:
    """Put a store with faults between the client's logs and ledgers, and its store."""
    client = logs_of(bk)
    store = FaultyStore(client.store)
    client.logs._store = store
    client.ledgers.ledgers._store = store
    return store


async def append_all(log: LogWriter, values: Sequence[bytes]) -> list[LogPosition]:
    """Append at the same time, in the order of the values."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(log.append(value)) for value in values]
    return [one.result() for one in started]


async def append_one_by_one(log: LogWriter, values: Sequence[bytes]) -> None:
    """Append each when the one before is durable."""
    for value in values:
        await log.append(value)


def numbers(start: int, stop: int) -> list[bytes]:
    """Values that tell their place."""
    return [b"%d" % number for number in range(start, stop)]


async def error_of(call: Awaitable[object]) -> BookieError | None:
    """The error that a call ends with."""
    try:
        await call
    except BookieError as error:
        return error
    return None

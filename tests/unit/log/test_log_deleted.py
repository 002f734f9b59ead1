"""A log is deleted under those who follow it: they hear that, and it takes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from bookie.api import BookKeeper
from bookie.errors import NoSuchLogError
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.namespaces import NamespaceManager
from bookie.log.read.reader import LogReader
from bookie.log.record.log_record import LogRecord

ROUNDS = 5


@pytest.fixture(name="log", params=["open", "closed"])
async def _log(request: pytest.FixtureRequest, bk: BookKeeper) -> str:
    """A log with a record in each of two ledgers; its owner is there, or gone."""
    name = "orders"
    owner = await bk.open_log(name)
    await owner.append(b"one")
    await owner.roll()
    await owner.append(b"two")
    if request.param == "closed":
        await owner.close()
    return name


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_follower_hears_of_it(bk: BookKeeper, log: str, count: int, waits: bool) -> None:
    """At every place, if it waits for a record already or comes later."""
    reader = await bk.log_reader(log, follow=True)
    async with aclosing(reader.records()) as records, asyncio.timeout(60):
        assert [(await anext(records)).offset for _ in range(count)] == list(range(count))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_refused(records))
            await asyncio.sleep(0.2 if waits else 0)
            await bk.delete_log(log)
        assert waiting.done()


async def _refused(records: AsyncIterator[LogRecord]) -> None:
    with pytest.raises(NoSuchLogError):
        await _rest(records)


async def _rest(records: AsyncIterator[LogRecord]) -> None:
    async for _ in records:
        pass


async def test_a_reader_that_stands_in_a_deleted_ledger(bk: BookKeeper, log: str) -> None:
    """While the deletion is under way, the ledgers are gone and the head is there."""
    reader = await bk.log_reader(log, follow=True)
    assert isinstance(reader, LogReader)
    name = reader.partition.name
    definition = await bk._logs.logs.mark_deleted(name)
    head = await bk._logs.logs.read_head(reader.partition, definition.log_id)
    for one in head.value.ranges:
        await bk.delete_ledger(one.ledger_id)
    with pytest.raises(NoSuchLogError, match="the log orders was deleted"):
        await _rest(reader.records())


async def test_a_consumer_hears_of_it(bk: BookKeeper, log: str) -> None:
    """As a reader does."""
    async with bk.consume(log, cursor="billing") as consumer, asyncio.timeout(60):
        assert (await anext(consumer)).value == b"one"
        await bk.delete_log(log)
        with pytest.raises(NoSuchLogError):
            await _rest(consumer)


async def test_a_member_goes_on_with_its_other_logs(bk: BookKeeper) -> None:
    """One log of a pattern goes; records of the others come as before."""
    await bk.create_log("orders.keep")
    async with bk.open_log("orders.keep") as keep, bk.join_group("g", pattern="orders.*") as member:
        for number in range(ROUNDS):
            name = f"orders.{number}"
            await bk.create_log(name)
            async with bk.open_log(name) as log:
                await log.append(b"gone")
            async with asyncio.timeout(60):
                while (await anext(member)).value != b"gone":
                    pass
            await bk.delete_log(name)
            await keep.append(b"%d" % number)
            async with asyncio.timeout(60):
                while (await anext(member)).value != b"%d" % number:
                    pass


@pytest.mark.parametrize("anew", [False, True])
async def test_an_owner_appends_nothing_into_nothing(bk: BookKeeper, anew: bool) -> None:
    """After a deletion returned, no append is acknowledged, even if the log was made again."""
    await bk.create_log("orders")
    owner = await bk.open_log("orders")
    await owner.append(b"one")
    await bk.delete_log("orders")
    if anew:
        await bk.create_log("orders")
    for _ in range(3):
        with pytest.raises(NoSuchLogError):
            await owner.append(b"lost")
    if anew:
        async with bk.open_log("orders") as log:
            assert (await log.append(b"first")).offset == 0
            assert log.epoch() > owner.epoch(), "a fencing token of the former log would pass"


async def test_a_deletion_that_another_has_completed_spares_a_later_policy(
    bk: BookKeeper, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may belong to a later log by then."""
    read_version = NamespaceManager.log_policy_version

    async def completed_meanwhile(self: NamespaceManager, namespace: str, name: str) -> int | None:
        monkeypatch.undo()
        await bk.delete_log(log)
        await bk.create_log(log, policy=LogPolicy(retention_seconds=60))
        return await read_version(self, namespace, name)

    monkeypatch.setattr(NamespaceManager, "log_policy_version", completed_meanwhile)
    await bk.delete_log(log)
    assert (await bk.log_status(log)).policy.retention_seconds == 60

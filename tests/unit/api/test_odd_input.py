"""Every public method with arguments of wrong types: one BadRequestError each, and no hang."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import bookie.api
from bookie.api import (
    BookKeeper,
    Counter,
    Discovery,
    DoubleBarrier,
    Election,
    Group,
    GroupRecord,
    JsonCodec,
    LockManager,
    LogPolicy,
    LogRecord,
    MetadataCache,
    MetadataStore,
    Participant,
    Queue,
    ReadWriteLocks,
    ServiceInstance,
    connect,
    coordinate,
    open_store,
    retry,
)
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.compact.plan import CompactionLimits
from tests.odd_input import OddCalls, methods_of
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
LOGS = {"LogWriter", "LogReader", "PartitionsReader", "LogConsumer", "GroupMember", "Cursors"}
RANGES = {"LogPublisher", "RangeWriter"}
LEDGERS = {"BookKeeper", "WriterHandle", "ReaderHandle"}
RECIPES = {
    "Counter",
    "Discovery",
    "Election",
    "Group",
    "Lock",
    "LockManager",
    "MetadataCache",
    "MetadataStore",
    "Queue",
    "ReadWriteLocks",
}
VALUES = {
    "JsonCodec": "takes any value that JSON can hold",
    "LedgerMetadata": "what the store has, not made by callers",
    "LogPolicy": "its constructor checks; `over` gets another one",
    "LogPositions": "a sequence that appends return",
    "Participant": "for recipes, which give it tasks",
}
INSIDE = {"start", "take", "submit", "abandon", "open"}
"""Methods of handles that their maker calls."""

RIGHT: dict[str, Any] = {
    "name": "orders",
    "cursor": "billing",
    "group": "workers",
    "application": "app",
    "application_id": "app",
    "ledger_id": 0,
    "offsets": {("orders", 0): 0},
    "timeout_seconds": 0.01,
    "value": b"value",
    "payload": b"payload",
    "payloads": [b"payload"],
    "records": [b"record"],
    "record": GroupRecord(LogPartition(LogName.parse("orders")), 1, LogRecord(0, b"record")),
    "batch": 0,
    "ranges": [],
    "offset": 0,
    "greatest_ms": 0,
    "partition": 0,
    "start": 0,
    "participant": None,
    "end": 0,
    "log": "orders",
    "limits": CompactionLimits(),
    "on_damaged": lambda _: None,
    "wanted": lambda _: True,
    "item_bytes": 100,
    "items": [],
    "damages": [],
    "first_entry_id": 0,
    "last_entry_id": 0,
    "metadata_uri": "memory://odd",
    "uri": "memory://odd",
    "call": None,
    "key": "/tests/key",
    "path": "/tests/path",
    "count": 1,
    "service": "web",
    "instance_id": "web-1",
    "instance": ServiceInstance("127.0.0.1", 1),
    "state": None,
    "modify": lambda value: value,
    "content": b"",
    "operations": [],
    "prefix": "/",
    "names": [],
    "acl": [],
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """One bookie."""
    async with real_cluster(tmp_path, 1) as started:
        yield started


def test_every_public_class_takes_part() -> None:
    """A new class with methods needs a place in one of the tests below."""
    found = {
        name
        for name in bookie.api.__all__
        if inspect.isclass(kind := getattr(bookie.api, name))
        and list(methods_of(kind, {"count", "index"}))
    }
    assert found <= LOGS | RANGES | LEDGERS | RECIPES | VALUES.keys()


async def test_a_client_and_its_ledgers(bk: BookKeeper) -> None:
    """Ledgers and logs are made, opened, listed and deleted by right arguments only."""
    await bk.create_log("orders", policy=ONE_COPY)
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    await writer.append(b"0")
    reader = await bk.open_ledger(writer.ledger_id)
    calls = OddCalls(RIGHT)
    for handle in (bk, writer, reader, bk.maintenance()):
        await calls.methods(handle, INSIDE | {"copy_group", "publish_compaction"})
    calls.refused()
    assert calls.count > 500
    assert [one async for one in bk.list_logs()] == ["orders"]
    assert [one async for one in bk.list_ledgers()] == [writer.ledger_id]
    assert writer.last_entry_id == 0
    await writer.close()


async def test_logs(bk: BookKeeper) -> None:
    """Nothing is appended, moved or committed by a wrong argument."""
    calls = OddCalls(RIGHT)
    await bk.create_log("orders", partitions=2, policy=ONE_COPY)
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(bk.open_log("orders"))
        await writer.append(b"0", partition=0)
        consumer = bk.consume("orders", cursor="billing", partition=0)
        member = bk.join_group("workers", logs=["orders"])
        handles = [
            writer,
            await bk.log_reader("orders"),
            await bk.log_reader("orders", partition=0),
            await stack.enter_async_context(consumer),
            await stack.enter_async_context(member),
            bk.cursors("orders"),
            await bk.survey_log("orders"),
        ]
        for handle in handles:
            await calls.methods(handle, INSIDE)
        calls.refused()
        assert (writer.next_offset(0), writer.next_offset(1)) == (1, 0)
        assert consumer.committed == 0
    assert set(await bk.cursors("orders").all()) >= {"billing"}


async def test_transactional_logs(bk: BookKeeper) -> None:
    """Nothing is written or published by a wrong argument."""
    calls = OddCalls(RIGHT)
    await bk.create_log("orders", transactional=True, policy=ONE_COPY)
    async with await bk.open_range_writer("orders", "app") as writer:
        publisher = bk.publisher("orders")
        for handle in (writer, publisher):
            await calls.methods(handle, INSIDE)
        assert await writer.cut() is None
        assert await publisher.last_batch("app") == -1
    calls.refused()


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_recipes_and_stores(kind: str, tmp_path: Path) -> None:
    """Locks, queues, elections, groups, counters, caches, and the store below them."""
    uri = f"local://{tmp_path}/store" if kind == "local" else "memory://odd-recipes"
    calls = OddCalls(RIGHT)
    async with open_store(uri) as store, Participant(store) as me, AsyncExitStack() as stack:
        cache: MetadataCache[Any] = MetadataCache(me, "/tests", JsonCodec())
        handles = [
            Counter(me, "/tests/counter"),
            Discovery(me, "/tests/discovery"),
            Election(me, "/tests/election"),
            Group(me, "/tests/group"),
            LockManager(me),
            await LockManager(me).acquire("/tests/lock"),
            await stack.enter_async_context(cache),
            Queue(me, "/tests/queue"),
            ReadWriteLocks(me),
        ]
        for handle in handles:
            # A value of a cache is whatever its codec takes.
            without = {"create", "put"} if handle is cache else set()
            await calls.methods(
                handle, without | {"try_to_hold", "wait_to_hold", "enclosing_scopes"}
            )
        await calls.methods(store, {"enclosing_scopes"}, MetadataStore)
        for make in (Counter, Discovery, Election, Group, Queue, LockManager, DoubleBarrier):
            for what, arguments in OddCalls({**RIGHT, "participant": me}).of(make.__init__):
                if not what.endswith("function)") and "participant" not in what:
                    calls.count += 1
                    await calls.one(what, make, arguments)
    calls.refused()


async def test_functions() -> None:
    """The ways in."""
    calls = OddCalls(RIGHT)

    async def call() -> None:
        """Nothing."""

    for function in (connect, coordinate, open_store, retry):
        for what, arguments in OddCalls({**RIGHT, "call": call}).of(function):
            calls.count += 1
            await calls.one(what, function, arguments)
    calls.refused()

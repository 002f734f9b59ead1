"""Writes whose answer is lost, on a real server: the store says what became of them.

The server's answer to the write is eaten, after the write was done, and the connection with it. The
store must come back with the truth, as if the answer had arrived: once done, and not twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from bookie.errors import (
    BadVersionError,
    BookieError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.model import NOT_EXISTS, Check, Commit, Delete, Operation, Put, Resync, Stat
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from tests.servers.proxy import Direction, Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope


class Pair:
    """A store behind a proxy, and another one that sees what is really there."""

    def __init__(self, store: MetadataStore, witness: MetadataStore, proxy: Proxy) -> None:
        self.store = store
        self.witness = witness
        self.proxy = proxy

    async def losing(self, write: Awaitable[Stat]) -> Stat:
        """Do a write whose answer is lost."""
        async with self.losing_answers():
            return await write

    @asynccontextmanager
    async def losing_answers(self, *, done: bool = True) -> AsyncIterator[None]:
        """Lose the answer to the first write of the body, which was done (or refused)."""
        assert isinstance(self.store, ZooKeeperStore)
        receipts = self.store._require_open().receipts
        before = receipts.found_done
        self.proxy.eat_next_reply()
        yield
        assert self.proxy.has_eaten
        assert (receipts.found_done > before) == done
        await self.witness.sync()


@pytest.fixture
async def pair(zookeeper_server: ZooKeeperServer) -> AsyncIterator[Pair]:
    scope = new_scope()
    with Proxy(zookeeper_server.port) as proxy:
        async with (
            open_store(f"zk://127.0.0.1:{proxy.port}{scope}", session_timeout_seconds=10) as store,
            open_store(f"zk://{zookeeper_server.address}{scope}") as witness,
        ):
            await store.sync()  # the first write makes its receipt in several steps
            yield Pair(store, witness, proxy)


async def assert_is(store: MetadataStore, key: str, value: bytes, stat: Stat) -> None:
    record = await store.get(key)
    assert record is not None
    assert record.value == value
    assert (record.version, record.stat.revision) == (stat.version, stat.revision)


async def test_a_create_whose_answer_is_lost_was_done_once(pair: Pair) -> None:
    """Case 157."""
    stat = await pair.losing(pair.store.put("/a", b"mine", version=NOT_EXISTS))
    assert stat.first_version
    await assert_is(pair.witness, "/a", b"mine", stat)
    with pytest.raises(KeyExistsError):
        await pair.store.put("/a", b"", version=NOT_EXISTS)


async def test_an_ephemeral_create_whose_answer_is_lost_is_ours(pair: Pair) -> None:
    """Case 157."""
    stat = await pair.losing(pair.store.put("/e", b"", version=NOT_EXISTS, ephemeral=True))
    assert stat.created_by_self
    await assert_is(pair.witness, "/e", b"", stat)


async def test_a_compare_and_set_whose_answer_is_lost_was_done_once(pair: Pair) -> None:
    """Two who reserve the next block write the same value; only one of them may have it."""
    before = await pair.store.put("/counter", b"0")
    stat = await pair.losing(pair.store.put("/counter", b"1000", version=before.version))
    await assert_is(pair.witness, "/counter", b"1000", stat)
    assert stat.version > before.version


async def test_one_who_lost_is_told_so_though_the_values_are_equal(pair: Pair) -> None:
    """The write failed, its answer was lost, and what is there looks like its own."""
    before = await pair.store.put("/counter", b"0")
    await pair.witness.sync()
    await pair.witness.put("/counter", b"1000", version=before.version)
    async with pair.losing_answers(done=False):
        with pytest.raises(BadVersionError):
            await pair.store.put("/counter", b"1000", version=before.version)


async def test_an_unconditional_put_whose_answer_is_lost_is_not_done_again(pair: Pair) -> None:
    await pair.store.put("/a", b"0")
    async with pair.witness.watch("/a") as changes:
        stat = await pair.losing(pair.store.put("/a", b"1"))
        await pair.store.put("/a", b"2")
        seen = [await anext(changes), await anext(changes)]
    assert all(isinstance(change, Commit) for change in seen)
    assert isinstance(seen[0], Commit)
    assert seen[0].revision == stat.revision


@pytest.mark.parametrize("versioned", [False, True])
async def test_a_delete_whose_answer_is_lost_was_done(pair: Pair, versioned: bool) -> None:
    stat = await pair.store.put("/a", b"")
    async with pair.losing_answers():
        await pair.store.delete("/a", version=stat.version if versioned else None)
    assert await pair.witness.get("/a") is None
    with pytest.raises(NoSuchKeyError):
        await pair.store.delete("/a")


@pytest.mark.parametrize("ephemeral", [False, True])
async def test_a_sequential_create_whose_answer_is_lost_leaves_no_orphan(
    pair: Pair, ephemeral: bool
) -> None:
    """Case 157."""
    for store in (pair.witness, pair.store):
        await store.put("/queue/n-", b"theirs", sequential=True, ephemeral=ephemeral)
    stat = await pair.losing(
        pair.store.put("/queue/n-", b"mine", sequential=True, ephemeral=ephemeral)
    )
    assert await pair.witness.get_children("/queue") == [f"n-{number:010}" for number in range(3)]
    await assert_is(pair.witness, stat.key, b"mine", stat)
    assert stat.created_by_self == ephemeral


async def test_a_sequential_record_that_is_gone_before_its_number_is_known(pair: Pair) -> None:
    """Somebody took it from the queue at once: there is no key to acknowledge."""
    first = await pair.store.put("/queue/n-", b"0", sequential=True)
    await pair.witness.delete(first.key)
    async with pair.witness.watch("/queue") as changes:
        pair.proxy.hold(Direction.TO_CLIENT)
        async with asyncio.TaskGroup() as tasks:
            put = tasks.create_task(_failure(pair.store.put("/queue/n-", b"1", sequential=True)))
            change = await anext(changes)
            assert isinstance(change, Commit)
            await pair.witness.delete(change.events[0].key)
            pair.proxy.reset()
            pair.proxy.heal()
    assert isinstance(put.result(), MetadataUnavailableError)
    assert "was written, and is gone" in str(put.result())


async def test_a_transaction_whose_answer_is_lost_was_done_whole(pair: Pair) -> None:
    old = await pair.store.put("/old", b"")
    kept = await pair.store.put("/kept", b"")
    await pair.store.put("/parent/one", b"")
    operations: list[Operation] = [
        Put("/new", b"1"),
        Delete("/old", old.version),
        Check("/kept", kept.version),
        Put("/parent/below", b"2", ephemeral=True),
    ]
    async with pair.losing_answers():
        stats = await pair.store.transaction(operations)
    assert stats[1:3] == [None, None]
    for key, value, stat in (("/new", b"1", stats[0]), ("/parent/below", b"2", stats[3])):
        assert stat is not None
        await assert_is(pair.witness, key, value, stat)
    assert await pair.witness.get("/old") is None


async def test_many_writes_under_way_each_learn_their_own_outcome(pair: Pair) -> None:
    """Twenty compare-and-sets of one record: one won, whatever answers were lost."""
    before = await pair.store.put("/a", b"0")
    outcomes: list[Stat | None] = []

    async def write(number: int) -> None:
        try:
            outcomes.append(await pair.store.put("/a", b"%d" % number, version=before.version))
        except BadVersionError:
            outcomes.append(None)

    await pair.store.put("/b/first", b"")
    async with pair.losing_answers(), asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(write(number))
            tasks.create_task(pair.store.put(f"/b/{number}", b""))
    won = [stat for stat in outcomes if stat is not None]
    assert len(outcomes) == 20
    assert len(won) == 1
    record = await pair.witness.get("/a")
    assert record is not None
    assert record.version == won[0].version
    assert len(await pair.witness.get_children("/b")) == 21


async def test_a_write_that_never_arrived_is_done_afterwards(pair: Pair) -> None:
    """The connection is reset before the request reaches the server."""
    await pair.store.put("/a", b"0")
    pair.proxy.hold()
    write = pair.store.put("/a", b"1")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_as_coroutine(write))
        await asyncio.sleep(0.05)
        pair.proxy.reset()
        pair.proxy.heal()
    await assert_is(pair.witness, "/a", b"1", task.result())


async def test_an_outcome_that_cannot_be_known_is_not_made_up(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Silence for longer than an operation waits."""
    with Proxy(zookeeper_server.port) as proxy:
        uri = f"zk://127.0.0.1:{proxy.port}{new_scope()}"
        async with open_store(uri, session_timeout_seconds=6) as store:
            await store.put("/a", b"0")
            proxy.hold()
            with pytest.raises(MetadataUnavailableError, match="unknown"):
                await store.put("/a", b"1")
            proxy.heal()
            await store.sync()
            record = await store.get("/a")
            assert record is not None
            assert record.value in (b"0", b"1")


async def test_a_watch_that_missed_something_says_so(pair: Pair) -> None:
    async with pair.store.watch("/") as changes:
        await pair.losing(pair.store.put("/a", b""))
        assert isinstance(await anext(changes), Resync)
        await pair.witness.put("/b", b"")
        change = await anext(changes)
        assert isinstance(change, Commit)
        assert [event.key for event in change.events] == ["/b"]


async def _as_coroutine(awaitable: Awaitable[Stat]) -> Stat:
    return await awaitable


async def _failure(awaitable: Awaitable[Stat]) -> BookieError | None:
    try:
        await awaitable
    except BookieError as error:
        return error
    return None

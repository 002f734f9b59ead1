"""The metadata of logs on every store: definitions, heads, chunks, cursors and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from bookie.cluster import keys
from bookie.env import SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    LogExistsError,
    MetadataUnavailableError,
    NewerFormatError,
    NoSuchCursorError,
    NoSuchLogError,
)
from bookie.log.catalog.log_cursor import LogCursor, encode_log_cursor
from bookie.log.catalog.log_metadata import (
    LogChunk,
    LogDefinition,
    LogHead,
    LogMode,
    LogOwner,
    LogRange,
)
from bookie.log.catalog.logs import LogManager, LogName, LogPartition
from bookie.metadata.model import NOT_EXISTS, Operation
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore
from tests.conformance.streams import next_item

ORDERS = LogName("shop", "orders")
FIRST = LogPartition(ORDERS, 0)
SECOND = LogPartition(ORDERS, 1)
CHUNK = LogChunk(0, (LogRange(7, 0, 9, 0, 50, 100),))


def head_of(definition: LogDefinition, epoch: int = 1) -> LogHead:
    """A head of a log, as its owner of an epoch writes it."""
    return LogHead(definition.log_id, epoch, LogOwner("host-1:42", 5))


@pytest.fixture
def logs(store: MetadataStore) -> LogManager:
    """The manager of one session."""
    return LogManager(store)


class StoppedClock(SystemClock):
    """It shows one moment."""

    def now_ms(self) -> int:
        """The moment."""
        return 1_700_000_000_000


# ---- logs


async def test_a_log_lives_from_create_to_remove(store: MetadataStore) -> None:
    logs = LogManager(store, StoppedClock())
    with pytest.raises(NoSuchLogError, match="no log shop/orders"):
        await logs.read(ORDERS)
    created = await logs.create(ORDERS, LogMode.TRANSACTIONAL, 4)
    assert created.value == LogDefinition(
        created.value.log_id, LogMode.TRANSACTIONAL, 4, 1_700_000_000_000
    )
    assert await logs.read(ORDERS) == created
    with pytest.raises(LogExistsError, match="shop/orders exists"):
        await logs.create(ORDERS)
    marked = await logs.mark_deleted(ORDERS)
    assert marked == replace(created.value, is_deleted=True)
    assert await logs.mark_deleted(ORDERS) == marked
    with pytest.raises(NoSuchLogError, match="being deleted"):
        await logs.read(ORDERS)
    with pytest.raises(LogExistsError):
        await logs.create(ORDERS)
    await logs.remove(ORDERS)
    await logs.remove(ORDERS)
    with pytest.raises(NoSuchLogError, match="no log"):
        await logs.mark_deleted(ORDERS)
    assert not await store.exists(keys.LOGS)


async def test_each_log_has_an_id_of_its_own(logs: LogManager) -> None:
    names = [LogName("n", f"l{i}") for i in range(5)]
    ids = {(await logs.create(name)).value.log_id for name in names}
    assert len(ids) == 5


@pytest.mark.parametrize("partitions", [0, -1, 1025])
async def test_a_log_has_a_sensible_number_of_partitions(
    store: MetadataStore, partitions: int
) -> None:
    with pytest.raises(BadRequestError, match="1 to 1024 partitions"):
        await LogManager(store).create(ORDERS, partitions=partitions)
    assert await store.get_children("/") == []


async def test_logs_are_listed_by_namespace(logs: LogManager) -> None:
    """Also those that are being deleted: somebody has to finish that."""
    assert [name async for name in logs.list_logs()] == []
    wanted = [LogName("a", "x"), LogName("a", "y"), LogName("a-b", "z"), LogName("b", "x")]
    for name in reversed(wanted):
        await logs.create(name)
    await logs.mark_deleted(wanted[1])
    assert sorted([name async for name in logs.list_logs()]) == wanted
    assert [name async for name in logs.list_logs("a")] == wanted[:2]
    assert [name async for name in logs.list_logs("c")] == []


@pytest.mark.parametrize("namespace", ["", "a/x", "..", "ü"])
async def test_logs_of_what_is_no_namespace_are_not_listed(
    logs: LogManager, namespace: str
) -> None:
    await logs.create(LogName("a", "x"))
    with pytest.raises(BadRequestError, match="cannot name a namespace"):
        await anext(aiter(logs.list_logs(namespace)))


async def test_of_two_creators_one_wins(backend: Backend) -> None:
    managers = [LogManager(await backend.open()) for _ in range(2)]

    async def create(logs: LogManager) -> bool:
        try:
            await logs.create(ORDERS)
        except LogExistsError:
            return False
        return True

    async with asyncio.TaskGroup() as tasks:
        creations = [tasks.create_task(create(logs)) for logs in managers]
    assert sorted(task.result() for task in creations) == [False, True]


async def test_a_log_whose_creation_was_not_answered_can_be_created_by_its_name(
    store: MetadataStore,
) -> None:
    """Its caller is told that the outcome is unknown; then the name is taken."""
    faulty = FaultyStore(store)
    faulty.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await LogManager(faulty).create(ORDERS)
    with pytest.raises(LogExistsError):
        await LogManager(faulty).create(ORDERS)
    assert (await LogManager(store).read(ORDERS)).value.partitions == 1


async def test_two_marks_at_once_are_one(backend: Backend) -> None:
    stores = [await backend.open() for _ in range(3)]
    created = await LogManager(stores[0]).create(ORDERS)
    for store in stores:
        await store.sync()
    async with asyncio.TaskGroup() as tasks:
        marks = [tasks.create_task(LogManager(store).mark_deleted(ORDERS)) for store in stores]
    assert {mark.result() for mark in marks} == {replace(created.value, is_deleted=True)}


# ---- removal


async def _fill(logs: LogManager) -> LogDefinition:
    """A log with something of every kind."""
    definition = (await logs.create(ORDERS, partitions=3)).value
    head = replace(head_of(definition), next_chunk=1, chunk_bytes=100)
    await logs.write_head(FIRST, head, NOT_EXISTS, sealed=[CHUNK])
    await logs.write_head(SECOND, head, NOT_EXISTS, sealed=[CHUNK])
    await logs.write_cursor(FIRST, "c", LogCursor(3), NOT_EXISTS)
    changed = (SECOND, head, (await logs.read_head(SECOND, definition.log_id)).version, ())
    await logs.commit_heads([changed], [logs.put_batch(ORDERS, "app", 3, NOT_EXISTS)])
    return definition


async def test_a_log_in_use_is_not_removed(logs: LogManager) -> None:
    definition = await _fill(logs)
    with pytest.raises(LogExistsError, match="not marked as deleted"):
        await logs.remove(ORDERS)
    assert (await logs.read(ORDERS)).value == definition
    assert await logs.applications(ORDERS) == {"app": 3}


async def test_a_removal_that_was_cut_off_goes_on(store: MetadataStore) -> None:
    """After each of its writes: the definition goes last, and the name stays taken until then."""
    logs = LogManager(store)
    await store.put("/logs/shop/other", b"")
    written = 0
    cuts = 0
    while True:
        await _fill(logs)
        await logs.mark_deleted(ORDERS)
        faulty = FaultyStore(store)
        written = 0

        def cut_off() -> None:
            nonlocal written
            if written == cuts:  # noqa: B023  (called within this round of the loop)
                raise MetadataUnavailableError("the test cuts the removal off")
            written += 1

        faulty.before_write = cut_off
        try:
            await LogManager(faulty).remove(ORDERS)
        except MetadataUnavailableError:
            cuts += 1
        else:
            break
        with pytest.raises(NoSuchLogError, match="delete it again to finish"):
            await logs.read(ORDERS)
        with pytest.raises(LogExistsError):
            await logs.create(ORDERS)
        await logs.remove(ORDERS)
        assert await store.get_children("/logs/shop") == ["other"]
    assert cuts == written > 4
    assert await store.get_children("/logs/shop") == ["other"]


async def test_a_late_removal_leaves_a_new_log_alone(backend: Backend) -> None:
    """Two processes delete a log, and one of them sleeps until the name is in use again."""
    store, other = await backend.open(), await backend.open()
    logs, late = LogManager(store), FaultyStore(other)
    await _fill(logs)
    await logs.mark_deleted(ORDERS)
    await other.sync()
    late.hold_writes.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(LogManager(late).remove(ORDERS))
        async with asyncio.timeout(60):
            while not late.counts["transaction"]:  # noqa: ASYNC110  (the store is not told)
                await asyncio.sleep(0.001)
        await logs.remove(ORDERS)
        new = await _fill(logs)
        await other.sync()
        late.hold_writes.set()
    await store.sync()
    assert (await logs.read(ORDERS)).value == new
    assert (await logs.read_head(FIRST, new.log_id)).value.epoch == 1
    assert await logs.read_chunk(FIRST, 0) == CHUNK
    assert await logs.applications(ORDERS) == {"app": 3}


# ---- heads and chunks


async def test_heads_change_by_compare_and_set(logs: LogManager) -> None:
    definition = (await logs.create(ORDERS)).value
    empty = await logs.read_head(FIRST, definition.log_id)
    assert (empty.value, empty.version) == (LogHead(definition.log_id), NOT_EXISTS)
    head = head_of(definition)
    written = await logs.write_head(FIRST, head, empty.version)
    assert await logs.read_head(FIRST, definition.log_id) == written
    for version in (NOT_EXISTS, written.version + 1):
        with pytest.raises(BadVersionError):
            await logs.write_head(FIRST, replace(head, epoch=9), version)
    second = await logs.write_head(FIRST, replace(head, epoch=2), written.version)
    with pytest.raises(BadVersionError):
        await logs.write_head(FIRST, replace(head, epoch=9), written.version)
    assert await logs.read_latest_head(FIRST, definition.log_id) == second


async def test_partitions_have_heads_of_their_own(logs: LogManager) -> None:
    definition = (await logs.create(ORDERS, partitions=2)).value
    await logs.write_head(SECOND, head_of(definition, 7), NOT_EXISTS)
    assert (await logs.read_head(FIRST, definition.log_id)).version == NOT_EXISTS
    assert (await logs.read_head(SECOND, definition.log_id)).value.epoch == 7


async def test_of_several_first_owners_one_wins(backend: Backend) -> None:
    managers = [LogManager(await backend.open()) for _ in range(3)]
    definition = (await managers[0].create(ORDERS)).value
    for logs in managers:
        await logs.read_latest_head(FIRST, definition.log_id)

    async def begin(epoch: int, logs: LogManager) -> int:
        try:
            await logs.write_head(FIRST, head_of(definition, epoch), NOT_EXISTS)
        except BadVersionError:
            return 0
        return epoch

    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(begin(i + 1, logs)) for i, logs in enumerate(managers)]
    head = await managers[0].read_latest_head(FIRST, definition.log_id)
    assert sorted(task.result() for task in begun) == [0, 0, head.value.epoch]


async def test_nobody_begins_a_partition_of_a_deleted_log(logs: LogManager) -> None:
    """Neither of a log of another id; the same holds for cursors."""
    definition = (await logs.create(ORDERS)).value
    with pytest.raises(NoSuchLogError, match="made anew"):
        await logs.write_head(FIRST, LogHead("another"), NOT_EXISTS)
    await logs.mark_deleted(ORDERS)
    with pytest.raises(NoSuchLogError, match="being deleted"):
        await logs.write_head(FIRST, head_of(definition), NOT_EXISTS)
    with pytest.raises(NoSuchLogError, match="being deleted"):
        await logs.write_cursor(FIRST, "c", LogCursor(0), NOT_EXISTS)
    await logs.remove(ORDERS)
    with pytest.raises(NoSuchLogError, match="no log"):
        await logs.write_head(FIRST, head_of(definition), NOT_EXISTS)
    with pytest.raises(NoSuchLogError, match="no log"):
        await logs.write_cursor(FIRST, "c", LogCursor(0), NOT_EXISTS)


@pytest.mark.parametrize("what", ["head", "cursor"])
async def test_a_log_that_is_deleted_meanwhile_gets_nothing_new(
    backend: Backend, what: str
) -> None:
    """The definition is a condition of the same transaction."""
    store, other = await backend.open(), await backend.open()
    definition = (await LogManager(store).create(ORDERS)).value
    await other.sync()
    faulty = FaultyStore(other)
    faulty.hold_writes.clear()
    late = LogManager(faulty)
    write = (
        late.write_head(FIRST, head_of(definition), NOT_EXISTS)
        if what == "head"
        else late.write_cursor(FIRST, "c", LogCursor(0), NOT_EXISTS)
    )
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(_refusal(write))
        async with asyncio.timeout(60):
            while not faulty.counts["transaction"]:  # noqa: ASYNC110  (the store is not told)
                await asyncio.sleep(0.001)
        await LogManager(store).mark_deleted(ORDERS)
        await other.sync()
        faulty.hold_writes.set()
    assert isinstance(refused.result(), NoSuchLogError)
    assert await store.get_children(ORDERS.key) == ["definition"]


async def _refusal(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except (BadVersionError, NoSuchLogError) as error:
        return error
    return None


async def test_the_head_of_a_log_that_was_made_anew_is_told_apart(logs: LogManager) -> None:
    """Its former owner neither takes it for its own nor changes it."""
    old = (await logs.create(ORDERS)).value
    before = await logs.write_head(FIRST, head_of(old), NOT_EXISTS)
    await logs.mark_deleted(ORDERS)
    await logs.remove(ORDERS)
    new = (await logs.create(ORDERS)).value
    assert (await logs.read_head(FIRST, old.log_id)).version == NOT_EXISTS
    with pytest.raises(NoSuchLogError, match="made anew"):
        await logs.write_head(FIRST, head_of(old), NOT_EXISTS)
    await logs.write_head(FIRST, head_of(new), NOT_EXISTS)
    with pytest.raises(NoSuchLogError, match="deleted, and made anew"):
        await logs.read_head(FIRST, old.log_id)
    with pytest.raises(BadVersionError):
        await logs.write_head(FIRST, head_of(old), before.version)
    assert (await logs.read_head(FIRST, new.log_id)).value == head_of(new)


async def test_a_change_that_was_not_answered_is_found(store: MetadataStore) -> None:
    """The caller reads the head, and knows its own."""
    faulty = FaultyStore(store)
    logs = LogManager(faulty)
    definition = (await logs.create(ORDERS)).value
    faulty.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await logs.write_head(FIRST, head_of(definition), NOT_EXISTS)
    assert (await logs.read_latest_head(FIRST, definition.log_id)).value == head_of(definition)


async def test_chunks_are_written_with_the_head_that_seals_them(logs: LogManager) -> None:
    """Or not at all."""
    definition = (await logs.create(ORDERS)).value
    chunks = [replace(CHUNK, number=number) for number in (0, 1)]
    head = replace(head_of(definition), next_chunk=2)
    with pytest.raises(BadVersionError):
        await logs.write_head(FIRST, head, 77, sealed=chunks)
    assert await logs.chunk_numbers(FIRST) == []
    written = await logs.write_head(FIRST, head, NOT_EXISTS, sealed=chunks)
    assert await logs.chunk_numbers(FIRST) == [0, 1]
    assert await logs.chunk_numbers(SECOND) == []
    assert await logs.read_chunk(FIRST, 1) == chunks[1]
    assert await logs.read_chunk(FIRST, 2) is None
    with pytest.raises(BadVersionError):
        await logs.write_head(FIRST, head, written.version + 1, sealed=[replace(CHUNK, number=2)])
    assert await logs.chunk_numbers(FIRST) == [0, 1]
    await logs.delete_chunks(FIRST, [0, 0, 9])
    assert await logs.chunk_numbers(FIRST) == [1]


# ---- several heads at once


async def test_several_heads_and_a_batch_change_in_one_step(logs: LogManager) -> None:
    definition = (await logs.create(ORDERS, LogMode.TRANSACTIONAL, 2)).value
    empty = LogHead(definition.log_id)
    ranges = (LogRange(7, 0, 9, 0, 50, 100),)
    full = replace(empty, ranges=ranges)
    batch = logs.put_batch(ORDERS, "app", 0, NOT_EXISTS)
    versions = await logs.commit_heads(
        [(FIRST, full, NOT_EXISTS, ()), (SECOND, empty, NOT_EXISTS, [CHUNK])], [batch]
    )
    found = [await logs.read_head(one, definition.log_id) for one in (FIRST, SECOND)]
    assert [one.version for one in found] == versions
    assert [one.value for one in found] == [full, empty]
    assert await logs.chunk_numbers(SECOND) == [0]
    last = await logs.last_batch(ORDERS, "app")
    assert last.value == 0
    later = logs.put_batch(ORDERS, "app", 1, last.version)
    changes: list[tuple[LogPartition, LogHead, int, list[LogChunk]]] = [
        (FIRST, replace(full, epoch=1), versions[0], []),
        (SECOND, replace(empty, epoch=1), versions[1] + 1, []),
    ]
    with pytest.raises(BadVersionError):
        await logs.commit_heads(changes, [later])
    changes[1] = (*changes[1][:2], versions[1], [])
    with pytest.raises(BadVersionError):
        await logs.commit_heads(changes, [logs.put_batch(ORDERS, "app", 1, NOT_EXISTS)])
    assert [await logs.read_head(one, definition.log_id) for one in (FIRST, SECOND)] == found
    await logs.commit_heads(changes, [later])
    assert (await logs.last_batch(ORDERS, "app")).value == 1


async def test_heads_of_several_logs_change_in_one_step(logs: LogManager) -> None:
    """Each log is a condition of its own first heads."""
    names = [LogName("n", "a"), LogName("n", "b")]
    definitions = [(await logs.create(name)).value for name in names]
    changes: list[tuple[LogPartition, LogHead, int, list[LogChunk]]] = [
        (LogPartition(name), head_of(definition), NOT_EXISTS, [])
        for name, definition in zip(names, definitions, strict=True)
    ]
    await logs.mark_deleted(names[1])
    with pytest.raises(NoSuchLogError, match="n/b is being deleted"):
        await logs.commit_heads(changes)
    assert (await logs.read_head(LogPartition(names[0]), definitions[0].log_id)).version < 0


async def test_a_change_of_very_many_partitions_is_refused(store: MetadataStore) -> None:
    """A transaction of the store has a hundred operations."""
    logs = LogManager(store)
    definition = (await logs.create(ORDERS, LogMode.TRANSACTIONAL, 100)).value

    def first_heads(count: int) -> list[tuple[LogPartition, LogHead, int, list[LogChunk]]]:
        head = LogHead(definition.log_id)
        return [(LogPartition(ORDERS, i), head, NOT_EXISTS, []) for i in range(count)]

    batch = logs.put_batch(ORDERS, "app", 0, NOT_EXISTS)
    with pytest.raises(
        BadRequestError, match=r"99 partitions takes 101 operations, .* at most 100"
    ):
        await logs.commit_heads(first_heads(99), [batch])
    assert await store.get_children(ORDERS.key) == ["definition"]
    versions = await logs.commit_heads(first_heads(98), [batch])
    assert len(versions) == 98
    assert (await logs.read_head(LogPartition(ORDERS, 97), definition.log_id)).version >= 0


# ---- watching a head


async def _until_the_end(heads: AsyncIterator[Versioned[LogHead]]) -> None:
    """Read on until the stream raises; quick changes may be seen as one."""
    while True:
        await next_item(heads)


async def test_a_watched_head_shows_each_change(backend: Backend) -> None:
    """Also from before the first owner on."""
    watcher, owner = LogManager(await backend.open()), LogManager(await backend.open())
    definition = (await watcher.create(ORDERS)).value
    head = head_of(definition)
    async with watcher.watch_head(FIRST, definition.log_id) as heads:
        assert (await next_item(heads)).version == NOT_EXISTS
        written = await owner.write_head(FIRST, head, NOT_EXISTS)
        assert await next_item(heads) == written
        await owner.write_cursor(FIRST, "c", LogCursor(0), NOT_EXISTS)
        await owner.write_head(SECOND, head, NOT_EXISTS)
        written = await owner.write_head(FIRST, replace(head, epoch=2), written.version)
        assert await next_item(heads) == written
    async with watcher.watch_head(FIRST, definition.log_id) as heads:
        assert await next_item(heads) == written


@pytest.mark.parametrize("has_head", [True, False])
async def test_a_watched_head_ends_with_its_log(backend: Backend, has_head: bool) -> None:
    """Also one that never was there."""
    watcher, other = LogManager(await backend.open()), LogManager(await backend.open())
    definition = (await watcher.create(ORDERS)).value
    if has_head:
        await watcher.write_head(FIRST, head_of(definition), NOT_EXISTS)
    async with watcher.watch_head(FIRST, definition.log_id) as heads:
        await next_item(heads)
        await other.mark_deleted(ORDERS)
        await other.remove(ORDERS)
        with pytest.raises(NoSuchLogError, match="shop/orders"):
            await _until_the_end(heads)


@pytest.mark.parametrize("is_owned", [True, False])
async def test_a_watched_head_ends_when_its_log_is_made_anew(
    backend: Backend, is_owned: bool
) -> None:
    """Whatever the watcher sees of what happened between."""
    watcher, other = LogManager(await backend.open()), LogManager(await backend.open())
    definition = (await watcher.create(ORDERS)).value
    await watcher.write_head(FIRST, head_of(definition), NOT_EXISTS)
    async with watcher.watch_head(FIRST, definition.log_id) as heads:
        await next_item(heads)
        await other.mark_deleted(ORDERS)
        await other.remove(ORDERS)
        new = (await other.create(ORDERS)).value
        if is_owned:
            await other.write_head(FIRST, head_of(new), NOT_EXISTS)
        with pytest.raises(NoSuchLogError, match="shop/orders"):
            await _until_the_end(heads)


# ---- cursors


async def test_a_cursor_lives_from_create_to_delete(logs: LogManager) -> None:
    await logs.create(ORDERS, partitions=2)
    with pytest.raises(NoSuchCursorError, match="no cursor c on shop/orders#0"):
        await logs.read_cursor(FIRST, "c")
    created = await logs.write_cursor(FIRST, "c", LogCursor(3), NOT_EXISTS)
    assert await logs.read_cursor(FIRST, "c") == created
    with pytest.raises(KeyExistsError):
        await logs.write_cursor(FIRST, "c", LogCursor(4), NOT_EXISTS)
    moved = await logs.write_cursor(FIRST, "c", LogCursor(5, 1, "me"), created.version)
    with pytest.raises(BadVersionError):
        await logs.write_cursor(FIRST, "c", LogCursor(4), created.version)
    other = await logs.write_cursor(FIRST, "a.b", LogCursor(0, is_protected=False), NOT_EXISTS)
    assert await logs.cursors(FIRST) == {"a.b": other, "c": moved}
    assert await logs.cursors(SECOND) == {}
    await logs.delete_cursor(FIRST, "c")
    with pytest.raises(NoSuchCursorError):
        await logs.delete_cursor(FIRST, "c")
    with pytest.raises(BadVersionError):
        await logs.write_cursor(FIRST, "c", LogCursor(6), moved.version)
    assert list(await logs.cursors(FIRST)) == ["a.b"]


async def test_what_is_no_name_of_a_cursor_reaches_no_store(store: MetadataStore) -> None:
    logs = LogManager(store)
    for call in (
        logs.read_cursor(FIRST, "a/b"),
        logs.write_cursor(FIRST, "a/b", LogCursor(0), NOT_EXISTS),
        logs.delete_cursor(FIRST, "a/b"),
    ):
        with pytest.raises(BadRequestError, match="cannot name a cursor"):
            await call
    assert await store.get_children("/") == []


# ---- transactions


ODD_IDS = [
    "app",
    ".",
    "..",
    "a/b",
    "/",
    "a.b",
    "a%2Eb",
    "%",
    "a b",
    "ä€𝄞",
    "a\0\n",
    "spark:1-2_3~4",
    "x" * 150,
]


async def test_odd_application_ids_are_told_apart(store: MetadataStore) -> None:
    logs = LogManager(store)
    for i, application in enumerate(ODD_IDS):
        before = await logs.last_batch(ORDERS, application)
        assert (before.value, before.version) == (-1, NOT_EXISTS)
        operations: list[Operation] = [logs.put_batch(ORDERS, application, i, before.version)]
        await logs.commit_heads([], operations)
    for i, application in enumerate(ODD_IDS):
        assert (await logs.last_batch(ORDERS, application)).value == i
    wanted = {application: i for i, application in enumerate(ODD_IDS)}
    assert await logs.applications(ORDERS) == wanted
    await logs.forget_application(ORDERS, "..")
    await logs.forget_application(ORDERS, "..")
    assert (await logs.last_batch(ORDERS, "..")).version == NOT_EXISTS
    del wanted[".."]
    assert await logs.applications(ORDERS) == wanted


@pytest.mark.parametrize("application", ["", "x" * 151, "." * 51, "\ud800", None, 7])
async def test_what_is_no_application_id_is_refused(logs: LogManager, application: str) -> None:
    for call in (
        logs.last_batch(ORDERS, application),
        logs.forget_application(ORDERS, application),
    ):
        with pytest.raises(BadRequestError, match="cannot be the id of an application"):
            await call
    with pytest.raises(BadRequestError, match="cannot be the id of an application"):
        logs.put_batch(ORDERS, application, 0, NOT_EXISTS)


# ---- damage


async def _listed_cursors(logs: LogManager) -> None:
    await logs.cursors(FIRST)


DAMAGED: list[tuple[str, Callable[[LogManager], Awaitable[object]]]] = [
    (f"{ORDERS.key}/definition", lambda logs: logs.read(ORDERS)),
    (f"{ORDERS.key}/definition", lambda logs: logs.mark_deleted(ORDERS)),
    (f"{ORDERS.key}/definition", lambda logs: logs.remove(ORDERS)),
    (FIRST.head_key, lambda logs: logs.read_head(FIRST, "x")),
    (FIRST.chunk_key(3), lambda logs: logs.read_chunk(FIRST, 3)),
    (FIRST.cursor_key("c"), lambda logs: logs.read_cursor(FIRST, "c")),
    (FIRST.cursor_key("c"), _listed_cursors),
    (f"{ORDERS.key}/transactions/app", lambda logs: logs.last_batch(ORDERS, "app")),
    (f"{ORDERS.key}/transactions/app", lambda logs: logs.applications(ORDERS)),
]


@pytest.mark.parametrize(("key", "call"), DAMAGED)
async def test_a_damaged_record_is_named_by_its_key(
    store: MetadataStore, key: str, call: Callable[[LogManager], Awaitable[object]]
) -> None:
    for value in (b"junk", b"", b"-1", b'{"format":"bookie-log-cursor","version":1}'):
        await store.put(key, value)
        with pytest.raises(FormatError, match=f"the metadata key {key}"):
            await call(LogManager(store))
        record = await store.get(key)
        assert record is not None
        assert record.value == value


async def test_a_newer_record_is_refused_as_newer(store: MetadataStore) -> None:
    """The message tells an operator to update, and not to repair."""
    newer = encode_log_cursor(LogCursor(3)).replace(b'"version":1', b'"version":2')
    await store.put(FIRST.cursor_key("c"), newer)
    with pytest.raises(NewerFormatError, match="cursors/c"):
        await LogManager(store).read_cursor(FIRST, "c")

"""Handles that are used where, when or by whom they must not be: one BadRequestError, no hang."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookie.api import AutoCommit, BookKeeper, GroupRecord, LogRecord, NewRecord, connect
from bookie.errors import BadRequestError, BookieError, LogClosedError, RequestError
from tests.odd_input import SECONDS_MAX, parameters_of
from tests.unit.api.test_odd_input import INSIDE, ONE_COPY, RIGHT
from tests.unit.ledger.real_cluster import RealCluster, real_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """One bookie."""
    async with real_cluster(tmp_path, 1) as started:
        yield started


# ---- another event loop -------------------------------------------------------------------------


def _waiting_calls(handle: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls of a handle that wait, with right arguments."""
    for name, method in inspect.getmembers(type(handle), inspect.isfunction):
        if name.startswith("_") or name in INSIDE:
            continue
        original = inspect.unwrap(method)
        waits = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(original)
        if waits or (hasattr(method, "__wrapped__") and inspect.iscoroutinefunction(original)):
            required = inspect.signature(method).parameters
            needed = {
                one: RIGHT[one]
                for one, _ in parameters_of(method)
                if one in required and required[one].default is inspect.Parameter.empty
            }
            yield name, partial(getattr(handle, name), **needed)


async def _told(call: Callable[[], Any]) -> str:
    """The error of a call, however it waits."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            made = call()
            if isinstance(made, AsyncGenerator):
                await anext(made)
            else:
                await made
    except RequestError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001  (that is the finding)
        return repr(error)
    return "it was done"


async def test_calls_of_another_event_loop_are_refused(bk: BookKeeper) -> None:
    """Each call that waits, of each handle; nothing hangs."""
    await bk.create_log("orders", policy=ONE_COPY)
    await bk.create_log("sales", transactional=True, policy=ONE_COPY)
    async with AsyncExitStack() as stack:
        ledger = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        stack.push_async_callback(ledger.close)
        handles: list[Any] = [
            bk,
            ledger,
            await bk.open_ledger(ledger.ledger_id),
            await stack.enter_async_context(bk.open_log("orders")),
            await bk.log_reader("orders"),
            await stack.enter_async_context(bk.consume("orders", cursor="c")),
            await stack.enter_async_context(bk.join_group("g", logs=["orders"])),
            bk.cursors("orders"),
            bk.publisher("sales"),
            await stack.enter_async_context(await bk.open_range_writer("sales", "app")),
            await bk.survey_log("orders"),
        ]
        faults = []
        for handle in handles:
            calls = list(_waiting_calls(handle))
            assert calls
            for name, call in calls:
                if name in ("aclose", "repair", "audit"):
                    continue
                told = await asyncio.to_thread(asyncio.run, _told(call))
                if "event loop" not in told:
                    faults.append(f"{type(handle).__name__}.{name}: {told}")
        assert not faults, "\n".join(faults)
        assert await ledger.append(b"here") == 0


# ---- consumers ----------------------------------------------------------------------------------


async def test_members_and_consumers_are_entered_first(bk: BookKeeper) -> None:
    """Iterating would wait for ever; so would it after the end."""
    await bk.create_log("orders", policy=ONE_COPY)
    for handle in (bk.join_group("g", logs=["orders"]), bk.consume("orders", cursor="c")):
        for call in (handle.__anext__, handle.next_batch, handle.commit):
            with pytest.raises(BadRequestError, match="async with"):
                await asyncio.wait_for(call(), SECONDS_MAX)
        with pytest.raises(BadRequestError, match="async with"):
            await asyncio.wait_for(anext(handle.batches()), SECONDS_MAX)
        async with handle:
            with pytest.raises(BadRequestError, match="entered before"):
                await handle.__aenter__()
        for call in (handle.__anext__, handle.next_batch):
            with pytest.raises(LogClosedError):
                await asyncio.wait_for(call(), SECONDS_MAX)


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except BookieError as error:
        return error


@pytest.mark.parametrize("auto_commit", [None, AutoCommit(every_records=1)])
async def test_a_consumer_is_used_from_one_task_at_a_time(
    bk: BookKeeper, auto_commit: AutoCommit | None
) -> None:
    """Of three that wait, one gets the record; the others are told."""
    await bk.create_log("orders", policy=ONE_COPY)
    async with bk.open_log("orders") as log, AsyncExitStack() as stack:
        handles: list[Any] = [
            bk.consume("orders", cursor="c", auto_commit=auto_commit),
            bk.join_group("g", logs=["orders"], auto_commit=auto_commit),
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for handle in handles:
            await handle.__aenter__()
            tasks = [group.create_task(_outcome(handle.__anext__())) for _ in range(3)]
            for task in tasks[1:]:
                refused = await asyncio.wait_for(task, SECONDS_MAX)
                assert isinstance(refused, BadRequestError)
                assert "one task at a time" in str(refused)
            await log.append(b"for the first")
            assert (await asyncio.wait_for(tasks[0], SECONDS_MAX)).value == b"for the first"
            await handle.__aexit__(None, None, None)


async def test_a_record_of_a_group_has_the_shape_of_a_record(bk: BookKeeper) -> None:
    """Every attribute of a `LogRecord`, with the same value; and its log."""
    await bk.create_log("orders", partitions=2, policy=ONE_COPY)
    async with bk.open_log("orders") as log:
        await log.append(
            b"v", key=b"k", headers={"h": b"1"}, timestamp=7, producer=("p", 1), partition=1
        )
    (plain,) = [one async for one in bk.read_log("orders")]
    async with bk.join_group("g", logs=["orders"]) as member:
        record = await anext(member)
        assert isinstance(record, GroupRecord)
        for name in [*LogRecord._fields, "position"]:
            assert getattr(record, name) == getattr(plain, name), name
        assert (record.log, record.log_partition.number) == ("orders", plain.partition)
        await member.commit(record)


# ---- records ------------------------------------------------------------------------------------


async def test_records_of_wrong_parts_say_which_part(bk: BookKeeper) -> None:
    """One sentence each, for one record and for many; nothing is appended."""
    wrong: Any
    await bk.create_log("orders", policy=ONE_COPY)
    async with bk.open_log("orders") as log:
        for part, wrong in [
            ("key", NewRecord(b"v", "k")),  # type: ignore[arg-type]
            ("time", NewRecord(b"v", timestamp_ms=datetime.now(UTC))),  # type: ignore[arg-type]
            ("headers", NewRecord(b"v", headers={"h": "text"})),  # type: ignore[dict-item]
            ("headers", NewRecord(b"v", headers={1: b"v"})),  # type: ignore[dict-item]
            ("headers", NewRecord(b"v", headers=[("h", b"v")])),  # type: ignore[arg-type]
            ("headers", NewRecord(b"v", headers=None)),  # type: ignore[arg-type]
            ("headers", NewRecord(b"v", headers=())),  # type: ignore[arg-type]
            ("value", NewRecord("text")),  # type: ignore[arg-type]
            ("value", None),
        ]:
            with pytest.raises(BadRequestError, match=part):
                await log.append_many([b"good", wrong])
        for producer in (("p", 1, 2), ("p",), "p1", ("p", "1"), (1, 1), ("p", -1), ("p", True)):
            with pytest.raises(BadRequestError, match="producer"):
                await log.append(b"v", producer=producer)  # type: ignore[arg-type]
        assert log.next_offset() == 0
        await log.append_many([NewRecord(b"v", memoryview(b"k"), {"h": bytearray(b"1")})])  # type: ignore[arg-type,dict-item]
    (record,) = [one async for one in bk.read_log("orders")]
    assert (record.key, record.headers) == (b"k", {"h": b"1"})


async def test_a_question_about_several_partitions_says_to_name_one(bk: BookKeeper) -> None:
    """The one that was not named is not spoken of as `None`."""
    await bk.create_log("orders", partitions=2, policy=ONE_COPY)
    async with bk.open_log("orders") as log:
        for ask in (log.epoch, log.next_offset):
            with pytest.raises(BadRequestError) as told:
                ask()
            sentence = "the log orders is open for partitions [0, 1]; name one of them"
            assert str(told.value) == sentence


async def test_a_range_whose_first_record_was_refused_can_be_cut(bk: BookKeeper) -> None:
    """It is empty; `cut` waited for ever."""
    await bk.create_log("sales", transactional=True, policy=ONE_COPY)
    async with await bk.open_range_writer("sales", "app") as writer:
        with pytest.raises(BadRequestError):
            await writer.append_many([None])  # type: ignore[list-item]
        assert await asyncio.wait_for(writer.cut(), SECONDS_MAX) is None


async def test_names_that_are_one_string_are_refused(bk: BookKeeper) -> None:
    """Python would take the letters."""
    await bk.create_log("orders", policy=ONE_COPY)
    with pytest.raises(BadRequestError, match="logs must be a list, each a string, not 'orders'"):
        bk.join_group("g", logs="orders")
    async with bk.consume("orders", cursor="c") as consumer:
        for wrong in ("x", -1, 1):
            with pytest.raises(BadRequestError):
                await consumer.commit(wrong)  # type: ignore[arg-type]
        assert consumer.committed == 0
    with pytest.raises(BadRequestError, match="ranges"):
        await bk.publisher("orders").publish("app", 0, [None])  # type: ignore[list-item]


async def test_what_can_be_created_can_be_closed(bk: BookKeeper) -> None:
    """Custom metadata that leaves no room for the ledger's end is refused before it is created."""
    shape: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    created = []
    for size in range(512 * 1024, 0, -1):
        with suppress(BadRequestError):
            created.append(await bk.create_ledger(custom_metadata={"k": bytes(size)}, **shape))
            break
    (writer,) = created
    assert size < 512 * 1024
    await writer.append_many([b"x" * 1000] * 200)
    assert (await writer.close()).last_entry_id == 199


async def test_a_log_is_opened_where_the_client_is(cluster: RealCluster) -> None:
    """In another loop `open_log` is refused; the log has no owner afterwards."""
    async with connect(cluster.uri) as bk:
        await bk.create_log("orders", policy=ONE_COPY)

        async def open_it() -> None:
            async with bk.open_log("orders"):
                pass

        with pytest.raises(BookieError, match="event loop"):
            await asyncio.to_thread(asyncio.run, open_it())
        assert (await bk.log_status("orders")).partitions[0].owner is None

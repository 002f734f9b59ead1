"""The writer's handle against bookies that answer as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast
from unittest.mock import AsyncMock

import pytest

from bookie.config import ClientSettings
from bookie.entry.batch import headers_of
from bookie.entry.entry import unpack_lac, verify_batch
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    ConflictError,
    UnauthorizedError,
)
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.write.handle import WriterHandle
from bookie.ledger.write.writer_events import ForceAnswered
from bookie.metadata.versioned import Versioned
from bookie.wire.codec import parse_add_request
from tests.unit.ledger.fake_pool import (
    DIGESTER,
    LEDGER_ID,
    UNNAMED,
    FakeLane,
    FakePool,
    fake_pool,
    metadata_of,
)


def writer_on(
    pool: FakePool, sizes: tuple[int, int, int] = (3, 3, 2), *, deferred_sync: bool = False
) -> WriterHandle:
    """A writer that has nothing to do with a metadata store."""
    created = Versioned(metadata_of(sizes), 0)
    writer = WriterHandle(
        created, pool.pool, cast("LedgerManager", None), UNNAMED, deferred_sync=deferred_sync
    )
    writer.start()
    return writer


async def turns(number: int = 4) -> None:
    """Let the loop turn."""
    for _ in range(number):
        await asyncio.sleep(0)


async def failure_of(call: Awaitable[object]) -> BookieError | None:
    try:
        await call
    except BookieError as error:
        return error
    return None


def ids_on(lane: FakeLane) -> list[list[int]]:
    """The ids in each request that was sent on a lane."""
    batches = [parse_add_request(data)[1].batch for _, data, _ in lane.sent]
    return [batch.entry_ids().tolist() for batch in batches if batch is not None]


@pytest.mark.parametrize("deferred_sync", [False, True])
async def test_a_flush_ends_with_the_appends_before_it(deferred_sync: bool) -> None:
    """With deferred sync, too: the LAC stays behind until a force, and appends return."""
    async with fake_pool() as pool:
        writer = writer_on(pool, deferred_sync=deferred_sync)
        append = pool.tasks.create_task(writer.append(b"0"))
        await turns()
        flush = pool.tasks.create_task(writer.flush())
        await turns()
        assert not flush.done()
        for slot in range(2):
            pool.lane(slot).answer()
        await turns()
        assert append.done()
        assert flush.done()
        assert writer.last_add_confirmed == (-1 if deferred_sync else 0)
        await writer.flush()


async def test_a_force_covers_what_returned_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second force is called during the first, after an append that the first does not cover."""
    monkeypatch.setattr(WriterHandle, "_spawn_force", lambda *_: None)
    async with fake_pool() as pool:
        writer = writer_on(pool, deferred_sync=True)
        forces = []
        for _ in range(2):
            append = pool.tasks.create_task(writer.append(b"x"))
            await turns()
            for slot in range(3):
                pool.lane(slot).answer()
            await append
            forces.append(pool.tasks.create_task(writer.force()))
            await turns()
        for number in range(2):
            for slot in range(3):
                writer.take(ForceAnswered(number, slot, Status.OK))
            await turns()
            assert [force.done() for force in forces] == [True, number == 1]
            assert writer.last_add_confirmed == number


async def test_a_force_before_a_close_is_no_force_of_a_closed_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for another force, which has synced all that there is."""
    monkeypatch.setattr(WriterHandle, "_spawn_force", lambda *_: None)
    monkeypatch.setattr(WriterHandle, "_on_metadata", AsyncMock())
    async with fake_pool() as pool:
        writer = writer_on(pool, deferred_sync=True)
        append = pool.tasks.create_task(writer.append(b"x"))
        await turns()
        for slot in range(3):
            pool.lane(slot).answer()
        await append
        forces = [pool.tasks.create_task(writer.force()) for _ in range(2)]
        await turns()
        closing = pool.tasks.create_task(failure_of(writer.close()))
        await turns()
        for slot in range(3):
            writer.take(ForceAnswered(0, slot, Status.OK))
        await turns()
        assert [force.done() and force.exception() for force in forces] == [None, None]
        writer.abandon()
        assert isinstance(await closing, ClientClosedError)


async def test_forces_of_an_abandoned_writer_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the one under way and the one that waits for it."""
    monkeypatch.setattr(WriterHandle, "_spawn_force", lambda *_: None)
    async with fake_pool() as pool:
        writer = writer_on(pool, deferred_sync=True)
        append = pool.tasks.create_task(writer.append(b"x"))
        await turns()
        for slot in range(3):
            pool.lane(slot).answer()
        await append
        forces = [pool.tasks.create_task(failure_of(writer.force())) for _ in range(2)]
        await turns()
        writer.abandon()
        for force in forces:
            assert isinstance(await force, ClientClosedError)


async def test_appends_of_one_turn_share_a_batch_and_its_bytes() -> None:
    """Three appends, one request, the same object for every bookie."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        appends = [pool.tasks.create_task(writer.append(b"%d" % i)) for i in range(3)]
        await turns()
        lanes = [pool.lane(slot) for slot in range(3)]
        assert [ids_on(lane) for lane in lanes] == [[[0, 1, 2]]] * 3
        assert lanes[0].sent[0][1] is lanes[1].sent[0][1] is lanes[2].sent[0][1]
        assert lanes[0].sent[0][0] == lanes[2].sent[0][0]
        lanes[0].answer()
        await turns()
        assert not any(append.done() for append in appends)
        lanes[2].answer()
        await turns()
        assert [append.result() for append in appends] == [0, 1, 2]


async def test_a_request_verifies_and_carries_lac_and_length() -> None:
    """The second batch carries the first one's end as its LAC, and its own lengths."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        headers = []
        for payloads in ([b"abc", b"de"], [b"f"]):
            append = pool.tasks.create_task(writer.append_many(payloads))
            await turns()
            _, command = parse_add_request(pool.lane(0).sent[-1][1])
            assert command.batch is not None
            entries = verify_batch(command.batch, DIGESTER)
            assert [entry.payload for entry in entries] == payloads
            _, _, lacs, lengths = headers_of(command.batch)
            headers += [lacs.tolist(), lengths.tolist()]
            for slot in range(3):
                pool.lane(slot).answer()
            await append
        assert headers == [[-1, -1], [3, 5], [1], [6]]


async def test_the_lac_is_published_when_the_writer_is_idle() -> None:
    """Not when the woken caller appends again, because that entry carries it."""
    async with fake_pool() as pool:
        writer = writer_on(pool)

        async def two() -> None:
            await writer.append(b"a")
            await writer.append(b"b")

        appending = pool.tasks.create_task(two())
        await turns()
        for slot in range(3):
            pool.lane(slot).answer()
        await turns()
        assert ids_on(pool.lane(0)) == [[1]]
        for slot in range(3):
            pool.lane(slot).answer()
        await appending
        await turns()
        _, command = parse_add_request(pool.lane(0).sent[-1][1])
        assert command.batch is None
        assert unpack_lac(LEDGER_ID, command.lac_packet, DIGESTER) == 1


async def test_appends_wait_while_too_much_is_unconfirmed() -> None:
    """The bound holds the third append back until the first two are confirmed."""
    settings = ClientSettings(
        in_flight_bytes_max=1024, batch_bytes_max=1024, batch_entries_max=1024
    )
    async with fake_pool(settings) as pool:
        writer = writer_on(pool)
        appends = [pool.tasks.create_task(writer.append(b"x" * 600)) for _ in range(3)]
        await turns()
        assert writer.last_entry_id == 1
        while not appends[2].done():
            for slot in range(3):
                pool.lane(slot).answer()
            await turns()
        assert [append.result() for append in appends] == [0, 1, 2]


async def test_a_cancelled_append_leaves_its_batch_to_the_others() -> None:
    """The batch is written whole, and the other callers hear of it."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        appends = [pool.tasks.create_task(writer.append(b"%d" % i)) for i in range(3)]
        await turns()
        appends[1].cancel()
        await turns()
        assert [append.done() for append in appends] == [False, True, False]
        for slot in range(3):
            assert ids_on(pool.lane(slot)) == [[0, 1, 2]]
            pool.lane(slot).answer()
        await turns()
        assert appends[1].cancelled()
        assert [appends[0].result(), appends[2].result()] == [0, 2]


async def test_nobody_in_line_is_forgotten() -> None:
    """An oversized payload or a cancelled caller in the line does not block those behind it."""
    settings = ClientSettings(
        in_flight_bytes_max=1024, batch_bytes_max=1024, batch_entries_max=1024
    )
    async with fake_pool(settings) as pool:
        writer = writer_on(pool)
        calls = [pool.tasks.create_task(failure_of(writer.append(b"x" * 1024)))]
        await turns()
        calls += [
            pool.tasks.create_task(failure_of(writer.append(b"x" * size)))
            for size in (10, 5_000_000, 20, 30)
        ]
        await turns()
        calls[3].cancel()
        for _ in range(5):
            for slot in range(3):
                pool.lane(slot).answer()
            await turns()
        assert isinstance(calls[2].result(), BadRequestError)
        assert calls[3].cancelled()
        assert [call.result() for call in (calls[0], calls[1], calls[4])] == [None] * 3
        assert writer.last_entry_id == 2


async def test_a_batch_grows_while_others_are_pending() -> None:
    """Four lone appends go at once; the next three wait and travel together."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        appends = []
        for _ in range(7):
            appends.append(pool.tasks.create_task(writer.append(b"x")))
            await turns(2)
        assert ids_on(pool.lane(0)) == [[0], [1], [2], [3]]
        for slot in range(3):
            pool.lane(slot).answer()
        await turns()
        assert ids_on(pool.lane(0)) == [[4, 5, 6]]
        for slot in range(3):
            pool.lane(slot).answer()
        await turns()
        assert all(append.done() for append in appends)


async def test_a_striped_batch_sends_each_bookie_its_entries() -> None:
    """E=3, Qw=2: three requests with other entries; a lone entry is one object for its two."""
    async with fake_pool() as pool:
        writer = writer_on(pool, (3, 2, 2))
        append = pool.tasks.create_task(writer.append_many([b"x"] * 4))
        await turns()
        assert [ids_on(pool.lane(slot)) for slot in range(3)] == [
            [[0, 2, 3]],
            [[0, 1, 3]],
            [[1, 2]],
        ]
        for slot in range(3):
            pool.lane(slot).answer()
        assert await append == range(4)
        await turns()
        for slot in range(3):
            pool.lane(slot).answer()  # the explicit LAC
        lone = pool.tasks.create_task(writer.append(b"x"))
        await turns()
        assert pool.lane(1).sent[0][1] is pool.lane(2).sent[0][1]
        assert pool.lane(0).sent == []
        pool.lane(1).answer()
        pool.lane(2).answer()
        assert await lone == 4


async def test_every_waiter_gets_an_error_of_its_own() -> None:
    """Pending, queued and later appends fail; no two share an exception object."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        calls = [pool.tasks.create_task(failure_of(writer.append(b"x"))) for _ in range(3)]
        await turns()
        pool.lane(1).answer(Status.UNAUTHORIZED, "it has another key")
        errors = [await call for call in calls]
        errors.append(await failure_of(writer.append(b"late")))
        assert all(isinstance(error, UnauthorizedError) for error in errors)
        assert len({id(error) for error in errors}) == 4
        assert "it has another key" in str(errors[0])


async def test_a_conflict_is_its_own_error() -> None:
    """Other bytes under the same id: two writers without a fence, or corruption."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        call = pool.tasks.create_task(failure_of(writer.append_many([b"x", b"y"])))
        await turns()
        pool.lane(0).answer(Status.CONFLICT)
        assert isinstance(await call, ConflictError)


async def test_a_resend_is_the_same_bytes() -> None:
    """After the stream broke, the request goes again as it was."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        append = pool.tasks.create_task(writer.append(b"x"))
        await turns()
        lane = pool.lane(0)
        before = lane.sent[0]
        lane.sent.clear()
        lane.users[0].on_down()
        lane.users[0].on_up()
        assert lane.sent[0][:2] == before[:2]
        assert lane.sent[0][1] is before[1]
        lane.answer()
        pool.lane(1).answer()
        assert await append == 0


async def test_an_abandoned_writer_fails_its_waiters() -> None:
    """The client ends: unknown outcome, and the lanes are left."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        call = pool.tasks.create_task(failure_of(writer.append(b"x")))
        await turns()
        writer.abandon()
        writer.abandon()
        assert isinstance(await call, ClientClosedError)
        assert isinstance(await failure_of(writer.close()), ClientClosedError)
        assert pool.lane(0).users == []
        pool.lane(0).answer()  # an answer that comes late does nothing


def test_other_threads_and_event_loops_are_refused() -> None:
    """Every call says so, and nothing is stored."""
    loop = asyncio.new_event_loop()
    pools = fake_pool()

    async def make() -> tuple[FakePool, WriterHandle]:
        pool = await pools.__aenter__()
        return pool, writer_on(pool)

    pool, writer = loop.run_until_complete(make())

    async def refused() -> list[BookieError | None]:
        calls = (writer.append(b"x"), writer.append_many([b"x"]), writer.force(), writer.close())
        return [await failure_of(call) for call in calls]

    async def from_a_thread() -> list[BookieError | None]:
        waiting = pool.tasks.create_task(writer.append(b"mine"))
        await turns()  # the writer's own flush is scheduled, and is not the stranger's
        writer._flush_scheduled = True
        errors = await asyncio.to_thread(asyncio.run, refused())
        writer._flush_scheduled = False
        for slot in range(3):
            pool.lane(slot).answer()
        assert await waiting == 0
        return errors

    errors = asyncio.run(refused()) + loop.run_until_complete(from_a_thread())
    for error in errors:
        assert isinstance(error, BadRequestError)
        assert "another thread or event loop" in str(error)
    assert writer.last_entry_id == 0
    loop.run_until_complete(pools.__aexit__(None, None, None))
    loop.close()

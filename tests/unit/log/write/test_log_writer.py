"""The writer of a log: takeover, roll, dead ledgers, lost replies, and what it refuses."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count

import pytest

import bookie.log.record.log_record
from bookie.api import BookKeeper, LogPolicy, LogPosition, NewRecord, connect
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    FormatError,
    LedgerFencedError,
    LogClosedError,
    LogExistsError,
    LogFullError,
    LogTakenOverError,
    NoSuchLogError,
    UnauthorizedError,
)
from bookie.log.head.chain import live_bytes
from bookie.log.write.writer import partition_of
from tests.unit.ledger.real_cluster import RealCluster, until
from tests.unit.log.appending import SMALL, append_all, append_one_by_one, error_of, numbers
from tests.unit.log.written_logs import head_of, left_over, records_of, values_of

# ---- appending ---------------------------------------------------------------------------------


async def test_records_keep_what_they_were_given(cluster: RealCluster, bk: BookKeeper) -> None:
    """Value, key, headers and time; offsets rise by one over all ways to append."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    async with bk.open_log("orders") as log:
        first = await log.append(b"one", key=b"k", headers={"trace": b"1"}, timestamp=at)
        many = await log.append_many([b"two", NewRecord(b"three", b"key", {}, 7)])
        last = await log.append(memoryview(b"four"))
        assert log.next_offset() == 4
    assert [first, *many, last] == [LogPosition(first.ledger_id, n, n) for n in range(4)]
    found = await records_of(bk, cluster.store, "orders")
    assert [(r.value, r.key, dict(r.headers)) for r in found] == [
        (b"one", b"k", {"trace": b"1"}),
        (b"two", None, {}),
        (b"three", b"key", {}),
        (b"four", None, {}),
    ]
    assert found[0].timestamp_ms == int(at.timestamp() * 1000)
    assert found[2].timestamp_ms == 7
    assert [r.position for r in found] == [first, *many, last]


async def test_wrong_arguments_append_nothing(cluster: RealCluster, bk: BookKeeper) -> None:
    """Each is refused in a sentence; the next append is not disturbed."""
    async with bk.open_log("orders") as log:
        for wrong in (
            log.append("text"),  # type: ignore[arg-type]
            log.append(b"", key="text"),  # type: ignore[arg-type]
            log.append(b"", timestamp=datetime(2026, 1, 1)),  # noqa: DTZ001  (that is the mistake)
            log.append(b"", timestamp="now"),  # type: ignore[arg-type]
            log.append(bytes(5 << 20)),
            log.append(b"", partition=1),
            log.append(b"", producer=("p", "q")),  # type: ignore[arg-type]
            log.append(b"", producer=("p", -1)),
            log.append_many(b"bytes"),  # type: ignore[arg-type]
            log.append_many([b"good", 5]),  # type: ignore[list-item]
            log.append_many([b"good", bytes(5 << 20)]),
        ):
            with pytest.raises(BadRequestError):
                await wrong
        assert len(await log.append_many([])) == 0
        assert (await log.append(b"good")).offset == 0
    assert await values_of(bk, cluster.store, "orders") == [b"good"]


async def test_logs_that_cannot_be_opened(bk: BookKeeper) -> None:
    """No such log, a transactional one, a partition that is not there, a name that is none."""
    with pytest.raises(NoSuchLogError, match="there is no log orders"):
        await bk.open_log("orders", create=False)
    await bk.create_log("events", transactional=True)
    with pytest.raises(BadRequestError, match="transactional"):
        await bk.open_log("events")
    with pytest.raises(LogExistsError):
        await bk.create_log("events")
    with pytest.raises(BadRequestError, match="no partition 1"):
        await bk.open_log("orders", partition=1)
    with pytest.raises(BadRequestError, match="not the name of a log"):
        await bk.open_log("../x/y")


async def test_an_abandoned_caller_disturbs_nobody(cluster: RealCluster, bk: BookKeeper) -> None:
    """A cancelled append may be written; the others are, in their order."""
    async with bk.open_log("orders") as log, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(log.append(value)) for value in numbers(0, 50)]
        await asyncio.sleep(0)
        for task in waiting[::3]:
            task.cancel()
    found = await values_of(bk, cluster.store, "orders")
    kept = [value for number, value in enumerate(numbers(0, 50)) if number % 3]
    assert [value for value in found if value in kept] == kept


async def test_appends_beyond_the_window_keep_their_order(
    cluster: RealCluster,
) -> None:
    """A window of ten entries, and a roll in between: the order of calls is that of records."""
    async with connect(cluster.uri, in_flight_entries_max=10, batch_entries_max=5) as bk:
        await bk.create_log("orders", policy=SMALL)
        async with bk.open_log("orders") as log:
            positions = await append_all(log, numbers(0, 300))
        assert [one.offset for one in positions] == list(range(300))
        assert await values_of(bk, cluster.store, "orders") == numbers(0, 300)
        assert len((await head_of(cluster.store, "orders")).ranges) > 2


async def test_a_full_log_refuses(bk: BookKeeper) -> None:
    """The quota counts closed ledgers and the present one."""
    await bk.create_log("orders", policy=LogPolicy(roll_bytes=1000, quota_bytes=3000))
    async with bk.open_log("orders") as log:
        with pytest.raises(LogFullError, match="3000 bytes"):
            await append_one_by_one(log, [bytes(100)] * 100)
        assert 3000 <= log.next_offset() * 116 < 3116


async def test_a_log_that_one_ledger_fills_rolls_and_is_truncated(bk: BookKeeper) -> None:
    """Only closed ledgers are truncated, so the roll must not need room."""
    await bk.create_log("orders", policy=LogPolicy(quota_bytes=3000))
    async with bk.open_log("orders") as log:
        with pytest.raises(LogFullError):
            await append_one_by_one(log, [bytes(100)] * 100)
        await log.roll()
        await bk.truncate_log("orders", before=log.next_offset())
        async with asyncio.timeout(60):
            while True:
                with suppress(LogFullError):
                    await log.append(b"room")
                    break
                await asyncio.sleep(0.01)


# ---- roll and close ----------------------------------------------------------------------------


async def test_a_roll_by_size(cluster: RealCluster, bk: BookKeeper) -> None:
    """The log goes on in another ledger; positions stay dense, closed ranges say their size."""
    await bk.create_log("orders", policy=SMALL)
    async with bk.open_log("orders") as log:
        for start in range(0, 100, 10):
            await append_all(log, numbers(start, start + 10))
    head = await head_of(cluster.store, "orders")
    assert len(head.ranges) >= 2
    assert head.owner is None
    assert not head.open_ranges
    assert await values_of(bk, cluster.store, "orders") == numbers(0, 100)
    for one in head.ranges:
        metadata = await bk.ledger_metadata(one.ledger_id)
        assert (one.size_bytes, one.last_entry_id) == (metadata.length, metadata.last_entry_id)


async def test_a_roll_by_time(cluster: RealCluster, bk: BookKeeper) -> None:
    """A ledger with entries is left after its time; an empty one is not."""
    await bk.create_log("orders", policy=LogPolicy(roll_seconds=1))
    async with bk.open_log("orders") as log:
        first = await log.append(b"one")
        writer = log._partitions[0]
        await until(lambda: writer.ledger_id != first.ledger_id)
        assert (await log.append(b"two")).offset == 1
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]


async def test_rolls_while_appends_go_on(cluster: RealCluster, bk: BookKeeper) -> None:
    """Appends wait for a moment, and never fail; an empty ledger is not rolled."""
    async with bk.open_log("orders") as log:
        await log.roll()
        async with asyncio.TaskGroup() as tasks:
            appended = tasks.create_task(append_all(log, numbers(0, 500)))
            for _ in range(5):
                await log.roll()
                await log.append(b"x")
        positions = appended.result()
    found = await values_of(bk, cluster.store, "orders")
    assert [value for value in found if value != b"x"] == numbers(0, 500)
    assert [found[one.offset] for one in positions] == numbers(0, 500)
    assert not await left_over(bk, cluster.store, "orders")


async def test_a_roll_without_bookies_goes_on_in_the_old_ledger(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """Two of three bookies cannot hold a new ledger of three; the present one is still good."""
    async with bk.open_log("orders") as log:
        await log.append(b"one")
        await cluster.stop(2)
        with pytest.raises(BookieError, match="bookies"):
            await log.roll()
        assert (await log.append(b"two")).offset == 1


async def test_a_closed_log_takes_nothing(cluster: RealCluster, bk: BookKeeper) -> None:
    """Closing twice is fine; an empty log leaves no ledger."""
    log = await bk.open_log("orders")
    await log.close()
    await log.close()
    with pytest.raises(LogClosedError, match="closed"):
        await log.append(b"late")
    assert not await left_over(bk, cluster.store, "orders")
    assert not (await head_of(cluster.store, "orders")).ranges


# ---- takeover ----------------------------------------------------------------------------------


async def test_the_former_owner_hears_who_and_when(cluster: RealCluster, bk: BookKeeper) -> None:
    """The next append fails with the new owner's name; the positions go on behind the last one."""
    async with connect(cluster.uri) as other:
        old = await bk.open_log("orders", owner="old")
        await old.append(b"one")
        new = await other.open_log("orders", owner="new")
        assert new.epoch() > old.epoch()
        with pytest.raises(LogTakenOverError, match="new took orders#0 over at") as caught:
            await old.append(b"refused")
        assert caught.value.owner == "new"
        assert caught.value.since_ms == (await head_of(cluster.store, "orders")).owner.since_ms  # type: ignore[union-attr]
        with pytest.raises(LogTakenOverError) as again:
            await old.append(b"refused")
        assert again.value.owner == "new"
        assert (await new.append(b"two")).offset == 1
        await new.close()
        await old.close()
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]
    assert not await left_over(bk, cluster.store, "orders")


async def test_a_wrong_password_leaves_the_owner_alone(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The opener is refused before it takes anything over."""
    async with bk.open_log("orders", password=b"right") as log:
        await log.append(b"one")
        with pytest.raises(UnauthorizedError):
            await bk.open_log("orders", password=b"wrong")
        await log.append(b"two")
        assert len((await head_of(cluster.store, "orders")).ranges) == 1


async def test_a_newer_version_s_records_leave_the_owner_alone(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that cannot read them is refused before it takes anything over."""
    async with bk.open_log("orders") as log:
        await log.append(b"one")
        await log.append(b"two")
        before = await head_of(cluster.store, "orders")
        monkeypatch.setattr(bookie.log.record.log_record, "LOG_RECORD_VERSION", 1)
        for _ in range(3):
            with pytest.raises(FormatError, match="has version 2, and this program reads 1"):
                await bk.open_log("orders")
        monkeypatch.undo()
        assert await head_of(cluster.store, "orders") == before
        await log.append(b"three")
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two", b"three"]


async def test_a_former_owner_whose_empty_ledger_is_gone(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused while it closes its ledger. The new owner removes that, because it is empty."""
    async with connect(cluster.uri) as other:
        old = await bk.open_log("orders", owner="old")
        (writer,) = old._partitions.values()
        look = writer._keeper.refresh

        async def paused_after_the_look() -> None:
            await look()
            monkeypatch.undo()
            await (await other.open_log("orders", owner="new")).append(b"one")

        async def fenced() -> None:
            raise LedgerFencedError("another client fenced the ledger")

        monkeypatch.setattr(writer._keeper, "refresh", paused_after_the_look)
        monkeypatch.setattr(writer._segment.writer, "close", fenced)
        with pytest.raises(LogTakenOverError, match="new took orders#0 over"):
            await writer._close_ledger(writer._segment)


async def test_a_next_ledger_that_a_sweep_took_is_made_again(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The writer was stopped for a day between making it and adding it."""
    log = await bk.open_log("orders")
    await log.append(b"one")
    (writer,) = log._partitions.values()
    writer._created = created = await writer._create()
    await bk.delete_ledger(created.ledger_id)
    head = await cluster.store.get(writer.partition.head_key)
    assert head is not None
    await cluster.store.put(head.key, head.value)  # as the sweep does
    await log.roll()
    await log.append(b"two")
    await log.close()
    assert await values_of(bk, cluster.store, "orders") == [b"one", b"two"]


async def test_owners_that_die_leave_nothing(cluster: RealCluster, bk: BookKeeper) -> None:
    """A client that ends in the middle: what was acknowledged stays, empty ledgers go."""
    acknowledged = 0
    for round_ in range(6):
        async with connect(cluster.uri) as dying:
            log = await dying.open_log("orders")
            if round_ % 2:
                await append_all(log, numbers(acknowledged, acknowledged + 20))
                acknowledged += 20
    async with bk.open_log("orders"):
        assert await values_of(bk, cluster.store, "orders") == numbers(0, 60)
        assert not await left_over(bk, cluster.store, "orders")


async def test_openers_that_duel(cluster: RealCluster) -> None:
    """Four openers take the log from each other: no fork, no loss, nothing left over."""
    acknowledged: dict[int, bytes] = {}
    stop = asyncio.Event()

    async def duel(me: int) -> int:
        done, numbers = 0, count()
        async with connect(cluster.uri) as bk:
            while not stop.is_set():
                with suppress(LogTakenOverError):
                    async with bk.open_log("orders") as log:
                        for _ in range(5):
                            # A failed append may still be written, so each value is used once.
                            value = b"%d-%d" % (me, next(numbers))
                            acknowledged[(await log.append(value)).offset] = value
                            done += 1
                            if done >= 15:
                                return done
        return done

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        duels = [tasks.create_task(duel(me)) for me in range(4)]
    assert all(one.result() >= 15 for one in duels)
    async with connect(cluster.uri) as bk:
        async with bk.open_log("orders"):
            pass
        found = await records_of(bk, cluster.store, "orders")
        by_offset = {record.offset: record.value for record in found}
        assert {offset: by_offset.get(offset) for offset in acknowledged} == acknowledged
        assert len({record.value for record in found}) == len(found)
        assert not await left_over(bk, cluster.store, "orders")


# ---- ledgers that die --------------------------------------------------------------------------


async def test_a_fence_by_somebody_else_costs_nothing(cluster: RealCluster, bk: BookKeeper) -> None:
    """`bookie ledger recover` on the log's ledger: the log mends itself; no append fails."""
    async with bk.open_log("orders") as log:
        for start in range(0, 200, 50):
            ledger_id = (await log.append(b"x")).ledger_id
            async with asyncio.TaskGroup() as tasks:
                appended = tasks.create_task(append_all(log, numbers(start, start + 50)))
                tasks.create_task(bk.open_ledger(ledger_id, recover=True))
            positions = appended.result()
            assert [one.offset for one in positions] == sorted(one.offset for one in positions)
        many = await log.append_many(numbers(200, 300))
    found = await values_of(bk, cluster.store, "orders")
    assert [value for value in found if value != b"x"] == numbers(0, 300)
    assert [found[one.offset] for one in many] == numbers(200, 300)
    assert len((await head_of(cluster.store, "orders")).ranges) > 2
    assert not await left_over(bk, cluster.store, "orders")


async def test_a_fence_in_the_middle_of_a_large_call(cluster: RealCluster, bk: BookKeeper) -> None:
    """The records that the closed ledger lacks follow in the next one, in the call's order."""
    async with bk.open_log("orders") as log:
        ledger_id = (await log.append(b"first")).ledger_id
        async with asyncio.TaskGroup() as tasks:
            appended = tasks.create_task(log.append_many(numbers(0, 20_000)))
            tasks.create_task(bk.open_ledger(ledger_id, recover=True))
        places = [(one.ledger_id, one.entry_id) for one in appended.result()]
    found = await records_of(bk, cluster.store, "orders")
    assert [record.value for record in found] == [b"first", *numbers(0, 20_000)]
    assert [(one.ledger_id, one.entry_id) for one in found[1:]] == places


async def test_a_lost_ack_quorum_is_survived(cluster: RealCluster, bk: BookKeeper) -> None:
    """Two of three bookies go and come back: the ledger dies, the log goes on."""
    async with bk.open_log("orders", patience_seconds=30) as log:
        await append_all(log, numbers(0, 10))
        await cluster.stop(1)
        await cluster.stop(2)
        async with asyncio.TaskGroup() as tasks:
            appended = tasks.create_task(append_all(log, numbers(10, 20)))
            writer = log._partitions[0]._segment.writer
            await until(lambda: writer.failure is not None)
            await cluster.start(1)
            await cluster.start(2)
        assert [one.offset for one in appended.result()] == list(range(10, 20))
    assert await values_of(bk, cluster.store, "orders") == numbers(0, 20)


async def test_patience_ends(cluster: RealCluster, bk: BookKeeper) -> None:
    """Without bookies for longer than the patience the writer ends, and tells the reason."""
    log = await bk.open_log("orders", patience_seconds=0.5)
    await log.append(b"one")
    await cluster.stop(1)
    await cluster.stop(2)
    with pytest.raises(BookieError):
        await log.append(b"two")
    with pytest.raises(BookieError) as caught:
        await log.append(b"three")
    assert log.error is not None
    assert not caught.value.retryable
    await cluster.start(1)
    await cluster.start(2)
    async with bk.open_log("orders") as again:
        await again.append(b"four")
    assert (await values_of(bk, cluster.store, "orders"))[0] == b"one"


async def test_a_deleted_ledger_ends_the_writer(bk: BookKeeper) -> None:
    """Another process deleted the log's own ledger: the writer reports it."""
    log = await bk.open_log("orders")
    position = await log.append(b"one")
    await bk.delete_ledger(position.ledger_id)
    with pytest.raises(BookieError, match="ledger 0"):
        await log.roll()


# ---- idempotent producers ----------------------------------------------------------------------


async def test_a_duplicate_gets_the_first_position(cluster: RealCluster, bk: BookKeeper) -> None:
    """In the same ledger, after a roll, and in the hands of the next owner."""
    async with bk.open_log("orders") as log:
        first = [await log.append(b"%d" % n, producer=("shop", n)) for n in range(5)]
        assert [await log.append(b"%d" % n, producer=("shop", n)) for n in range(5)] == first
        await log.roll()
        await log.append(b"plain")
        assert await log.append(b"0", producer=("shop", 0)) == first[0]
    for _ in range(2):  # the second owner finds a snapshot alone
        async with bk.open_log("orders") as log:
            assert await log.append(b"4", producer=("shop", 4)) == first[4]
    async with bk.open_log("orders") as log:
        assert (await log.append(b"5", producer=("shop", 5))).ledger_id != first[0].ledger_id
        assert await log.append(b"4", producer=("shop", 4)) == first[4]
    assert await values_of(bk, cluster.store, "orders") == [*numbers(0, 5), b"plain", b"5"]


async def test_what_was_truncated_stays_known(cluster: RealCluster, bk: BookKeeper) -> None:
    """The newest closed ledger stays for it, until another one is closed; no reader sees it."""
    async with bk.open_log("orders") as log:
        first = [await log.append(b"%d" % n, producer=("shop", n)) for n in range(5)]
        await log.roll()
        end = await bk.truncate_log("orders", before=first[-1].offset + 1)
    for _ in range(2):
        async with bk.open_log("orders") as log:
            assert await log.append(b"4", producer=("shop", 4)) == first[4]
    head = await head_of(cluster.store, "orders")
    assert [one.ledger_id for one in head.ranges] == [first[0].ledger_id]
    assert (head.start_offset, live_bytes(head)) == (end, 0)
    assert [record async for record in bk.read_log("orders")] == []
    async with bk.open_log("orders") as log:
        await log.append(b"5", producer=("shop", 5))
    assert [record.value async for record in bk.read_log("orders")] == [b"5"]
    assert await bk.truncate_log("orders", before=0) == end, "the former ledger goes all the same"
    assert len((await head_of(cluster.store, "orders")).ranges) == 1
    async with bk.open_log("orders") as log:
        assert await log.append(b"4", producer=("shop", 4)) == first[4]
    assert not await left_over(bk, cluster.store, "orders")


async def test_a_log_without_producers_goes_whole(cluster: RealCluster, bk: BookKeeper) -> None:
    """Nothing has to be remembered of it."""
    async with bk.open_log("orders") as log:
        last = await log.append(b"plain")
    await bk.truncate_log("orders", before=last.offset + 1)
    assert not (await head_of(cluster.store, "orders")).ranges
    assert not [ledger_id async for ledger_id in bk.list_ledgers()]


async def test_batches_of_a_producer_overlap(cluster: RealCluster, bk: BookKeeper) -> None:
    """Known records get their positions, new ones are appended."""
    async with bk.open_log("orders") as log:
        first = list(await log.append_many(numbers(0, 10), producer=("shop", 0)))
        again = list(await log.append_many(numbers(5, 15), producer=("shop", 5)))
        assert again[:5] == first[5:]
        whole = list(await log.append_many(numbers(0, 15), producer=("shop", 0)))
        assert whole == [*first, *again[5:]]
    assert await values_of(bk, cluster.store, "orders") == numbers(0, 15)


async def test_duplicates_of_what_is_under_way(cluster: RealCluster, bk: BookKeeper) -> None:
    """The same record twice at once, the first caller cancelled, the ledger fenced meanwhile."""
    async with bk.open_log("orders") as log:
        ledger_id = (await log.append(b"x")).ledger_id
        for number in range(20):
            async with asyncio.TaskGroup() as tasks:
                attempts = [
                    tasks.create_task(log.append(b"%d" % number, producer=("shop", number)))
                    for _ in range(3)
                ]
                await asyncio.sleep(0)
                attempts[0].cancel()
                if number % 7 == 3:
                    tasks.create_task(bk.open_ledger(ledger_id, recover=True))
            assert attempts[1].result() == attempts[2].result(), (number, attempts)
            ledger_id = attempts[1].result().ledger_id
    found = await records_of(bk, cluster.store, "orders")
    assert [record.value for record in found[1:]] == numbers(0, 20)


async def test_a_duplicate_whose_producer_is_forgotten_meanwhile(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still gets the first position, in the ledger to which the first append has moved."""
    monkeypatch.setattr("bookie.log.record.producers.PRODUCERS_MAX", 1)
    async with bk.open_log("orders") as log:
        ledger_id = (await log.append(b"x")).ledger_id
        for number in range(0, 60, 6):
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(
                    log.append_many(numbers(number, number + 4), producer=("shop", number))
                )
                again = tasks.create_task(log.append(b"again", producer=("shop", number + 1)))
                rest = tasks.create_task(
                    log.append_many(numbers(number + 2, number + 6), producer=("shop", number + 2))
                )
                tasks.create_task(log.append(b"y", producer=("other", number)))
                await asyncio.sleep(0)
                if number % 12 == 6:
                    tasks.create_task(bk.open_ledger(ledger_id, recover=True))
            assert again.result() == first.result()[1]
            assert list(rest.result())[:2] == list(first.result())[2:]
            ledger_id = rest.result()[-1].ledger_id
    found = await values_of(bk, cluster.store, "orders")
    assert [value for value in found if value not in (b"x", b"y")] == numbers(0, 60)


async def test_a_client_that_ends_says_so(cluster: RealCluster) -> None:
    """Waiting appends get an error, numbered ones too; no caller is cancelled."""
    async with connect(cluster.uri) as bk:
        log = await bk.open_log("orders")
        await log.append(b"one")
        await cluster.stop(1)
        await cluster.stop(2)
        async with asyncio.TaskGroup() as tasks:
            plain = tasks.create_task(error_of(log.append(b"two")))
            numbered = tasks.create_task(error_of(log.append(b"three", producer=("shop", 0))))
            await asyncio.sleep(0.05)
            await bk.aclose()
    assert isinstance(plain.result(), ClientClosedError)
    assert isinstance(numbered.result(), ClientClosedError)


async def test_a_snapshot_spares_reading_everything(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner reads back to the last snapshot only, and still knows all."""
    monkeypatch.setattr("bookie.log.record.record_encoder.SNAPSHOT_ENTRIES", 50)
    monkeypatch.setattr("bookie.log.write.ledger_end.READ_BACK_ENTRIES", 20)
    async with bk.open_log("orders") as log:
        first = await log.append(b"0", producer=("old", 0))
        for start in range(0, 240, 10):  # 40 entries behind the last snapshot
            await log.append_many(numbers(start, start + 10), producer=("shop", start))
    async with bk.open_log("orders") as log:
        assert await log.append(b"0", producer=("old", 0)) == first
        assert len(await log.append_many(numbers(150, 200), producer=("shop", 150))) == 50
    assert len(await values_of(bk, cluster.store, "orders")) == 241


# ---- partitions --------------------------------------------------------------------------------


async def test_equal_keys_share_a_partition(cluster: RealCluster, bk: BookKeeper) -> None:
    """In the order of the appends; records without a key are spread."""
    await bk.create_log("orders", partitions=3)
    keys = [b"key-%d" % number for number in range(10)]
    async with bk.open_log("orders") as log:
        records = [NewRecord(b"%d" % n, keys[n % 10]) for n in range(100)]
        positions = await log.append_many(records)
        lone = [await log.append(b"lone") for _ in range(6)]
        for position, record in zip(positions, records, strict=True):
            assert record.key is not None
            assert position.partition == partition_of(record.key, 3)
    assert {one.partition for one in lone} == {0, 1, 2}
    for partition in range(3):
        found = await records_of(bk, cluster.store, "orders", partition)
        for key in keys:
            mine = [int(record.value) for record in found if record.key == key]
            assert mine == sorted(mine)
    assert partition_of(b"bookie", 1024) == 911  # stands for ever


@pytest.mark.parametrize("window", [4, 10_000])
async def test_calls_of_any_kind_keep_their_order(cluster: RealCluster, window: int) -> None:
    """Many records of several partitions, and lone ones, called in the same turn of the loop."""
    keys = [_key_of(0), _key_of(1)]
    order = count()
    async with connect(cluster.uri, in_flight_entries_max=window, batch_entries_max=2) as bk:
        await bk.create_log("orders", partitions=2)
        async with bk.open_log("orders") as log, asyncio.TaskGroup() as tasks:
            for _ in range(20):
                many = [NewRecord(b"%d" % next(order), key) for key in keys for _ in range(3)]
                tasks.create_task(log.append_many(many))
                for key in keys:
                    tasks.create_task(log.append(b"%d" % next(order), key=key))
        for partition in range(2):
            found = await records_of(bk, cluster.store, "orders", partition)
            assert len(found) == 80
            assert [int(one.value) for one in found] == sorted(int(one.value) for one in found)


async def test_owners_share_a_log(bk: BookKeeper) -> None:
    """Each owns a partition; neither disturbs the other."""
    await bk.create_log("orders", partitions=2)
    async with (
        bk.open_log("orders", partition=0) as left,
        bk.open_log("orders", partition=1) as right,
    ):
        assert (await left.append(b"left")).partition == 0
        assert (await right.append(b"right")).partition == 1
        assert (left.partitions, right.partitions) == ([0], [1])
        with pytest.raises(BadRequestError, match="a key or a partition"):
            await left.append(b"", producer=("shop", 0))
        with pytest.raises(BadRequestError, match="none of them"):
            await left.append(b"", key=_key_of(1))


def _key_of(partition: int) -> bytes:
    return next(key for n in range(100) if partition_of(key := b"%d" % n, 2) == partition)

"""One read of a range against bookies that answer as the test says; answers as evidence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from bookie.config import ClientSettings
from bookie.entry.batch import EntryBatch
from bookie.entry.entry import Entry, pack_batch, pack_lac
from bookie.errors import (
    BadRequestError,
    BookieError,
    BookieUnreachableError,
    NoSuchEntryError,
    TooManyRequestsError,
)
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.read.range_read import RangeRead
from bookie.ledger.read.read_ahead import FIRST_SPAN_ENTRIES, SPANS_MAX, ReadAhead
from bookie.ledger.read.reader import LedgerRead, ReaderLimits
from bookie.ledger.read.verification import verify_lac, verify_read
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.versioned import Versioned
from bookie.wire.client.channel import LacReply, ReadCommand, ReadReply
from tests.entry_batches import merged
from tests.unit.ledger.fake_pool import (
    DIGESTER,
    LEDGER_ID,
    FakePool,
    OnRead,
    fake_pool,
    metadata_of,
    packed,
    reply_to,
)

FAST = ReaderLimits(speculative_read_seconds=0.01, retry_seconds=0.01)


def stored_until(end: int) -> OnRead:
    """Bookies that store everything below `end` that they should, in answers of 100 entries."""

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        ids = [
            entry_id
            for entry_id in range(command.first_entry_id, min(command.last_entry_id + 1, end))
            if (entry_id - command.stripe_first_residue) % (command.stripe_modulus or 1)
            < max(command.stripe_count, 1)
        ][:100]
        batch = merged([packed(entry_id, 1) for entry_id in ids])
        return ReadReply(Status.OK, "", batch, ids[-1] + 1)

    return on_read


async def ids_read(
    on_read: OnRead, last: int, *, sizes: tuple[int, int, int] = (3, 3, 2)
) -> list[int]:
    """Read 0 … last."""
    settings = ClientSettings(read_timeout_seconds=5)
    async with fake_pool(settings, on_read) as pool:
        machine = LedgerRead(metadata_of(sizes), 0, last, limits=FAST)
        read = RangeRead(machine, pool.pool, DIGESTER)
        ids: list[int] = []
        try:
            while entries := await read.next():
                ids += [entry.entry_id for entry in entries]
                assert all(entry.payload == b"%d" % entry.entry_id for entry in entries)
        finally:
            await read.close()
    return ids


async def test_a_read_is_a_few_answers_ahead() -> None:
    """While the consumer works on the first answer, two more are fetched, and not a fourth."""
    asked: list[int] = []

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        asked.append(command.first_entry_id)
        return reply_to(command, 1000)

    async with fake_pool(on_read=on_read) as pool:
        read = RangeRead(LedgerRead(metadata_of(), 0, 999), pool.pool, DIGESTER)
        assert len(await read.next()) == 100
        for _ in range(20):
            await asyncio.sleep(0)
        assert asked == [0, 100, 200]
        await read.close()


def read_ahead(
    pool: FakePool,
    last: int,
    sizes: tuple[int, int, int] = (3, 3, 2),
    limits: ReaderLimits = FAST,
) -> ReadAhead:
    """A read of 0 … last in spans."""
    return ReadAhead(metadata_of(sizes), 0, last, pool.pool, DIGESTER, 0, limits)


async def ids_in_spans(on_read: OnRead, last: int, sizes: tuple[int, int, int]) -> list[int]:
    """The ids that spans put together."""
    ids: list[int] = []
    async with fake_pool(ClientSettings(read_timeout_seconds=5), on_read) as pool:
        read = read_ahead(pool, last, sizes)
        while entries := await read.next():
            ids += [entry.entry_id for entry in entries]
        await read.close()
    return ids


async def test_spans_are_under_way_together_and_come_in_order() -> None:
    """The first answer comes last; what was learnt from it makes the later spans longer."""
    asked: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    first_may_come = asyncio.Event()

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        asked.put_nowait((command.first_entry_id, command.last_entry_id))
        if command.first_entry_id == 0:
            await first_may_come.wait()
        return reply_to(command, 1000)

    async with fake_pool(on_read=on_read) as pool:
        # A second replica must not be asked for the first span while its answer is held back.
        read = read_ahead(pool, 999, limits=replace(FAST, speculative_read_seconds=3600))
        waiting = pool.tasks.create_task(read.next())
        length = FIRST_SPAN_ENTRIES
        for n in range(SPANS_MAX):
            assert await asked.get() == (n * length, (n + 1) * length - 1)
        assert asked.empty()
        first_may_come.set()
        assert [entry.entry_id for entry in await waiting] == list(range(length))
        assert await asked.get() == (SPANS_MAX * length, 999)
        await read.close()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("last", [0, 1, 63, 64, 65, 191, 192, 193, 999])
async def test_spans_leave_nothing_out(sizes: tuple[int, int, int], last: int) -> None:
    """Whatever the length, with and without striping, with answers shorter than spans."""
    assert await ids_in_spans(stored_until(1000), last, sizes) == list(range(last + 1))


async def test_a_hole_in_several_spans_is_filled_by_the_others() -> None:
    """The bookie that was down is doubted by each span that meets the hole."""

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        return reply_to(command, 30 if bookie_id == "b0" else 1000)

    assert await ids_in_spans(on_read, 499, (3, 3, 2)) == list(range(500))


async def test_what_stands_before_a_failure_is_delivered_first() -> None:
    """A later span failed long before the first one came."""
    failed = asyncio.Event()

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        if command.first_entry_id >= FIRST_SPAN_ENTRIES:
            failed.set()
            raise BookieUnreachableError(f"{bookie_id} is gone")
        await failed.wait()
        return reply_to(command, 1000)

    async with fake_pool(on_read=on_read) as pool:
        read = read_ahead(pool, 999)
        assert len(await read.next()) == FIRST_SPAN_ENTRIES
        with pytest.raises(BookieUnreachableError, match=f"entry {FIRST_SPAN_ENTRIES} of"):
            await read.next()
        await read.close()


async def test_a_bookie_without_room_is_asked_for_one_span_at_a_time() -> None:
    """A refused read is made again, and from then on alone."""
    reads: list[ReadAhead] = []
    under_way = 0

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        nonlocal under_way
        if reads[0].spans_max > 1 and command.first_entry_id >= FIRST_SPAN_ENTRIES:
            raise TooManyRequestsError(f"{bookie_id} has no room")
        under_way += 1
        assert under_way == 1
        await asyncio.sleep(0)
        under_way -= 1
        return reply_to(command, 1000)

    async with fake_pool(on_read=on_read) as pool:
        reads.append(read_ahead(pool, 999))
        ids: list[int] = []
        while entries := await reads[0].next():
            ids += [entry.entry_id for entry in entries]
        await reads[0].close()
    assert ids == list(range(1000))


async def test_no_room_for_a_single_span_is_an_error() -> None:
    """The caller has to wait."""

    async def on_read(bookie_id: str, _: ReadCommand) -> ReadReply:
        raise TooManyRequestsError(f"{bookie_id} has no room")

    async with fake_pool(on_read=on_read) as pool:
        read = read_ahead(pool, 999)
        with pytest.raises(TooManyRequestsError):
            await read.next()
        await read.close()


async def test_a_hanging_bookie_is_overtaken() -> None:
    """Another one is asked after the delay, and then serves on."""

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        if bookie_id == "b0":
            await asyncio.Event().wait()
        return reply_to(command, 1000)

    assert await ids_read(on_read, 499) == list(range(500))


async def test_a_corrupt_entry_comes_from_another_bookie() -> None:
    """Its own copy is noticed by the digest; what was before it is used."""

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        reply = reply_to(command, 1000)
        if bookie_id != "b2" and reply.batch is not None and command.first_entry_id <= 50:
            return ReadReply(Status.OK, "", spoiled(reply.batch, 50), reply.next_entry_id)
        return reply

    assert await ids_read(on_read, 299) == list(range(300))


def spoiled(batch: EntryBatch, entry_id: int) -> EntryBatch:
    """The batch with one bit wrong in one entry."""
    payload = bytearray(batch.payload)
    position = entry_id - batch.first_entry_id
    payload[int(batch.offsets()[position + 1]) - 1] ^= 1
    return EntryBatch(batch.ledger_id, batch.first_entry_id, None, batch.sizes, bytes(payload))


async def test_a_hole_is_filled_by_the_others() -> None:
    """A bookie that was down from entry 120 to 180 serves only before."""

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        return reply_to(command, 120 if bookie_id == "b0" else 1000)

    assert await ids_read(on_read, 299) == list(range(300))


async def test_nobody_can_be_reached() -> None:
    """After two rounds the read fails with the failure of one of them."""

    async def on_read(bookie_id: str, _: ReadCommand) -> ReadReply:
        raise BookieUnreachableError(f"{bookie_id} is gone")

    async with fake_pool(on_read=on_read) as pool:
        read = RangeRead(LedgerRead(metadata_of(), 0, 0, limits=FAST), pool.pool, DIGESTER)
        with pytest.raises(BookieUnreachableError, match="entry 0 of ledger 9 could not be read"):
            await read.next()
        await read.close()


async def test_nobody_has_it() -> None:
    """All deny: there is no such entry."""

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        return reply_to(command, 10)

    async with fake_pool(on_read=on_read) as pool:
        read = RangeRead(LedgerRead(metadata_of(), 5, 20), pool.pool, DIGESTER)
        assert [entry.entry_id for entry in await read.next()] == [5, 6, 7, 8, 9]
        with pytest.raises(NoSuchEntryError, match="entry 10"):
            await read.next()
        await read.close()


# -- unconfirmed -----------------------------------------------------------------------------------


async def unconfirmed(
    end: int, last: int | None = None, *, sizes: tuple[int, int, int] = (3, 3, 2), closed: int = -2
) -> list[int] | BookieError:
    """Entries read from an open ledger without a LAC, whose bookies store all ids below `end`.

    If `closed` is not -2, somebody has closed it there meanwhile.
    """

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        if command.first_entry_id >= end:
            return ReadReply(Status.NO_SUCH_ENTRY, next_entry_id=command.first_entry_id)
        reply = await stored_until(end)("", command)
        return ReadReply(Status.OK, "", reply.batch, reply.next_entry_id, Status.NO_SUCH_ENTRY)

    opened = metadata_of(sizes)
    async with fake_pool(ClientSettings(), on_read) as pool:
        ledgers = AsyncMock(spec=LedgerManager)
        now = opened if closed == -2 else opened.closed(closed, 10)
        found = Versioned(opened, 1)

        async def read(_ledger_id: int, _token: int) -> Versioned[LedgerMetadata]:
            return found if now is opened else Versioned(now, 2)

        ledgers.read, ledgers.read_latest = read, read
        reader = ReaderHandle(found, pool.pool, ledgers)
        try:
            return [entry.entry_id async for entry in reader.read_unconfirmed(0, last)]
        except BookieError as error:
            return error


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (3, 1, 1)])
@pytest.mark.parametrize("end", [0, 1, 2, 64, 200])
async def test_unconfirmed_entries_end_where_the_bookies_end(
    end: int, sizes: tuple[int, int, int]
) -> None:
    """Every stored entry comes, also of a striped ledger, and the end is no error."""
    assert await unconfirmed(end, sizes=sizes) == list(range(end))


async def test_unconfirmed_entries_up_to_an_id() -> None:
    """A range that was asked for comes whole or fails."""
    assert await unconfirmed(10, 6) == list(range(7))
    refusal = await unconfirmed(10, 12)
    assert isinstance(refusal, NoSuchEntryError)
    assert "entry 10" in str(refusal)


@pytest.mark.parametrize("closed", [-1, 0, 4, 99])
async def test_a_closed_ledger_has_no_unconfirmed_entries(closed: int) -> None:
    """Entries that a recovery dropped are not read, though bookies still store them."""
    assert await unconfirmed(100, closed=closed) == list(range(closed + 1))
    refusal = await unconfirmed(200, 150, closed=closed)
    assert isinstance(refusal, BadRequestError)
    assert "not confirmed" in str(refusal)


# -- one entry -------------------------------------------------------------------------------------


async def read_alone(
    on_read: OnRead, settings: ClientSettings | None = None, sizes: tuple[int, int, int] = (3, 3, 2)
) -> list[Entry]:
    """Entry 7 of a closed ledger by the public handle, three times."""
    closed = metadata_of(sizes).closed(99, 1000)
    settings = settings or ClientSettings(speculative_read_seconds=0.01)
    async with fake_pool(settings, on_read) as pool:
        ledgers = LedgerManager(MemoryStore("nothing"))
        reader = ReaderHandle(Versioned(closed, 1), pool.pool, ledgers)
        return [entry for _ in range(3) async for entry in reader.read(7, 7)]


async def test_one_entry_is_asked_of_one_bookie() -> None:
    """One request for each read, to the same replica."""
    asked: list[str] = []

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        asked.append(bookie_id)
        return reply_to(command, 100)

    assert await read_alone(on_read) == [Entry(7, b"7")] * 3
    assert asked == [asked[0]] * 3


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize(
    "doubt", ["hangs", "gone", "moved", "denies", "corrupt", "other", "several"]
)
async def test_one_entry_in_doubt_comes_from_another_bookie(
    doubt: str, sizes: tuple[int, int, int]
) -> None:
    """Whatever the first one does, and it is not asked first again."""
    first: list[str] = []
    asked: list[str] = []

    async def on_read(bookie_id: str, command: ReadCommand) -> ReadReply:
        first.append(bookie_id)
        asked.append(bookie_id)
        good = reply_to(command, 100)
        if bookie_id != first[0]:
            return good
        match doubt:
            case "hangs":
                await asyncio.Event().wait()
            case "gone":
                raise BookieUnreachableError("gone")
            case "moved":
                raise BookieUnreachableError("the bookie has another address now")
            case "corrupt":
                assert good.batch is not None
                return ReadReply(Status.OK, "", spoiled(good.batch, 7), 8)
            case "other":
                return ReadReply(Status.OK, "", packed(8, 1), 9)
            case "several":
                return ReadReply(Status.OK, "", packed(7, 2), 9)
            case _:
                return ReadReply(Status.NO_SUCH_ENTRY, next_entry_id=7)
        raise AssertionError("it hung for ever")

    assert await read_alone(on_read, sizes=sizes) == [Entry(7, b"7")] * 3
    assert asked[0] not in asked[1:]


async def test_the_only_copy_is_waited_for() -> None:
    """Only one bookie has a copy, so the reader waits for it."""
    asked = 0

    async def on_read(_: str, command: ReadCommand) -> ReadReply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.02)
        return reply_to(command, 100)

    assert await read_alone(on_read, sizes=(1, 1, 1)) == [Entry(7, b"7")] * 3
    assert asked == 3


# -- evidence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [3, 7, 39])
@pytest.mark.parametrize("count", [8, 40])
def test_the_verified_prefix_of_a_batch(bad: int, count: int) -> None:
    """Everything before the first wrong entry counts, and the answer ends there."""
    if bad >= count:
        return
    told = verify_read(ReadReply(Status.OK, "", spoiled(packed(0, count), bad), count), DIGESTER)
    assert [entry.entry_id for entry in told.entries] == list(range(bad))
    assert told.batch is not None
    assert told.batch.count == bad
    assert (told.next_entry_id, told.stopped_by) == (bad, Status.BAD_CHECKSUM)


def test_a_batch_that_is_wrong_from_its_start_proves_nothing() -> None:
    """An empty batch is wrong, too."""
    told = verify_read(ReadReply(Status.OK, "", spoiled(packed(4, 2), 4), 6), DIGESTER)
    assert (told.batch, list(told.entries), told.next_entry_id) == (None, [], 4)


def test_a_lac_is_believed_only_from_verified_packets() -> None:
    """The hint is ignored; one wrong packet spoils the answer."""
    last = bytes(packed(8, 1).payload)
    lac = pack_lac(LEDGER_ID, 8, DIGESTER)
    told = verify_lac(LEDGER_ID, LacReply(Status.OK, "", last, lac, max_lac=99), DIGESTER)
    assert (told.last_add_confirmed, told.last_entry_id, told.last_length) == (8, 8, 1)
    nothing = verify_lac(LEDGER_ID, LacReply(Status.NO_SUCH_LEDGER, max_lac=99), DIGESTER)
    assert (nothing.status, nothing.last_add_confirmed) == (Status.NO_SUCH_LEDGER, -1)
    for packets in ((last[:-1] + b"!", lac), (last, lac[:-1] + b"!"), (last[:20], b"")):
        spoilt = verify_lac(LEDGER_ID, LacReply(Status.OK, "", *packets), DIGESTER)
        assert spoilt.status is Status.BAD_CHECKSUM
    other = verify_lac(LEDGER_ID + 1, LacReply(Status.OK, "", last), DIGESTER)
    assert other.status is Status.BAD_CHECKSUM


def test_a_stored_entry_is_not_a_confirmed_one() -> None:
    """The last entry proves the LAC in its header, which is lower than its own id."""
    stored = pack_batch(LEDGER_ID, 8, 5, 0, [b"8"], DIGESTER)
    last = bytes(stored.payload)
    older, newer = (pack_lac(LEDGER_ID, lac, DIGESTER) for lac in (4, 6))
    for packet, lac in ((b"", 5), (older, 5), (newer, 6)):
        told = verify_lac(LEDGER_ID, LacReply(Status.OK, "", last, packet, max_lac=8), DIGESTER)
        assert (told.last_add_confirmed, told.last_entry_id) == (lac, 8)

"""A ledger's whole life through the public surface, on real bookies behind real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bookie.api import UNCLAIMED, BookKeeper, WriterHandle, connect
from bookie.entry.digest import DigestType
from bookie.entry.entry import Entry
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    ConfigurationError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bookie.ledger.ledger_client import LedgerShape
from bookie.ledger.metadata import LedgerState
from bookie.ledger.quorum import Quorum
from bookie.log.write.takeover import WriterOptions
from tests.unit.ledger.real_cluster import RealCluster, until


async def payloads_of(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read()]


async def test_what_is_appended_is_read_back(bk: BookKeeper) -> None:
    """Ids are dense, payloads are equal, and the closed ledger knows its length."""
    writer = await bk.create_ledger(custom_metadata={"owner": b"me"})
    assert await writer.append(b"one") == 0
    assert await writer.append_many([b"two", b"", bytearray(b"four")]) == range(1, 4)
    assert writer.last_add_confirmed == 3
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (3, 10)
    assert await bk.ledger_metadata(writer.ledger_id) == metadata
    assert metadata.custom_metadata == {"owner": b"me"}
    reader = await bk.open_ledger(writer.ledger_id)
    assert reader.is_closed
    entries = [entry async for entry in reader.read(1, reader.last_entry_id)]
    assert entries == [(1, b"two"), (2, b""), (3, b"four")]


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest_type(bk: BookKeeper, digest_type: DigestType) -> None:
    """Entries of each digest type are written and verified."""
    async with await bk.create_ledger(digest_type=digest_type, password=b"secret") as writer:
        await writer.append_many([b"%d" % i for i in range(50)])
    reader = await bk.open_ledger(writer.ledger_id, password=b"secret")
    assert [e.payload async for e in reader.read()] == [b"%d" % i for i in range(50)]


def test_no_options_show_a_password() -> None:
    """Whoever logs them logs their password otherwise."""
    for options in (LedgerShape(Quorum(1, 1, 1), password=b"secret"), WriterOptions(b"secret")):
        assert "secret" not in repr(options)


async def test_concurrent_appends_get_dense_ids(bk: BookKeeper) -> None:
    """A thousand concurrent appends: each id once, each payload under its own id."""
    writer = await bk.create_ledger()
    async with asyncio.TaskGroup() as tasks:
        appends = [tasks.create_task(writer.append(b"%d" % i)) for i in range(1000)]
    ids = [append.result() for append in appends]
    assert ids == list(range(1000))
    await writer.close()
    assert await payloads_of(bk, writer.ledger_id) == [b"%d" % i for i in range(1000)]


async def test_large_and_many_entries(bk: BookKeeper) -> None:
    """Batches are cut by entries and by bytes; an entry may be larger than a batch."""
    sizes = [4 * 2**20 - 36, 0, 600_000, 600_000, *([100] * 3000), 2**20]
    writer = await bk.create_ledger()
    assert await writer.append_many([b"x" * size for size in sizes]) == range(len(sizes))
    await writer.close()
    assert [len(p) for p in await payloads_of(bk, writer.ledger_id)] == sizes


async def test_an_entry_that_does_not_fit_is_refused(bk: BookKeeper) -> None:
    """Nothing is appended, and the writer goes on."""
    writer = await bk.create_ledger()
    with pytest.raises(BadRequestError, match="larger than"):
        await writer.append(b"x" * (4 * 2**20 - 35))
    with pytest.raises(BadRequestError, match="larger than"):
        await writer.append_many([b"small", b"x" * (4 * 2**20 - 35)])
    assert await writer.append(b"fits") == 0


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 1), (3, 2, 2), (3, 3, 3)])
async def test_every_shape_of_ensemble(bk: BookKeeper, sizes: tuple[int, int, int]) -> None:
    """Striped or not: what is written is read, also after a recovery."""
    ensemble, write, ack = sizes
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
    )
    expected = [b"%d" % i for i in range(2500)]
    for start in range(0, 2500, 500):
        await writer.append_many(expected[start : start + 500])
    reader = await bk.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_entry_id == 2499
    assert [entry.payload async for entry in reader.read()] == expected
    assert [e.entry_id async for e in reader.read(17, 23)] == list(range(17, 24))


async def test_append_many_of_nothing(bk: BookKeeper) -> None:
    """No entry is an empty range, at once."""
    writer = await bk.create_ledger()
    assert list(await writer.append_many([])) == []
    assert (await writer.close()).last_entry_id == -1


async def test_a_cancelled_append_is_written_all_the_same(bk: BookKeeper) -> None:
    """The caller that was cancelled stops waiting; its entry keeps its id."""
    writer = await bk.create_ledger()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(writer.append(b"cancelled"))
        await asyncio.sleep(0)
        first.cancel()
        second = tasks.create_task(writer.append(b"kept"))
    assert second.result() == 1
    await writer.close()
    assert await payloads_of(bk, writer.ledger_id) == [b"cancelled", b"kept"]


# -- closing, fencing, recovery --------------------------------------------------------------------


async def test_close_waits_for_appends_and_refuses_later_ones(bk: BookKeeper) -> None:
    """Appends made before the call are in the ledger; closing twice is no error."""
    writer = await bk.create_ledger()
    async with asyncio.TaskGroup() as tasks:
        appends = [tasks.create_task(writer.append(b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        closing = tasks.create_task(writer.close())
    assert [append.result() for append in appends] == list(range(10))
    assert closing.result().last_entry_id == 9
    assert writer.is_closed
    assert (await writer.close()).last_entry_id == 9
    with pytest.raises(ClientClosedError):
        await writer.append(b"late")


async def test_a_recovering_open_fences_the_writer(bk: BookKeeper) -> None:
    """The first writer gets LedgerFencedError and is never acknowledged again."""
    writer = await bk.create_ledger()
    await writer.append_many([b"a", b"b"])
    reader = await bk.open_ledger(writer.ledger_id, recover=True)
    assert (reader.is_closed, reader.last_entry_id) == (True, 1)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"c")
    with pytest.raises(LedgerFencedError):
        await writer.append_many([b"d"])
    with pytest.raises(LedgerFencedError):
        await writer.append(b"e")
    assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b"]


async def test_closing_after_somebody_else_closed(bk: BookKeeper) -> None:
    """At the same entry it succeeds; elsewhere it is an error."""
    same, other = await bk.create_ledger(), await bk.create_ledger()
    for writer in (same, other):
        await writer.append(b"a")
        await bk.open_ledger(writer.ledger_id, recover=True)
    assert (await same.close()).last_entry_id == 0
    manager = await bk.ledger_metadata(other.ledger_id)
    assert manager.last_entry_id == 0
    await close_elsewhere(bk, other)
    with pytest.raises(LedgerClosedError, match="closed by another client"):
        await other.close()


async def close_elsewhere(bk: BookKeeper, writer: WriterHandle) -> None:
    """Rewrite the stored end of a ledger, as if another client had found more entries."""
    ledgers = bk._connected.ledgers
    found = await ledgers.read(writer.ledger_id)
    await ledgers.write(found.value.closed(7, 70), found.version)


async def test_concurrent_recoveries_agree(bk: BookKeeper, cluster: RealCluster) -> None:
    """Three clients recover the same ledger at once and see the same end."""
    writer = await bk.create_ledger()
    await writer.append_many([b"%d" % i for i in range(100)])
    async with connect(cluster.uri) as other, asyncio.TaskGroup() as tasks:
        opens = [
            tasks.create_task(client.open_ledger(writer.ledger_id, recover=True))
            for client in (bk, other, bk)
        ]
    assert {opened.result().last_entry_id for opened in opens} == {99}
    assert (await bk.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED


async def test_a_ledger_that_nobody_wrote_recovers_empty(bk: BookKeeper) -> None:
    """No bookie has heard of it; it is fenced and closed at -1 all the same."""
    writer = await bk.create_ledger()
    reader = await bk.open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_entry_id, reader.metadata.length) == (-1, 0)
    assert [entry async for entry in reader.read()] == []
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")


# -- opening and reading ---------------------------------------------------------------------------


async def test_an_open_ledger_is_read_up_to_its_lac(bk: BookKeeper) -> None:
    """A plain open leaves the writer alone and reads only confirmed entries."""
    writer = await bk.create_ledger()
    await writer.append_many([b"a", b"b", b"c"])
    reader = await bk.open_ledger(writer.ledger_id)
    await until_lac(reader.refresh, 2)
    assert not reader.is_closed
    assert [entry.payload async for entry in reader.read()] == [b"a", b"b", b"c"]
    with pytest.raises(BadRequestError, match="not confirmed"):
        [entry async for entry in reader.read(0, 3)]
    with pytest.raises(BadRequestError):
        [entry async for entry in reader.read(-1, 0)]
    await writer.append(b"d")
    await until_lac(reader.refresh, 3)
    assert [entry.payload async for entry in reader.read(3, 3)] == [b"d"]


async def until_lac(refresh: Callable[[], Awaitable[int]], lac: int) -> None:
    """Refresh until the explicit LAC has arrived."""
    async with asyncio.timeout(60):
        while await refresh() < lac:  # noqa: ASYNC110  (it arrives at bookies, not here)
            await asyncio.sleep(0.005)


async def test_read_batches_give_the_same_entries(bk: BookKeeper) -> None:
    """Some entries at a time, in order, without a gap."""
    async with await bk.create_ledger() as writer:
        await writer.append_many([b"x" * 700] * 6000)
    reader = await bk.open_ledger(writer.ledger_id)
    batches = [batch async for batch in reader.read_batches(10, 5990)]
    assert [entry.entry_id for batch in batches for entry in batch] == list(range(10, 5991))
    assert 1 < len(batches) < 100


async def test_the_password_is_checked(bk: BookKeeper) -> None:
    """A wrong password opens nothing; the metadata holds a derived key only."""
    async with await bk.create_ledger(password=b"right") as writer:
        await writer.append(b"x")
    for password in (b"wrong", b""):
        with pytest.raises(UnauthorizedError):
            await bk.open_ledger(writer.ledger_id, password=password, recover=True)
    reader = await bk.open_ledger(writer.ledger_id, password=b"right")
    assert [entry.payload async for entry in reader.read()] == [b"x"]
    assert b"right" not in (await bk.ledger_metadata(writer.ledger_id)).password_key


async def test_list_and_delete(bk: BookKeeper) -> None:
    """Ids come ascending; a deleted ledger cannot be opened."""
    writers = [await bk.create_ledger() for _ in range(5)]
    ids = [writer.ledger_id for writer in writers]
    assert [ledger_id async for ledger_id in bk.list_ledgers()] == sorted(ids)
    await bk.delete_ledger(ids[2])
    assert [i async for i in bk.list_ledgers(after=ids[0])] == [ids[1], ids[3], ids[4]]
    for operation in (bk.open_ledger, bk.delete_ledger, bk.ledger_metadata):
        with pytest.raises(NoSuchLedgerError):
            await operation(ids[2])


async def test_creating_with_a_given_id(bk: BookKeeper) -> None:
    """An id that is taken is refused."""
    assert (await bk.create_ledger(ledger_id=77)).ledger_id == 77
    with pytest.raises(LedgerExistsError):
        await bk.create_ledger(ledger_id=77)


async def test_a_degraded_ledger_is_mended_by_its_claim(
    bk: BookKeeper, cluster: RealCluster
) -> None:
    """Two bookies of three: a vacant slot, and appends all the same; a third one takes the slot."""
    await cluster.stop(2)
    await until(lambda: len(bk.bookies()) == 2)
    with pytest.raises(NotEnoughBookiesError, match="only 2 writable bookies"):
        await bk.create_ledger()
    async with bk.create_ledger(allow_degraded=True) as writer:
        assert await writer.append_many([b"a", b"b"]) == range(2)
    assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b"]
    (fragment,) = (await bk.ledger_metadata(writer.ledger_id)).fragments
    assert fragment.bookies[2] == "vacant.2"
    taken = await bk.create_ledger(allow_degraded=True)
    await taken.append(b"c")
    reader = await bk.open_ledger(taken.ledger_id, recover=True)
    assert [entry.payload async for entry in reader.read()] == [b"c"]
    waiting = await bk.create_ledger(allow_degraded=True, custom_metadata={UNCLAIMED: b""})
    with pytest.raises(NotEnoughBookiesError, match="fewer than 3 copies"):
        await bk.create_ledger(ack_quorum_size=3, allow_degraded=True)
    await cluster.start(2)
    await until(lambda: len(bk.bookies()) == 3)
    async with bk.claim_ledger(waiting.ledger_id) as claimed:
        await claimed.append(b"d")
    (mended,) = (await bk.ledger_metadata(waiting.ledger_id)).fragments
    assert set(mended.bookies[:2]) == {"b0", "b1"}
    assert mended.bookies[2] == "b2"
    async with bk.create_ledger(allow_degraded=True) as whole:
        (fragment,) = (await bk.ledger_metadata(whole.ledger_id)).fragments
    assert set(fragment.bookies) == {"b0", "b1", "b2"}


async def test_creating_what_cannot_be(bk: BookKeeper) -> None:
    """Too few bookies, sizes out of order and unknown digests are told in a sentence."""
    with pytest.raises(NotEnoughBookiesError):
        await bk.create_ledger(ensemble_size=4)
    with pytest.raises(BadRequestError):
        await bk.create_ledger(ack_quorum_size=4)
    with pytest.raises(BadRequestError, match="crc32c"):
        await bk.create_ledger(digest_type="md5")  # type: ignore[arg-type]
    assert sorted(bk.bookies()) == ["b0", "b1", "b2"]


# -- tailing ---------------------------------------------------------------------------------------


async def test_a_tail_follows_until_the_ledger_is_closed(bk: BookKeeper) -> None:
    """It sees each entry once and in order, the last ones without another append, then ends."""
    writer = await bk.create_ledger()
    await writer.append(b"0")
    reader = await bk.open_ledger(writer.ledger_id)
    seen: list[int] = []

    async def follow() -> None:
        async for entry in reader.tail():
            assert entry.payload == b"%d" % entry.entry_id
            seen.append(entry.entry_id)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await until(lambda: seen == [0])
        for start in range(1, 101, 20):
            await writer.append_many([b"%d" % i for i in range(start, start + 20)])
            await until(lambda last=start + 19: seen[-1] == last)  # type: ignore[misc]
        await writer.append(b"101")
        await writer.close()
    assert seen == list(range(102))


async def test_a_tail_of_a_closed_ledger_ends(bk: BookKeeper) -> None:
    """From any start, also beyond the end."""
    async with await bk.create_ledger() as writer:
        await writer.append_many([b"a", b"b", b"c"])
    reader = await bk.open_ledger(writer.ledger_id)
    assert [entry.entry_id async for entry in reader.tail(1)] == [1, 2]
    assert [entry async for entry in reader.tail(9)] == []


async def test_a_tail_of_a_deleted_ledger_raises(bk: BookKeeper) -> None:
    """Nothing more will come."""
    writer = await bk.create_ledger()
    reader = await bk.open_ledger(writer.ledger_id)
    async with asyncio.TaskGroup() as tasks:
        tail = tasks.create_task(failure_of(anext(reader.tail())))
        await asyncio.sleep(0.01)
        await bk.delete_ledger(writer.ledger_id)
    assert isinstance(tail.result(), NoSuchLedgerError)


async def test_a_tail_survives_a_recovery_by_somebody_else(bk: BookKeeper) -> None:
    """The follower reads to the end that the recovery decided."""
    writer = await bk.create_ledger()
    reader = await bk.open_ledger(writer.ledger_id)
    async with asyncio.TaskGroup() as tasks:
        tail = tasks.create_task(collect(reader.tail()))
        await writer.append_many([b"a", b"b"])
        await bk.open_ledger(writer.ledger_id, recover=True)
    assert tail.result() == [b"a", b"b"]


async def collect(entries: AsyncIterator[Entry]) -> list[bytes]:
    return [entry.payload async for entry in entries]


# -- the client itself -----------------------------------------------------------------------------


async def test_leaving_the_client_ends_everything(cluster: RealCluster) -> None:
    """Whoever waits gets ClientClosedError; nothing is left running."""
    async with asyncio.TaskGroup() as tasks, connect(cluster.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        reader = await bk.open_ledger(writer.ledger_id)
        following = tasks.create_task(failure_of(anext(reader.tail(start=5))))
        await cluster.stop(0)
        await cluster.stop(1)
        appending = tasks.create_task(failure_of(writer.append(b"b")))
        await asyncio.sleep(0.01)
    assert isinstance(following.result(), ClientClosedError)
    assert isinstance(appending.result(), ClientClosedError)
    for call in (writer.append(b"c"), writer.append_many([b"d"]), bk.create_ledger()):
        assert isinstance(await failure_of(call), ClientClosedError)
    assert isinstance(await failure_of(writer.close()), ClientClosedError)


async def failure_of(call: Awaitable[object]) -> BookieError | None:
    try:
        await call
    except BookieError as error:
        return error
    return None


async def test_an_error_in_the_body_passes_unchanged(cluster: RealCluster) -> None:
    """It is not wrapped into a group of exceptions."""

    async def body() -> None:
        async with connect(cluster.uri) as bk:
            writer = await bk.create_ledger()
            await writer.append(b"%d" % (1 // 0))

    with pytest.raises(ZeroDivisionError):
        await body()


async def test_a_cluster_that_was_never_made(tmp_path: Path) -> None:
    """Connecting to an empty store says what to do."""
    with pytest.raises(NoSuchKeyError, match="cluster init"):
        async with connect(f"memory://{tmp_path.name}-empty"):
            pass


def test_settings_are_checked() -> None:
    """An unknown or impossible setting is one sentence."""
    with pytest.raises(ConfigurationError, match="add_timeout_seconds"):
        connect("memory://x", add_timeout_second=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        connect("memory://x", add_timeout_seconds=-1)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of an operator reach clients that know nothing of them; an argument wins."""
    monkeypatch.setenv("BOOKIE_CLIENT__ADD_TIMEOUT_SECONDS", "-1")
    with pytest.raises(ConfigurationError, match="BOOKIE_CLIENT__ADD_TIMEOUT_SECONDS"):
        connect("memory://x")
    connect("memory://x", add_timeout_seconds=3)


async def test_ids_follow_the_order_of_the_calls(cluster: RealCluster) -> None:
    """Also when appends have to wait for room, and others come while there is some again."""
    async with connect(cluster.uri, in_flight_entries_max=64, batch_entries_max=16) as bk:
        writer = await bk.create_ledger()
        async with asyncio.TaskGroup() as group:
            for first in range(0, 3000, 3):
                payloads = [b"%d" % (first + offset) for offset in range(3)]
                group.create_task(writer.append_many(payloads))
                if first % 90 == 0:
                    await asyncio.sleep(0)
        await writer.close()
        assert await payloads_of(bk, writer.ledger_id) == [b"%d" % n for n in range(3000)]


async def test_a_ledger_is_claimed_once(bk: BookKeeper) -> None:
    """A ledger made for somebody else gets one writer, whoever comes first, and never another."""
    created = await bk.create_ledger(custom_metadata={UNCLAIMED: b"", "owner": b"me"})
    outcomes: list[WriterHandle | BookieError] = []

    async def claim() -> None:
        try:
            outcomes.append(await bk.claim_ledger(created.ledger_id))
        except LedgerClosedError as error:
            outcomes.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(claim())
    (writer,) = [claimed for claimed in outcomes if isinstance(claimed, WriterHandle)]
    assert await writer.append(b"one") == 0
    await writer.close()
    assert (await bk.ledger_metadata(writer.ledger_id)).custom_metadata == {"owner": b"me"}
    with pytest.raises(LedgerClosedError, match="has its writer"):
        await bk.claim_ledger(created.ledger_id)


async def test_a_claim_needs_the_password_and_an_unclaimed_ledger(bk: BookKeeper) -> None:
    """The claim of a created ledger is refused, and so is one with a wrong password."""
    writer = await bk.create_ledger()
    with pytest.raises(LedgerClosedError, match="gets no second one"):
        await bk.claim_ledger(writer.ledger_id)
    secret = await bk.create_ledger(password=b"secret", custom_metadata={UNCLAIMED: b""})
    with pytest.raises(UnauthorizedError):
        await bk.claim_ledger(secret.ledger_id)
    assert (await bk.claim_ledger(secret.ledger_id, password=b"secret")).last_entry_id == -1

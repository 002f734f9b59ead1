"""Writers whose bookies fail, in a cluster with spares: real bookies, real connections."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.errors import BookieUnreachableError
from bookie.ids import Status
from bookie.ledger.connection.pool import (
    RECONNECT_SECONDS_MIN,
    AddConnection,
    BookieConnection,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 5) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri, replace_after_seconds=0.5, add_timeout_seconds=2) as client:
        yield client


def numbers_of(metadata: LedgerMetadata) -> list[int]:
    """The bookies of the last fragment, as the cluster counts them."""
    return [int(bookie_id[1:]) for bookie_id in metadata.last_fragment.bookies]


async def append_all(writer: WriterHandle, count: int) -> None:
    """Append numbers; each is what its id is."""
    for _ in range(count):
        number = writer.last_entry_id + 1
        assert await writer.append(b"%d" % number) == number


async def until_replaced(writer: WriterHandle, number: int) -> None:
    """Wait until a bookie stands in no slot."""
    await until(lambda: number not in numbers_of(writer.metadata))


async def append_to_all(writers: list[WriterHandle]) -> None:
    """Three entries to each, at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for writer in writers:
            tasks.create_task(append_all(writer, 3))


async def check_copies(cluster: RealCluster, bk: BookKeeper, ledger_id: int, count: int) -> None:
    """Everything is there, and the fragments name those who have it."""
    reader = await bk.open_ledger(ledger_id)
    found = [entry.payload async for entry in reader.read()]
    assert found == [b"%d" % number for number in range(count)]


async def test_a_bookie_that_stops_is_replaced(cluster: RealCluster, bk: BookKeeper) -> None:
    """It does not come back: another one stands in its slot, and has all that follows."""
    async with bk.create_ledger() as writer:
        await append_all(writer, 10)
        gone = numbers_of(writer.metadata)[0]
        await cluster.stop(gone)
        await append_all(writer, 10)
        await until_replaced(writer, gone)
        await append_all(writer, 10)
        await until(lambda: not writer._machine.window.retained)
    metadata = writer.metadata
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 20]
    assert not writer.is_under_replicated
    await check_copies(cluster, bk, writer.ledger_id, 30)


async def test_a_writer_outlives_all_of_its_first_bookies(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """One after the other stops, and starts again later; no append fails."""
    async with bk.create_ledger() as writer:
        first = numbers_of(writer.metadata)
        for gone in first:
            await cluster.stop(gone)
            await append_all(writer, 5)
            await until_replaced(writer, gone)
            await append_all(writer, 5)
            await cluster.start(gone)
        await append_all(writer, 5)
    assert len(writer.metadata.fragments) == 4
    await check_copies(cluster, bk, writer.ledger_id, 35)


async def test_two_of_three_at_once_cost_a_moment(cluster: RealCluster, bk: BookKeeper) -> None:
    """No ack quorum is left; the appends under way wait for newcomers and succeed."""
    async with bk.create_ledger() as writer:
        await append_all(writer, 5)
        gone = numbers_of(writer.metadata)[:2]
        async with asyncio.TaskGroup() as tasks:
            for number in gone:
                tasks.create_task(cluster.stop(number))
        await append_all(writer, 5)
        assert not set(gone) & set(numbers_of(writer.metadata))
    await check_copies(cluster, bk, writer.ledger_id, 10)


async def test_a_bookie_that_returns_in_time_is_kept(cluster: RealCluster) -> None:
    """A restart costs no change of the ensemble."""
    async with connect(cluster.uri) as bk, bk.create_ledger() as writer:
        await append_all(writer, 5)
        number = numbers_of(writer.metadata)[0]
        await cluster.stop(number)
        await cluster.start(number)
        await append_all(writer, 5)
        await until(lambda: not writer._machine.window.retained)
    assert len(writer.metadata.fragments) == 1


async def test_a_client_of_many_ledgers_changes_all_of_them(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """Also those that nobody appends to."""
    writers = [await bk.create_ledger() for _ in range(20)]
    await append_to_all(writers)
    gone = numbers_of(writers[0].metadata)[0]
    await cluster.stop(gone)
    await until(lambda: all(gone not in numbers_of(one.metadata) for one in writers))
    await append_to_all(writers)
    for writer in writers:
        metadata = await writer.close()
        assert metadata.last_entry_id == 5
        assert len(metadata.fragments) <= 2


async def test_a_spare_that_comes_later_is_taken(tmp_path: Path) -> None:
    """Three bookies, one stops: the writer goes on with two, and a third one joins it later."""
    async with (
        real_cluster(tmp_path, 3) as cluster,
        connect(cluster.uri, replace_after_seconds=0.3) as bk,
    ):
        async with bk.create_ledger() as writer:
            await append_all(writer, 5)
            await cluster.stop(0)
            await append_all(writer, 5)
            await cluster.start(3)
            await until(lambda: 3 in numbers_of(writer.metadata))
            await append_all(writer, 5)
            await until(lambda: not writer._machine.window.retained)
        await check_copies(cluster, bk, writer.ledger_id, 15)


async def test_a_tail_goes_on_while_all_bookies_are_replaced(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """Every entry once and in order, across the fragments and to the close."""
    found: list[bytes] = []

    async def follow(ledger_id: int) -> None:
        async with connect(cluster.uri) as other:
            reader = await other.open_ledger(ledger_id)
            found.extend([entry.payload async for entry in reader.tail()])

    async with asyncio.TaskGroup() as tasks, bk.create_ledger() as writer:
        tasks.create_task(follow(writer.ledger_id))
        for gone in numbers_of(writer.metadata):
            await append_all(writer, 5)
            await cluster.stop(gone)
            await until_replaced(writer, gone)
            await append_all(writer, 5)
            await cluster.start(gone)
    assert found == [b"%d" % number for number in range(30)]


async def test_a_reader_with_old_metadata_finds_new_fragments(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The bookies that it knows deny what went to others, and it looks again."""
    async with bk.create_ledger() as writer:
        await append_all(writer, 5)
        reader = await bk.open_ledger(writer.ledger_id)
        for gone in numbers_of(writer.metadata):
            await cluster.stop(gone)
            await until_replaced(writer, gone)
            await cluster.start(gone)
            await append_all(writer, 5)
        reader._last_add_confirmed = writer.last_add_confirmed
        assert len(reader.metadata.fragments) == 1
        found = [entry.payload async for entry in reader.read(0, 19)]
    assert found == [b"%d" % number for number in range(20)]


async def test_a_newcomer_with_a_damaged_cookie_ends_no_ledger(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """Its identity is unknown, so another bookie is taken. Other ledgers are unaffected."""
    async with bk.create_ledger() as writer, bk.create_ledger() as other:
        await append_to_all([writer, other])
        spares = set(bk.bookies()) - set(writer.metadata.last_fragment.bookies)
        damaged = min(spares)
        key = f"/cookies/{damaged}"
        cookie = await cluster.store.get(key)
        assert cookie is not None
        await cluster.store.put(key, b"garbage")
        gone = numbers_of(writer.metadata)[0]
        await cluster.stop(gone)
        await until_replaced(writer, gone)
        await until_replaced(writer, int(damaged[1:]))
        await append_to_all([writer, other])
        await cluster.store.put(key, cookie.value)


async def test_a_dropped_writer_that_lacks_a_bookie_is_collected(tmp_path: Path) -> None:
    """It asks for newcomers once a second, and that must not keep it alive."""
    async with (
        real_cluster(tmp_path, 3) as cluster,
        connect(cluster.uri, replace_after_seconds=0.2) as bk,
    ):
        writer = await bk.create_ledger()
        await append_all(writer, 3)
        await cluster.stop(0)
        async with asyncio.timeout(60):
            while not writer._machine.replacements.lacks_spares:  # noqa: ASYNC110  (no name is kept)
                await asyncio.sleep(0.01)
        dropped = weakref.ref(writer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del writer
            await until(lambda: gc.collect() >= 0 and dropped() is None)


async def test_a_bookie_that_failed_is_left_alone_by_all_ledgers_until_it_registers(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """New ledgers avoid it while the others suffice.

    Asking again leaves the time of its return as it is.
    """
    ensembles = bk._connected.ensembles
    ensembles.quarantine.put("b0")
    for _ in range(10):
        assert "b0" not in ensembles.choose(Quorum(3, 3, 2), allow_degraded=False)
        assert ensembles.newcomers(("b1", "b2", "b3"), [0], 3) == {0: "b4"}
    assert len(ensembles.choose(Quorum(5, 3, 2), allow_degraded=False)) == 5, "better than nothing"
    await cluster.stop(0)
    await until(lambda: "b0" not in bk.bookies())
    await cluster.start(0)
    await until(lambda: "b0" in bk.bookies())
    assert not ensembles.quarantine.members()


async def test_silence_is_told_once() -> None:
    """A thousand ledgers hear of a silent bookie from one, and not from each other."""
    told: list[str] = []

    class User:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_up(self) -> None: ...

        def on_down(self) -> None: ...

        def on_lost(self) -> None: ...

        def on_silent(self) -> None:
            told.append(self.name)

    lane = AddConnection(cast("BookieConnection", None))
    users = [User(str(number)) for number in range(3)]
    lane._users = dict.fromkeys(users)
    lane.is_up, lane._awaited = True, {1: lambda *_: None}
    lane.suspect(users[0], 1.0)
    lane.suspect(users[1], 1.0)
    assert told == ["1", "2"]
    lane._on_answer(1, Status.OK, "", 0)
    lane._awaited = {2: lambda *_: None}
    lane.suspect(users[0], 1.0)
    assert told == ["1", "2"], "it has just answered"


async def test_a_bookie_that_registered_is_tried_again_soon() -> None:
    """The first attempt may come too early. The next one must not wait for a second."""
    attempts = 0

    class Unreachable:
        bookie_id = "b0"

        def channel(self) -> None:
            nonlocal attempts
            attempts += 1
            raise BookieUnreachableError("not yet")

    class User:
        def on_up(self) -> None: ...

        def on_down(self) -> None: ...

        def on_lost(self) -> None: ...

        def on_silent(self) -> None: ...

    lane, user = AddConnection(cast("BookieConnection", Unreachable())), User()
    lane.join(user)
    for _ in range(10):
        lane._backoff.failures = 10  # its delay is the longest one
        lane.hurry()
    assert attempts == 11
    assert lane._timer is not None
    wait = lane._timer.when() - asyncio.get_running_loop().time()
    lane.abandon()
    assert wait <= RECONNECT_SECONDS_MIN

"""Following a ledger, and the way to bookies, where a real cluster is too well behaved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.config import ClientSettings
from bookie.entry.entry import pack_batch, pack_lac
from bookie.errors import (
    BadRequestError,
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
)
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment
from bookie.ledger.read.follow import Follower, read_lac
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.versioned import Versioned
from bookie.wire.client.channel import LacReply
from tests.unit.ledger.fake_pool import DIGESTER, LEDGER_ID, fake_pool, metadata_of
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Two bookies."""
    async with real_cluster(tmp_path, 2) as started:
        yield started


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    """A client whose tails ask by themselves after a tenth of a second."""
    async with connect(cluster.uri, tail_refresh_seconds=0.1) as client:
        yield client


async def test_a_quiet_tail_asks_by_itself(bk: BookKeeper) -> None:
    """An idle ledger gives no hint. The reader asks, finds nothing and waits on."""
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    reader = await bk.open_ledger(writer.ledger_id)
    seen: list[int] = []

    async def follow() -> None:
        async for entry in reader.tail():
            seen.append(entry.entry_id)  # noqa: PERF401  (others look while it grows)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await asyncio.sleep(0.25)
        await writer.append(b"x")
        await until(lambda: seen == [0])
        await writer.close()


async def test_a_tail_follows_to_another_ensemble(bk: BookKeeper, cluster: RealCluster) -> None:
    """The metadata names a new last fragment: its bookies are heard from then on."""
    first = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    await first.append(b"x")
    reader = await bk.open_ledger(first.ledger_id)
    old = first.metadata.last_fragment.bookies[0]
    new = next(bookie_id for bookie_id in bk.bookies() if bookie_id != old)
    ledgers = bk._connected.ledgers
    seen: list[int] = []

    async def follow() -> None:
        async for entry in reader.tail():
            seen.append(entry.entry_id)  # noqa: PERF401  (others look while it grows)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await until(lambda: seen == [0])
        found = await ledgers.read(first.ledger_id)
        moved = replace(found.value, fragments=(*found.value.fragments, Fragment(1, (new,))))
        await ledgers.write(moved, found.version)
        await until(lambda: reader.metadata.last_fragment.bookies == (new,))
        await bk.open_ledger(first.ledger_id, recover=True)
    assert seen == [0]


async def test_two_tails_of_one_client_share_a_watch(bk: BookKeeper) -> None:
    """The second hears the present state although the bookie has told it to the first."""
    writer = await bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    await writer.append(b"x")
    one = await bk.open_ledger(writer.ledger_id)
    two = await bk.open_ledger(writer.ledger_id)
    async with asyncio.TaskGroup() as tasks:
        tails = [tasks.create_task(count(reader.tail())) for reader in (one, two)]
        await asyncio.sleep(0.02)
        await writer.append(b"y")
        await writer.close()
    assert [tail.result() for tail in tails] == [2, 2]


async def count(entries: AsyncIterator[object]) -> int:
    return len([entry async for entry in entries])


async def test_a_tail_cannot_start_before_the_ledger(bk: BookKeeper) -> None:
    """Negative ids are refused."""
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    reader = await bk.open_ledger(writer.ledger_id)
    with pytest.raises(BadRequestError):
        await anext(reader.tail(-1))


async def test_a_bookie_that_nobody_knows(bk: BookKeeper) -> None:
    """Calls fail at once; lanes wait until it registers."""
    connection = bk._connected.pool.connection("b7")
    with pytest.raises(BookieUnreachableError, match="not registered"):
        connection.channel()

    async def ask() -> tuple[Status, str]:
        async with asyncio.timeout(0.1):
            return await connection.recovery("").request(1, b"")

    with pytest.raises(TimeoutError):
        await ask()


@pytest.mark.parametrize("hinted", [True, False])
async def test_a_hint_is_no_proof(hinted: bool) -> None:
    """The follower believes the packets, whether a hint or the clock makes it ask."""
    settings = ClientSettings(tail_refresh_seconds=60 if hinted else 0.01)
    last = pack_batch(LEDGER_ID, 7, 4, 0, [b"7"], DIGESTER)
    async with fake_pool(settings) as pool:
        ledgers = LedgerManager(MemoryStore("nothing"))
        follower = Follower(Versioned(metadata_of(), 0), pool.pool, ledgers, DIGESTER)
        follower._subscribe()
        for known, proven in ((2, 4), (5, 5)):
            for slot in range(3):
                bookie = pool.connection(f"b{slot}")
                bookie.channel().lac_reply = LacReply(
                    Status.OK, "", bytes(last.payload), max_lac=99
                )
                if hinted:
                    bookie.lacs.hint(99)
            assert await follower.advance(known) == proven
        await follower.close()


async def test_a_hint_with_the_packet_needs_no_question() -> None:
    """The digest proves it. A damaged packet, or another ledger's, makes the follower ask."""
    packet = pack_lac(LEDGER_ID, 4, DIGESTER)
    damaged = packet[:-1] + bytes([packet[-1] ^ 1])
    foreign = pack_lac(LEDGER_ID + 1, 99, DIGESTER)
    async with fake_pool(ClientSettings(tail_refresh_seconds=60)) as pool:
        ledgers = LedgerManager(MemoryStore("nothing"))
        follower = Follower(Versioned(metadata_of(), 0), pool.pool, ledgers, DIGESTER)
        follower._subscribe()
        bookie = pool.connection("b0")
        bookie.lacs.hint(4, packet)
        assert await follower.advance(2) == 4
        assert bookie.channel().lac_asked == 0
        for asked, (hint, wrong) in enumerate([(5, damaged), (99, foreign), (5, packet)], 1):
            bookie.lacs.hint(hint, wrong)
            assert await follower.advance(4) == 4
            assert bookie.channel().lac_asked == asked
        await follower.close()


@pytest.mark.parametrize(
    ("is_closed", "error"), [(True, ClientClosedError), (False, BadRequestError)]
)
async def test_the_end_for_a_client_that_is_closed(
    is_closed: bool, error: type[BookieError]
) -> None:
    """Calls that end with the client look like bad requests, and the caller is told the truth."""
    async with fake_pool() as pool:
        for slot in range(3):
            pool.connection(f"b{slot}").channel().lac_reply = LacReply(Status.BAD_REQUEST, "ended")
        pool.is_closed = is_closed
        with pytest.raises(error):
            await read_lac(pool.pool, metadata_of(), DIGESTER)

"""After a writer ends without a close, others still read its acknowledged records."""

from __future__ import annotations

import gc

import pytest

from bookie.api import BookKeeper, connect
from tests.unit.ledger.real_cluster import RealCluster

TURNS = 5


async def entries(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    """The records that a reader of an open ledger sees."""
    reader = await bk.open_ledger(ledger_id, recover=False)
    return [entry.payload async for entry in reader.read()]


async def test_who_leaves_the_client_has_told_what_was_confirmed(cluster: RealCluster) -> None:
    """Neither the log nor the ledger is closed, and the client ends in the moment of the answer."""
    async with connect(cluster.uri) as other:
        for turn in range(TURNS):
            name = f"orders-{turn}"
            async with connect(cluster.uri) as bk:
                await bk.create_log(name)
                log = await bk.open_log(name)
                await log.append(b"1")
            assert [record.value async for record in other.read_log(name)] == [b"1"]
            async with connect(cluster.uri) as bk:
                writer = await bk.create_ledger()
                await writer.append(b"1")
            assert await entries(other, writer.ledger_id) == [b"1"]


async def test_what_is_on_its_way_does_not_keep_back_what_was_confirmed(
    cluster: RealCluster,
) -> None:
    """The next append carried an older last add confirmed."""
    async with connect(cluster.uri) as other:
        for _ in range(TURNS):
            async with connect(cluster.uri) as bk:
                writer = await bk.create_ledger()
                await writer.append(b"1")
                writer._queue.put(b"2", writer._loop.create_future())
                writer._flush()
            found = await entries(other, writer.ledger_id)
            assert found[:1] == [b"1"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_who_drops_a_writer_has_told_what_was_confirmed(cluster: RealCluster) -> None:
    async with connect(cluster.uri) as bk, connect(cluster.uri) as other:
        for _ in range(TURNS):
            writer = await bk.create_ledger()
            await writer.append(b"1")
            ledger_id = writer.ledger_id
            del writer
            gc.collect()
            assert await entries(other, ledger_id) == [b"1"]
            await bk.create_log(f"log-{ledger_id}")
            log = await bk.open_log(f"log-{ledger_id}")
            await log.append(b"1")
            del log
            gc.collect()
            read = other.read_log(f"log-{ledger_id}")
            assert [record.value async for record in read] == [b"1"]

"""The carriers by which a client reaches real bookies, and what happens when one is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.config import Transport
from bookie.errors import BookieUnreachableError, LedgerFencedError
from tests.servers.ports import claimed_ports
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until


@pytest.fixture
async def framed(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Three bookies that offer frames."""
    async with real_cluster(tmp_path, offers_frames=True) as started:
        yield started


def carriers(bk: BookKeeper) -> dict[str, bool | None]:
    """Tell of each bookie if frames reach it; None if it was never called."""
    connections = bk._connected.pool._connections
    return {
        bookie_id: None if one._channel is None else one._channel.is_framed
        for bookie_id, one in connections.items()
    }


async def payloads_of(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize(
    ("transport", "is_framed"), [("auto", True), ("frames", True), ("grpc", False)]
)
async def test_a_client_takes_the_carrier_that_its_settings_want(
    framed: RealCluster, transport: Transport, is_framed: bool
) -> None:
    """Every kind of call works by it: adds, reads, tails, fences, recovery, deletion."""
    async with connect(framed.uri, transport=transport) as bk:
        writer = await bk.create_ledger()
        payloads = [b"%d" % number for number in range(300)] + [bytes(900_000)]
        tail = await bk.open_ledger(writer.ledger_id)

        async def follow() -> list[bytes]:
            return [entry.payload async for entry in tail.tail(start=0)]

        async with asyncio.TaskGroup() as tasks:
            followed = tasks.create_task(follow())
            for payload in payloads:
                await writer.append(payload)
            async with connect(framed.uri, transport=transport) as other:
                reader = await other.open_ledger(writer.ledger_id, recover=True)
                assert reader.last_entry_id == len(payloads) - 1
            with pytest.raises(LedgerFencedError):
                await writer.append(b"late")
            assert await followed == payloads
        assert await payloads_of(bk, writer.ledger_id) == payloads
        assert set(carriers(bk).values()) == {is_framed}


async def test_a_client_goes_by_grpc_where_frames_are_not_offered(framed: RealCluster) -> None:
    """One bookie of an earlier version among others: each is reached by what it has."""
    await framed.stop(1)
    framed.offers_frames = False
    await framed.start(1)
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append_many([b"a", b"b"])
        await until(lambda: len(carriers(bk)) == 3)
        assert carriers(bk) == {"b0": True, "b1": False, "b2": True}


async def test_a_client_falls_back_if_frames_cannot_be_reached(framed: RealCluster) -> None:
    """Such as behind a firewall. When the bookie comes back at another address, it tries again."""
    await framed.stop(1)
    served = framed.frames_ports[1]
    (framed.unreachable_frames[1],) = claimed_ports(1)
    await framed.start(1)
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        connection = bk._connected.pool.connection("b1")

        async def answers() -> bool:
            try:
                await connection.channel().info(timeout=60)
            except BookieUnreachableError:
                return False
            return True

        async with asyncio.timeout(60):
            while not await answers():
                pass
        assert carriers(bk)["b1"] is False
        await writer.append(b"b")
        await framed.stop(1)
        del framed.unreachable_frames[1]
        await framed.start(1)
        async with asyncio.timeout(60):
            while not (await answers() and carriers(bk)["b1"]):  # noqa: ASYNC110  (by a call)
                await asyncio.sleep(0.01)
        assert framed.frames_ports[1] == served
        await writer.append(b"c")
        await writer.close()
        assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b", b"c"]


async def test_a_writer_survives_the_restart_of_every_bookie(framed: RealCluster) -> None:
    """One after the other, at another address: the writer finds each again."""
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        for number in range(3):
            await framed.stop(number)
            await writer.append(b"%d" % number)
            await framed.start(number, same_port=False)
            await writer.append(b"%d again" % number)
        await writer.close()
        assert len(await payloads_of(bk, writer.ledger_id)) == 6
        await until(lambda: set(carriers(bk).values()) == {True})


async def test_a_client_that_wants_only_frames_says_what_is_missing(framed: RealCluster) -> None:
    """It never goes by gRPC."""
    await framed.stop(1)
    framed.offers_frames = False
    await framed.start(1)
    async with connect(framed.uri, transport="frames") as bk:
        with pytest.raises(BookieUnreachableError, match="names no address for frames"):
            bk._connected.pool.connection("b1").channel()

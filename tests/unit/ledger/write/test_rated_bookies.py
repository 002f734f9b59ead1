"""A client of real bookies that hold it to a rate: nothing fails, and nobody is replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, ReaderHandle, connect
from bookie.config import NodeSettings
from bookie.env import gather
from bookie.errors import TooManyRequestsError
from bookie.wire.commands import AddCommand
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

RATE = NodeSettings(identity_bytes_per_second=40_000)
ENTRY_BYTES = 4_000


def hold(cluster: RealCluster, settings: NodeSettings, *numbers: int) -> None:
    """Set the rates of these bookies, while they serve."""
    for number in numbers or tuple(cluster.bookies):
        cluster.bookies[number].settings = settings


def client_of(cluster: RealCluster, **options: Any) -> BookKeeper:
    """A client whose batches are worth half a second."""
    return connect(cluster.uri, batch_bytes_max=16_000, **options)


async def test_appends_wait_and_keep_their_order(tmp_path: Path) -> None:
    """There is a spare, and it stays one."""
    async with real_cluster(tmp_path, 4) as cluster:
        hold(cluster, RATE)
        async with client_of(cluster) as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=3
            )
            appends = [writer.append(b"%d" % n + bytes(ENTRY_BYTES)) for n in range(30)]
            assert await gather(appends) == list(range(30))
            assert len(writer.metadata.fragments) == 1
            assert not writer.is_under_replicated
            hold(cluster, NodeSettings())
            metadata = await writer.close()
            assert metadata.last_entry_id == 29
            assert len(metadata.fragments) == 1
            reader = await client.open_ledger(writer.ledger_id)
            hold(cluster, RATE)
            found = [entry.payload async for entry in reader.read()]
            assert [int(one.rstrip(b"\0")) for one in found] == list(range(30))
            single = [entry async for entry in reader.read(7, 7)]
            assert [entry.entry_id for entry in single] == [7]


async def test_each_order_of_a_bookie_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is taken once, and batches follow one another as they were appended."""
    async with real_cluster(tmp_path, 1) as cluster:
        (bookie,) = cluster.bookies.values()
        taken: list[int] = []
        honest = bookie.add

        def add(command: AddCommand, size: int) -> object:
            if command.batch is not None:
                taken.append(command.batch.first_entry_id)
            return honest(command, size)

        monkeypatch.setattr(bookie, "add", add)
        hold(cluster, RATE)
        async with client_of(cluster) as client:
            writer = await client.create_ledger(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
            )
            await gather(writer.append(bytes(ENTRY_BYTES)) for _ in range(30))
            hold(cluster, NodeSettings())
            await writer.close()
        assert len(taken) > 3
        assert taken == sorted(set(taken))


async def test_an_append_ends_with_the_patience(tmp_path: Path) -> None:
    """The error names the setting, and says when to come back. A bookie beside it is no help."""
    async with (
        real_cluster(tmp_path, 4) as cluster,
        client_of(cluster, rate_patience_seconds=0.5) as client,
    ):
        writer = await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        await writer.append(b"x")
        (first, *_) = writer.metadata.last_fragment.bookies
        slow = NodeSettings(identity_bytes_per_second=10)
        hold(cluster, slow, int(first[1:]))
        await writer.append(bytes(100_000))  # in debt for hours
        with pytest.raises(TooManyRequestsError, match="rate_patience_seconds") as caught:
            await writer.append(b"y")
        assert caught.value.retry_after_seconds > 1000
        assert len(writer.metadata.fragments) == 1
        with pytest.raises(TooManyRequestsError):
            await writer.append(b"z")
        metadata = await writer.close()
        assert metadata.last_entry_id == 1


async def test_a_close_ends_with_the_patience(tmp_path: Path) -> None:
    """Two of three bookies have all entries. The third wants to wait for hours, and is skipped."""
    async with (
        real_cluster(tmp_path, 4) as cluster,
        client_of(cluster, rate_patience_seconds=0.5) as client,
    ):
        writer = await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        (first, *_) = writer.metadata.last_fragment.bookies
        hold(cluster, NodeSettings(identity_bytes_per_second=10), int(first[1:]))
        await writer.append(bytes(100_000))  # in debt for hours
        await writer.append(b"y")
        async with asyncio.timeout(60):
            metadata = await writer.close()
        assert metadata.last_entry_id == 1
        assert len(metadata.fragments) == 1, "nobody was replaced"


async def read_often(reader: ReaderHandle, times: int) -> None:
    for _ in range(times):
        assert len([entry async for entry in reader.read()]) == 3


async def test_a_reader_asks_another_replica_or_waits(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, 3) as cluster,
        client_of(cluster, rate_patience_seconds=0.5) as client,
    ):
        writer = await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        for _ in range(3):
            await writer.append(bytes(ENTRY_BYTES))
        await writer.close()
        slow = NodeSettings(identity_bytes_per_second=10)
        hold(cluster, slow, 0, 1)
        for _ in range(6):  # the first reads are taken, and leave their bookies in debt
            reader = await client.open_ledger(writer.ledger_id)
            assert len([entry async for entry in reader.read()]) == 3
        hold(cluster, slow)
        reader = await client.open_ledger(writer.ledger_id)
        with pytest.raises(TooManyRequestsError) as caught:
            await read_often(reader, 4)  # each bookie takes one at most
        assert caught.value.retry_after_seconds > 100
        # Recovery is never limited: another client may still take over.
        other = await client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3)
        taken = await client.open_ledger(other.ledger_id, recover=True)
        assert taken.is_closed


async def test_questions_about_the_end_of_a_ledger_wait_as_well(tmp_path: Path) -> None:
    """None fails, and the LAC arrives though its own request was refused at first."""
    async with real_cluster(tmp_path, 1) as cluster:
        hold(cluster, NodeSettings(identity_requests_per_second=10))
        async with client_of(cluster) as client:
            writer = await client.create_ledger(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
            )
            reader = await client.open_ledger(writer.ledger_id)
            for _ in range(12):
                assert await reader.refresh() == -1
            await writer.append(b"x")
            async with asyncio.timeout(60):
                while await reader.refresh() < 0:
                    pass

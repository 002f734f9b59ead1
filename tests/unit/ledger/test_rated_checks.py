"""Checks of copies at bookies that hold their caller to a rate: they wait, and find out all."""

from __future__ import annotations

from pathlib import Path

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.config import NodeSettings
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.quorum import Stripe
from bookie.repair.comparison import listed_bookies
from bookie.wire.grpc.credentials import ChannelSecurity
from tests.unit.ledger.real_cluster import real_cluster


async def one_copy(client: BookKeeper) -> WriterHandle:
    return await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def test_a_check_of_a_copy_waits_for_the_rate(tmp_path: Path) -> None:
    """Without roles a bookie cannot know a repair. An impatient check gives up silent ones only."""
    async with real_cluster(tmp_path, 1) as cluster, connect(cluster.uri) as client:
        async with await one_copy(client) as writer:
            await writer.append(bytes(50_000))
        cluster.bookies[0].settings = NodeSettings(identity_bytes_per_second=40_000)
        pool = client._connected.pool
        for _ in range(3):  # each reading leaves the bucket in debt
            check = CopyCheck(writer.metadata, "b0", Stripe(0, 0, 0), pool, is_patient=False)
            found = await check.run(0, 0)
            assert found.is_clean, found
            assert found.entries == 1


async def test_a_comparison_waits_for_the_rate(tmp_path: Path) -> None:
    """A bookie with a small rate is not silent: the entries that it lacks are found."""
    async with real_cluster(tmp_path, 1) as cluster, connect(cluster.uri) as client:
        async with await one_copy(client) as writer:
            await writer.append(b"x")
        cluster.bookies[0].settings = NodeSettings(identity_requests_per_second=4)
        ready = client._connected
        registered = dict(ready.directory.all())
        async with listed_bookies(
            registered, registered, ready.instance_id, 5.0, ChannelSecurity()
        ) as bookies:
            for _ in range(8):
                assert await bookies["b0"].compare(writer.metadata) == 0
                assert not bookies["b0"].problem

"""The record of a client that writes ledgers: there while the client has a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from bookie.api import UNCLAIMED, BookKeeper, connect
from bookie.cluster import keys
from bookie.config import RpcSettings, Sources
from bookie.env import gather
from bookie.errors import (
    BadRequestError,
    ClientClosedError,
    MetadataUnavailableError,
    UnauthorizedError,
    WrongClusterError,
)
from bookie.ledger.ledger_client import LedgerClient, LedgerShape, open_ledger_client
from bookie.ledger.quorum import Quorum
from bookie.metadata.model import Operation, Stat
from bookie.metadata.store import MetadataStore
from bookie.testing.faulty_memory import FaultyMemoryStore
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

ONE = LedgerShape(Quorum(1, 1, 1))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 1) as found:
        yield found


@pytest.fixture
async def store(cluster: RealCluster) -> AsyncIterator[FaultyMemoryStore]:
    """The session of a client, which the test may end."""
    async with FaultyMemoryStore(cluster.uri.removeprefix("memory://")) as found:
        yield found


@asynccontextmanager
async def client_of(store: MetadataStore) -> AsyncIterator[LedgerClient]:
    async with open_ledger_client(store, Sources.read(None, {}), RpcSettings()) as found:
        yield found


async def _writers(cluster: RealCluster) -> list[str]:
    return await cluster.store.get_children(keys.WRITERS)


async def _until_written(cluster: RealCluster, *writers: str) -> None:
    async with asyncio.timeout(60), cluster.store.watch(keys.WRITERS) as changes:
        while await _writers(cluster) != list(writers):
            await anext(changes)


async def _create(bk: BookKeeper, **more: object) -> str:
    """The writer's id that a new ledger names."""
    sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    writer = await bk.create_ledger(**sizes, **more)  # type: ignore[arg-type]
    return (await bk.ledger_metadata(writer.ledger_id)).writer_id


async def test_a_client_writes_it_before_its_first_ledger(cluster: RealCluster) -> None:
    """One for all its ledgers. The client's end removes it."""
    async with connect(cluster.uri) as bk:
        assert not await _writers(cluster)
        first = await _create(bk)
        assert await _writers(cluster) == [first]
        record = await cluster.store.get(keys.writer(first))
        assert record is not None
        assert record.ephemeral
        assert await _create(bk) == first
        async with connect(cluster.uri) as other:
            second = await _create(other)
            assert await _writers(cluster) == sorted([first, second])
    assert not await _writers(cluster)


async def test_many_first_ledgers_at_once(cluster: RealCluster) -> None:
    async with connect(cluster.uri) as bk:
        named = await gather(_create(bk) for _ in range(20))
        assert await _writers(cluster) == [named[0]] == sorted(set(named))


async def test_who_reads_or_prepares_writes_none(cluster: RealCluster) -> None:
    async with connect(cluster.uri) as bk:
        assert not await _create(bk, custom_metadata={UNCLAIMED: b""})
        reader = await bk.open_ledger(0)
        await bk.open_ledger(0, recover=True)
        assert not reader.metadata.custom_metadata.keys() - {UNCLAIMED}
        assert not await _writers(cluster)


async def test_who_claims_a_ledger_is_its_writer(cluster: RealCluster) -> None:
    async with connect(cluster.uri) as bk:
        await _create(bk, custom_metadata={UNCLAIMED: b"", "owner": b"me"})
        await bk.claim_ledger(0)
        metadata = await bk.ledger_metadata(0)
        assert await _writers(cluster) == [metadata.writer_id]
        assert metadata.custom_metadata == {"owner": b"me"}


async def test_nobody_chooses_a_writer_by_hand(cluster: RealCluster) -> None:
    async with connect(cluster.uri) as bk:
        with pytest.raises(BadRequestError, match=r"bookie\.writer: it is reserved"):
            await _create(bk, custom_metadata={"bookie.writer": b"0" * 32})


async def test_it_comes_back_with_the_session(
    cluster: RealCluster, store: FaultyMemoryStore
) -> None:
    """Under the same id, without a call of the client."""
    async with client_of(store) as client:
        writer = (await client.create(ONE)).metadata.writer_id
        for _ in range(5):
            store.expire_session()
            assert not await _writers(cluster)
            await _until_written(cluster, writer)
            record = await store.get(keys.writer(writer))
            assert record is not None
            assert record.created_by_self
        # It may also be deleted.
        await cluster.store.delete(keys.writer(writer))
        await _until_written(cluster, writer)


async def test_a_ledger_waits_for_the_record(
    cluster: RealCluster, store: FaultyMemoryStore
) -> None:
    """Without a session no ledger is made; with the next one the record comes first."""
    async with client_of(store) as client:
        writer = (await client.create(ONE)).metadata.writer_id
        store.disconnect()
        store.expire_session()
        with pytest.raises(MetadataUnavailableError):
            await client.create(ONE)
        store.reconnect()
        assert (await client.create(ONE)).metadata.writer_id == writer
        assert await _writers(cluster) == [writer]
        store.expire_session()
        assert (await client.create(ONE)).metadata.writer_id == writer
        assert await _writers(cluster) == [writer]


async def test_a_write_without_an_answer_is_found(
    cluster: RealCluster, store: FaultyMemoryStore
) -> None:
    async with client_of(store) as client:
        store.lost_replies = 1
        writer = await client._writer_id()
        assert store.lost_replies == 0
        assert await _writers(cluster) == [writer]
        store.lost_requests = 1
        store.expire_session()
        assert await client._writer_id() == writer
        await _until_written(cluster, writer)


class ReadingStore(FaultyMemoryStore):
    """The session of a user who may not write, until he gets the right."""

    may_write = False
    refusals = 0

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if not self.may_write:
            self.refusals += 1
            raise UnauthorizedError("no right to write")
        return await super().transaction(operations)


async def test_nobody_insists_without_the_right_to_write(cluster: RealCluster) -> None:
    async with ReadingStore(cluster.uri.removeprefix("memory://")) as store, client_of(store) as bk:
        with pytest.raises(UnauthorizedError, match="no right to write"):
            await bk.create(ONE)
        record = bk._writer_record
        assert record is not None
        assert record._task is not None
        async with asyncio.timeout(60):
            await record._task  # it ends by itself, and tries no more in the background
        assert store.refusals <= 2
        store.may_write = True
        writer = await bk.create(ONE)
        assert await _writers(cluster) == [writer.metadata.writer_id]
        await writer.close()


async def test_it_is_not_written_into_another_cluster(
    cluster: RealCluster, store: FaultyMemoryStore
) -> None:
    """A removed cluster stays removed."""
    async with client_of(store) as client:
        writer = (await client.create(ONE)).metadata.writer_id
        instance = await cluster.store.get(keys.INSTANCE_ID)
        assert instance is not None
        store.disconnect()
        store.expire_session()
        await cluster.store.delete(keys.INSTANCE_ID)
        with pytest.raises(MetadataUnavailableError):
            await client.create(ONE)
        store.reconnect()
        with pytest.raises(WrongClusterError, match="no cluster"):
            await client.create(ONE)
        assert not await _writers(cluster)
        await cluster.store.put(keys.INSTANCE_ID, instance.value)
        await _until_written(cluster, writer)


async def test_an_end_without_the_store(cluster: RealCluster, store: FaultyMemoryStore) -> None:
    """The client ends at once, and its record with the session."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(store))
        await client.create(ONE)
        store.disconnect()
    with pytest.raises(ClientClosedError):
        await client._writer_id()
    store.expire_session()
    assert not await _writers(cluster)

"""Each kind of process writes its own parts of the metadata; the server refuses it the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.errors import ConfigurationError, UnauthorizedError
from bookie.ledger.catalog.removal import nuke_cluster
from bookie.metadata.connect import open_store
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.model import NOT_EXISTS, Check, Put
from bookie.metadata.rights import PARTS, Kind
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.outcome import RECEIPTS
from bookie.metadata.zookeeper.tree import HOME
from tests.conformance.streams import CREATED, next_changes
from tests.servers.guarded import GuardedStore, guarded, guarded_zookeeper
from tests.servers.zookeeper import ZooKeeperServer, single_server

__all__ = ["guarded"]


@pytest.fixture(scope="module")
def cluster(guarded: GuardedStore) -> GuardedStore:
    asyncio.run(guarded.make_cluster())
    return guarded


async def _is_refused(store: MetadataStore, key: str) -> bool:
    """Put and delete a record; a refusal is one sentence that names the key, or one above it."""
    with suppress(UnauthorizedError):
        await store.put(key, b"1")
        await store.delete(key)
        return False
    with pytest.raises(UnauthorizedError) as caught:
        await store.put(key, b"1")
    assert key.rpartition("/")[0] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not caught.value.retryable
    return True


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_kind_writes_its_own_parts_alone(cluster: GuardedStore, kind: Kind) -> None:
    async with cluster.opened(kind) as store:
        refused = {part for part in PARTS if await _is_refused(store, f"{part}/test/x")}
        if kind is Kind.ADMIN:
            assert not refused
        else:
            assert refused == {part for part, kinds in PARTS.items() if kind not in kinds}
            assert await _is_refused(store, "/elsewhere")
            for key in (keys.LAYOUT, keys.INSTANCE_ID):
                assert await _is_refused(store, key)
                with pytest.raises(UnauthorizedError):
                    await store.delete(key)


@pytest.mark.parametrize("kind", [Kind.WRITER, Kind.BOOKIE])
async def test_sessions_numbers_and_conditions_need_no_more_rights(
    cluster: GuardedStore, kind: Kind
) -> None:
    part = "/logs" if kind is Kind.WRITER else "/underreplication"
    async with cluster.opened(kind) as store:
        first = await store.put(f"{part}/s/n-", b"", sequential=True)
        second = await store.put(f"{part}/s/n-", b"", ephemeral=True, sequential=True)
        assert first.key != second.key
        identity = await store.get(keys.INSTANCE_ID)
        assert identity is not None
        conditions = [
            Check(identity.key, identity.version),
            Check("/writers/nobody", NOT_EXISTS),
        ]
        stat, *_ = await store.transaction(
            [Put(f"{part}/s/leased", b"1", ephemeral=True), *conditions]
        )
        assert stat is not None
        async with cluster.opened(kind) as other:
            taken = await other.put(f"{part}/s/leased", b"2", version=stat.version, ephemeral=True)
            assert taken.created_by_self
        await store.delete_recursive(f"{part}/s")


async def test_a_reader_reads_and_watches_without_a_session(cluster: GuardedStore) -> None:
    async with cluster.opened(Kind.READER) as store, store.watch("/ledgers") as changes:
        async with cluster.opened(Kind.WRITER) as writer:
            await writer.put("/ledgers/r/x", b"1")
            await store.sync()
            record = await store.get("/ledgers/r/x")
            assert record is not None
            assert not record.created_by_self
            assert [one.key async for one in store.scan_children("/ledgers/r")] == [record.key]
            assert await next_changes(changes) == [(CREATED, "/ledgers/r/x")]
            await writer.delete("/ledgers/r/x")
        if isinstance(store, EtcdStore):
            assert store.client.calls.keys() == {"Authenticate", "Range", "Watch"}


async def test_nobody_reads_without_a_user(cluster: GuardedStore) -> None:
    stranger = replace(cluster.security(Kind.READER), user="", password="", sasl_mechanism="none")
    with pytest.raises(UnauthorizedError):
        async with open_store(cluster.uri, security=stranger) as store:
            await store.get(keys.LAYOUT)


# ---- the lists of ZooKeeper


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with single_server(tmp_path_factory.mktemp("restricted")) as server:
        yield server


async def test_an_existing_tree_gets_the_lists_once(zookeeper: ZooKeeperServer) -> None:
    guarded = guarded_zookeeper(zookeeper)
    async with open_store(guarded.uri) as before:
        await initialize_cluster(before)
        for number in range(70):
            await before.put(f"/ledgers/{number // 10}/{number}", b"1")
        await before.put("/cookies", b"1")
        await before.put("/available/readwrite/b1", b"", ephemeral=True)
        async with guarded.opened(Kind.ADMIN) as admin:
            assert await admin.restrict() > 70
            assert await admin.restrict() == 0
        with pytest.raises(UnauthorizedError):
            await before.get("/ledgers/0/1")
    async with guarded.opened(Kind.WRITER) as writer:
        await writer.put("/ledgers/0/1", b"2")
        await writer.delete("/ledgers/0/2")
        assert await _is_refused(writer, "/cookies/b1")
    async with guarded.opened(Kind.ADMIN) as admin:
        assert await admin.restrict() == 0, "new nodes had their lists from the beginning"


async def test_a_restricted_cluster_is_removed_and_made_again(zookeeper: ZooKeeperServer) -> None:
    guarded = guarded_zookeeper(zookeeper)
    await guarded.make_cluster()
    async with guarded.opened(Kind.WRITER) as writer:
        await writer.put("/ledgers/1", b"1")
        with pytest.raises(UnauthorizedError):
            await nuke_cluster(writer)
    async with guarded.opened(Kind.ADMIN) as admin:
        assert await nuke_cluster(admin)
        assert await admin.get_children("/") == []
    await guarded.make_cluster()


async def test_lists_that_would_lock_out_their_maker_are_refused(
    zookeeper: ZooKeeperServer,
) -> None:
    guarded = guarded_zookeeper(zookeeper)
    async with open_store(guarded.uri) as before:
        await initialize_cluster(before)
        async with guarded.opened(Kind.WRITER) as writer:
            with pytest.raises(ConfigurationError, match=r"acl_admins.*nothing was changed"):
                await writer.restrict()
        await before.put(keys.LAYOUT, b"still open to all")
        assert set(await before.get_children("/")) == {"INSTANCEID", "LAYOUT"}
    async with open_store(guarded.uri) as store:
        with pytest.raises(ConfigurationError, match=r'metadata\.access = "kinds"'):
            await store.restrict()


async def test_nodes_outside_of_scopes_cannot_be_deleted(tmp_path: Path) -> None:
    """ZooKeeper asks the node above for the right to delete a node."""
    with single_server(tmp_path) as server:
        async with open_store(f"zk://{server.address}/bookies") as store:
            await store.put("/a/b", b"")
            await store.delete("/a/b")  # which removes the node /a as well
        client = KazooClient(hosts=server.address)
        client.start(timeout=60)
        try:
            kept = client.get_children(HOME)
            assert set(kept) == {"receipts", "removals"}
            for name in kept:
                with pytest.raises(NoAuthError):
                    client.delete(f"{HOME}/{name}")
        finally:
            client.stop()
            client.close()


async def test_a_reader_who_may_write_nowhere_reads(tmp_path: Path) -> None:
    """Not even below ``/.bookie``, where other users leave their receipts."""
    with single_server(tmp_path) as server:
        guarded = guarded_zookeeper(server)
        client = KazooClient(hosts=server.address)
        client.start(timeout=60)
        kinds = (Kind.WRITER, Kind.BOOKIE, Kind.ADMIN)
        users = [guarded.lists[f"acl_{kind}s"].partition(":")[2] for kind in kinds]
        may_create = [make_acl("digest", user, read=True, create=True) for user in users]
        client.create("/.bookie")
        client.create(RECEIPTS, acl=may_create)
        client.stop()
        client.close()
        await guarded.make_cluster()
        async with guarded.opened(Kind.READER) as store, store.watch("/config") as changes:
            async with guarded.opened(Kind.ADMIN) as admin:
                await admin.put("/config/settings/x", b"1")
            await store.sync()
            await store.sync()
            assert await store.get("/config/settings/x") is not None
            assert await next_changes(changes) == [(CREATED, "/config/settings/x")]

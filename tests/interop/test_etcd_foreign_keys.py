"""Keys that another program wrote into a scope in etcd, and that can name no record."""

from __future__ import annotations

import asyncio

import pytest

from bookie._pb import etcd_pb2 as pb
from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.errors import ClusterInUseError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.catalog.removal import nuke_cluster
from bookie.metadata.etcd import listing
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.etcd.client import RANGE, TXN
from bookie.metadata.etcd.messages import put
from tests.conformance.streams import CREATED, next_changes

FOREIGN = [
    b"/\xff\xfe",
    b"/a/\xff",
    b"/a//b",
    b"/a/",
    b"//",
    b"/ledgers/",
    b"/only//foreign",
    b"/a/" + b"x" * 2000,
]
"""Not UTF-8, an empty segment, a slash at the end, too long."""


@pytest.fixture(name="store")
def _store(etcd_observer: EtcdStore) -> EtcdStore:
    return etcd_observer


async def write_foreign(store: EtcdStore, scope: str) -> None:
    """As another program does."""
    parts = [put(scope.encode() + key, b"", 0) for key in FOREIGN]
    await store.client.call(TXN, pb.TxnRequest(success=parts))


async def count(store: EtcdStore, scope: str) -> int:
    """Number of foreign keys that are there."""
    found = 0
    for key in FOREIGN:
        request = pb.RangeRequest(key=scope.encode() + key, count_only=True)
        found += (await store.client.call(RANGE, request)).count
    return found


@pytest.mark.parametrize("page", [1, 1000])
async def test_listings_skip_them(
    store: EtcdStore, etcd_scope: str, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Also at the end of a page, where the rest of a child's subtree is passed over."""
    monkeypatch.setattr(listing, "KEYS_PER_PAGE_MAX", page)
    monkeypatch.setattr(listing, "_ENTRIES_PER_PAGE_MIN", page)
    await store.put("/a/b", b"1")
    await store.put("/a/c/d", b"2")
    await store.put("/z", b"3")
    await write_foreign(store, etcd_scope)
    assert await store.get_children("/") == ["a", "z"]
    assert await store.get_children("/a") == ["b", "c"]
    assert await store.get_children("/only") == []
    assert [one.stat.key async for one in store.scan_children("/a")] == ["/a/b"]
    assert [one.stat.key async for one in store.scan_children("/")] == ["/z"]
    assert sorted(await store.foreign_keys()) == sorted(
        etcd_scope.encode() + key for key in FOREIGN
    )


async def test_watches_skip_them(
    store: EtcdStore, etcd_scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit of them alone is none; the log names the first, once."""
    async with store.watch("/") as changes:
        await write_foreign(store, etcd_scope)
        await store.put("/after", b"")
        async with asyncio.timeout(60):
            assert await next_changes(changes) == [(CREATED, "/after")]
        await write_foreign(store, etcd_scope)
        await store.put("/again", b"")
        assert await next_changes(changes) == [(CREATED, "/again")]
    assert sum("foreign_keys_skipped" in one.getMessage() for one in caplog.records) == 1


async def test_only_a_removal_that_is_told_so_deletes_them(
    store: EtcdStore, etcd_scope: str
) -> None:
    """Bookies and clients go on beside them, and a removal of the cluster refuses."""
    await initialize_cluster(store)
    await write_foreign(store, etcd_scope)
    assert [one async for one in LedgerManager(store).list_ids()] == []
    with pytest.raises(ClusterInUseError, match="another program"):
        await nuke_cluster(store)
    assert await count(store, etcd_scope) == len(FOREIGN)
    await store.put(f"{keys.WRITABLE}/b1", b"")
    with pytest.raises(ClusterInUseError, match="b1 registered"):
        await nuke_cluster(store, foreign=True)
    assert await count(store, etcd_scope) == len(FOREIGN)
    await store.delete(f"{keys.WRITABLE}/b1")
    assert await nuke_cluster(store, foreign=True)
    assert await count(store, etcd_scope) == 0
    assert await store.get_children("/") == []

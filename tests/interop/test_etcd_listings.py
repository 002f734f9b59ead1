"""Listings of a wide directory of etcd: linear in its keys, and complete while it changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd import listing
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.etcd.client import Method
from bookie.metadata.model import Put
from tests.servers.etcd import EtcdServer

KEYS, AHEAD, PAGE = 300, 60, 8


@pytest.fixture(name="store")
def _store(etcd_observer: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> EtcdStore:
    """Of which a directory of a few dozen keys is wide."""
    monkeypatch.setattr(listing, "WIDE_KEYS_MIN", 20)
    monkeypatch.setattr(listing, "KEYS_PER_PAGE_MAX", AHEAD)
    monkeypatch.setattr(listing, "RECORDS_PER_PAGE_MAX", PAGE)
    return etcd_observer


async def fill(store: EtcdStore) -> list[str]:
    names = [f"{number:05}" for number in range(0, 2 * KEYS, 2)]
    for start in range(0, KEYS, 100):
        await store.transaction(
            [Put(f"/wide/{name}", name.encode()) for name in names[start : start + 100]]
        )
    return names


async def test_no_page_of_records_counts_the_rest(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only pages of names do, and they are few."""
    names = await fill(store)
    counted: dict[bool, list[int]] = {True: [], False: []}
    read = store.client.read

    async def spied(method: Method, request: pb.RangeRequest, *more: Any) -> Any:
        response = await read(method, request, *more)
        counted[request.keys_only].append(response.count)
        return response

    monkeypatch.setattr(store.client, "read", spied)
    assert [one.value.decode() async for one in store.scan_children("/wide")] == names
    first, *others = counted[False]
    assert first == KEYS
    assert max(others) <= PAGE
    assert len(others) <= KEYS / PAGE + KEYS / (AHEAD - PAGE) + 2
    assert len(counted[True]) <= KEYS / (AHEAD - PAGE) + 1
    after = [one.value.decode() async for one in store.scan_children("/wide", after=names[99])]
    assert after == names[100:]


async def test_what_changes_meanwhile_breaks_no_listing(
    store: EtcdStore, etcd_server: EtcdServer
) -> None:
    """Keys come between those that were read ahead, others go, and etcd forgets the revision."""
    names = await fill(store)
    listed = []
    async for record in store.scan_children("/wide"):
        listed.append(record.value.decode())
        if len(listed) in (50, 150):
            at = 2 * len(listed)
            for number in range(at + 41, at + 81, 2):
                await store.put(f"/wide/{number:05}", b"new")
            await store.put(f"/wide/{at + 41:05}/below/it", b"")
            await store.delete_recursive(f"/wide/{at + 90:05}")
            await asyncio.to_thread(etcd_server.member.compact)
    kept = [name for name in names if name not in ("00190", "00390")]
    assert [name for name in listed if name in kept] == kept
    assert 0 < listed.count("new") <= 40, "the listing goes on at a newer revision"


@pytest.mark.parametrize("below", [1, 50])
async def test_subtrees_in_a_wide_directory_are_passed_over(store: EtcdStore, below: int) -> None:
    """At any place: their keys are read ahead like the others."""
    names = await fill(store)
    for parent in (names[40], names[41], names[170], "00501"):
        for number in range(below):
            await store.put(f"/wide/{parent}/{number:03}/x", b"below")
    assert [one.value.decode() async for one in store.scan_children("/wide")] == names
    assert await store.get_children("/wide") == sorted({*names, "00501"})

"""Namespaces and the policies of logs: who decides, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from bookie.cluster import keys
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    ClusterInUseError,
    FormatError,
    KeyExistsError,
    NoSuchKeyError,
)
from bookie.ledger.ledger_client import LedgerClient
from bookie.log.catalog.log_policy import DEFAULTS, LogPolicy
from bookie.log.catalog.logs import LogManager, LogName
from bookie.log.catalog.namespaces import NamespaceManager
from bookie.log.log_client import LogClient
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore

_QUORUMS = LogPolicy(ensemble_size=5, write_quorum_size=3, ack_quorum_size=2)


async def test_a_namespace_lives_from_create_to_delete(store: MetadataStore) -> None:
    namespaces = NamespaceManager(store)
    assert await namespaces.names() == []
    with pytest.raises(NoSuchKeyError, match="no namespace orders"):
        await namespaces.read("orders")
    created = await namespaces.create("orders", _QUORUMS)
    with pytest.raises(KeyExistsError, match="orders exists"):
        await namespaces.create("orders")
    assert await namespaces.read("orders") == created
    with pytest.raises(BadVersionError):
        await namespaces.write("orders", LogPolicy(), created.version + 1)
    written = await namespaces.write("orders", LogPolicy(quota_bytes=7), created.version)
    await namespaces.create("billing")
    assert await namespaces.names() == ["billing", "orders"]
    assert [(name, found.value) async for name, found in namespaces.all()] == [
        ("billing", LogPolicy()),
        ("orders", written.value),
    ]
    await namespaces.delete("orders")
    with pytest.raises(NoSuchKeyError):
        await namespaces.delete("orders")
    assert await namespaces.names() == ["billing"]


async def test_each_level_decides_what_the_one_above_leaves_open(store: MetadataStore) -> None:
    namespaces = NamespaceManager(store)
    await namespaces.create("n", LogPolicy(retention_seconds=60, digest="hmac"))
    assert await namespaces.policy("n") == LogPolicy(retention_seconds=60, digest="hmac").over(
        DEFAULTS
    )
    assert await namespaces.log_policy("n", "log") is None
    assert await namespaces.policy("n", "log") == await namespaces.policy("n")
    own = await namespaces.set_log_policy("n", "log", LogPolicy(retention_seconds=5))
    decided = await namespaces.policy("n", "log")
    assert (decided.retention_seconds, decided.digest, decided.ensemble_size) == (5, "hmac", 3)
    with pytest.raises(KeyExistsError):
        await namespaces.set_log_policy("n", "log", LogPolicy())
    await namespaces.set_log_policy("n", "log", LogPolicy(quota_bytes=1), own.version)
    with pytest.raises(ClusterInUseError, match="not empty"):
        await namespaces.delete("n")
    await namespaces.clear_log_policy("n", "log")
    await namespaces.clear_log_policy("n", "log")
    await namespaces.delete("n")


async def test_a_namespace_with_logs_is_not_deleted(store: MetadataStore) -> None:
    """Logs of other namespaces are no obstacle; those that are being deleted are one."""
    namespaces, logs = NamespaceManager(store), LogManager(store)
    await namespaces.create("n")
    await logs.create(LogName("n-2", "log"))
    name = LogName("n", "log")
    await logs.create(name)
    with pytest.raises(ClusterInUseError, match="n is not empty: there is /logs/n/log"):
        await namespaces.delete("n")
    await logs.mark_deleted(name)
    with pytest.raises(ClusterInUseError, match="/logs/n/log"):
        await namespaces.delete("n")
    assert await namespaces.names() == ["n"]
    await logs.remove(name)
    await namespaces.delete("n")
    assert await namespaces.names() == []


async def test_a_log_has_no_policy_outside_a_namespace(store: MetadataStore) -> None:
    namespaces = NamespaceManager(store)
    for call in (
        namespaces.policy("n", "log"),
        namespaces.set_log_policy("n", "log", LogPolicy()),
    ):
        with pytest.raises(NoSuchKeyError):
            await call


async def test_a_namespace_that_just_got_a_policy_is_not_deleted(backend: Backend) -> None:
    """Else the policy would await the next namespace of the name."""
    store, other = await backend.open(), await backend.open()
    faulty = FaultyStore(store)
    await NamespaceManager(store).create("n", LogPolicy(quota_bytes=1))
    faulty.hold_writes.clear()
    async with asyncio.TaskGroup() as tasks:
        deletion = tasks.create_task(_refused(NamespaceManager(faulty).delete("n")))
        await _until_written(faulty)
        # The deletion has seen an empty namespace, and is about to happen.
        await other.sync()
        await NamespaceManager(other).set_log_policy("n", "log", LogPolicy(roll_bytes=1))
        faulty.hold_writes.set()
    assert isinstance(deletion.result(), BadVersionError)
    await store.sync()
    decided = await NamespaceManager(store).policy("n", "log")
    assert (decided.quota_bytes, decided.roll_bytes) == (1, 1)


async def test_a_namespace_that_just_got_a_log_is_not_deleted(backend: Backend) -> None:
    """A creator cannot write the namespace, so the deletion looks again and takes itself back."""
    store, other = await backend.open(), await backend.open()
    faulty = FaultyStore(store)
    await NamespaceManager(store).create("n", LogPolicy(quota_bytes=1))
    faulty.hold_writes.clear()
    async with asyncio.TaskGroup() as tasks:
        deletion = tasks.create_task(_refused(NamespaceManager(faulty).delete("n")))
        await _until_written(faulty)
        await other.sync()
        await _client_of(other).create(LogName("n", "log"))
        faulty.hold_writes.set()
    assert isinstance(deletion.result(), ClusterInUseError)
    await store.sync()
    assert (await NamespaceManager(store).policy("n", "log")).quota_bytes == 1


async def test_no_log_is_made_in_a_namespace_that_was_just_deleted(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    faulty, name = FaultyStore(store), LogName("n", "log")
    await NamespaceManager(store).create("n")
    faulty.hold_writes.clear()
    async with asyncio.TaskGroup() as tasks:
        creation = tasks.create_task(_refused(_client_of(faulty).create(name)))
        await _until_written(faulty)
        await other.sync()
        await NamespaceManager(other).delete("n")
        faulty.hold_writes.set()
    assert isinstance(creation.result(), NoSuchKeyError)
    await store.sync()
    assert await LogManager(store).find(name) is None


async def test_a_log_is_made_by_the_policy_that_its_namespace_has_then(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    faulty, name = FaultyStore(store), LogName("n", "log")
    created = await NamespaceManager(store).create("n", LogPolicy(partitions=2))
    faulty.hold_writes.clear()
    async with asyncio.TaskGroup() as tasks:
        creation = tasks.create_task(_client_of(faulty).create(name))
        await _until_written(faulty)
        await other.sync()
        await NamespaceManager(other).write("n", LogPolicy(partitions=3), created.version)
        faulty.hold_writes.set()
    assert creation.result().partitions == 3


async def _until_written(faulty: FaultyStore) -> None:
    """A write waits in the store of the test."""
    async with asyncio.timeout(60):
        while not faulty.counts["transaction"]:  # noqa: ASYNC110  (the store is not told)
            await asyncio.sleep(0.001)


def _client_of(store: MetadataStore) -> LogClient:
    """A client that needs no ledgers, because it only makes logs."""
    return LogClient(cast("LedgerClient", None), store)


async def test_logs_of_one_namespace_get_their_policies_at_once(backend: Backend) -> None:
    stores = [await backend.open() for _ in range(3)]
    await NamespaceManager(stores[0]).create("n")
    for store in stores:
        await store.sync()
    async with asyncio.TaskGroup() as tasks:
        for i in range(9):
            policy = LogPolicy(roll_bytes=i + 1)
            tasks.create_task(NamespaceManager(stores[i % 3]).set_log_policy("n", f"l{i}", policy))
    namespaces = NamespaceManager(stores[0])
    await stores[0].sync()
    for i in range(9):
        assert (await namespaces.policy("n", f"l{i}")).roll_bytes == i + 1


async def _refused(call: Awaitable[object]) -> BookieError | None:
    try:
        await call
    except BookieError as error:
        return error
    return None


async def test_of_two_changes_at_once_one_wins(backend: Backend) -> None:
    stores = [await backend.open(), await backend.open()]
    created = await NamespaceManager(stores[0]).create("n")
    await stores[1].sync()

    async def change(store: MetadataStore) -> bool:
        try:
            await NamespaceManager(store).write("n", LogPolicy(quota_bytes=1), created.version)
        except BadVersionError:
            return False
        return True

    async with asyncio.TaskGroup() as tasks:
        changes = [tasks.create_task(change(store)) for store in stores]
    assert sorted(task.result() for task in changes) == [False, True]


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", ".hidden", "x" * 101, "ü", "a b", "a\n"])
async def test_what_is_no_name_is_refused(store: MetadataStore, name: str) -> None:
    namespaces = NamespaceManager(store)
    for call in (
        namespaces.create(name),
        namespaces.read(name),
        namespaces.log_policy("n", name),
    ):
        with pytest.raises(BadRequestError, match="not a name"):
            await call
    assert await store.get_children("/") == []


@pytest.mark.parametrize(
    "policy",
    [
        {"ensemble_size": 0},
        {"ensemble_size": 2, "write_quorum_size": 3},
        {"ack_quorum_size": 4},
        {"digest": "md5"},
        {"retention_bytes": -1},
        {"quota_bytes": 2**63},
        {"roll_bytes": True},
        {"roll_seconds": 1.5},
        {"partitions": 0},
        {"partitions": 1025},
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(
    store: MetadataStore, policy: dict[str, int]
) -> None:
    namespaces = NamespaceManager(store)

    async def create() -> None:
        await namespaces.create("n", LogPolicy(**policy))  # type: ignore[arg-type]

    with pytest.raises(BadRequestError):
        await create()
    assert await namespaces.names() == []


@pytest.mark.parametrize(
    "value",
    [
        b"junk",
        b'{"format":"bookie-log-policy","version":9}',
        b'{"format":"bookie-log-policy","version":1,"ensemble_size":"3"}',
        b'{"format":"bookie-log-policy","version":1,"digest":"md5"}',
        b'{"format":"bookie-log-policy","version":1,"write_quorum_size":3,"ensemble_size":2}',
    ],
)
async def test_a_damaged_namespace_is_named_by_its_key(store: MetadataStore, value: bytes) -> None:
    namespaces = NamespaceManager(store)
    await store.put(f"{keys.NAMESPACES}/n", value)

    async def list_all() -> None:
        async for _ in namespaces.all():
            pass

    for call in (namespaces.read("n"), namespaces.policy("n"), list_all()):
        with pytest.raises(FormatError, match="/config/namespaces/n") as caught:
            await call
        assert isinstance(caught.value, BookieError)
    assert await namespaces.names() == ["n"]

"""A cluster's identity, cookies, ledger ids and ledger metadata, on both stores."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster, read_instance_id, read_status
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    NoSuchKeyError,
)
from bookie.ledger.catalog import ledger_ids
from bookie.ledger.catalog.ledger_ids import LedgerIdGenerator
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.connect import open_store
from bookie.metadata.model import Put
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from tests.conformance.streams import next_item

_names = itertools.count()


@pytest.fixture(params=["memory", "local"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    uri = f"memory://cluster-{next(_names)}"
    if request.param == "local":
        uri = f"local://{tmp_path}/metadata"
    async with open_store(uri) as opened:
        yield opened


@pytest.fixture
async def memory() -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://cluster-{next(_names)}") as opened:
        yield opened


def _metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("bookie-1", "bookie-2", "bookie-3")),),
    )


# ---- keys


@pytest.mark.parametrize("bookie_id", ["", "a/b", "readonly", "..", "ü"])
def test_a_key_is_only_built_from_a_bookie_id(bookie_id: str) -> None:
    for build in (keys.cookie, lambda name: keys.registration(name, read_only=True)):
        with pytest.raises(BadRequestError):
            build(bookie_id)


# ---- instance


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.INSTANCE_ID, b"not a uuid"),
        (keys.INSTANCE_ID, b"\xff"),
        (keys.LAYOUT, b"flat"),
        (keys.LAYOUT, b'{"format":"bookie-layout","ledgers":"spiral","version":1}'),
        (keys.LAYOUT, b'{"format":"bookie-layout","ledgers":"flat","version":2}'),
    ],
)
async def test_a_damaged_or_newer_cluster_is_refused(
    memory: MetadataStore, key: str, value: bytes
) -> None:
    await initialize_cluster(memory)
    await memory.put(key, value)
    with pytest.raises(FormatError):
        await read_instance_id(memory)


async def test_the_status_counts_bookies_by_what_they_take(memory: MetadataStore) -> None:
    instance_id = await initialize_cluster(memory)
    await memory.transaction(
        [
            Put("/available/readwrite/b-2", b""),
            Put("/available/readwrite/b-1", b""),
            Put("/available/readonly/b-3", b""),
            *(Put(f"/cookies/b-{i}", b"") for i in range(5)),
        ]
    )
    status = await read_status(memory)
    assert (status.instance_id, status.layout) == (instance_id, "flat")
    assert (status.writable, status.read_only) == (("b-1", "b-2"), ("b-3",))
    assert len(status.known) == 5


# ---- cookies


async def test_a_cookie_is_created_once_and_changed_by_its_version(store: MetadataStore) -> None:
    cookies = CookieManager(store)
    cookie = Cookie("bookie-1", ("/j",), ("/l",), "instance", "unique", CookieState.NEW)
    assert await cookies.read("bookie-1") is None
    created = await cookies.create(cookie)
    assert await cookies.read("bookie-1") == created == Versioned(cookie, created.version)
    with pytest.raises(KeyExistsError):
        await cookies.create(cookie)
    ready = replace(cookie, state=CookieState.READY)
    with pytest.raises(BadVersionError):
        await cookies.write(ready, created.version + 1)
    written = await cookies.write(ready, created.version)
    assert written.version > created.version
    assert await cookies.read("bookie-1") == written
    assert await cookies.bookie_ids() == ["bookie-1"]
    with pytest.raises(BadVersionError):
        await cookies.delete("bookie-1", created.version)
    await cookies.delete("bookie-1", written.version)
    assert await cookies.read("bookie-1") is None
    with pytest.raises(NoSuchKeyError):
        await cookies.delete("bookie-1", written.version)


async def test_a_cookie_that_is_gone_is_not_made_again(memory: MetadataStore) -> None:
    cookies = CookieManager(memory)
    cookie = Cookie("bookie-1", ("/j",), ("/l",), "instance", "unique", CookieState.NEW)
    created = await cookies.create(cookie)
    await cookies.delete("bookie-1", created.version)
    with pytest.raises(BadVersionError):
        await cookies.write(cookie, created.version)
    assert await cookies.read("bookie-1") is None


# ---- ledger ids


async def test_one_ledger_at_a_time_wastes_no_ids(store: MetadataStore) -> None:
    assert [await LedgerIdGenerator(store).next() for _ in range(4)] == [0, 1, 2, 3]


async def test_ten_generators_never_meet(store: MetadataStore) -> None:
    async def take(generator: LedgerIdGenerator) -> list[int]:
        return [await generator.next() for _ in range(300)]

    async with asyncio.TaskGroup() as tasks:
        taken = [tasks.create_task(take(LedgerIdGenerator(store))) for _ in range(10)]
    ids = [ledger_id for task in taken for ledger_id in task.result()]
    assert len(set(ids)) == 3000
    for task in taken:
        assert task.result() == sorted(task.result())


async def test_concurrent_calls_of_one_generator_get_different_ids(memory: MetadataStore) -> None:
    generator = LedgerIdGenerator(memory)
    async with asyncio.TaskGroup() as tasks:
        taken = [tasks.create_task(generator.next()) for _ in range(100)]
    assert sorted(task.result() for task in taken) == list(range(100))


async def test_a_busy_generator_asks_rarely(memory: MetadataStore) -> None:
    generator = LedgerIdGenerator(memory)
    async with memory.watch(keys.ID_BUCKETS) as changes:
        for _ in range(3000):
            await generator.next()
        await memory.put(keys.ID_BUCKETS + "/end", b"")
        blocks = 0
        while (await next_item(changes)).events[0].key != keys.ID_BUCKETS + "/end":  # type: ignore[union-attr]
            blocks += 1
    assert blocks <= 13  # 1 + 2 + 4 … + 512 = 1023, then by thousands


async def test_a_bucket_is_the_upper_part_of_the_id(memory: MetadataStore) -> None:
    generator = LedgerIdGenerator(memory, bucket=3)
    assert await generator.next() == 3 << ledger_ids.BUCKET_BITS
    assert await LedgerIdGenerator(memory).next() == 0


@pytest.mark.parametrize("value", [b"", b"-1", b"x", b"9" * 49, b"%d" % (2**48 + 1)])
async def test_a_damaged_counter_gives_no_ids(memory: MetadataStore, value: bytes) -> None:
    await memory.put(keys.id_bucket(0), value)
    with pytest.raises(FormatError):
        await LedgerIdGenerator(memory).next()


# ---- ledger metadata


async def test_a_write_of_a_ledger_may_depend_on_cookies(store: MetadataStore) -> None:
    """One step: if a cookie has changed, the ledger stays as it is."""
    ledgers, cookies = LedgerManager(store), CookieManager(store)
    created = await ledgers.create(_metadata(7))
    cookie = await cookies.create(Cookie("b1", ("/j",), ("/l",), "i", "u", CookieState.READY))
    unchanged = cookies.unchanged("b1", cookie.version)
    written = await ledgers.write(created.value, created.version, [unchanged])
    await cookies.write(replace(cookie.value, incarnation="two"), cookie.version)
    with pytest.raises(BadVersionError):
        await ledgers.write(created.value.closed(4, 50), written.version, [unchanged])
    with pytest.raises(BadVersionError):
        await ledgers.write(created.value, written.version, [cookies.unchanged("b2", 0)])
    assert await ledgers.read(7) == written

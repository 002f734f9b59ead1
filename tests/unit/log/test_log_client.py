"""The client of logs: the level that decides a policy, and the shape of ledgers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import cast

import pytest

from bookie.entry.digest import DigestType
from bookie.errors import (
    BadRequestError,
    FormatError,
    LogExistsError,
    NoSuchKeyError,
    NoSuchLogError,
)
from bookie.ids import LOG_TAG
from bookie.ledger.ledger_client import LedgerClient, LedgerShape
from bookie.ledger.quorum import Quorum
from bookie.log.catalog.log_metadata import LogMode
from bookie.log.catalog.log_policy import DEFAULTS, DIGESTS, LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import PARTITION_TAG, LogClient
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.store import MetadataStore

ORDERS = LogName.parse("orders")
MAIL = LogName.parse("shop/mail")

_names = itertools.count()


def client_of(store: MetadataStore, configuration: MetadataStore | None = None) -> LogClient:
    """A client that has no ledgers: nothing here asks for one."""
    return LogClient(cast("LedgerClient", None), store, configuration)


@pytest.fixture
async def stores() -> AsyncIterator[tuple[MetadataStore, MetadataStore]]:
    """A cluster's store, and another one for namespaces."""
    async with AsyncExitStack() as stack:
        names = [f"log-client-{next(_names)}" for _ in range(2)]
        first, second = [await stack.enter_async_context(MemoryStore(name)) for name in names]
        yield first, second


@pytest.fixture
def client(stores: tuple[MetadataStore, MetadataStore]) -> LogClient:
    """A client whose namespaces are in the cluster's store."""
    return client_of(stores[0])


# ---- policies


async def test_the_default_namespace_need_not_exist(client: LogClient) -> None:
    """Its logs have the defaults then, and making one does not make it."""
    assert await client.policy(ORDERS) == DEFAULTS
    created = await client.create(ORDERS)
    assert (created.mode, created.partitions) == (LogMode.WRITER, 1)
    assert await client.policy(ORDERS) == DEFAULTS
    assert await client.namespaces.names() == []


async def test_the_default_namespace_decides_once_it_exists(client: LogClient) -> None:
    """As every other namespace does."""
    await client.namespaces.create("default", LogPolicy(partitions=4, digest="hmac"))
    assert (await client.create(ORDERS)).partitions == 4
    assert (await client.policy(ORDERS)).digest == "hmac"


async def test_a_log_decides_over_its_namespace_over_the_defaults(client: LogClient) -> None:
    await client.namespaces.create(
        "shop", LogPolicy(roll_bytes=1, retention_seconds=2, partitions=3)
    )
    created = await client.create(MAIL, policy=LogPolicy(roll_bytes=7))
    assert created.partitions == 3
    wanted = asdict(DEFAULTS) | {"roll_bytes": 7, "retention_seconds": 2, "partitions": 3}
    assert asdict(await client.policy(MAIL)) == wanted
    other = LogName("shop", "other")
    assert asdict(await client.policy(other)) == wanted | {"roll_bytes": 1}


async def test_a_missing_namespace_is_an_error(client: LogClient) -> None:
    """Nothing is made in it."""
    with pytest.raises(NoSuchKeyError, match="no namespace shop"):
        await client.policy(MAIL)
    for policy in (None, LogPolicy(roll_bytes=7)):
        with pytest.raises(NoSuchKeyError, match="no namespace shop"):
            await client.create(MAIL, policy=policy)
    with pytest.raises(NoSuchKeyError, match="no namespace shop"):
        await client.definition(MAIL, create=True)
    assert await client.store.get_children("/") == []


async def test_namespaces_may_be_in_a_store_of_their_own(
    stores: tuple[MetadataStore, MetadataStore],
) -> None:
    """The logs are in the cluster's."""
    client = client_of(*stores)
    await client.namespaces.create("shop", LogPolicy(partitions=2))
    assert (await client.create(MAIL, policy=LogPolicy(roll_bytes=7))).partitions == 2
    assert await stores[0].get_children("/") == ["logs"]
    assert await stores[1].get_children("/") == ["config"]
    assert (await client.policy(MAIL)).roll_bytes == 7


async def test_levels_that_contradict_each_other_later_are_told(client: LogClient) -> None:
    """The namespace was changed after the log had decided."""
    await client.namespaces.create("shop")
    await client.create(MAIL, policy=LogPolicy(write_quorum_size=3))
    version = (await client.namespaces.read("shop")).version
    changed = LogPolicy(ensemble_size=2, write_quorum_size=2)
    await client.namespaces.write("shop", changed, version)
    with pytest.raises(FormatError, match="the policy of the log shop/mail"):
        await client.policy(MAIL)


# ---- creating


async def test_a_policy_comes_with_a_new_log(client: LogClient) -> None:
    """In the default namespace, which is made for it."""
    created = await client.create(ORDERS, policy=LogPolicy(partitions=5, roll_bytes=7))
    assert created.partitions == 5
    assert (await client.policy(ORDERS)).roll_bytes == 7
    await client.create(LogName.parse("other"), policy=LogPolicy(roll_bytes=8))
    assert await client.namespaces.names() == ["default"]


async def test_the_number_of_partitions_is_the_callers_first(client: LogClient) -> None:
    """Then the log's policy decides, the namespace, the defaults."""
    await client.namespaces.create("shop", LogPolicy(partitions=3))
    policy = LogPolicy(partitions=5)
    counts = [
        (await client.create(LogName("shop", "a"), policy=policy, partitions=7)).partitions,
        (await client.create(LogName("shop", "b"), policy=policy)).partitions,
        (await client.create(LogName("shop", "c"))).partitions,
        (await client.create(ORDERS)).partitions,
    ]
    assert counts == [7, 5, 3, 1]


async def test_a_mode_is_chosen_for_good(client: LogClient) -> None:
    await client.create(ORDERS, mode=LogMode.TRANSACTIONAL)
    assert (await client.definition(ORDERS)).mode is LogMode.TRANSACTIONAL


async def test_a_creation_that_fails_decides_nothing(client: LogClient) -> None:
    await client.namespaces.create("shop", LogPolicy(write_quorum_size=3))
    with pytest.raises(BadRequestError, match="ensemble_size >= write_quorum_size"):
        await client.create(MAIL, policy=LogPolicy(ensemble_size=2))
    with pytest.raises(BadRequestError, match="partitions"):
        await client.create(MAIL, partitions=0)
    assert [name async for name in client.logs.list_logs()] == []
    await client.create(MAIL, policy=LogPolicy(roll_bytes=7))
    with pytest.raises(LogExistsError):
        await client.create(MAIL, policy=LogPolicy(roll_bytes=8))
    assert (await client.policy(MAIL)).roll_bytes == 7


async def test_what_was_decided_for_a_name_before_holds(client: LogClient) -> None:
    """An operator may decide for a log that is not there yet; a policy at its creation replaces it.

    So it need not fit to what was decided before.
    """
    await client.namespaces.create("shop")
    before = LogPolicy(partitions=6, ensemble_size=5, write_quorum_size=5, roll_bytes=7)
    await client.namespaces.set_log_policy("shop", "mail", before)
    await client.namespaces.set_log_policy("shop", "a", before)
    await client.namespaces.set_log_policy("shop", "b", before)
    assert (await client.create(MAIL)).partitions == 6
    assert (await client.policy(MAIL)).roll_bytes == 7
    own = LogPolicy(ensemble_size=4)
    assert (await client.create(LogName("shop", "a"), policy=own)).partitions == 1
    assert await client.policy(LogName("shop", "a")) == own.over(DEFAULTS)
    assert (await client.create(LogName("shop", "b"), policy=LogPolicy())).partitions == 1
    assert await client.policy(LogName("shop", "b")) == DEFAULTS


async def test_logs_of_the_default_namespace_are_made_at_once(client: LogClient) -> None:
    """Each with a policy, and none of them trips over the others' making the namespace."""
    async with asyncio.TaskGroup() as tasks:
        for i in range(8):
            tasks.create_task(
                client.create(LogName("default", f"l{i}"), policy=LogPolicy(roll_bytes=i))
            )
    for i in range(8):
        assert (await client.policy(LogName("default", f"l{i}"))).roll_bytes == i


async def test_a_definition_is_made_if_the_caller_wants_it(client: LogClient) -> None:
    with pytest.raises(NoSuchLogError):
        await client.definition(ORDERS)
    created = await client.definition(ORDERS, create=True)
    assert await client.definition(ORDERS, create=True) == created
    assert await client.definition(ORDERS) == created


async def test_of_two_that_want_a_log_both_get_the_same(client: LogClient) -> None:
    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(client.definition(ORDERS, create=True)) for _ in range(5)]
    assert len({task.result() for task in made}) == 1


async def test_a_log_that_is_being_deleted_is_not_made(client: LogClient) -> None:
    """Its name is free when the deletion has ended."""
    before = await client.create(ORDERS)
    await client.logs.mark_deleted(ORDERS)
    with pytest.raises(NoSuchLogError, match="being deleted"):
        await client.definition(ORDERS, create=True)
    await client.logs.remove(ORDERS)
    assert (await client.definition(ORDERS, create=True)).log_id != before.log_id


# ---- ledgers


def test_ledgers_are_written_as_the_policy_says(client: LogClient) -> None:
    assert client.shape(DEFAULTS) == LedgerShape(Quorum(3, 3, 2), DigestType.CRC32C)
    policy = LogPolicy(5, 4, 3, "hmac").over(DEFAULTS)
    wanted = LedgerShape(Quorum(5, 4, 3), DigestType.HMAC, b"secret")
    assert client.shape(policy, b"secret") == wanted
    shapes = [client.shape(LogPolicy(digest=digest).over(DEFAULTS)) for digest in DIGESTS]
    assert {shape.digest_type for shape in shapes} == set(DigestType)


def test_ledgers_name_their_log_and_partition(client: LogClient) -> None:
    """The namespace is always told, and the log's id with it."""
    assert client.tags(LogPartition(ORDERS, 3), "a1b2") == {
        LOG_TAG: b"default/orders a1b2",
        PARTITION_TAG: b"3",
    }
    assert client.tags(LogPartition(MAIL), "x")[LOG_TAG] == b"shop/mail x"

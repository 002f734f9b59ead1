"""Reads of what decides go to a server that has it: "latest" is what the name says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.errors import LogTakenOverError, NoSuchLogError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.log.catalog.log_metadata import LogHead, LogMode, LogOwner
from bookie.log.catalog.logs import LogManager, LogName, LogPartition
from bookie.log.head.chain import taken_over
from bookie.log.head.head_keeper import HeadKeeper
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore

ORDERS = LogName("default", "orders")
FIRST = LogPartition(ORDERS)


@pytest.fixture
async def late(backend: Backend) -> FaultyStore:
    """Another session, whose server falls behind when a test says so."""
    return FaultyStore(await backend.open())


async def test_the_latest_metadata_of_a_ledger(store: MetadataStore, late: FaultyStore) -> None:
    """Otherwise a recovery would go on with an ensemble that was replaced."""
    fragments = (Fragment(0, ("b0", "b1", "b2")),)
    metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        state=LedgerState.OPEN,
        fragments=fragments,
    )
    created = await LedgerManager(store).create(metadata)
    await late.sync()
    await late.fall_behind()
    await LedgerManager(store).write(metadata.closed(9, 90), created.version)
    ledgers = LedgerManager(late)
    assert not (await ledgers.read(7)).value.is_closed
    assert (await ledgers.read_latest(7)).value.is_closed


async def test_the_latest_cookie_of_a_bookie(store: MetadataStore, late: FaultyStore) -> None:
    """Otherwise a bookie that lost its state would count as the one from before."""
    cookie = Cookie("b1", (), (), "", "", CookieState.READY, "one")
    created = await CookieManager(store).create(cookie)
    await late.sync()
    await late.fall_behind()
    await CookieManager(store).write(replace(cookie, incarnation="two"), created.version)
    found = await CookieManager(late).read_latest("b1")
    assert found is not None
    assert found.value.incarnation == "two"


async def test_an_owner_on_a_late_server_hears_that_it_was_taken_over(
    store: MetadataStore, late: FaultyStore
) -> None:
    """It asks before it recovers a ledger that somebody fenced."""
    logs = LogManager(store)
    log_id = (await logs.create(ORDERS, LogMode.WRITER, 1)).value.log_id
    head = taken_over(LogHead(log_id), LogOwner("old", 1))
    owned = await logs.write_head(FIRST, head, NOT_EXISTS)
    keeper = HeadKeeper(LogManager(late), FIRST, owned, patience_seconds=5)
    await late.sync()
    await late.fall_behind()
    await logs.write_head(FIRST, taken_over(head, LogOwner("new", 2)), owned.version)
    with pytest.raises(LogTakenOverError, match="new took orders#0 over"):
        await keeper.refresh()


async def test_a_roll_on_a_late_server_hears_that_the_log_was_deleted(
    store: MetadataStore, late: FaultyStore
) -> None:
    """Otherwise a deletion would meet new ledgers."""
    logs = LogManager(store)
    log_id = (await logs.create(ORDERS, LogMode.WRITER, 1)).value.log_id
    await late.sync()
    await LogManager(late).require(ORDERS, log_id)
    await late.fall_behind()
    await logs.mark_deleted(ORDERS)
    with pytest.raises(NoSuchLogError):
        await LogManager(late).require(ORDERS, log_id)

"""An id that is used twice: nobody ever sees an entry of its other ledger.

An id comes back when the metadata store does: it lost a ledger that the bookies still have.
"""

from __future__ import annotations

from contextlib import aclosing

import pytest

from bookie.api import BookKeeper, WriterHandle
from bookie.cluster.registration_record import Registration, encode_registration
from bookie.errors import (
    BookieError,
    LedgerExistsError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    StoreWentBackError,
    UnauthorizedError,
)
from bookie.ids import MAX_ID
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.quorum import Stripe
from bookie.ledger.read.verification import list_stored
from tests.unit.ledger.real_cluster import RealCluster, until

OLD, NEW = [b"old %d" % i for i in range(20)], [b"new %d" % i for i in range(3)]


async def forget(cluster: RealCluster, ledger_id: int) -> None:
    """The store has never heard of the ledger, as after a restore of an older copy."""
    layout = await LedgerManager(cluster.store)._read_layout()
    await cluster.store.delete(layout.key(ledger_id))


async def write(bk: BookKeeper, ledger_id: int, payloads: list[bytes]) -> WriterHandle:
    writer = await bk.create_ledger(ledger_id=ledger_id)
    await writer.append_many(payloads)
    return writer


async def test_an_id_is_used_once(bk: BookKeeper) -> None:
    """Also if nobody ever wrote to it."""
    for payloads in (OLD, []):
        writer = await write(bk, 7 + len(payloads), payloads)
        await bk.delete_ledger(writer.ledger_id)
        with pytest.raises(LedgerExistsError, match="was deleted; an id is used once"):
            await bk.create_ledger(ledger_id=writer.ledger_id)


async def test_no_entry_of_another_life(bk: BookKeeper, cluster: RealCluster) -> None:
    """Not by appends, reads, recovery, tails or lists. Readers of the old ledger go on."""
    await write(bk, 7, OLD)
    old = await bk.open_ledger(7)
    await forget(cluster, 7)
    writer = await bk.create_ledger(ledger_id=7)
    with pytest.raises(UnauthorizedError, match="the id was used twice"):
        await writer.append_many(NEW)
    with pytest.raises(NotEnoughBookiesError):
        await bk.open_ledger(7)
    metadata = await bk.ledger_metadata(7)
    pool = bk._connected.pool
    for name in ("b0", "b1", "b2"):
        with pytest.raises(UnauthorizedError):
            await list_stored(pool, name, metadata, 0, MAX_ID)
        check = CopyCheck(metadata, name, Stripe(0, 0, 0), pool)
        assert (await check.run(0, 19)).entries == 0
    with pytest.raises(BookieError):
        await bk.open_ledger(7, recover=True)
    assert not (await bk.ledger_metadata(7)).is_closed
    assert [entry.payload async for entry in old.read(0, 19)] == OLD
    with pytest.raises(NoSuchLedgerError, match="another one has its id"):
        await old.refresh()


async def test_one_bookie_with_another_life(bk: BookKeeper, cluster: RealCluster) -> None:
    """The two others decide: what they acknowledged is read, tailed and recovered."""
    alone = await bk.create_ledger(
        ledger_id=7, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
    )
    await alone.append_many(OLD)
    (keeper,) = (await bk.ledger_metadata(7)).fragments[0].bookies
    await forget(cluster, 7)
    writer = await bk.create_ledger(ledger_id=7)
    # As if the bookie with the older ledger were slow: the others take the entries.
    await cluster.stop(int(keeper[1:]))
    await writer.append_many(NEW)
    await cluster.start(int(keeper[1:]))
    await until(lambda: len(bk.bookies()) == 3)
    reader = await bk.open_ledger(7)
    assert [entry.payload async for entry in reader.read_unconfirmed(0, 2)] == NEW
    async with aclosing(reader.tail()) as tail:
        told = [(await anext(tail)).payload for _ in range(2)]
    assert told == NEW[:2]
    recovered = await bk.open_ledger(7, recover=True)
    assert [entry.payload async for entry in recovered.read()] == NEW


async def test_nothing_is_created_while_a_bookie_doubts_the_store(
    bk: BookKeeper, cluster: RealCluster
) -> None:
    """It has seen ids that the store would give again."""
    doubted = Registration("b9", (), store_doubt="the metadata store went back in time")
    key = "/available/readwrite/b9"
    await cluster.store.put(key, encode_registration(doubted))
    await until(lambda: "b9" in bk._connected.directory.all())
    with pytest.raises(StoreWentBackError, match="b9 says that the metadata store went back"):
        await bk.create_ledger()
    await cluster.store.delete(key)
    await until(lambda: "b9" not in bk._connected.directory.all())
    assert (await bk.create_ledger()).ledger_id >= 0

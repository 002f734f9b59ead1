"""Reads from a bookie that lost its disk and came back: it says that it does not know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster.cookies import CookieManager
from bookie.entry.batch import EntryBatch
from bookie.errors import BookieError, CorruptionError, NoSuchEntryError, UnknownLedgerStateError
from bookie.ids import Status
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.metadata import LedgerMetadata
from bookie.node import start
from bookie.node.engine.engine import Engine
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND
from bookie.wire.commands import ReadCommand
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until
from tests.unit.node.engine.machine import batch
from tests.unit.node.node_room import add_command


async def wipe(cluster: RealCluster, path: Path, number: int) -> None:
    """Stop the bookie, empty its disks in the documented way, and start it again."""
    await cluster.stop(number)
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read(f"b{number}")
    assert cookie is not None
    await cookies.delete(f"b{number}", cookie.version)
    shutil.rmtree(path / f"b{number}")
    await cluster.start(number)


async def ledger_of_one(bk: BookKeeper) -> tuple[int, int]:
    """A closed ledger with an entry on one bookie only: its id, and the bookie's number."""
    async with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        await writer.append(b"payload")
        (name,) = writer.metadata.last_fragment.bookies
    return writer.ledger_id, int(name[1:])


async def read_after_a_wipe(cluster: RealCluster, path: Path) -> BookieError:
    """The error of a reader that asks the wiped bookie for what it had acknowledged.

    Readers name a bookie by its id. So they speak with the new incarnation.
    """
    async with connect(cluster.uri) as bk:
        ledger_id, number = await ledger_of_one(bk)
        directory = bk._connected.directory
        before = directory.incarnation(f"b{number}")
        await wipe(cluster, path, number)
        await until(lambda: directory.incarnation(f"b{number}") != before)
        reader = await bk.open_ledger(ledger_id)
        with pytest.raises(BookieError) as failed:
            async for _ in reader.read(0, 0):
                pass
    return failed.value


async def test_a_wiped_bookie_does_not_deny_what_it_had(tmp_path: Path) -> None:
    """The ledger is in limbo there before anybody is served: the entry is unknown, not absent."""
    async with real_cluster(tmp_path, 1) as cluster:
        assert isinstance(await read_after_a_wipe(cluster, tmp_path), UnknownLedgerStateError)


async def test_without_limbo_the_reader_would_believe_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is limbo that protects readers, not the incarnation."""

    async def forget(engine: Engine, *_: object) -> int:
        await engine.integrity.set(INTEGRITY_SOUND)
        return 0

    monkeypatch.setattr(start, "put_ledgers_in_limbo", forget)
    async with real_cluster(tmp_path, 1) as cluster:
        assert isinstance(await read_after_a_wipe(cluster, tmp_path), NoSuchEntryError)


async def test_a_ledger_made_after_the_wipe_is_not_suspected(tmp_path: Path) -> None:
    """Its writer learnt the new incarnation: what the bookie denies it never acknowledged."""
    async with real_cluster(tmp_path, 1) as cluster, connect(cluster.uri) as bk:
        await wipe(cluster, tmp_path, 0)
        await until(lambda: "b0" in bk.bookies())
        ledger_id, _ = await ledger_of_one(bk)
        channel = bk._connected.pool.connection("b0").channel()
        found = await channel.read(ReadCommand(ledger_id, 0, 1), timeout=60)
        assert (found.status, found.stopped_by) == (Status.OK, Status.NO_SUCH_ENTRY)


async def test_a_reader_that_finds_damage_looks_where_the_copies_are_now(tmp_path: Path) -> None:
    """It was opened before a move. Without newer metadata the damage is the answer."""
    async with real_cluster(tmp_path, 2) as cluster, connect(cluster.uri) as bk:
        ledger_id, former = await ledger_of_one(bk)
        first, second = [await bk.open_ledger(ledger_id) for _ in range(2)]
        key = first.metadata.password_key
        moved = await ReplicaMove(bk._connected).run(ledger_id, {f"b{former}"}, None)
        assert moved.is_whole
        named = await bk.ledger_metadata(ledger_id)
        await put(bk, first.metadata)
        await cluster.nodes[former].engine.remove_copies(ledger_id, key, lambda: True)
        good = batch(ledger_id, [0])
        payload = bytearray(good.payload)
        payload[-1] ^= 1
        damaged = EntryBatch(ledger_id, 0, None, good.sizes, bytes(payload))
        wrong = add_command(damaged, key=key, recovery=True)
        assert (await cluster.bookies[former].add(wrong)).status is Status.OK
        with pytest.raises(CorruptionError):
            await anext(first.read(0, 0))
        await put(bk, named)
        assert [entry.payload async for entry in second.read(0, 0)] == [b"payload"]


async def put(bk: BookKeeper, metadata: LedgerMetadata) -> None:
    """Write other metadata of a ledger."""
    ledgers = bk._connected.ledgers
    await ledgers.write(metadata, (await ledgers.read(metadata.ledger_id)).version)

"""Moves of copies on real bookies: what the metadata names has every entry, whoever interferes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import RepairLock, UnderreplicationManager
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from tests.servers.ports import claimed_ports
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(25)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 5) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri, replace_after_seconds=0.2) as client:
        yield client


@pytest.fixture
def client(bk: BookKeeper) -> LedgerClient:
    return bk._connected


async def _write(bk: BookKeeper, *sizes: int) -> LedgerMetadata:
    ensemble, write, ack = sizes or (3, 3, 2)
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
    )
    await writer.append_many(PAYLOADS)
    return await writer.close()


async def _is_whole(bk: BookKeeper, ledger_id: int) -> bool:
    maintenance = bk.maintenance()
    items = await maintenance.plan(1 << 20, lambda one: one == ledger_id, lambda _: None)
    return {one.verdict for one in await maintenance.audit(items)} == {"ok"}


async def _renew(cluster: RealCluster, bookie_id: str) -> None:
    """Give a bookie another incarnation, as a bookie does that lost its data."""
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest(bookie_id)
    assert cookie is not None
    await cookies.write(replace(cookie.value, incarnation="another"), cookie.version)


def _before_first_write(
    monkeypatch: pytest.MonkeyPatch, client: LedgerClient, action: Callable[[Any], Awaitable[None]]
) -> list[LedgerMetadata]:
    """Let something happen between a swap's last look and its compare-and-set.

    All metadata that is proposed goes to the returned list.
    """
    write = client.ledgers.write
    calls: list[LedgerMetadata] = []

    async def first(metadata: LedgerMetadata, *args: Any) -> Any:
        calls.append(metadata)
        if len(calls) == 1:
            await action(metadata)
        return await write(metadata, *args)

    monkeypatch.setattr(client.ledgers, "write", first)
    return calls


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (4, 2, 1), (4, 3, 2), (1, 1, 1)])
async def test_another_bookie_takes_the_place(
    bk: BookKeeper, client: LedgerClient, sizes: tuple[int, ...]
) -> None:
    metadata = await _write(bk, *sizes)
    former = metadata.last_fragment.bookies[0]
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert outcome.outcome == "repaired"
    assert outcome.entries == sum(
        1 for entry_id in range(len(PAYLOADS)) if 0 in _write_set(metadata, entry_id)
    )
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert former not in found.last_fragment.bookies
    assert found.last_fragment.bookies[1:] == metadata.last_fragment.bookies[1:]
    assert await _is_whole(bk, metadata.ledger_id)
    again = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert (again.outcome, again.entries) == ("was-fine", 0)


def _write_set(metadata: LedgerMetadata, entry_id: int) -> set[int]:
    size = metadata.ensemble_size
    return {(entry_id + number) % size for number in range(metadata.write_quorum_size)}


async def test_a_newcomer_that_lost_its_data_is_not_named(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    copy = EntryCopier.copy

    async def copy_and_lose(self: EntryCopier, *args: Any) -> str:
        reason = await copy(self, *args)
        await _renew(cluster, self.target)
        return reason

    monkeypatch.setattr(EntryCopier, "copy", copy_and_lose)
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert outcome.outcome == "refused"
    assert "may have lost what it took" in outcome.detail
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_a_newcomer_may_lose_its_data_in_the_last_moment(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look at its cookie. So the swap itself has to check the cookie."""
    metadata = await _write(bk)
    former, *others = metadata.last_fragment.bookies

    async def lose(proposed: LedgerMetadata) -> None:
        (newcomer,) = set(proposed.last_fragment.bookies) - set(others)
        await _renew(cluster, newcomer)

    _before_first_write(monkeypatch, client, lose)
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert outcome.outcome == "refused"
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_a_change_of_the_ledger_meanwhile_is_kept(
    bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    write = client.ledgers.write

    async def change(_: LedgerMetadata) -> None:
        found = await client.ledgers.read(metadata.ledger_id)
        await write(replace(found.value, custom_metadata={"by": b"another"}), found.version)

    _before_first_write(monkeypatch, client, change)
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert outcome.outcome == "repaired"
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert found.custom_metadata == {"by": b"another"}
    assert former not in found.last_fragment.bookies
    assert await _is_whole(bk, metadata.ledger_id)


async def test_the_second_of_two_movers_changes_nothing(
    bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    by_the_other = []

    async def move_too(_: LedgerMetadata) -> None:
        assert (await ReplicaMove(client).run(metadata.ledger_id, {former}, None)).is_whole
        by_the_other.append(await bk.ledger_metadata(metadata.ledger_id))

    proposed = _before_first_write(monkeypatch, client, move_too)
    assert (await ReplicaMove(client).run(metadata.ledger_id, {former}, None)).is_whole
    assert [await bk.ledger_metadata(metadata.ledger_id)] == by_the_other
    assert len(proposed) == 2, "each proposed once, and the first one saw the change"
    assert await _is_whole(bk, metadata.ledger_id)


async def test_a_newcomer_without_all_entries_is_not_named(
    bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    copy = EntryCopier.copy

    async def copy_less(self: EntryCopier, first: int, last: int, *args: Any) -> str:
        return await copy(self, first, last - 1, *args) if last > first else ""

    monkeypatch.setattr(EntryCopier, "copy", copy_less)
    outcome = await ReplicaMove(client).run(
        metadata.ledger_id, {metadata.last_fragment.bookies[0]}, None
    )
    assert outcome.outcome == "refused"
    assert "lacks 1 entries" in outcome.detail
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_the_last_fragment_of_an_open_ledger_stays(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient
) -> None:
    """Its other fragments move, and its writer goes on."""
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    await writer.append_many(PAYLOADS)
    former, *_ = writer.metadata.last_fragment.bookies
    await cluster.stop(int(former[1:]))
    await writer.append_many(PAYLOADS)
    await until(lambda: len(writer.metadata.fragments) == 2)
    await writer.append_many(PAYLOADS)
    move = ReplicaMove(client)
    outcome = await move.run(writer.ledger_id, {former}, None)
    assert outcome.outcome == "repaired"
    moved = await bk.ledger_metadata(writer.ledger_id)
    assert former not in {name for one in moved.fragments for name in one.bookies}
    outcome = await move.run(writer.ledger_id, {moved.last_fragment.bookies[0]}, None)
    assert outcome.outcome == "open"
    assert (await bk.ledger_metadata(writer.ledger_id)).last_fragment == moved.last_fragment
    await writer.append_many(PAYLOADS)
    closed = await writer.close()
    assert closed.last_entry_id == 4 * len(PAYLOADS) - 1
    assert former not in {name for one in closed.fragments for name in one.bookies}
    assert await _is_whole(bk, writer.ledger_id)


async def test_an_empty_ledger_moves_without_a_copy(bk: BookKeeper, client: LedgerClient) -> None:
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    metadata = await writer.close()
    outcome = await ReplicaMove(client).run(
        metadata.ledger_id, {metadata.last_fragment.bookies[0]}, None
    )
    assert (outcome.outcome, outcome.entries) == ("repaired", 0)


async def test_the_last_copy_is_not_given_up(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient
) -> None:
    metadata = await _write(bk, 1, 1, 1)
    (former,) = metadata.last_fragment.bookies
    await cluster.stop(int(former[1:]))
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, None)
    assert outcome.outcome == "no-good-copy"
    assert f"entry 0 ({former}: " in outcome.detail
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata
    await cluster.start(int(former[1:]))
    await until(lambda: former in bk.bookies())
    async with asyncio.timeout(60):
        while True:  # the connection comes back in its own time
            if (await ReplicaMove(client).run(metadata.ledger_id, {former}, None)).is_whole:
                break
            await asyncio.sleep(0.1)
    assert former not in (await bk.ledger_metadata(metadata.ledger_id)).last_fragment.bookies
    assert await _is_whole(bk, metadata.ledger_id)


async def test_a_ledger_that_is_deleted_meanwhile_is_left(
    bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)

    async def delete(_: LedgerMetadata) -> None:
        await bk.delete_ledger(metadata.ledger_id)

    _before_first_write(monkeypatch, client, delete)
    outcome = await ReplicaMove(client).run(
        metadata.ledger_id, {metadata.last_fragment.bookies[0]}, None
    )
    assert outcome.outcome == "deleted"


async def test_a_newcomer_that_refuses_is_not_taken_again(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient
) -> None:
    """Nobody can reach it, although it is registered. Another one may come at any time."""
    for spare in (3, 4):
        await cluster.stop(spare)
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest(former)
    assert cookie is not None
    await cookies.create(replace(cookie.value, bookie_id="b9"))
    (port,) = claimed_ports(1)
    unreachable = Registration("b9", (Endpoint("bookie", "127.0.0.1", port, "grpc"),))
    move = ReplicaMove(client)
    async with BookieRegistration(cluster.store, unreachable):
        await until(lambda: client.directory.bookies().keys() == {"b0", "b1", "b2", "b9"})
        outcome = await move.run(metadata.ledger_id, {former}, None)
        assert outcome.outcome == "refused"
        assert outcome.detail.startswith("b9: ")
        await cluster.start(3)
        await until(lambda: "b3" in client.directory.bookies())
        assert (await move.run(metadata.ledger_id, {former}, None)).outcome == "repaired"
    assert "b3" in (await bk.ledger_metadata(metadata.ledger_id)).last_fragment.bookies
    assert await _is_whole(bk, metadata.ledger_id)


async def test_a_begun_move_leaves_a_bookie_that_stays(
    bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk)
    former, stays, _ = metadata.last_fragment.bookies
    copy = EntryCopier.copy

    async def no_good_copy(self: EntryCopier, *args: Any) -> str:
        return "no good copy for now"

    monkeypatch.setattr(EntryCopier, "copy", no_good_copy)
    move = ReplicaMove(client)
    outcome = await move.run(metadata.ledger_id, {former, stays}, None)
    assert outcome.outcome == "no-good-copy"
    monkeypatch.setattr(EntryCopier, "copy", copy)
    assert (await move.run(metadata.ledger_id, {former}, None)).outcome == "repaired"
    bookies = (await bk.ledger_metadata(metadata.ledger_id)).last_fragment.bookies
    assert former not in bookies
    assert stays in bookies
    assert await _is_whole(bk, metadata.ledger_id)


async def _locked(
    cluster: RealCluster, ledger_id: int
) -> tuple[UnderreplicationManager, RepairLock]:
    marks = UnderreplicationManager(cluster.store, "mover")
    assert await marks.acquire_unmarked(ledger_id)
    return marks, marks.lock_of(ledger_id)


async def test_a_mover_that_lost_the_lock_names_nobody(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it loses the lock in the last moment, and takes it again itself."""
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    marks, lock = await _locked(cluster, metadata.ledger_id)

    async def lose(_: LedgerMetadata) -> None:
        await marks.release(metadata.ledger_id)
        assert await marks.acquire_unmarked(metadata.ledger_id)

    proposed = _before_first_write(monkeypatch, client, lose)
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, lock)
    assert (outcome.outcome, len(proposed)) == ("locked", 1)
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata
    lock = marks.lock_of(metadata.ledger_id)
    outcome = await ReplicaMove(client).run(metadata.ledger_id, {former}, lock)
    assert outcome.outcome == "repaired"


async def test_a_move_goes_on_with_what_the_newcomer_still_has(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of an earlier attempt may have been reclaimed between two locks."""
    monkeypatch.setattr("bookie.ledger.copies.replica_plan.WINDOW_ENTRIES", 5)
    metadata = await _write(bk)
    former, *others = metadata.last_fragment.bookies
    marks, lock = await _locked(cluster, metadata.ledger_id)
    targets: list[str] = []

    async def release(proposed: LedgerMetadata) -> None:
        targets.extend(set(proposed.last_fragment.bookies) - set(others))
        await marks.release(metadata.ledger_id)

    _before_first_write(monkeypatch, client, release)
    move = ReplicaMove(client)
    assert (await move.run(metadata.ledger_id, {former}, lock)).outcome == "locked"
    (newcomer,) = targets
    engine = cluster.nodes[int(newcomer[1:])].engine
    await engine.remove_copies(metadata.ledger_id, metadata.password_key, lambda: True)
    assert await marks.acquire_unmarked(metadata.ledger_id)
    lock = marks.lock_of(metadata.ledger_id)
    outcome = await move.run(metadata.ledger_id, {former}, lock)
    assert (outcome.outcome, outcome.entries) == ("repaired", len(PAYLOADS))
    assert newcomer in (await bk.ledger_metadata(metadata.ledger_id)).last_fragment.bookies
    assert await _is_whole(bk, metadata.ledger_id)


async def test_one_bookie_takes_the_place_of_another(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient
) -> None:
    metadata = await _write(bk)
    former, *others = metadata.last_fragment.bookies
    newcomer, spare = sorted(set(bk.bookies()) - {former, *others})
    marks, lock = await _locked(cluster, metadata.ledger_id)
    move = ReplicaMove(client)
    assert not await marks.acquire_unmarked(metadata.ledger_id)
    outcome = await move.exchange(metadata.ledger_id, 0, former, newcomer, lock)
    assert outcome.outcome == "repaired"
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert found.last_fragment.bookies == (newcomer, *others)
    assert await _is_whole(bk, metadata.ledger_id)
    outcome = await move.exchange(metadata.ledger_id, 0, former, spare, lock)
    assert outcome.outcome == "was-fine"
    outcome = await move.exchange(metadata.ledger_id, 0, newcomer, others[0], lock)
    assert outcome.outcome == "no-spare"


@pytest.mark.parametrize("is_exchange", [False, True])
async def test_a_copy_that_another_one_moved_meanwhile_was_fine(
    cluster: RealCluster,
    bk: BookKeeper,
    client: LedgerClient,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_exchange: bool,
) -> None:
    """This move changed nothing, so it does not call the ledger repaired."""
    metadata = await _write(bk)
    former = metadata.last_fragment.bookies[0]
    spare, other = set(client.directory.bookies()) - set(metadata.last_fragment.bookies)
    copy = EntryCopier.copy

    async def copy_and_move(self: EntryCopier, *args: Any) -> str:
        reason = await copy(self, *args)
        monkeypatch.setattr(EntryCopier, "copy", copy)
        done = await ReplicaMove(client).exchange(metadata.ledger_id, 0, former, other, None)
        assert done.outcome == "repaired"
        return reason

    monkeypatch.setattr(EntryCopier, "copy", copy_and_move)
    move = ReplicaMove(client)
    if is_exchange:
        outcome = await move.exchange(metadata.ledger_id, 0, former, spare, None)
    else:
        outcome = await move.run(metadata.ledger_id, {former}, None)
    assert (outcome.outcome, outcome.entries) == ("was-fine", len(PAYLOADS))
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert found.last_fragment.bookies[0] == other


async def test_a_newcomer_whose_cookie_cannot_be_read_is_not_taken(
    cluster: RealCluster, bk: BookKeeper, client: LedgerClient
) -> None:
    """Its incarnation is unknown. Another spare bookie takes the place."""
    metadata = await _write(bk, 4, 2, 2)
    former = metadata.last_fragment.bookies[0]
    (spare,) = set(bk.bookies()) - set(metadata.last_fragment.bookies)
    key = keys.cookie(spare)
    whole = await cluster.store.get(key)
    assert whole is not None
    await cluster.store.put(key, b"damaged")
    for outcome in (
        await ReplicaMove(client).run(metadata.ledger_id, {former}, None),
        await ReplicaMove(client).exchange(metadata.ledger_id, 0, former, spare, None),
    ):
        assert outcome.outcome == "no-spare"
    await cluster.store.put(key, whole.value)
    assert (await ReplicaMove(client).run(metadata.ledger_id, {former}, None)).is_whole

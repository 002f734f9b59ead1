"""Write quorums of closed ledgers on real bookies: no reader lacks an entry, whoever interferes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.errors import (
    BadRequestError,
    BookieError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReadOnlyError,
)
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.quorum_change import QuorumChange, QuorumChanged
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.replica_plan import quorum_of
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until

PAYLOADS = [b"%d" % number * 30 for number in range(25)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    async with real_cluster(tmp_path, 5) as found:
        yield found


@pytest.fixture
async def bk(cluster: RealCluster) -> AsyncIterator[BookKeeper]:
    async with connect(cluster.uri, replace_after_seconds=0.2, add_timeout_seconds=1) as client:
        yield client


@pytest.fixture
def client(bk: BookKeeper) -> LedgerClient:
    return bk._connected


@pytest.fixture
def change(cluster: RealCluster, client: LedgerClient) -> QuorumChange:
    return QuorumChange(client, cluster.store, "worker")


async def _write(bk: BookKeeper, *sizes: int) -> LedgerMetadata:
    ensemble, write, ack = sizes or (3, 2, 2)
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
    )
    await writer.append_many(PAYLOADS)
    return await writer.close()


async def _verdicts(bk: BookKeeper, ledger_id: int) -> set[str]:
    maintenance = bk.maintenance()
    items = await maintenance.plan(1 << 20, lambda one: one == ledger_id, lambda _: None)
    return {one.verdict for one in await maintenance.audit(items)}


async def _payloads(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_entry_id)]


async def _is_free(cluster: RealCluster) -> bool:
    marks = UnderreplicationManager(cluster.store)
    return not await marks.count() and not await marks.locked()


async def _renew(cluster: RealCluster, bookie_id: str, *, incarnation: str = "another") -> None:
    """Give a bookie another incarnation, as a bookie does that lost its data."""
    cookies = CookieManager(cluster.store)
    cookie = await cookies.read_latest(bookie_id)
    assert cookie is not None
    await cookies.write(replace(cookie.value, incarnation=incarnation), cookie.version)


def _before_first_swap(
    monkeypatch: pytest.MonkeyPatch, client: LedgerClient, action: Callable[[], Awaitable[Any]]
) -> None:
    """Let something happen between the last look and the compare-and-set."""
    write, calls = client.ledgers.write, 0

    async def first(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await action()
        return await write(*args)

    monkeypatch.setattr(client.ledgers, "write", first)


@pytest.mark.parametrize("write_quorum", [2, 4])
async def test_an_older_self_of_a_bookie_proves_nothing(
    cluster: RealCluster,
    bk: BookKeeper,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
    write_quorum: int,
) -> None:
    """A process with the incarnation of before still answers at the last known address."""
    monkeypatch.setattr("bookie.ledger.copies.copy_check.PATIENCE_SECONDS", 0.1)
    old = await _write(bk, 3, 3, 2)
    await _renew(cluster, old.last_fragment.bookies[1])
    with pytest.raises(BookieError, match="it has another incarnation now"):
        await change.run(old.ledger_id, write_quorum)
    assert await bk.ledger_metadata(old.ledger_id) == old
    assert await _is_free(cluster)


async def test_a_bookie_that_did_not_start_since_its_cookie_was_restored_proves_nothing(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    """Its cookie has no incarnation, so every process of this bookie would fit."""
    old = await _write(bk, 3, 3, 2)
    await _renew(cluster, old.last_fragment.bookies[1], incarnation="")
    with pytest.raises(BadRequestError, match="has not started since its cookie was restored"):
        await change.run(old.ledger_id, 2)
    assert await bk.ledger_metadata(old.ledger_id) == old


CHANGES = [
    ((3, 2, 2), 3),
    ((3, 2, 1), 4),
    ((3, 3, 2), 5),
    ((2, 2, 2), 3),
    ((4, 2, 2), 5),
    ((5, 2, 1), 3),
    ((1, 1, 1), 5),
    ((3, 3, 2), 2),
    ((4, 3, 1), 1),
    ((5, 5, 2), 4),
]


@pytest.mark.parametrize(("sizes", "write_quorum"), CHANGES, ids=str)
async def test_every_copy_of_the_new_quorum_is_there(
    cluster: RealCluster,
    bk: BookKeeper,
    change: QuorumChange,
    sizes: tuple[int, ...],
    write_quorum: int,
) -> None:
    """Readers that were there before, and new ones, read the same."""
    old = await _write(bk, *sizes)
    reader = await bk.open_ledger(old.ledger_id)
    done = await change.run(old.ledger_id, write_quorum)
    found = await bk.ledger_metadata(old.ledger_id)
    assert done.after == found
    assert found.write_quorum_size == write_quorum
    assert found.ensemble_size == max(sizes[0], write_quorum)
    assert found.last_fragment.bookies[: sizes[0]] == old.last_fragment.bookies
    assert done.entries == max(0, len(PAYLOADS) * (write_quorum - sizes[1]))
    assert await _verdicts(bk, old.ledger_id) == {"ok"}
    assert await _is_free(cluster)
    assert [entry.payload async for entry in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
    assert await _payloads(bk, old.ledger_id) == PAYLOADS
    again = await change.run(old.ledger_id, write_quorum)
    assert again == QuorumChanged(found, found)


async def test_the_new_copies_suffice(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    """All former bookies may go."""
    old = await _write(bk, 2, 2, 2)
    await change.run(old.ledger_id, 4)
    for name in old.last_fragment.bookies:
        await cluster.stop(int(name[1:]))
    async with connect(cluster.uri, speculative_read_seconds=0.1) as late:
        assert await _payloads(late, old.ledger_id) == PAYLOADS


@pytest.mark.parametrize(("sizes", "write_quorum"), [((3, 2, 1), 5), ((3, 3, 2), 2)], ids=str)
async def test_a_reader_that_learns_of_the_change(
    bk: BookKeeper, change: QuorumChange, sizes: tuple[int, ...], write_quorum: int
) -> None:
    """It opened the ledger before the close, and reads its metadata again afterwards."""
    ensemble, write, ack = sizes
    writer = await bk.create_ledger(
        ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
    )
    reader = await bk.open_ledger(writer.ledger_id)
    await writer.append_many(PAYLOADS)
    await writer.close()
    await change.run(writer.ledger_id, write_quorum)
    await reader.refresh()
    assert reader.metadata.write_quorum_size == write_quorum
    assert [entry.payload async for entry in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
    for entry_id, payload in enumerate(PAYLOADS):
        assert [one.payload async for one in reader.read(entry_id, entry_id)] == [payload]


async def test_all_fragments_change_together(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
    await writer.append_many(PAYLOADS)
    former = writer.metadata.last_fragment.bookies[0]
    await cluster.stop(int(former[1:]))
    await writer.append_many(PAYLOADS)
    await until(lambda: len(writer.metadata.fragments) == 2)
    await writer.append_many(PAYLOADS)
    old = await writer.close()
    await cluster.start(int(former[1:]))
    await until(lambda: former in bk.bookies())
    await change.run(old.ledger_id, 4)
    found = await bk.ledger_metadata(old.ledger_id)
    assert [len(one.bookies) for one in found.fragments] == [4, 4]
    assert await _verdicts(bk, old.ledger_id) == {"ok"}
    assert await _payloads(bk, old.ledger_id) == PAYLOADS * 3


async def test_an_empty_ledger_changes_without_a_copy(bk: BookKeeper, change: QuorumChange) -> None:
    writer = await bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=1)
    metadata = await writer.close()
    done = await change.run(metadata.ledger_id, 4)
    assert (done.entries, len(done.after.last_fragment.bookies)) == (0, 4)
    assert await _payloads(bk, metadata.ledger_id) == []


# ---- what is refused


async def test_what_makes_no_sense_is_refused(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    """In one sentence, and nothing changes."""
    closed = await _write(bk, 3, 3, 2)
    opened = await bk.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
    await opened.append_many(PAYLOADS)
    with pytest.raises(NoSuchLedgerError):
        await change.run(999, 3)
    with pytest.raises(BadRequestError, match="is not closed"):
        await change.run(opened.ledger_id, 3)
    with pytest.raises(BadRequestError, match="its ack quorum is 2"):
        await change.run(closed.ledger_id, 1)
    with pytest.raises(NotEnoughBookiesError, match=r"of 6 needs as many .* and 5 are writable"):
        await change.run(closed.ledger_id, 6)
    marks = UnderreplicationManager(cluster.store)
    await marks.disable()
    with pytest.raises(BadRequestError, match="repair is disabled"):
        await change.run(closed.ledger_id, 4)
    await marks.enable()
    assert await _is_free(cluster)
    assert await bk.ledger_metadata(closed.ledger_id) == closed


async def test_a_ledger_under_repair_is_refused(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    """And it stays marked, because the mark tells of missing copies."""
    metadata = await _write(bk)
    async with UnderreplicationManager(cluster.store, "other") as marks:
        await marks.mark(metadata.ledger_id, ["b1"])
        assert await marks.acquire(metadata.ledger_id)
        with pytest.raises(BadRequestError, match="another worker repairs ledger"):
            await change.run(metadata.ledger_id, 3)
        assert await marks.worker_of(metadata.ledger_id) == "other"
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata
    await change.run(metadata.ledger_id, 3)
    assert await UnderreplicationManager(cluster.store).find(metadata.ledger_id) is not None


async def test_bookies_that_leave_are_no_newcomers(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    metadata = await _write(bk, 3, 3, 2)
    spares = sorted(set(bk.bookies()) - set(metadata.last_fragment.bookies))
    leaving = Departures(cluster.store, keys.LEAVING_BOOKIES)
    await leaving.add(spares[0])
    with pytest.raises(NotEnoughBookiesError, match="needs 2 more bookies, and placement finds 1"):
        await change.run(metadata.ledger_id, 5)
    done = await change.run(metadata.ledger_id, 4)
    assert done.after.last_fragment.bookies[3] == spares[1]


# ---- what goes wrong on the way


@pytest.mark.parametrize("write_quorum", [2, 4])
async def test_a_bookie_that_is_away_lets_nothing_change(
    cluster: RealCluster,
    bk: BookKeeper,
    change: QuorumChange,
    write_quorum: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until it is back. A smaller quorum may leave no other copy than its."""
    monkeypatch.setattr("bookie.ledger.copies.copy_check.PATIENCE_SECONDS", 0.2)
    metadata = await _write(bk, 3, 3, 2)
    victim = metadata.last_fragment.bookies[1]
    await cluster.stop(int(victim[1:]))
    await until(lambda: victim not in bk.bookies())
    with pytest.raises(BookieError, match=victim):
        await change.run(metadata.ledger_id, write_quorum)
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata
    assert await _is_free(cluster)


async def test_a_read_only_bookie_is_given_nothing(
    bk: BookKeeper, change: QuorumChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk, 3, 2, 2)
    victim = metadata.last_fragment.bookies[1]
    directory = change._client.directory

    class ReadOnly:
        """The directory after that bookie has turned read-only."""

        all = directory.all

        def bookies(self) -> dict[str, object]:
            return {name: one for name, one in directory.bookies().items() if name != victim}

    monkeypatch.setattr(change._client, "directory", ReadOnly())
    with pytest.raises(ReadOnlyError, match=f"{victim} is read-only or away"):
        await change.run(metadata.ledger_id, 3)
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_a_bookie_that_lost_what_it_took_is_not_relied_on(
    cluster: RealCluster,
    bk: BookKeeper,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While entries are copied, or in the last moment: then the swap itself has to see it."""
    metadata = await _write(bk, 3, 2, 2)
    victim = metadata.last_fragment.bookies[0]
    copy, lost = EntryCopier.copy, False

    async def copy_and_lose(self: EntryCopier, *args: Any) -> str:
        nonlocal lost
        reason = await copy(self, *args)
        if not lost and self.target == victim:
            lost = True
            await _renew(cluster, victim)
        return reason

    with monkeypatch.context() as patched:
        patched.setattr(EntryCopier, "copy", copy_and_lose)
        with pytest.raises(BadRequestError, match=f"{victim} may have lost what it took"):
            await change.run(metadata.ledger_id, 3)
    assert lost
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata
    assert await _is_free(cluster)


async def test_a_bookie_may_lose_its_data_in_the_last_moment(
    cluster: RealCluster,
    bk: BookKeeper,
    client: LedgerClient,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = await _write(bk, 3, 3, 2)
    newcomer, other = sorted(set(bk.bookies()) - set(metadata.last_fragment.bookies))
    await Departures(cluster.store, keys.LEAVING_BOOKIES).add(other)
    _before_first_swap(monkeypatch, client, lambda: _renew(cluster, newcomer))
    with pytest.raises(BadRequestError, match=f"{newcomer} may have lost what it took"):
        await change.run(metadata.ledger_id, 4)
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_a_newcomer_without_all_entries_is_not_named(
    bk: BookKeeper, change: QuorumChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = await _write(bk, 3, 3, 2)
    copy = EntryCopier.copy

    async def copy_less(self: EntryCopier, first: int, last: int, *args: Any) -> str:
        return await copy(self, first, last - 1, *args) if last > first else ""

    monkeypatch.setattr(EntryCopier, "copy", copy_less)
    with pytest.raises(BadRequestError, match="lacks 1 entries that it took"):
        await change.run(metadata.ledger_id, 4)
    assert await bk.ledger_metadata(metadata.ledger_id) == metadata


async def test_copies_that_were_missing_before_are_made(
    cluster: RealCluster, bk: BookKeeper, change: QuorumChange
) -> None:
    """A smaller quorum must not name only the bookies that lack an entry."""
    metadata = await _write_without(cluster, bk, 0)
    assert await _verdicts(bk, metadata.ledger_id) == {"ok", "missing"}
    done = await change.run(metadata.ledger_id, 1)
    assert done.entries > 0
    assert await _verdicts(bk, metadata.ledger_id) == {"ok"}
    assert await _payloads(bk, metadata.ledger_id) == PAYLOADS


async def _write_without(cluster: RealCluster, bk: BookKeeper, slot: int) -> LedgerMetadata:
    """A ledger of three bookies, of which one was away; an ack quorum of one suffices."""
    writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=1)
    victim = int(writer.metadata.last_fragment.bookies[slot][1:])
    others = [one for one in range(5) if f"b{one}" not in writer.metadata.last_fragment.bookies]
    for one in [victim, *others]:  # nobody can take its place
        await cluster.stop(one)
    await writer.append_many(PAYLOADS)
    metadata = await writer.close()
    for one in [victim, *others]:
        await cluster.start(one)
    await until(lambda: len(bk.bookies()) == 5)
    assert len(metadata.fragments) == 1
    return metadata


async def test_the_ledger_moves_during_the_change(
    bk: BookKeeper,
    client: LedgerClient,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it may if the lock was lost. What was copied belongs to another layout then."""
    metadata = await _write(bk, 3, 2, 2)
    former = metadata.last_fragment.bookies[0]

    async def move() -> None:
        assert (await ReplicaMove(client).run(metadata.ledger_id, {former}, None)).is_whole

    _before_first_swap(monkeypatch, client, move)
    with pytest.raises(BadRequestError, match="changed during the change of its write quorum"):
        await change.run(metadata.ledger_id, 3)
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert found.write_quorum_size == 2
    await change.run(metadata.ledger_id, 3)
    assert await _verdicts(bk, metadata.ledger_id) == {"ok"}


async def test_another_change_of_the_metadata_is_kept(
    bk: BookKeeper,
    client: LedgerClient,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = await _write(bk, 3, 2, 2)
    write = client.ledgers.write

    async def note() -> None:
        found = await client.ledgers.read(metadata.ledger_id)
        await write(replace(found.value, custom_metadata={"by": b"another"}), found.version)

    _before_first_swap(monkeypatch, client, note)
    await change.run(metadata.ledger_id, 3)
    found = await bk.ledger_metadata(metadata.ledger_id)
    assert (found.write_quorum_size, found.custom_metadata) == (3, {"by": b"another"})


async def test_a_ledger_that_is_deleted_meanwhile(
    cluster: RealCluster,
    bk: BookKeeper,
    client: LedgerClient,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = await _write(bk)
    _before_first_swap(monkeypatch, client, lambda: bk.delete_ledger(metadata.ledger_id))
    with pytest.raises(NoSuchLedgerError):
        await change.run(metadata.ledger_id, 3)
    assert await _is_free(cluster)


async def test_an_interrupted_change_goes_on(
    cluster: RealCluster,
    bk: BookKeeper,
    change: QuorumChange,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever it ended, nothing has changed, and the next one ends well."""
    metadata = await _write(bk, 3, 2, 2)
    copy, left = EntryCopier.copy, 0

    class Interrupt(Exception):  # noqa: N818  (it stands for Ctrl-C)
        pass

    async def interrupted(self: EntryCopier, *args: Any) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            raise Interrupt
        return await copy(self, *args)

    monkeypatch.setattr(EntryCopier, "copy", interrupted)
    for count in (1, 3, 6):
        left = count
        with pytest.raises(Interrupt):
            await change.run(metadata.ledger_id, 4)
        assert await bk.ledger_metadata(metadata.ledger_id) == metadata
        assert await _payloads(bk, metadata.ledger_id) == PAYLOADS
        assert await _is_free(cluster)
    done = await change.run(metadata.ledger_id, 4)
    assert quorum_of(done.after).write_quorum_size == 4
    assert await _verdicts(bk, metadata.ledger_id) == {"ok"}

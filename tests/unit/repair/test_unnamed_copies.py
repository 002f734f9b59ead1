"""Reclaim of unnamed copies on real bookies: they go only if every condition of the proof holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.config import RepairSettings
from bookie.coordination.participant import Participant
from bookie.env import SystemClock
from bookie.errors import (
    BookieUnreachableError,
    LedgerRecoveryError,
    MetadataUnavailableError,
    OperationTimeoutError,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.copies.marks import RepairLock, UnderreplicationManager
from bookie.ledger.copies.replica_move import ReplicaMove
from bookie.ledger.copies.whole_copies import find_lack
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.metadata.model import Put
from bookie.node.own_copies import OwnCopies
from bookie.node.start import StartedBookie
from bookie.repair.unnamed_copies import REST, REST_SECONDS_MAX, Reclaimer
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until
from tests.unit.node.engine.machine import batch
from tests.unit.node.node_room import add_command

PAYLOADS = [b"%d" % number * 30 for number in range(25)]
GRACE = 100.0


class _Clock(SystemClock):
    """Its monotonic time stands until a test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Place:
    """A closed ledger whose copy moved away from `former`, and the reclaimer of `former`."""

    metadata: LedgerMetadata
    """Before the move; `moved` is what came of it."""
    moved: LedgerMetadata
    reclaimer: Reclaimer

    def __init__(self, cluster: RealCluster, bk: BookKeeper, participant: Participant) -> None:
        self.cluster, self.bk, self.client = cluster, bk, bk._connected
        self.participant = participant
        self.clock, self.metrics = _Clock(), Metrics()
        self.settings = RepairSettings(unnamed_copies_grace_seconds=0)
        self.marks = UnderreplicationManager(cluster.store, "reclaimer")

    async def write_and_move(self, ensemble: int = 3, write: int = 3, ack: int = 2) -> None:
        writer = await self.bk.create_ledger(
            ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
        )
        await writer.append_many(PAYLOADS)
        self.metadata = await writer.close()
        move = ReplicaMove(self.client)
        assert (await move.run(self.ledger_id, {self.former}, None)).is_whole
        self.moved = await self.bk.ledger_metadata(self.ledger_id)
        await self.node.engine.checkpoint()
        worker = RepairWorker(
            self.client,
            self.cluster.store,
            lambda: self.settings,
            self.metrics,
            self.clock,
            self.former,
            self.marks,
        )
        self.reclaimer = Reclaimer(worker, OwnCopies(self.node.engine, self.node.garbage))

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def former(self) -> str:
        return self.metadata.last_fragment.bookies[0]

    @property
    def newcomer(self) -> str:
        return self.moved.last_fragment.bookies[0]

    @property
    def node(self) -> StartedBookie:
        return self.node_of(self.former)

    def node_of(self, bookie_id: str) -> StartedBookie:
        return self.cluster.nodes[int(bookie_id[1:])]

    async def round(self) -> int:
        return await self.reclaimer.round(self.participant)

    async def stored(self, bookie_id: str = "") -> int:
        """The number of entries of the ledger on a bookie."""
        engine = self.node_of(bookie_id or self.former).engine
        state = await engine.load(self.ledger_id)
        ranges = engine.entry_ranges(state, 0, MAX_ID)
        return sum([int((lasts - firsts + 1).sum()) async for firsts, lasts in ranges])

    async def put(self, metadata: LedgerMetadata) -> None:
        found = await self.client.ledgers.read(self.ledger_id)
        await self.client.ledgers.write(metadata, found.version)

    async def keeps(self) -> bool:
        """True if a round removes nothing, and gives the lock back."""
        reclaimed = await self.round()
        return (reclaimed, await self.stored()) == (0, len(PAYLOADS))

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass with rounds that remove nothing."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + GRACE / 10)
            assert await self.keeps()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with (
        real_cluster(tmp_path, 5) as cluster,
        connect(cluster.uri, replace_after_seconds=0.2) as bk,
        Participant(cluster.store) as participant,
    ):
        found = Place(cluster, bk, participant)
        await found.write_and_move()
        yield found


async def test_copies_that_nobody_names_go(place: Place) -> None:
    assert await place.round() == 1
    assert await place.stored() == 0
    metrics = place.metrics
    assert metrics.repair_reclaimed_ledgers_total._value.get() == 1
    size = metrics.repair_reclaimed_bytes_total._value.get()
    assert size > sum(map(len, PAYLOADS))
    assert metrics.repair_unnamed_ledgers._value.get() == 0
    assert await place.round() == 0
    assert not await place.marks.locked()
    reader = await place.bk.open_ledger(place.ledger_id)
    assert [entry.payload async for entry in reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


async def test_a_ledger_that_is_named_keeps_its_copies(place: Place) -> None:
    """Also one that is named again when the lock is held."""
    await place.put(place.metadata)
    assert await place.keeps()
    assert place.metrics.repair_unnamed_ledgers._value.get() == 0


async def test_the_metadata_counts_that_is_read_under_the_lock(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = place.marks.acquire_unmarked

    async def named_again(ledger_id: int) -> bool:
        await place.put(place.metadata)
        return await acquire(ledger_id)

    monkeypatch.setattr(place.marks, "acquire_unmarked", named_again)
    assert await place.keeps()


async def test_an_open_ledger_keeps_its_copies(place: Place) -> None:
    """Its writer, or a recovery, may still change its ensembles."""
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        await place.put(replace(place.moved, state=state, last_entry_id=-1, length=0))
        assert await place.keeps()
        assert place.metrics.repair_unnamed_ledgers._value.get() == 1
        now = await place.bk.ledger_metadata(place.ledger_id)
        assert await find_lack(place.client, now, set())
    await place.put(place.moved)
    assert await place.round() == 1


async def test_all_members_have_to_list_all_entries(place: Place) -> None:
    """Otherwise metadata that went back in time would destroy the last copies."""
    engine = place.node_of(place.newcomer).engine
    await engine.remove_copies(place.ledger_id, place.metadata.password_key, lambda: True)
    assert await place.keeps()
    await ReplicaMove(place.client).run(place.ledger_id, {place.newcomer}, None)
    assert await place.stored() == len(PAYLOADS)


async def test_a_member_that_does_not_answer_proves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> Any:
        raise BookieUnreachableError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("bookie.ledger.copies.whole_copies.list_stored", silent)
        assert await place.keeps()
    assert await place.round() == 1


async def damage(place: Place, bookie_id: str, payload: bytes) -> None:
    """Change an entry's bytes in all files of a bookie, which then reads them anew."""
    number = int(bookie_id[1:])
    await place.cluster.stop(number)
    changed = 0
    for path in place.cluster.directory_of(number).rglob("*"):
        if path.is_file() and payload in (data := path.read_bytes()):
            path.write_bytes(data.replace(payload, payload[::-1]))
            changed += 1
    assert changed
    await place.cluster.start(number)
    await until(lambda: bookie_id in place.client.directory.bookies())


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 1), (3, 2, 1)], ids=str)
async def test_a_copy_stays_while_no_member_has_an_intact_one(
    place: Place, sizes: tuple[int, int, int]
) -> None:
    """A member lists a damaged entry as well. One intact copy of each entry is enough."""
    await place.round()
    await place.write_and_move(*sizes)
    stored = await place.stored()
    assert stored
    await damage(place, place.newcomer, b"12" * 15)  # entry 12 is in slot 0
    whole = sizes[1] > 1
    assert await place.round() == whole
    assert await place.stored() == (0 if whole else stored)


async def test_a_damaged_copy_is_read_once_in_a_grace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other copies of a large ledger would be read in vain in each round."""
    reads = 0

    async def find(*_: object) -> str:
        nonlocal reads
        reads += 1
        return "it is damaged"

    place.settings = RepairSettings(unnamed_copies_grace_seconds=GRACE)
    with monkeypatch.context() as patch:
        patch.setattr("bookie.repair.unnamed_copies.find_unreadable", find)
        assert await place.keeps()
        for expected in (0, 1):
            await place.pass_seconds(GRACE - 1)
            assert reads == expected
            await place.pass_seconds(1)
            assert reads == expected + 1
            assert await place.keeps()
    await place.pass_seconds(GRACE - 1)
    place.clock.now += 1
    assert await place.round() == 1


@pytest.mark.parametrize("incarnation", ["another", ""])
async def test_an_older_self_of_a_member_proves_nothing(place: Place, incarnation: str) -> None:
    """A process with the incarnation of before still answers at the last known address."""
    cookies = place.client.ensembles.cookies
    cookie = await cookies.read_latest(place.newcomer)
    assert cookie is not None
    changed = replace(cookie.value, incarnation=incarnation)
    version = (await cookies.write(changed, cookie.version)).version
    assert await place.keeps()
    await cookies.write(cookie.value, version)
    assert await place.round() == 1


async def test_an_unexpected_fault_keeps_the_copies_and_ends_no_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Any:
        raise ValueError("of no use")

    with monkeypatch.context() as patch:
        patch.setattr("bookie.ledger.copies.whole_copies.list_stored", fail)
        assert await place.keeps()
    assert place.metrics.errors_total.labels("unexpected")._value.get() == 1
    assert await place.round() == 1


def _count_locks(place: Place, patch: pytest.MonkeyPatch) -> list[int]:
    """The number of locks that are taken from now on, in a list of one."""
    store, count = place.cluster.store, [0]
    transaction = store.transaction

    async def counted(operations: Any) -> Any:
        if any(isinstance(one, Put) and one.ephemeral for one in operations):
            count[0] += 1
        return await transaction(operations)

    patch.setattr(store, "transaction", counted)
    return count


async def test_a_ledger_that_is_not_closed_is_not_locked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stay open for days, and a round comes often."""
    await place.put(replace(place.moved, state=LedgerState.OPEN, last_entry_id=NO_ENTRY, length=0))
    locks = _count_locks(place, monkeypatch)
    assert await place.keeps()
    assert locks == [0]
    await place.put(place.moved)
    assert await place.round() == 1
    assert locks == [1]


async def test_the_pause_counts_the_whole_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the proofs: those that fail are repeated in each round."""

    async def slowly(*_: object, **__: object) -> Any:
        place.clock.now += 10
        raise OperationTimeoutError("it does not answer")

    monkeypatch.setattr("bookie.ledger.copies.whole_copies.list_stored", slowly)
    assert await place.keeps()
    assert place.reclaimer._pause_seconds() == 10 * REST


async def test_a_silent_member_is_asked_once_in_a_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other ledgers wait for the next round, and are not locked in this one."""
    calls = 0

    async def silent(*_: object, **__: object) -> Any:
        nonlocal calls
        calls += 1
        raise OperationTimeoutError("it does not answer")

    metadata = await place.bk.ledger_metadata(place.ledger_id)
    copy = await place.bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    await copy.close()
    found = await place.client.ledgers.read(copy.ledger_id)
    again = replace(metadata, ledger_id=copy.ledger_id, c_token=found.value.c_token)
    await place.client.ledgers.write(again, found.version)
    stray = add_command(batch(copy.ledger_id, range(3)), key=metadata.password_key)
    assert (await place.node.bookie.add(stray)).status is Status.OK
    await place.node.engine.checkpoint()
    with monkeypatch.context() as patch:
        locks = _count_locks(place, patch)
        patch.setattr("bookie.ledger.copies.whole_copies.list_stored", silent)
        assert await place.keeps()
    assert place.metrics.repair_unnamed_ledgers._value.get() == 2
    assert calls == 1
    assert locks == [1], "one ledger was locked, and its lock given back"
    assert await place.round() == 1


async def test_a_long_look_is_followed_by_a_rest_that_has_a_bound(place: Place) -> None:
    pages = place.reclaimer._copies.pages

    async def slowly(seconds: float) -> AsyncIterator[list[int]]:
        async for page in pages():
            place.clock.now += seconds
            yield page

    for took, pause in ((10.0, 10.0 * REST), (1e9, REST_SECONDS_MAX)):
        place.reclaimer._copies.pages = partial(slowly, took)  # type: ignore[method-assign]
        await place.round()
        assert place.reclaimer._pause_seconds() == pause


async def test_a_doubted_store_is_not_believed(place: Place) -> None:
    await place.node.garbage.doubt_store("it went back in time")
    assert await place.keeps()
    await place.node.garbage.confirm_store()
    assert await place.round() == 1


async def test_a_store_that_went_back_is_noticed_before_a_removal(place: Place) -> None:
    """No round of garbage collection has to come first."""
    await place.node.garbage.round()
    memory = place.node.garbage._memory
    memory.now = replace(memory.now, counters=dict.fromkeys(memory.now.counters, 1 << 40))
    assert memory.now.counters
    assert await place.keeps()
    assert place.node.garbage.store_doubt


async def test_nothing_goes_while_an_operator_has_stopped_it(place: Place) -> None:
    place.node.garbage.suspend(suspended=True)
    assert await place.keeps()
    place.node.garbage.suspend(suspended=False)
    await place.marks.disable()
    assert await place.keeps()
    await place.marks.enable()
    assert await place.round() == 1


async def test_the_lock_of_another_is_respected(place: Place) -> None:
    other = UnderreplicationManager(place.cluster.store, "another")
    assert await other.acquire_unmarked(place.ledger_id)
    assert await place.keeps()
    await other.release(place.ledger_id)
    await other.mark(place.ledger_id, ["b1"])
    assert await place.keeps(), "a copy is missing"
    assert await other.acquire(place.ledger_id)
    assert await other.mark_replicated(place.ledger_id)
    assert await place.round() == 1


async def test_a_lock_that_was_lost_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_the_lock(*arguments: Any) -> str:
        lock = place.marks.lock_of(place.ledger_id)
        await place.cluster.store.delete(lock.condition.key)
        other = UnderreplicationManager(place.cluster.store, "another")
        assert await other.acquire_unmarked(place.ledger_id)
        await other.release(place.ledger_id)
        return await find_lack(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("bookie.repair.unnamed_copies.find_lack", lose_the_lock)
        assert await place.keeps()
    assert await place.round() == 1


async def test_a_lock_that_this_process_gave_back_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that is after the last question to the store."""

    async def give_back(lock: RepairLock) -> bool:
        await place.marks.release(place.ledger_id)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(RepairLock, "is_held", give_back)
        assert await place.keeps()
    assert await place.round() == 1


async def test_a_session_in_doubt_removes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked right before the removal begins, and another session is another lock."""
    with monkeypatch.context() as patch:
        patch.setattr(Participant, "is_certain", False)
        assert await place.keeps()
    epochs = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(Participant, "session_epoch", property(lambda _: next(epochs)))
        assert await place.keeps()
    assert await place.round() == 1


async def test_a_grace_passes_first(place: Place) -> None:
    """It begins anew if the ledger is named meanwhile."""
    place.settings = RepairSettings(unnamed_copies_grace_seconds=GRACE)
    assert await place.keeps()
    assert place.metrics.repair_unnamed_ledgers._value.get() == 1
    await place.pass_seconds(GRACE - 1)
    await place.put(place.metadata)
    assert await place.keeps()
    await place.put(place.moved)
    await place.pass_seconds(2)
    await place.pass_seconds(GRACE - 1)
    place.clock.now += 1
    assert await place.round() == 1


async def test_time_in_which_the_process_slept_is_no_grace(place: Place) -> None:
    place.settings = RepairSettings(unnamed_copies_grace_seconds=GRACE)
    assert await place.keeps()
    place.clock.now += 100 * GRACE
    assert await place.keeps()
    await place.pass_seconds(GRACE * 0.7)  # two pauses of a tenth counted before
    place.clock.now += GRACE / 10
    assert await place.round() == 1


async def test_a_look_that_failed_is_no_grace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger may have been named meanwhile."""
    place.settings = RepairSettings(unnamed_copies_grace_seconds=GRACE)
    assert await place.keeps()
    place.clock.now += 10

    async def fail(_: int) -> Any:
        raise MetadataUnavailableError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(place.reclaimer, "_read", fail)
        with pytest.raises(MetadataUnavailableError):
            await place.round()
    place.clock.now += 10
    assert await place.keeps()
    await place.pass_seconds(GRACE - 1)
    place.clock.now += 1
    assert await place.round() == 1


async def test_a_deleted_ledger_is_left_to_garbage_collection(place: Place) -> None:
    await place.bk.delete_ledger(place.ledger_id)
    assert await place.keeps()
    assert place.metrics.repair_unnamed_ledgers._value.get() == 0
    assert (await place.node.garbage.round()).deleted == 1
    assert (await place.node.engine.load(place.ledger_id)).deleted
    assert await place.round() == 0


async def test_a_ledger_that_is_deleted_meanwhile_is_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = place.marks.acquire_unmarked

    async def deleted(ledger_id: int) -> bool:
        await place.bk.delete_ledger(ledger_id)
        return await acquire(ledger_id)

    monkeypatch.setattr(place.marks, "acquire_unmarked", deleted)
    assert await place.keeps()


async def test_copies_move_back_after_a_reclaim(place: Place) -> None:
    """Every entry is readable from that bookie alone, also after its next start."""
    await place.round()
    number = int(place.former[1:])
    await place.cluster.stop(number)
    await place.cluster.start(number)
    assert await place.stored() == 0
    await until(lambda: place.former in place.client.directory.bookies())
    marks = UnderreplicationManager(place.cluster.store, "mover")
    assert await marks.acquire_unmarked(place.ledger_id)
    lock = marks.lock_of(place.ledger_id)
    move = ReplicaMove(place.client)
    outcome = await move.exchange(place.ledger_id, 0, place.newcomer, place.former, lock)
    assert (outcome.outcome, outcome.entries) == ("repaired", len(PAYLOADS))
    for is_again in (False, True):
        if is_again:
            await place.cluster.stop(number)
            await place.cluster.start(number)
            await until(lambda: place.former in place.client.directory.bookies())
        maintenance = place.bk.maintenance()
        items = await maintenance.plan(1 << 20, lambda _: True, lambda _: None)
        assert {one.verdict for one in await maintenance.audit(items)} == {"ok"}
        report = await place.node.check.check()
        assert (report.whole, report.missing_entries) == (True, 0)


async def test_metadata_that_names_reclaimed_copies_again_puts_the_ledger_in_limbo(
    place: Place,
) -> None:
    """A recovery of a store that went back would believe that the entries never were there."""
    await place.round()
    await place.put(place.metadata)
    report = await place.node.check.check()
    assert report.missing_entries == len(PAYLOADS)
    assert place.node.engine.ledgers_in_limbo == 1


@pytest.mark.parametrize("last", [23, 10])
async def test_copies_behind_the_end_of_the_ledger_stay(place: Place, last: int) -> None:
    """A recovery of a restored store may have closed it too early, and may be wrong for good."""
    lengths = list(map(len, PAYLOADS[: last + 1]))
    await place.put(replace(place.moved, last_entry_id=last, length=sum(lengths)))
    assert not await find_lack(place.client, await place.bk.ledger_metadata(place.ledger_id), set())
    for _ in range(2):
        assert await place.keeps()
    assert place.reclaimer._longer == {place.ledger_id}
    await place.put(place.metadata)
    assert await place.keeps()
    assert not place.reclaimer._longer, "it is named again"
    await place.put(place.moved)
    assert await place.round() == 1


async def test_a_confirmed_entry_that_is_not_stored_here_keeps_the_copies(place: Place) -> None:
    """Its packet was here, or an explicit LAC told of it."""
    state = await place.node.engine.load(place.ledger_id)
    state.users += 1
    state.max_lac = len(PAYLOADS)
    assert await place.keeps()
    state.max_lac = len(PAYLOADS) - 1
    state.users -= 1
    assert await place.round() == 1


async def test_removed_copies_are_never_denied(place: Place) -> None:
    """A recovery of a restored store counts denials, and would close the ledger too early."""
    first, second, third = place.metadata.last_fragment.bookies
    assert await place.round() == 1
    engine = place.node_of(second).engine
    await engine.remove_copies(place.ledger_id, place.metadata.password_key, lambda: True)
    await place.cluster.stop(int(third[1:]))
    await place.put(replace(place.metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0))
    for name in (first, second):
        fenced = await place.node_of(name).bookie.fence(
            place.ledger_id, place.metadata.password_key
        )
        assert (fenced.status, fenced.fenced) == (Status.UNKNOWN_LEDGER_STATE, True)
    with pytest.raises(LedgerRecoveryError):
        await place.client.recover(place.ledger_id)
    assert not (await place.bk.ledger_metadata(place.ledger_id)).is_closed

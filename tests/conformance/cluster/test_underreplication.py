"""Ledgers that lack copies: what is marked stays marked until its copies are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.errors import (
    BadRequestError,
    FormatError,
    MetadataUnavailableError,
    NewerFormatError,
)
from bookie.ledger.copies.departures import RepairFailures
from bookie.ledger.copies.marks import (
    CHECKS,
    UnderreplicationManager,
)
from bookie.metadata import json_record
from bookie.metadata.model import Change, Operation, Stat
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore
from tests.conformance.streams import next_item

MARKED = [3, 7, 2**33, 2**62]
_MARKS = DigitTree(keys.MARKED_LEDGERS, (3, 4, 4, 4, 4))


async def _replicas(manager: UnderreplicationManager, ledger_id: int) -> tuple[str, ...] | None:
    mark = await manager.find(ledger_id)
    return None if mark is None else mark.replicas


async def _taken(manager: UnderreplicationManager) -> int:
    async with asyncio.timeout(60):
        return await manager.take()


async def _is_waiting(task: asyncio.Task[int]) -> bool:
    done, _ = await asyncio.wait([task], timeout=0.1)
    return not done


@pytest.fixture
async def manager(store: MetadataStore) -> UnderreplicationManager:
    """The manager of one worker."""
    return UnderreplicationManager(store, "worker-1")


async def test_four_marked_ledgers_are_taken_and_a_fifth_is_waited_for(
    manager: UnderreplicationManager,
) -> None:
    """Case 135."""
    for ledger_id in MARKED:
        await manager.mark(ledger_id, ["b1"])
    assert sorted([await _taken(manager) for _ in MARKED]) == MARKED
    assert await manager.poll() is None
    async with asyncio.TaskGroup() as tasks:
        fifth = tasks.create_task(_taken(manager))
        assert await _is_waiting(fifth)
        await manager.mark(2**40, ["b1"])
    assert fifth.result() == 2**40


async def test_a_listing_has_what_was_marked(manager: UnderreplicationManager) -> None:
    """Cases 136, 146."""
    assert [mark async for mark in manager.marked()] == []
    await manager.mark(5, ["b2", "b1"])
    await manager.mark(9, ["b3"])
    assert [(m.ledger_id, m.replicas) async for m in manager.marked()] == [
        (5, ("b1", "b2")),
        (9, ("b3",)),
    ]
    wanted = [m.ledger_id async for m in manager.marked(lambda replicas: "b3" in replicas)]
    assert wanted == [9]


async def test_a_locked_ledger_goes_to_nobody_else(backend: Backend) -> None:
    """Cases 137, 140."""
    stores = [await backend.open(), await backend.open()]
    first, second = (UnderreplicationManager(store) for store in stores)
    await first.mark(7, ["b1"])
    assert await _taken(first) == 7
    await stores[1].sync()
    assert await second.poll() is None
    assert not await second.acquire(7)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_taken(second))
        assert await _is_waiting(waiting)
        await first.close()
    assert waiting.result() == 7
    await second.release(7)
    await stores[0].sync()
    assert await first.acquire(7)


async def test_a_lock_ends_with_its_session(backend: Backend) -> None:
    """Case 137."""
    store = await backend.open()
    manager = UnderreplicationManager(store)
    async with backend.session() as dying:
        other = UnderreplicationManager(dying, "worker-2")
        await other.mark(7, ["b1"])
        assert await other.acquire(7)
        await store.sync()
        assert await manager.worker_of(7) == "worker-2"
    await store.sync()
    assert await manager.worker_of(7) is None
    assert await manager.poll() == 7


async def test_a_replicated_ledger_is_gone_and_leaves_nothing(
    store: MetadataStore, manager: UnderreplicationManager
) -> None:
    """Cases 138, 139."""
    await manager.mark(7, ["b1"])
    await manager.mark(8, ["b1"])
    assert await manager.acquire(7)
    assert await manager.mark_replicated(7)
    assert await manager.find(7) is None
    assert await manager.worker_of(7) is None
    assert [m.ledger_id async for m in manager.marked()] == [8]
    assert await manager.acquire(8)
    assert await manager.mark_replicated(8)
    assert not await store.exists(keys.MARKED_LEDGERS)
    assert not await manager.acquire(8), "what is not marked cannot be taken"
    with pytest.raises(BadRequestError, match="not locked"):
        await manager.mark_replicated(8)


@pytest.mark.parametrize("again", ["b1", "b2"])
async def test_what_is_marked_again_meanwhile_stays_marked(backend: Backend, again: str) -> None:
    """Case 141."""
    stores = [await backend.open(), await backend.open()]
    worker, auditor = (UnderreplicationManager(store) for store in stores)
    await worker.mark(7, ["b1"])
    assert await worker.acquire(7)
    await stores[1].sync()
    await auditor.mark(7, [again])
    await stores[0].sync()
    assert not await worker.mark_replicated(7)
    assert await _replicas(worker, 7) == tuple(sorted({"b1", again}))
    assert await worker.poll() == 7, "and can be taken again"


async def test_the_worker_of_a_lock_is_known(manager: UnderreplicationManager) -> None:
    """Case 142."""
    await manager.mark(7, ["b1"])
    assert await manager.worker_of(7) is None
    assert await manager.acquire(7)
    assert await manager.worker_of(7) == "worker-1"
    await manager.release(7)
    assert await manager.worker_of(7) is None
    await manager.release(7)


async def test_a_replica_is_reported_twice_and_repaired_once(
    manager: UnderreplicationManager,
) -> None:
    """Case 143."""
    await manager.mark(7, ["b1"])
    first = await manager.find(7)
    await manager.mark(7, ["b1"])
    assert await manager.find(7) == first
    assert await manager.acquire(7)
    assert await manager.mark_replicated(7)
    assert await manager.find(7) is None


async def test_two_workers_take_and_release_a_hundred_times(backend: Backend) -> None:
    """Case 144."""
    stores = [await backend.open(), await backend.open()]
    for ledger_id in range(4):
        await UnderreplicationManager(stores[0]).mark(ledger_id, ["b1"])
    await stores[1].sync()
    held: set[int] = set()

    async def work(store: MetadataStore) -> None:
        async with UnderreplicationManager(store) as manager:
            for _ in range(100):
                ledger_id = await _taken(manager)
                assert ledger_id not in held
                held.add(ledger_id)
                await asyncio.sleep(0)
                held.discard(ledger_id)
                await manager.release(ledger_id)

    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(work(store))


async def test_similar_names_are_different_replicas(manager: UnderreplicationManager) -> None:
    """Cases 145, 146."""
    for replica in ("h:318", "h:3181", "h:31812"):
        await manager.mark(7, [replica])
    assert await _replicas(manager, 7) == ("h:318", "h:3181", "h:31812")
    for wrong in ([], ["a/b"], [""]):
        with pytest.raises(BadRequestError):
            await manager.mark(8, wrong)
    with pytest.raises(BadRequestError):
        await manager.mark(-1, ["b1"])


async def test_marks_of_many_at_once_are_all_kept(backend: Backend) -> None:
    """Case 146."""
    stores = [await backend.open() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for i, store in enumerate(stores):
            for j in range(4):
                tasks.create_task(UnderreplicationManager(store).mark(7, [f"b{i}{j}"]))
    await stores[0].sync()
    found = await _replicas(UnderreplicationManager(stores[0]), 7)
    assert found is not None
    assert len(found) == 12


async def test_while_repair_is_disabled_nothing_is_taken(backend: Backend) -> None:
    """Cases 147, 148."""
    stores = [await backend.open(), await backend.open()]
    operator, worker = (UnderreplicationManager(store) for store in stores)
    assert await operator.is_enabled()
    await operator.enable()
    await operator.disable()
    await operator.mark(7, ["b1"])
    await operator.mark(8, ["b1"])
    await stores[1].sync()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_taken(worker)) for _ in range(2)]
        enabled = tasks.create_task(worker.wait_until_enabled())
        for task in waiting:
            assert await _is_waiting(task)
        assert not enabled.done()
        await operator.enable()
    assert sorted(task.result() for task in waiting) == [7, 8]
    async with asyncio.timeout(60):
        await worker.wait_until_enabled()


async def test_the_ends_of_checks_are_kept_for_all(backend: Backend) -> None:
    """Case 149."""
    stores = [await backend.open(), await backend.open()]
    first, second = (UnderreplicationManager(store) for store in stores)
    for i, check in enumerate(CHECKS):
        assert await first.checked_ms(check) is None
        await first.set_checked_ms(check, 100 + i)
        await first.set_checked_ms(check, 200 + i)
    await stores[1].sync()
    assert [await second.checked_ms(check) for check in CHECKS] == [200, 201, 202]
    with pytest.raises(BadRequestError, match="all_ledgers"):
        await first.checked_ms("everything")


async def test_a_check_under_way_does_not_hide_that_another_is_wanted(
    manager: UnderreplicationManager,
) -> None:
    """Also if the one under way is the first one."""
    for now_ms in (100, 200):
        version = await manager.check_version("replicas")
        await manager.forget_check("replicas")
        assert not await manager.set_checked_ms("replicas", now_ms, version=version)
        assert await manager.checked_ms("replicas") is None
        version = await manager.check_version("replicas")
        assert await manager.set_checked_ms("replicas", now_ms, version=version)
        assert await manager.checked_ms("replicas") == now_ms


async def test_the_delay_for_lost_bookies_is_told_and_followed(backend: Backend) -> None:
    """Case 150."""
    stores = [await backend.open(), await backend.open()]
    first, second = (UnderreplicationManager(store) for store in stores)
    delays = second.delays()
    assert await next_item(delays) is None
    assert await first.initialize_lost_bookie_recovery_delay(5)
    assert await next_item(delays) == 5
    assert not await first.initialize_lost_bookie_recovery_delay(9)
    await first.set_lost_bookie_recovery_delay(7)
    assert await next_item(delays) == 7
    assert await second.lost_bookie_recovery_delay() == 7
    with pytest.raises(BadRequestError):
        await first.set_lost_bookie_recovery_delay(-1)
    await delays.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_closing_gives_back_what_is_ours_and_nothing_else(backend: Backend) -> None:
    """Case 151."""
    stores = [await backend.open(), await backend.open()]
    first, second = (UnderreplicationManager(store) for store in stores)
    for ledger_id in (1, 2, 3):
        await first.mark(ledger_id, ["b1"])
        assert await first.acquire(ledger_id)
    # One lock is gone, one belongs to somebody else by now.
    for ledger_id in (1, 2):
        await stores[0].delete(f"{keys.REPAIR_LOCKS}/{ledger_id:019}")
    await stores[1].sync()
    assert await second.acquire(2)
    await stores[0].sync()
    assert not await first.mark_replicated(1)
    await first.close()
    await first.close()
    await stores[1].sync()
    assert await second.worker_of(2) is not None
    assert await second.worker_of(3) is None
    assert await second.mark_replicated(2)


async def test_what_could_not_be_given_back_is_tried_again(store: MetadataStore) -> None:
    """Case 151."""
    manager = UnderreplicationManager(store)
    for ledger_id in (1, 2, 3):
        await manager.mark(ledger_id, ["b1"])
        assert await manager.acquire(ledger_id)
    transaction, failures = store.transaction, 1

    async def broken(operations):  # type: ignore[no-untyped-def]
        nonlocal failures
        if failures:
            failures -= 1
            raise MetadataUnavailableError("the metadata store does not answer")
        return await transaction(operations)

    store.transaction = broken  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailableError):
        await manager.close()
    assert [await manager.worker_of(i) is None for i in (1, 2, 3)] == [False, True, True]
    await manager.close()
    assert await manager.worker_of(1) is None


class _Silent(FaultyStore):
    """Writes of locks happen, and are never answered."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        result = await super().transaction(operations)
        if any(operation.key.startswith(keys.REPAIR_LOCKS) for operation in operations):
            await asyncio.Event().wait()
        return result


@pytest.mark.parametrize("end", ["taken", "released", "closed", "unmarked"])
async def test_a_lock_whose_reply_was_lost_is_not_lost(backend: Backend, end: str) -> None:
    """Case 151."""
    store, other = await backend.open(), await backend.open()
    faulty = FaultyStore(store)
    first, second = UnderreplicationManager(faulty), UnderreplicationManager(other)
    await second.mark(7, ["b1"])
    await store.sync()
    faulty.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await first.acquire(7)
    await other.sync()
    assert not await second.acquire(7)
    with pytest.raises(BadRequestError, match="not locked"):
        await first.mark_replicated(7)
    match end:
        case "taken":
            assert await first.poll() == 7
            assert not await first.acquire(7)
            assert await first.mark_replicated(7)
        case "released":
            await first.release(7)
        case "closed":
            await first.close()
        case _:
            for record in [r async for r in _MARKS.scan(store)]:
                await store.delete(record[1].key)
            assert not await first.acquire(7)
    await other.sync()
    assert await second.worker_of(7) is None
    assert await second.acquire(7) == (end in ("released", "closed"))


async def test_a_caller_that_is_cancelled_leaves_no_lock_behind(backend: Backend) -> None:
    """Case 151."""
    store, other = await backend.open(), await backend.open()
    first, second = UnderreplicationManager(_Silent(store)), UnderreplicationManager(other)
    await second.mark(7, ["b1"])
    await store.sync()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(first.take())
        async with asyncio.timeout(60):
            while await second.worker_of(7) is None:  # noqa: ASYNC110  (another session's doing)
                await asyncio.sleep(0.001)
        waiting.cancel()
    first._store = store
    assert await first.poll() == 7
    await first.close()
    await other.sync()
    assert await second.poll() == 7


class _Clinging(FaultyStore):
    """Watches are not left."""

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        async with super().watch(prefix) as changes:
            yield changes
            self.counts["left"] += 1
            await asyncio.Event().wait()


async def test_who_is_cancelled_with_a_ledger_in_hand_gets_it_again(store: MetadataStore) -> None:
    faulty = _Clinging(store)
    manager = UnderreplicationManager(faulty)
    await manager.mark(7, ["b1"])
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(manager.take())
        async with asyncio.timeout(60):
            while not faulty.counts["left"]:  # noqa: ASYNC110  (the store tells nobody)
                await asyncio.sleep(0.001)
        waiting.cancel()
    assert await manager.poll() == 7


async def test_a_lock_that_could_not_be_given_back_is_taken_again(backend: Backend) -> None:
    """Case 151."""
    faulty = FaultyStore(await backend.open())
    manager = UnderreplicationManager(faulty)
    await manager.mark(7, ["b1"])
    assert await manager.take() == 7
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.release(7)
    assert await manager.poll() == 7
    assert await manager.mark_replicated(7)


async def test_locks_in_doubt_are_given_back_and_others_stay(backend: Backend) -> None:
    """Case 151. One of another worker stays too, and one that is being taken."""
    faulty, other = FaultyStore(await backend.open()), await backend.open()
    manager, second = UnderreplicationManager(faulty), UnderreplicationManager(other)
    for ledger_id in (6, 7, 8, 9):
        await manager.mark(ledger_id, ["b1"])
    for ledger_id in (7, 8):
        assert await manager.acquire(ledger_id)
    await other.sync()
    assert await second.acquire(9)
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.release(7)
    faulty.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.acquire(6)
    faulty.is_down = True
    with pytest.raises(MetadataUnavailableError):
        await manager.give_back_doubtful()
    faulty.is_down = False
    async with asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(manager.acquire(5, needs_mark=False))
        tasks.create_task(manager.give_back_doubtful())
    assert taken.result()
    reads = faulty.reads
    await manager.give_back_doubtful()
    assert faulty.reads == reads, "nothing is in doubt"
    await other.sync()
    assert [await second.acquire(i) for i in (6, 7, 8)] == [True, True, False]
    assert await manager.mark_replicated(8)
    assert not await second.acquire(5, needs_mark=False)
    assert await second.mark_replicated(9)


async def test_a_lock_in_doubt_that_cannot_be_read_is_not_ours(store: MetadataStore) -> None:
    faulty = FaultyStore(store)
    manager = UnderreplicationManager(faulty)
    await manager.mark(7, ["b1"])
    assert await manager.acquire(7)
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.release(7)
    key = f"{keys.REPAIR_LOCKS}/{7:019}"
    await store.put(key, b"of a newer version")
    await manager.give_back_doubtful()
    assert await store.get(key) is not None
    assert await manager.locked() == {7}


async def test_a_lock_of_a_former_session_is_taken_over(backend: Backend) -> None:
    """Case 137."""
    store, former = await backend.open(), await backend.open()
    faulty = FaultyStore(former)
    manager = UnderreplicationManager(faulty)
    await manager.mark(7, ["b1"])
    faulty.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.acquire(7)
    manager._store = store  # as after a lost session that the server has not ended yet
    await store.sync()
    assert await manager.poll() == 7
    lock = await store.get(f"{keys.REPAIR_LOCKS}/{7:019}")
    assert lock is not None
    assert lock.created_by_self


async def test_two_tasks_of_one_worker_do_not_share_a_lock(store: MetadataStore) -> None:
    manager = UnderreplicationManager(store)
    await manager.mark(7, ["b1"])
    async with asyncio.TaskGroup() as tasks:
        attempts = [tasks.create_task(manager.acquire(7)) for _ in range(3)]
    assert sorted(task.result() for task in attempts) == [False, False, True]
    await manager.release(7)
    assert await manager.acquire(7)


async def test_a_task_ends_its_own_lock_and_no_later_one(store: MetadataStore) -> None:
    """The lock ended with a session, and another task of the same worker has the ledger now."""
    manager = UnderreplicationManager(store)
    await manager.mark(7, ["b1"])
    assert await manager.acquire(7)
    former = manager.lock_of(7)
    assert manager.has(7, former)
    await store.delete(former.condition.key)
    assert await manager.acquire(7)
    lock = manager.lock_of(7)
    assert (manager.has(7, former), manager.has(7, lock)) == (False, True)
    await manager.release(7, former)
    assert not await manager.mark_replicated(7, former)
    cut_off = asyncio.get_running_loop().create_task(manager.release(7, former))
    async with manager._serial:
        await asyncio.sleep(0)
        cut_off.cancel()
        await asyncio.wait([cut_off])
    assert manager.has(7, lock)
    assert await lock.is_held()
    assert not await manager.acquire(7)
    assert await manager.mark_replicated(7, lock)
    assert not await store.get_children(keys.REPAIR_LOCKS)


async def test_a_lock_in_doubt_is_given_back_by_whoever_had_it(store: MetadataStore) -> None:
    faulty = FaultyStore(store)
    manager = UnderreplicationManager(faulty)
    assert await manager.acquire_unmarked(7)
    lock = manager.lock_of(7)
    faulty.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await manager.release(7, lock)
    assert not manager.has(7, lock)
    await manager.release(7, lock)
    assert not await store.get_children(keys.REPAIR_LOCKS)


@pytest.mark.parametrize(
    "stray",
    [
        f"{keys.REPAIR_LOCKS}/x",
        f"{keys.REPAIR_LOCKS}/{9:018}",
        f"{keys.MARKED_LEDGERS}/x",
        f"{keys.MARKED_LEDGERS}/000/y",
        f"{keys.MARKED_LEDGERS}/000/0000/0000/0000/z",
        f"{keys.MARKED_LEDGERS}/000/0000/0000/0000/00008",
        f"{keys.REPAIR_FAILURES}/x",
    ],
)
async def test_a_stray_key_stops_no_repair(
    store: MetadataStore, manager: UnderreplicationManager, stray: str
) -> None:
    failures = RepairFailures(store)
    for ledger_id in (7, 9):
        await manager.mark(ledger_id, ["b1"])
        await failures.add(ledger_id, "refused", "no reason")
    await store.put(stray, b"by hand")
    assert await manager.acquire(9)
    assert await manager.locked() == {9}
    assert await manager.ledgers() == {7, 9}
    assert [one.ledger_id async for one in manager.marked()] == [7, 9]
    assert [one.ledger_id async for one in failures.all()] == [7, 9]
    assert await manager.poll() == 7
    assert await store.get(stray) is not None


async def test_a_damaged_mark_counts_as_none(
    store: MetadataStore, manager: UnderreplicationManager
) -> None:
    """Case 161. It stops nobody, and the next mark replaces it."""
    await manager.mark(9, ["b1"])
    await store.put(_MARKS.key(7), b"junk")
    assert await manager.find(7) is None
    assert [mark.ledger_id async for mark in manager.marked()] == [9]
    assert await manager.poll() == 9
    assert await manager.acquire_unmarked(7)
    await manager.release(7)
    await manager.mark(7, ["b2"])
    assert not await manager.acquire_unmarked(7)
    assert await _replicas(manager, 7) == ("b2",)
    assert [mark.ledger_id async for mark in manager.marked()] == [7, 9]


async def test_a_mark_of_a_newer_version_stays(
    store: MetadataStore, manager: UnderreplicationManager
) -> None:
    """Workers of that version repair the ledger; others repair the other ledgers."""
    await manager.mark(9, ["b1"])
    key = _MARKS.key(7)
    newer = json_record.encode("bookie-underreplicated", 2, {"copies": {"b1": 3}})
    await store.put(key, newer)
    for call in (manager.find(7), manager.mark(7, ["b1"])):
        with pytest.raises(NewerFormatError, match=key):
            await call
    assert await manager.poll() == 9
    assert await manager.mark_replicated(9)
    assert await manager.poll() is None
    assert not await manager.acquire_unmarked(7)
    record = await store.get(key)
    assert record is not None
    assert record.value == newer


async def test_a_damaged_delay_is_named_by_its_key(
    store: MetadataStore, manager: UnderreplicationManager
) -> None:
    """Case 161."""
    await store.put(keys.LOST_BOOKIE_DELAY, b"soon")
    with pytest.raises(FormatError, match=keys.LOST_BOOKIE_DELAY):
        await manager.lost_bookie_recovery_delay()


async def _one_in_hand(backend: Backend) -> tuple[UnderreplicationManager, FaultyStore]:
    faulty = FaultyStore(await backend.open())
    manager = UnderreplicationManager(faulty, "worker-1")
    await manager.mark(7, ["b1"])
    assert await manager.acquire(7)
    return manager, faulty


async def test_a_repair_whose_reply_was_lost_is_known_to_be_over(backend: Backend) -> None:
    manager, faulty = await _one_in_hand(backend)
    faulty.lost_replies = 1
    assert await manager.mark_replicated(7)
    assert await manager.find(7) is None
    assert await manager.worker_of(7) is None


async def test_a_repair_that_did_not_reach_the_store_is_told_again(backend: Backend) -> None:
    manager, faulty = await _one_in_hand(backend)
    faulty.lost_requests = 1
    assert await manager.mark_replicated(7)
    assert await manager.find(7) is None


@pytest.mark.parametrize("happens", [True, False])
async def test_a_repair_that_nobody_could_tell_of_is_found_out_about_later(
    backend: Backend, happens: bool
) -> None:
    """The store goes away with the answer, or before the request."""
    manager, faulty = await _one_in_hand(backend)

    def go_away(*_: object) -> None:
        faulty.is_down = True

    if happens:
        faulty.lost_replies, faulty.after_write = 1, go_away
    else:
        faulty.lost_requests, faulty.before_write = 1, go_away
    with pytest.raises(MetadataUnavailableError):
        await manager.mark_replicated(7)
    faulty.is_down = False
    faulty.before_write, faulty.after_write = lambda: None, lambda _: None
    assert await manager.mark_replicated(7)
    assert await manager.find(7) is None
    with pytest.raises(BadRequestError, match="not locked"):
        await manager.mark_replicated(7)


async def test_a_repair_of_a_cancelled_caller_is_found_out_about(backend: Backend) -> None:
    manager, faulty = await _one_in_hand(backend)
    faulty.hold_reply, happened = asyncio.Event(), asyncio.Event()
    faulty.after_write = lambda _: happened.set()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        call = tasks.create_task(manager.mark_replicated(7))
        await happened.wait()
        call.cancel()
    assert await manager.mark_replicated(7)


async def test_a_lost_reply_hides_no_later_mark(backend: Backend) -> None:
    """It was repaired, and marked again before anybody knew."""
    manager, faulty = await _one_in_hand(backend)
    faulty.lost_replies = 1
    faulty.after_write = lambda _: setattr(faulty, "is_down", True)
    with pytest.raises(MetadataUnavailableError):
        await manager.mark_replicated(7)
    faulty.is_down, faulty.after_write = False, lambda _: None
    await UnderreplicationManager(await backend.open(), "worker-2").mark(7, ["b2"])
    assert not await manager.mark_replicated(7)
    assert await _replicas(manager, 7) == ("b2",)

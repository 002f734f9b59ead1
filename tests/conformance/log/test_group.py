"""Groups: who consumes what, when members and logs come and go, and what proves it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    ClientClosedError,
    CursorLostError,
    LockBusyError,
    LogTruncatedError,
    NoSuchKeyError,
)
from bookie.ledger.catalog.removal import nuke_cluster
from bookie.log.catalog.groups import ConsumerGroup, list_groups
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import AutoCommit
from bookie.log.consume.group import GroupMember, GroupRecord, group_status
from bookie.log.record.log_record import LogPosition
from bookie.metadata.model import Check, Operation
from tests.conformance.backends import Backend
from tests.conformance.log.conftest import FIRST, ORDERS, LogProcess, NewProcess
from tests.conformance.log.fake_logs import CursorHistory, FakeLogs
from tests.conformance.waiting import settle, until, until_found

GROUP = "workers"


@dataclass
class Worker:
    """A member with its process, and an application that takes and commits all records."""

    process: LogProcess
    member: GroupMember
    seen: list[GroupRecord] = field(default_factory=list)
    shares: list[frozenset[LogPartition]] = field(default_factory=list)
    """The shares that it was told."""

    async def work(self) -> None:
        """Consume for ever; a record whose commit fails comes again to a member."""
        async for record in self.member:
            self.seen.append(record)
            try:
                await self.member.commit(record)
            except CursorLostError:
                continue

    def has(self, *numbers: int) -> bool:
        """True if its share is these partitions of `ORDERS`."""
        return self.member.assignment == partitions(*numbers)


def partitions(*numbers: int) -> frozenset[LogPartition]:
    return frozenset(LogPartition(ORDERS, number) for number in numbers)


class Team:
    """Workers of one group, which end with the test."""

    def __init__(self, new_process: NewProcess, stack: AsyncExitStack) -> None:
        self._new_process = new_process
        self._stack = stack
        self._leaving: dict[str, AsyncExitStack] = {}
        self.workers: dict[str, Worker] = {}

    async def join(
        self, name: str, *, logs: Iterable[str] = ("orders",), pattern: str = ""
    ) -> Worker:
        """A new process with a member called `name`."""
        process = await self._new_process()
        shares: list[frozenset[LogPartition]] = []
        member = GroupMember(
            process.client,
            GROUP,
            process.logs,
            logs=logs,
            pattern=pattern,
            member=name,
            on_change=shares.append,
        )
        stack = await self._stack.enter_async_context(AsyncExitStack())
        await stack.enter_async_context(member)
        self._leaving[name] = stack
        worker = self.workers[name] = Worker(process, member, shares=shares)
        return worker

    async def leave(self, name: str) -> Worker:
        """The member leaves as it should."""
        await self._leaving.pop(name).aclose()
        return self.workers.pop(name)

    def shares(self) -> dict[str, int]:
        """The number of partitions of each member."""
        return {name: len(worker.member.assignment) for name, worker in self.workers.items()}


@pytest.fixture
async def team(new_process: NewProcess) -> AsyncIterator[Team]:
    """A group without members."""
    async with AsyncExitStack() as stack:
        yield Team(new_process, stack)


@pytest.fixture
async def orders(process: LogProcess) -> LogProcess:
    """A process, and a log of six partitions."""
    await process.client.create(ORDERS, partitions=6)
    return process


async def take(member: GroupMember, count: int) -> list[GroupRecord]:
    """The next records."""
    async with asyncio.timeout(60):
        return [await anext(member) for _ in range(count)]


# ---- shares


async def test_one_member_has_everything(orders: LogProcess, team: Team) -> None:
    worker = await team.join("a")
    await until(lambda: worker.has(0, 1, 2, 3, 4, 5))
    for number in range(6):
        orders.logs.append(LogPartition(ORDERS, number), b"x", b"y")
    seen = await take(worker.member, 12)
    assert Counter(record.log_partition for record in seen) == dict.fromkeys(
        partitions(0, 1, 2, 3, 4, 5), 2
    )
    assert {(record.value, record.key, record.timestamp_ms) for record in seen} == {
        (b"x", None, 0),
        (b"y", None, 1),
    }
    assert worker.member.tokens.keys() == worker.member.assignment
    assert all(token > 0 for token in worker.member.tokens.values())
    await worker.member.commit()
    status = await group_status(orders.client, GROUP, orders.logs)
    assert (status.name, status.leader, list(status.members), status.lag) == (GROUP, "a", ["a"], 0)
    assert status.assignment.generation == worker.member.generation >= 1
    assert len(status.cursors) == 6
    orders.logs.append(FIRST, b"z")
    assert (await group_status(orders.client, GROUP, orders.logs)).lag == 1
    assert await list_groups(orders.session) == [GROUP]


async def test_members_share_evenly_and_keep_what_they_have(
    orders: LogProcess, team: Team, history: CursorHistory
) -> None:
    first = await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    second = await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    had = first.member.assignment, second.member.assignment
    third = await team.join("c")
    await until(lambda: team.shares() == {"a": 2, "b": 2, "c": 2})
    assert first.member.assignment < had[0]
    assert second.member.assignment < had[1]
    # One that leaves hands its partitions to the others, who keep theirs.
    kept = first.member.assignment, third.member.assignment
    await team.leave("b")
    await until(lambda: team.shares() == {"a": 3, "c": 3})
    assert first.member.assignment > kept[0]
    assert third.member.assignment > kept[1]
    assert first.shares[-1] == first.member.assignment
    history.check()


async def test_there_may_be_more_members_than_partitions(process: LogProcess, team: Team) -> None:
    await process.client.create(ORDERS, partitions=2)
    for name in "abc":
        await team.join(name)
    await until(lambda: sorted(team.shares().values()) == [0, 1, 1])
    busy = next(name for name, count in team.shares().items() if count)
    await team.leave(busy)
    await until(lambda: sorted(team.shares().values()) == [1, 1])


async def test_a_member_that_comes_back_gets_its_partitions(orders: LogProcess, team: Team) -> None:
    """A whole group may restart: the last assignment is remembered."""
    await team.join("a")
    await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    had = team.workers["a"].member.assignment
    leaving = [await team.leave("b"), await team.leave("a")]
    assert [one.member.assignment for one in leaving] == [frozenset(), frozenset()]
    await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    assert team.workers["a"].member.assignment & had


async def test_a_pattern_gains_and_loses_logs(process: LogProcess, team: Team) -> None:
    await process.client.create(LogName("default", "orders-eu"))
    await process.client.create(LogName("default", "other"))
    for name in "ab":
        await team.join(name, logs=(), pattern="orders-*")
    await until(lambda: sorted(team.shares().values()) == [0, 1])
    added = LogName("default", "orders-us")
    await process.client.create(added, partitions=3)
    await until(lambda: sorted(team.shares().values()) == [2, 2])
    await process.client.logs.mark_deleted(added)
    await process.client.logs.remove(added)
    await until(lambda: sorted(team.shares().values()) == [0, 1])
    taken = {one for worker in team.workers.values() for one in worker.member.assignment}
    assert taken == {LogPartition(LogName("default", "orders-eu"))}


async def test_logs_are_consumed_once_they_are_made(process: LogProcess, team: Team) -> None:
    worker = await team.join("a", logs=["later", "sales/later"])
    await settle()
    await process.client.create(LogName("default", "later"))
    await process.client.namespaces.create("sales")
    await process.client.create(LogName("sales", "later"))
    await until(lambda: len(worker.member.assignment) == 2)


async def test_a_member_needs_names(orders: LogProcess, team: Team) -> None:
    client, logs = orders.client, orders.logs
    for group, wrong in [
        ("g", {}),
        ("a/b", {"pattern": "orders-*"}),
        ("g", {"pattern": "a/b/*"}),
        ("g", {"logs": ["a/b/c"]}),
        ("g", {"logs": ["a"], "member": "a/b"}),
        ("g", {"logs": ["a"], "start": LogPosition(1, 1, 1)}),
        ("g", {"logs": ["a"], "start": (1, 1)}),
    ]:
        with pytest.raises(BadRequestError):
            GroupMember(client, group, logs, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NoSuchKeyError, match="no group nobody"):
        await group_status(client, "nobody", logs)
    # A made up name is another one each time.
    names = {GroupMember(client, "g", logs, pattern="*").name for _ in range(2)}
    assert len(names) == 2


# ---- members that die


async def test_a_member_whose_session_ends_is_replaced(
    backend: Backend, orders: LogProcess, team: Team, history: CursorHistory
) -> None:
    """It hears of nothing at first, and must not commit for what it has lost."""
    first, second = await team.join("a"), await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    lost = first.member.assignment
    for partition in lost:
        orders.logs.append(partition, b"1", b"2")
    before = await take(first.member, 6)
    await first.member.commit(before[0])
    first.process.store.hold_changes.clear()
    first.process.store.is_down = True
    await backend.expire(first.process.session)
    await until(lambda: len(second.member.assignment) == 6)
    again = await take(second.member, 5)
    await second.member.commit()
    expected = {(one.log_partition, one.offset) for one in before[1:]}
    assert {(one.log_partition, one.offset) for one in again} == expected
    former = {one.log_partition: one.token for one in before}
    assert all(one.token > former[one.log_partition] for one in again)
    first.process.store.is_down = False
    first.process.store.hold_changes.set()
    for record in before[1:]:
        with pytest.raises(CursorLostError):
            await first.member.commit(record)
    # It belongs to the group again, as soon as it has a session.
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    assert history.check() >= 9


async def test_a_leader_that_dies_is_followed_by_another(
    backend: Backend, orders: LogProcess, team: Team
) -> None:
    first = await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    status = await group_status(orders.client, GROUP, orders.logs)
    assert status.leader == "a"
    first.process.store.is_down = True
    await backend.expire(first.process.session)
    await team.join("c")
    await until(lambda: team.shares()["b"] == team.shares()["c"] == 3)
    status = await group_status(orders.client, GROUP, orders.logs)
    assert (status.leader, sorted(status.members)) == ("b", ["b", "c"])
    first.process.store.is_down = False
    await until(lambda: team.shares() == {"a": 2, "b": 2, "c": 2})


async def test_a_former_leader_writes_nothing(orders: LogProcess, team: Team) -> None:
    """Its write is on its way when another member's claim is first."""
    await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    group = ConsumerGroup(orders.session, GROUP)
    (claim,) = await orders.session.get_children(group.leader_key)
    record = await orders.session.get(f"{group.leader_key}/{claim}")
    assert record is not None
    await orders.session.delete(record.key)
    found = await group.read_assignment()
    with pytest.raises(BadVersionError):
        await group.write_assignment(
            found.value, found.version, [Check(record.key, record.version)]
        )


async def test_a_leader_writes_only_while_its_claim_stands(orders: LogProcess, team: Team) -> None:
    """Each assignment is written with the claim to lead as its condition."""
    leader = await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    group = ConsumerGroup(orders.session, GROUP)
    (claim,) = await orders.session.get_children(group.leader_key)
    assigned: list[set[str]] = []

    def note(operations: Sequence[Operation]) -> None:
        if any(one.key == group.assignment_key for one in operations):
            assigned.append({one.key for one in operations if isinstance(one, Check)})

    leader.process.store.after_write = note
    await team.join("b")
    await until(lambda: team.shares() == {"a": 3, "b": 3})
    assert assigned
    assert all(f"{group.leader_key}/{claim}" in checked for checked in assigned)


async def test_a_name_belongs_to_one_member(orders: LogProcess, new_process: NewProcess) -> None:
    first, second = [await new_process(session_timeout_seconds=2.0) for _ in range(2)]
    names = {"logs": ["orders"], "member": "a"}
    async with GroupMember(first.client, GROUP, orders.logs, **names) as member:  # type: ignore[arg-type]
        with pytest.raises(LockBusyError):
            await GroupMember(second.client, GROUP, orders.logs, **names).__aenter__()  # type: ignore[arg-type]
        await until(lambda: len(member.assignment) == 6)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_who_is_cancelled_while_it_joins_is_no_member(orders: LogProcess, turns: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        member = GroupMember(orders.client, GROUP, orders.logs, logs=["orders"])
        joining = tasks.create_task(member.__aenter__())
        await settle(turns)
        joining.cancel()
    if not joining.cancelled():
        await member.__aexit__(None, None, None)
    await until_found(lambda: _has_no_member(orders))
    async with GroupMember(orders.client, GROUP, orders.logs, logs=["orders"]) as other:
        await until(lambda: len(other.assignment) == 6)


async def _has_no_member(process: LogProcess) -> bool:
    await process.session.sync()
    return not await process.session.get_children(f"/groups/{GROUP}/members")


# ---- giving partitions up


async def test_a_partition_moves_when_its_last_record_is_handed_back(
    process: LogProcess, team: Team, history: CursorHistory
) -> None:
    """So the application can commit the record it works on, and no member gets it twice."""
    await process.client.create(ORDERS, partitions=2)
    first = await team.join("a")
    await until(lambda: first.has(0, 1))
    moving = LogPartition(ORDERS, 1)
    process.logs.append(moving, b"0", b"1", b"2")
    (given,) = await take(first.member, 1)
    second = await team.join("b")
    await until(lambda: first.member.generation == second.member.generation == 2)
    shares = (await ConsumerGroup(process.session, GROUP).read_assignment()).value.shares
    assert shares == {"a": (str(FIRST),), "b": (str(moving),)}
    await settle()
    assert second.member.assignment == frozenset()
    await first.member.commit(given)
    async with asyncio.TaskGroup() as tasks:
        # The rest of the batch is not given out any more.
        waiting = tasks.create_task(take(first.member, 1))
        await until(lambda: second.member.assignment == {moving})
        found = await take(second.member, 2)
        assert [one.record.offset for one in found] == [1, 2]
        assert {one.token for one in found} == {given.token + 1}
        process.logs.append(FIRST, b"x")
        assert [one.log_partition for one in await waiting] == [FIRST]
    assert history.check() == 3


async def test_automatic_commits_come_before_a_partition_moves(
    orders: LogProcess, new_process: NewProcess
) -> None:
    auto_commit = AutoCommit(every_seconds=3600, every_records=1000)
    async with GroupMember(
        orders.client, GROUP, orders.logs, logs=["orders"], auto_commit=auto_commit
    ) as first:
        await until(lambda: len(first.assignment) == 6)
        for number in range(6):
            orders.logs.append(LogPartition(ORDERS, number), b"1", b"2")
        batches = first.batches()
        given = [await anext(batches) for _ in range(6)]
        in_hand = given[-1].partition
        other = await new_process()
        async with GroupMember(other.client, GROUP, orders.logs, logs=["orders"]) as second:
            await until(lambda: len(second.assignment) >= 2)
            moved = second.assignment - {in_hand}
            assert [await other.committed(GROUP, one) for one in moved] == [2] * len(moved)
    committed = {one: await orders.committed(GROUP, one) for one in partitions(*range(6))}
    assert committed == {one: 0 if one == in_hand else 2 for one in partitions(*range(6))}


async def test_a_reset_of_a_groups_cursor_is_followed(orders: LogProcess, team: Team) -> None:
    worker = await team.join("a")
    await until(lambda: len(worker.member.assignment) == 6)
    orders.logs.append(FIRST, b"1", b"2", b"3")
    seen = await take(worker.member, 3)
    await worker.member.commit()
    await orders.cursors().reset(GROUP, 1, partition=0)
    assert [one.value for one in await take(worker.member, 2)] == [b"2", b"3"]
    with pytest.raises(CursorLostError):
        await worker.member.commit(seen[0])
    assert not worker.member.has_committed(seen[0])  # not in the new epoch
    await worker.member.commit()
    assert await orders.committed(GROUP) == 3


async def test_errors_that_stay_reach_the_application(orders: LogProcess, team: Team) -> None:
    worker = await team.join("a")
    await until(lambda: len(worker.member.assignment) == 6)
    orders.logs.errors.append(LogTruncatedError("gone", earliest_offset=3))
    orders.logs.wake()
    with pytest.raises(LogTruncatedError):
        await take(worker.member, 1)
    await worker.process.client.close()
    with pytest.raises((ClientClosedError, LogTruncatedError)):
        await take(worker.member, 1)


# ---- all together


async def test_members_that_come_go_and_die_consume_everything_in_epochs(
    backend: Backend, orders: LogProcess, team: Team, history: CursorHistory
) -> None:
    """Every record reaches a member, and the commits of two epochs never interleave."""
    total = 20
    everything = {(number, offset) for number in range(6) for offset in range(total)}
    seen: set[tuple[int, int]] = set()

    def done(count: int) -> bool:
        for worker in team.workers.values():
            seen.update((one.partition, one.offset) for one in worker.seen)
        return len(seen) >= count

    def feed(logs: FakeLogs, count: int) -> None:
        for number in range(6):
            logs.append(LogPartition(ORDERS, number), *[b"x"] * count)

    async with asyncio.TaskGroup() as tasks:
        working: dict[str, asyncio.Task[None]] = {}

        async def join(name: str) -> Worker:
            worker = await team.join(name)
            working[name] = tasks.create_task(worker.work())
            return worker

        first = await join("a")
        feed(orders.logs, 5)
        await until(lambda: done(10))
        await join("b")
        await join("c")
        feed(orders.logs, 5)
        await until(lambda: done(40))
        await backend.expire(first.process.session)
        feed(orders.logs, 5)
        await until(lambda: done(70))
        working.pop("b").cancel()
        worker = await team.leave("b")
        seen.update((one.partition, one.offset) for one in worker.seen)
        feed(orders.logs, 5)
        await until(lambda: done(len(everything)))
        await until_found(lambda: _all_committed(orders, total))
        for task in working.values():
            task.cancel()
    assert seen == everything
    assert history.check() > 6


async def _all_committed(process: LogProcess, total: int) -> bool:
    found = [await process.committed(GROUP, one) for one in sorted(partitions(*range(6)))]
    return found == [total] * 6


async def test_a_removed_cluster_takes_its_groups_along(orders: LogProcess, team: Team) -> None:
    await team.join("a")
    await until(lambda: team.shares() == {"a": 6})
    await team.leave("a")
    assert await nuke_cluster(orders.session)
    assert await orders.session.get_children("/") == []

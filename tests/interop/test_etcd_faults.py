"""Three etcd members that are killed, stopped and cut off while two sessions count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from bookie.errors import BadVersionError, MetadataError, MetadataUnavailableError
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.model import Change, Resync
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from tests.servers.etcd import EtcdCluster, EtcdMember

SESSION_TIMEOUT_SECONDS = 6
FAULT_SECONDS = 2.5
"""Long enough for an election, shorter than a session lives without an answer."""


PACE_SECONDS = 0.003
"""Between two increments of a session, so that other tests get a core, too."""


@dataclass
class _History:
    """Observations of the sessions; checked when all is well again."""

    increments: list[int] = field(default_factory=list)
    """Each value that was written with success."""
    unknown: int = 0
    followed: list[int] = field(default_factory=list)
    """The revisions of the counter as a watch told them."""
    written: list[int] = field(default_factory=list)
    resyncs: int = 0
    wanted: int | None = None
    """How many increments set `reached`."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    session_events: list[SessionEvent] = field(default_factory=list)


async def _count(store: MetadataStore, history: _History, stop: asyncio.Event) -> None:
    """Increment /counter by compare-and-set until told to stop."""
    while not stop.is_set():
        try:
            record = await store.get("/counter")
            assert record is not None
            value = int(record.value) + 1
            stat = await store.put("/counter", b"%d" % value, version=record.version)
        except BadVersionError:
            continue
        except MetadataUnavailableError as error:
            history.unknown += "unknown" in str(error)
            continue
        assert stat.revision is not None
        history.increments.append(value)
        history.written.append(stat.revision)
        if history.wanted is not None and len(history.increments) >= history.wanted:
            history.reached.set()
        await asyncio.sleep(PACE_SECONDS)


async def _follow(changes: AsyncIterator[Change], history: _History) -> None:
    async for change in changes:
        if isinstance(change, Resync):
            history.resyncs += 1
        else:
            assert change.revision is not None
            history.followed.append(change.revision)


async def _listen(store: MetadataStore, history: _History) -> None:
    async with store.session_events() as events:
        async for event in events:
            history.session_events.append(event)


async def _under(
    cluster: EtcdCluster, fault: Callable[[], Awaitable[None]], heal: Callable[[], Awaitable[None]]
) -> _History:
    """Count through a fault; when it is healed, hold the history against the cluster."""
    history, stop = _History(), asyncio.Event()
    uri = "/" + cluster.uri().rpartition("/")[2]
    stores = [
        EtcdStore(cluster.endpoints, uri, session_timeout_seconds=SESSION_TIMEOUT_SECONDS)
        for _ in range(2)
    ]
    async with stores[0], stores[1]:
        await stores[0].put("/counter", b"0")
        for number, store in enumerate(stores):
            await store.put(f"/e{number}", b"", ephemeral=True)
        async with stores[0].watch("/counter") as changes, asyncio.TaskGroup() as tasks:
            listening = [tasks.create_task(_listen(store, history)) for store in stores]
            following = tasks.create_task(_follow(changes, history))
            counting = [tasks.create_task(_count(store, history, stop)) for store in stores]
            await asyncio.sleep(0.3)
            await fault()
            await asyncio.sleep(FAULT_SECONDS)
            await heal()
            history.wanted = len(history.increments) + 20
            async with asyncio.timeout(60):
                await history.reached.wait()
            stop.set()
            await asyncio.wait(counting)
            await _check(stores, history, following)
            for task in (following, *listening):
                task.cancel()
    assert all(task.cancelled() for task in listening)
    return history


async def _check(stores: list[EtcdStore], history: _History, following: asyncio.Task[None]) -> None:
    for store in stores:
        record = await store.get("/counter")
        assert record is not None
        final = int(record.value)
        assert len(set(history.increments)) == len(history.increments), "two wrote the same value"
        missing = final - len(history.increments)
        assert 0 <= missing <= history.unknown, "an acknowledged write is lost or happened twice"
    for number, store in enumerate(stores):
        if SessionEvent.SESSION_LOST not in history.session_events:
            mine = await store.get(f"/e{number}")
            assert mine is not None
            assert mine.created_by_self
    async with asyncio.timeout(60):
        while max(history.written) not in history.followed:
            assert not following.done()
            await asyncio.sleep(0.02)
    assert history.followed == sorted(set(history.followed)), "a change twice or out of order"
    if not history.resyncs:
        assert set(history.written) <= set(history.followed), "a change was missed in silence"


async def _of(
    member: EtcdMember, fault: str
) -> tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]:
    async def kill() -> None:
        member.kill()

    async def pause() -> None:
        member.pause()

    async def resume() -> None:
        member.resume()

    return (kill, member.restart) if fault == "kill" else (pause, resume)


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_member_fails(etcd_cluster: EtcdCluster, role: str, fault: str) -> None:
    member = etcd_cluster.leader() if role == "leader" else etcd_cluster.follower()
    inflict, heal = await _of(member, fault)
    history = await _under(etcd_cluster, inflict, heal)
    assert SessionEvent.SESSION_LOST not in history.session_events


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_member_is_cut_off(etcd_cluster: EtcdCluster, role: str) -> None:
    member = etcd_cluster.leader() if role == "leader" else etcd_cluster.follower()

    async def isolate() -> None:
        etcd_cluster.links.isolate(member.name)

    history = await _under(etcd_cluster, isolate, _healing(etcd_cluster))
    assert SessionEvent.SESSION_LOST not in history.session_events


@pytest.mark.parametrize("deaf", [True, False], ids=["deaf", "mute"])
async def test_the_leader_is_cut_off_one_way(etcd_cluster: EtcdCluster, deaf: bool) -> None:
    leader = etcd_cluster.leader().name

    async def cut() -> None:
        for other in etcd_cluster.names:
            if other != leader:
                etcd_cluster.links.cut(*((other, leader) if deaf else (leader, other)))

    await _under(etcd_cluster, cut, _healing(etcd_cluster))


async def test_a_bridge_is_left(etcd_cluster: EtcdCluster) -> None:
    """Two members do not hear each other; the third hears both."""
    leader = etcd_cluster.leader().name
    follower = etcd_cluster.follower().name

    async def split() -> None:
        etcd_cluster.links.split([leader], [follower])

    await _under(etcd_cluster, split, _healing(etcd_cluster))


async def test_without_a_majority_nothing_is_written(etcd_cluster: EtcdCluster) -> None:
    """Two of three are gone: errors are clear, nothing is acknowledged, and all heals."""
    leader, follower = etcd_cluster.leader(), etcd_cluster.follower()
    async with EtcdStore(etcd_cluster.endpoints, "/s", session_timeout_seconds=4) as store:
        await store.put("/a", b"before")
        leader.kill()
        follower.kill()
        with pytest.raises(MetadataError, match="etcd"):
            await store.put("/a", b"during")
        with pytest.raises(MetadataUnavailableError, match="does not answer"):
            await store.get("/a")
        for member in (leader, follower):
            member.start()
        for member in (leader, follower):
            await asyncio.to_thread(member.wait_ready)
        async with asyncio.timeout(60):
            stat = None
            while stat is None:
                try:
                    stat = await store.put("/b", b"", ephemeral=True)
                except MetadataError:
                    await asyncio.sleep(0.1)
        assert stat.created_by_self


def _healing(cluster: EtcdCluster) -> Callable[[], Awaitable[None]]:
    async def heal() -> None:
        cluster.links.heal()

    return heal

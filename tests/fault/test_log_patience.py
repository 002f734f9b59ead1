"""Logs while bookies are silent or gone: a writer waits as long as its patience, and no longer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest

from bookie.api import BookKeeper, LogPolicy
from bookie.errors import NotEnoughBookiesError
from tests.fault.daemon_cluster import DaemonCluster, daemon_cluster
from tests.fault.daemon_process import serving
from tests.servers.etcd import EtcdServer

PATIENCE_SECONDS = 3.0
END_SECONDS_MAX = 150.0
"""The patience, the timeout of an add, and much more: an end that never comes is found."""

LEDGERS_MAX = 3
"""The one that is written, and one or two that were made before it was known that none helps."""


@pytest.fixture
async def cluster(etcd_server: EtcdServer, tmp_path: Path) -> AsyncIterator[DaemonCluster]:
    """Its sessions outlive what is stopped here: the bookies stay registered."""
    async with daemon_cluster(etcd_server.uri(), tmp_path, timeout_seconds=60.0) as started:
        yield started


async def ledgers_of(client: BookKeeper) -> set[int]:
    return {one async for one in client.list_ledgers()}


async def test_appends_end_with_the_patience_while_bookies_are_stopped(
    cluster: DaemonCluster,
) -> None:
    """Two of three answer nothing. What was acknowledged stays, and the log opens again."""
    client = cluster.client
    await client.create_log("orders")
    log = await client.open_log("orders", patience_seconds=PATIENCE_SECONDS)
    await log.append(b"kept")
    stopped = [cluster.daemons[name].process for name in ("b2", "b3")]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(END_SECONDS_MAX):
        with pytest.raises(NotEnoughBookiesError):
            await log.append(b"lost")
        with pytest.raises(NotEnoughBookiesError):
            await log.append(b"refused")
    assert len(await ledgers_of(client)) <= LEDGERS_MAX
    await log.close()  # it has ended; the next owner closes the ledger
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    async with await client.open_log("orders") as again:
        await again.append(b"more")
    values = [record.value async for record in client.read_log("orders")]
    assert values in ([b"kept", b"more"], [b"kept", b"lost", b"more"])


async def test_closing_ends_with_the_patience_too(cluster: DaemonCluster) -> None:
    """An append is under way when the writer is closed; both hear of it."""
    client = cluster.client
    await client.create_log("orders")
    log = await client.open_log("orders", patience_seconds=PATIENCE_SECONDS)
    await log.append(b"kept")
    for name in ("b2", "b3"):
        cluster.daemons[name].process.send_signal(signal.SIGSTOP)

    async def refused(call: Coroutine[object, object, object]) -> None:
        with pytest.raises(NotEnoughBookiesError):
            await call

    async with asyncio.timeout(END_SECONDS_MAX), asyncio.TaskGroup() as tasks:
        tasks.create_task(refused(log.append(b"lost")))
        tasks.create_task(refused(log.close()))
    assert len(await ledgers_of(client)) <= LEDGERS_MAX


async def test_who_reaches_no_bookies_ends_no_owner(cluster: DaemonCluster) -> None:
    """It raises no epoch, fences nothing, and leaves no ledger behind."""
    client = cluster.client
    await client.create_log("orders")
    owner = await client.open_log("orders")
    await owner.append(b"a")
    before = await ledgers_of(client)
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(NotEnoughBookiesError):
            await client.open_log("orders", patience_seconds=1.0)
    for daemon in cluster.daemons.values():
        daemon.process.send_signal(signal.SIGCONT)
    assert await ledgers_of(client) == before
    await owner.append(b"b")
    await owner.roll()
    await owner.close()
    assert [record.value async for record in client.read_log("orders")] == [b"a", b"b"]


async def test_an_append_is_confirmed_when_bookies_go_on_in_time(cluster: DaemonCluster) -> None:
    """They are continued after several ledgers could have been made in vain."""
    client = cluster.client
    await client.create_log("orders")
    log = await client.open_log("orders", patience_seconds=END_SECONDS_MAX)
    await log.append(b"a")
    stopped = [cluster.daemons[name].process for name in ("b2", "b3")]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    async with asyncio.TaskGroup() as tasks:
        appending = tasks.create_task(log.append(b"b"))
        await asyncio.sleep(4 * PATIENCE_SECONDS)
        assert not appending.done()
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    assert len(await ledgers_of(client)) <= LEDGERS_MAX
    await log.close()
    assert [record.value async for record in client.read_log("orders")] == [b"a", b"b"]


async def test_a_log_opens_when_a_bookie_is_back_within_the_patience(
    cluster: DaemonCluster, tmp_path: Path
) -> None:
    """A writer has failed over, and one of three bookies is being restarted."""
    client = cluster.client
    await client.create_log("orders")
    await client.create_log("degraded", policy=LogPolicy(allow_degraded=True))
    async with await client.open_log("orders") as log:
        await log.append(b"a")
    gone = cluster.daemons["b3"]
    gone.process.send_signal(signal.SIGTERM)
    await gone.end()
    await cluster.registered("b1", "b2")
    with pytest.raises(NotEnoughBookiesError):
        await client.open_log("orders", patience_seconds=0.5)
    async with await client.open_log("degraded", patience_seconds=0.5) as log:
        await log.append(b"two copies")
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(client.open_log("orders", patience_seconds=END_SECONDS_MAX))
        await asyncio.sleep(1.0)
        assert not opening.done()
        async with serving(tmp_path / "b3" / "bookie.toml"), await opening as log:
            await log.append(b"b")
    assert [record.value async for record in client.read_log("orders")] == [b"a", b"b"]

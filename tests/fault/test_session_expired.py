"""Bookies whose sessions somebody ends from outside, on real servers: what became of each."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.metadata.connect import open_store
from tests.fault.daemon_cluster import Appending, daemon_cluster
from tests.fault.metadata_servers import SHARED, SharedServer

SESSION_GIVEN_UP = 3


@pytest.fixture(params=sorted(SHARED))
def server(request: pytest.FixtureRequest) -> SharedServer:
    """A scope in a server of each kind."""
    return SHARED[request.param](request)


async def test_a_forced_expiry(server: SharedServer, tmp_path: Path) -> None:
    """One registers again without a restart, one obeys `shutdown`, and all appends succeed."""
    async with (
        daemon_cluster(server.uri, tmp_path, {"b2": {"policy": "shutdown"}}) as cluster,
        open_store(server.uri) as store,
        asyncio.timeout(60),
    ):
        daemons = cluster.daemons
        appending = Appending(await cluster.create())
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(appending.run())
            await appending.goes_on()
            registration = keys.registration("b1", read_only=False)
            for bookie in ("b1", "b2"):
                key = keys.registration(bookie, read_only=False)
                await asyncio.to_thread(server.expire_owner, key)
            await appending.goes_on()
            await daemons["b1"].until("registered_again")
            assert daemons["b1"].process.returncode is None, "the same process"
            assert await store.exists(registration)
            status, sentence = await daemons["b2"].refusal()
            assert status == SESSION_GIVEN_UP
            assert sentence.endswith("lost, and session.policy is shutdown")
            await cluster.registered("b1", "b3")
            await appending.goes_on()
            task.cancel()
        await appending.check(cluster.client)
        for bookie in ("b1", "b3"):
            daemons[bookie].process.send_signal(signal.SIGTERM)
            assert await daemons[bookie].end() == 0

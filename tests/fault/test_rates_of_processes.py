"""Rates at bookies that are processes: the greedy is held back, and nobody else is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from bookie.api import WriterHandle
from bookie.ledger.exchange import StartTimer
from bookie.ledger.write.pacing import Pacing
from bookie.ledger.write.writer_events import WriterEffect
from bookie.security.grants import Grant
from bookie.security.rights import Role
from tests.fault.daemon_cluster import BOOKIES
from tests.fault.secure_cluster import SecureCluster, secure_cluster
from tests.fault.test_roles import named, roles, until_permitted

RATE = 64 * 1024
"""Bytes a second of one identity at one bookie."""

ENTRY_BYTES = 4000
BATCH_BYTES = 16 * 1024
"""So small that a batch in debt costs a quarter of a second."""

MODEST_APPENDS = 20


class Held:
    """Counts how often each writer was told to come back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: Counter[int] = Counter()
        honest = Pacing.hold_back

        def hold_back(pacing: Pacing, slot: int, seconds: float) -> list[WriterEffect]:
            effects = honest(pacing, slot, seconds)
            self.times[id(pacing)] += any(isinstance(e, StartTimer) for e in effects)
            return effects

        monkeypatch.setattr(Pacing, "hold_back", hold_back)

    def of(self, writer: WriterHandle) -> int:
        return self.times[id(writer._machine.delivery.pacing)]


@pytest.mark.timeout(300)
async def test_the_greedy_is_held_to_its_rate_and_the_modest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No append fails, and no bookie is replaced, although one spare would be there."""
    held = Held(monkeypatch)
    loop = asyncio.get_running_loop()
    async with secure_cluster(tmp_path) as cluster, roles(cluster) as grants:
        cluster.sections = {"limits": {"identity_bytes_per_second": RATE}}
        for name in (*BOOKIES, "b4"):
            await cluster.start(name)
        for name in ("greedy", "modest"):
            await grants.grant(Grant(name, Role.WRITER))
        async with (
            named(
                cluster, "greedy", batch_bytes_max=BATCH_BYTES, add_timeout_seconds=3.0
            ) as greedy,
            named(cluster, "modest") as modest,
        ):
            writer, other = await until_permitted(greedy), await until_permitted(modest)
            stop, began = asyncio.Event(), loop.time()
            async with asyncio.TaskGroup() as tasks:
                eager = [tasks.create_task(appends(writer, stop)) for _ in range(16)]
                while not held.of(writer):  # noqa: ASYNC110  (the machine tells nobody)
                    await asyncio.sleep(0.01)
                for number in range(MODEST_APPENDS):
                    assert await other.append(b"%d" % number) == number
                    await asyncio.sleep(0.1)
                stop.set()
            acknowledged = sum(task.result() for task in eager)
            seconds = loop.time() - began
            await the_greedy_was_held_back(cluster, writer, acknowledged, seconds)
            assert held.of(writer) > 1
            assert held.of(other) == 0, "the modest one was never told to come back"
            assert len(other.metadata.fragments) == 1
            last = writer.last_add_confirmed
            await writer.close()
            await other.close()
            reader = await greedy.open_ledger(writer.ledger_id)
            found = [entry.entry_id async for entry in reader.read()]
            assert found == list(range(last + 1)), "reads wait as well, and lose nothing"


async def appends(writer: WriterHandle, stop: asyncio.Event) -> int:
    """Append as fast as possible; the number of entries. None fails."""
    count = 0
    while not stop.is_set():
        await writer.append(bytes(ENTRY_BYTES))
        count += 1
    return count


async def the_greedy_was_held_back(
    cluster: SecureCluster, writer: WriterHandle, acknowledged: int, seconds: float
) -> None:
    """Each entry is on two bookies of three, so two thirds of all rates bound the entries."""
    assert acknowledged == writer.last_add_confirmed + 1
    assert len(writer.metadata.fragments) == 1
    assert not writer.is_under_replicated
    most = 1.5 * (RATE * (seconds + 1) + 2 * BATCH_BYTES)
    assert acknowledged * ENTRY_BYTES <= most
    limited = [
        await cluster.metric(name, 'bookie_rate_limited_total{kind="identity"}')
        for name in writer.metadata.last_fragment.bookies
    ]
    assert sum(map(bool, limited)) >= 2, limited

"""Lock holders that are processes: killed, or stopped for longer than their lease and woken."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import bookie
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.histories.checker import check
from tests.histories.history import Acquisition, Effect
from tests.histories.holder_process import OWNED
from tests.servers.etcd import EtcdServer
from tests.servers.zookeeper import ZooKeeperServer, new_scope

SESSION_SECONDS = 1.5

LEASES_MAX = 2
"""So many session timeouts after its owner's end a lease has ended: the server rounds up, and looks
now and then."""

MARGIN_SECONDS = 30.0
"""Time that a busy machine may add."""

_WRITE_SECONDS_MAX = 10.0
"""Much longer than a write takes, on a busy machine too."""

_ROOT = Path(bookie.__file__).parent.parent


class Contest:
    """Processes that contend for locks of one store, and what they said."""

    def __init__(self, uri: str, mode: str) -> None:
        self.uri = uri
        self.mode = mode
        self.history: list[Acquisition | Effect] = []
        self.processes: dict[str, Process] = {}
        self._news = asyncio.Event()

    @asynccontextmanager
    async def contender(self, name: str, lock: str) -> AsyncIterator[Process]:
        """A process that stands in line for the lock; it is killed at the end."""
        words = ["-m", "tests.histories.holder_process", self.uri, str(SESSION_SECONDS), name, lock]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            self.mode,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        self.processes[name] = process
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(process))
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed in the middle of it
            words = json.loads(line)
            kind = {"Acquisition": Acquisition, "Effect": Effect}[words.pop("kind")]
            self.history.append(kind(**words))
            self._news.set()

    async def until(self, holds: Callable[[], bool], limit_seconds: float = 60.0) -> None:
        """Return when it holds of what was said."""
        async with asyncio.timeout(limit_seconds):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def holder(self, lock: str) -> Acquisition | None:
        """The last acquisition of the lock."""
        held = [e for e in self.history if isinstance(e, Acquisition) and e.lock == lock]
        return max(held, key=lambda one: one.token, default=None)

    def acts(self, holder: Acquisition, *, accepted: bool) -> int:
        """Number of its acts with the token that it got then."""
        return sum(
            isinstance(e, Effect)
            and (e.client, e.token) == (holder.client, holder.token)
            and (e.revision >= 0) is accepted
            for e in self.history
        )

    async def first(self, lock: str) -> Acquisition:
        """The first holder of the lock, once it has acted."""
        await self.until(lambda: (h := self.holder(lock)) is not None and self._has_acted(h))
        found = self.holder(lock)
        assert found is not None
        return found

    def _has_acted(self, holder: Acquisition) -> bool:
        return self.acts(holder, accepted=True) >= 3

    async def successor(self, former: Acquisition) -> Acquisition:
        """Another who has the lock later, within the bound, once it has acted."""

        def is_there() -> bool:
            found = self.holder(former.lock)
            return found is not None and found.client != former.client and self._has_acted(found)

        await self.until(is_there, LEASES_MAX * SESSION_SECONDS + MARGIN_SECONDS)
        found = self.holder(former.lock)
        assert found is not None
        return found


async def _until_gone(store: MetadataStore, name: str) -> None:
    """Return when nothing of the process is left, within the bound."""
    async with asyncio.timeout(LEASES_MAX * SESSION_SECONDS + MARGIN_SECONDS):
        while True:
            await store.sync()
            if not await store.exists(f"{OWNED}/{name}"):
                return
            await asyncio.sleep(0.05)


async def _kill_the_holder(contest: Contest, store: MetadataStore) -> None:
    async with contest.contender("a", "/killed"), contest.contender("b", "/killed"):
        holder = await contest.first("/killed")
        contest.processes[holder.client].kill()
        await _until_gone(store, holder.client)
        await contest.successor(holder)


async def _is_writable(store: MetadataStore) -> bool:
    """True if nobody was stopped within a write to a directory: everybody would wait for it."""
    try:
        async with asyncio.timeout(_WRITE_SECONDS_MAX):
            await store.put("/probe", b"")
    except TimeoutError:
        return False
    return True


async def _stop_the_holder(contest: Contest, store: MetadataStore) -> None:
    async with contest.contender("c", "/stopped"), contest.contender("d", "/stopped"):
        while True:
            holder = await contest.first("/stopped")
            process = contest.processes[holder.client]
            process.send_signal(signal.SIGSTOP)
            if await _is_writable(store):
                break
            process.send_signal(signal.SIGCONT)
        try:
            await _until_gone(store, holder.client)
            await contest.successor(holder)
        finally:
            process.send_signal(signal.SIGCONT)
        # It knows nothing, and acts as before. One that was done before it was stopped may be told
        # only now.
        before = contest.acts(holder, accepted=True)
        await contest.until(
            lambda: (
                contest.acts(holder, accepted=False) > 0
                or contest.acts(holder, accepted=True) > before + 1
            )
        )


async def _contend(uri: str, mode: str = "") -> list[str]:
    """Kill one holder and stop another one; what the checker says."""
    contest = Contest(uri, mode)
    async with open_store(uri) as store, asyncio.TaskGroup() as tasks:
        tasks.create_task(_kill_the_holder(contest, store))
        tasks.create_task(_stop_the_holder(contest, store))
    return check(list(contest.history))


async def test_holders_on_etcd(etcd_server: EtcdServer) -> None:
    """The stopped one is refused: else it acts on, and the checker says so."""
    assert await _contend(etcd_server.uri()) == []


async def test_holders_on_zookeeper(zookeeper_server: ZooKeeperServer) -> None:
    assert await _contend(f"zk://{zookeeper_server.address}{new_scope()}") == []


async def test_holders_on_a_directory(tmp_path: Path) -> None:
    assert await _contend(f"local://{tmp_path}/metadata") == []


async def test_a_holder_that_acts_without_its_token_is_found_out(tmp_path: Path) -> None:
    offences = await _contend(f"local://{tmp_path}/metadata", "unguarded")
    assert {offence.partition(":")[0] for offence in offences} == {"M7"}

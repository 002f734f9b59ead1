"""One run of ``bookie torture``: a local cluster, its clients and its faults.

Each bookie is a process behind a relay, which can stop the bookie's traffic. The run disturbs one
bookie or writer at a time. The next fault begins only after all bookies are registered and every
writer gets acknowledgements again. In a run, only one bookie may lose its disks. The ack quorum is
2, so each acknowledged record has a copy on another bookie.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bookie.api import BookKeeper
from bookie.cluster.cookies import CookieManager
from bookie.daemon.local.process import BookieProcess, child_environment
from bookie.daemon.local.supervisor import LocalCluster, local_cluster
from bookie.errors import BookieError
from bookie.testing.link import NetworkLink
from bookie.testing.torture.clients import TortureClients, read_all
from bookie.testing.torture.judge import PartitionHistory, judge
from bookie.testing.torture.writer import BATCH_MAX, connect_privately

LOG = "tortured"
PARTITIONS = 2
BOOKIES = 4
WHOLE_SECONDS_MAX = 90.0
"""The longest time in seconds for cluster and clients to recover after a fault, and at the end."""


class StuckError(BookieError):
    """The cluster or a writer did not recover in time after a fault."""


@dataclass(slots=True)
class TortureOutcome:
    """The result of a torture run."""

    faults: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    acknowledged: int = 0
    records: int = 0
    """The number of records in the log after all writers ended."""
    owners: int = 0
    """The number of successive owners, summed over all partitions."""


class Lane:
    """The writer processes of one partition: the current writer, and perhaps a paused writer."""

    def __init__(self, uri: str, partition: int, said: Path, tasks: asyncio.TaskGroup) -> None:
        self.history = PartitionHistory()
        self.next_sequence = 0
        """The next record number; all records with lower numbers are acknowledged."""
        self._uri = uri
        self._partition = partition
        self._said = said
        self._tasks = tasks
        self._current: asyncio.subprocess.Process | None = None
        self._running: dict[asyncio.subprocess.Process, asyncio.Task[None]] = {}
        self._acknowledged = asyncio.Event()

    async def start(self) -> None:
        """Start a process and make it the current writer; only its end starts another writer."""
        with self._said.open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bookie.testing.torture.writer", self._uri, LOG),
                *(str(self._partition), str(self.next_sequence), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                env=child_environment(os.environ),
                start_new_session=True,
            )
        self._current = process
        self._running[process] = self._tasks.create_task(self._listen(process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Record a writer's acknowledgements; start another writer when the current writer ends."""
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if line.endswith(b"\n"):  # a killed writer may leave an incomplete line
                    sequence, offset = map(int, line.split())
                    self.history.acknowledged.setdefault(sequence, set()).add(offset)
                    self.next_sequence = max(self.next_sequence, sequence + 1)
                    self._acknowledged.set()
            await process.wait()
        finally:
            del self._running[process]
        if process is self._current:
            await asyncio.sleep(0.1)
            await self.start()

    async def progress(self) -> None:
        """Wait until a record that is appended after this call is acknowledged."""
        # Wait for two batches, because the first batch may already be in flight.
        wanted = self.next_sequence + 2 * BATCH_MAX
        while self.next_sequence < wanted:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def kill(self) -> None:
        """Kill the current writer, so that another writer is started."""
        if self._current is not None and self._current in self._running:
            with suppress(ProcessLookupError):  # the writer has just ended by itself
                os.kill(self._current.pid, signal.SIGKILL)

    async def replace(self) -> None:
        """Pause the current writer, start a new one, resume the paused writer, wait for its end."""
        former = self._current
        if former is None or former not in self._running:
            return
        listening = self._running[former]
        with suppress(ProcessLookupError):  # the writer has just ended by itself
            os.kill(former.pid, signal.SIGSTOP)
        await self.start()
        await self.progress()
        with suppress(ProcessLookupError):
            os.kill(former.pid, signal.SIGCONT)
        await asyncio.wait([listening])

    async def end(self) -> None:
        self._current = None
        running = dict(self._running)
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if running:
            await asyncio.wait(running.values())


class Torture:
    """One torture run, in one directory."""

    def __init__(self, directory: Path, seconds: float, seed: int) -> None:
        self.outcome = TortureOutcome()
        self._directory = directory
        self._seconds = seconds
        self._seed = seed
        self._chance = random.Random(seed)  # noqa: S311  (faults, no secrets)
        self._victim = self._chance.randrange(BOOKIES)
        """The only bookie that may lose its disks."""
        self._links: list[NetworkLink] = []
        self._lanes: list[Lane] = []

    async def run(self, advance: Callable[[int], None]) -> TortureOutcome:
        """Cause faults for the run's time, let the clients read the whole log, check the rules."""
        async with (
            local_cluster(self._directory / "cluster", bookies=BOOKIES) as cluster,
            asyncio.TaskGroup() as tasks,
            self._linked(cluster, tasks),
            connect_privately(cluster.metadata_uri) as bk,
        ):
            await bk.create_log(LOG, partitions=PARTITIONS)
            self._lanes = [
                Lane(cluster.metadata_uri, number, self._directory / f"writer-{number}.log", tasks)
                for number in range(PARTITIONS)
            ]
            histories = {number: lane.history for number, lane in enumerate(self._lanes)}
            clients = TortureClients(cluster.metadata_uri, LOG, histories, self._seed)
            working = [tasks.create_task(work) for work in [*clients.works(), _tick(advance)]]
            try:
                for lane in self._lanes:
                    await lane.start()
                await self._torment(cluster, bk)
                await self._come_to_rest(bk, clients)
                self.outcome.findings += judge(histories)
            except StuckError as error:
                self.outcome.findings.append(f"stuck: {error}")
            finally:
                for lane in self._lanes:
                    await lane.end()
                for work in working:
                    work.cancel()
                await asyncio.wait(working)
        self.outcome.acknowledged = sum(len(one.acknowledged) for one in histories.values())
        self.outcome.records = sum(len(one.log) for one in histories.values())
        return self.outcome

    # ---- bookies and their faults

    @asynccontextmanager
    async def _linked(
        self, cluster: LocalCluster, tasks: asyncio.TaskGroup
    ) -> AsyncGenerator[None, None]:
        """Put a relay before each bookie; restart the bookies to register the relays' ports."""
        try:
            for bookie in cluster.bookies:
                link = NetworkLink(tasks)
                await link.open(bookie.member.port)
                self._links.append(link)
            async with asyncio.TaskGroup() as restarts:
                for bookie in cluster.bookies:
                    restarts.create_task(self._restart(cluster, bookie))
            yield
        finally:
            for link in self._links:
                link.resume()
                await link.cut()

    async def _restart(self, cluster: LocalCluster, bookie: BookieProcess) -> None:
        await bookie.stop()
        await self._start(cluster, bookie)

    async def _start(self, cluster: LocalCluster, bookie: BookieProcess) -> None:
        port = self._links[cluster.bookies.index(bookie)].port
        await bookie.start({"BOOKIE_LISTEN__ADVERTISED_PORT": str(port)})

    async def _torment(self, cluster: LocalCluster, bk: BookKeeper) -> None:
        """Cause one fault after another until the run's time is over."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._seconds
        await self._until_whole(bk, "at the start")
        while clock() < until:
            name, fault = self._draw(cluster, bk)
            self.outcome.faults[name] += 1
            await fault()
            await self._until_whole(bk, f"after this: {name}")
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    def _draw(
        self, cluster: LocalCluster, bk: BookKeeper
    ) -> tuple[str, Callable[[], Awaitable[None]]]:
        number = self._chance.randrange(BOOKIES)
        bookie, lane = cluster.bookies[number], self._chance.choice(self._lanes)
        seconds = self._chance.uniform(0.2, 3.0)
        victim = cluster.bookies[self._victim]
        return self._chance.choice(
            [
                ("bookies killed", lambda: self._kill(cluster, bookie, seconds)),
                ("bookies stopped for a while", lambda: self._pause(bookie, seconds)),
                ("bookies cut off", lambda: self._cut_off(self._links[number], seconds)),
                ("disks wiped", lambda: self._wipe(cluster, victim, bk)),
                ("writers killed", lane.kill),
                ("writers replaced while stopped", lane.replace),
            ]
        )

    async def _kill(self, cluster: LocalCluster, bookie: BookieProcess, seconds: float) -> None:
        await bookie.kill()
        await asyncio.sleep(seconds)
        await self._start(cluster, bookie)

    async def _pause(self, bookie: BookieProcess, seconds: float) -> None:
        assert bookie.pid is not None, "bookies run between faults"
        os.kill(bookie.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(bookie.pid, signal.SIGCONT)

    async def _cut_off(self, link: NetworkLink, seconds: float) -> None:
        link.silence()
        try:
            await asyncio.sleep(seconds)
        finally:
            link.resume()

    async def _wipe(self, cluster: LocalCluster, bookie: BookieProcess, bk: BookKeeper) -> None:
        """Replace a bookie's disks with empty disks, and delete its cookie as an operator does."""
        await bookie.kill()
        cookies = CookieManager(bk._logs.store)
        cookie = await cookies.read(bookie.id)
        if cookie is not None:
            await cookies.delete(bookie.id, cookie.version)
        for name in ("journal", "ledgers"):
            await asyncio.to_thread(shutil.rmtree, bookie.directory / name)
        await self._start(cluster, bookie)

    async def _until_whole(self, bk: BookKeeper, when: str) -> None:
        """Wait until every bookie is registered, and then each writer got new acknowledgements."""
        try:
            async with asyncio.timeout(WHOLE_SECONDS_MAX):
                while len(bk.bookies()) < BOOKIES:  # noqa: ASYNC110  (no event reports this)
                    await asyncio.sleep(0.05)
                for lane in self._lanes:
                    await lane.progress()
        except TimeoutError as error:
            raise StuckError(
                f"nothing was acknowledged for {WHOLE_SECONDS_MAX:g} s {when}"
            ) from error

    # ---- the end

    async def _come_to_rest(self, bk: BookKeeper, clients: TortureClients) -> None:
        """End the writers, close and read the log, and wait until all clients have read the log."""
        for lane in self._lanes:
            await lane.end()
        try:
            async with asyncio.timeout(WHOLE_SECONDS_MAX):
                async with bk.open_log(LOG, create=False) as log:
                    self.outcome.owners = sum(map(log.epoch, log.partitions))
                for number, lane in enumerate(self._lanes):
                    lane.history.log = await read_all(bk, LOG, number)
                while clients.behind():  # noqa: ASYNC110  (no event reports this)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.outcome.findings.append(
                f"stuck: {WHOLE_SECONDS_MAX:g} s after the last fault {_some(clients.behind())}"
            )


def _some(found: list[str]) -> str:
    return ", ".join(found) or "the log could not be read"


async def _tick(advance: Callable[[int], None]) -> None:
    while True:
        await asyncio.sleep(1)
        advance(1)

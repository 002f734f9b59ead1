"""Faults of a simulated cluster; each fault begins, lasts some time, and is healed.

The number of bookies that lose their data is limited. This number must be smaller than the smallest
ack quorum, because otherwise acknowledged entries may be lost. All other faults may happen at any
time, in any number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_status
from bookie.errors import BookieError
from bookie.testing.simulation.disk_faults import Fault
from bookie.testing.simulation.machine import Left, SimulatedMachine
from bookie.testing.simulation.simulated_cluster import (
    SESSION_SECONDS,
    SimulatedBookie,
    SimulatedCluster,
    SimulatedSession,
)
from bookie.testing.simulation.simulated_network import LATE_SECONDS, PROCESS, SimulatedProcess

RESTART_SECONDS = ((0.05, 0.3), (0.1, 4.0), (0.1, 4.0))
"""Ranges of seconds until a bookie starts again; with the first range, almost at once."""

LOST_SHARE = 0.4
"""The share of transactions whose replies are lost while this fault of the metadata store lasts."""

FAULTS = (
    "kill",
    "power",
    "power after a fence",
    "blackout",
    "blackout after a fence",
    "stop",
    "wipe",
    "older",
    "pause",
    "cut both ways",
    "cut one way",
    "slow link",
    "slow network",
    "reset",
    "late requests",
    "lost replies",
    "slow metadata",
    "no metadata",
    "held watches",
    "expired session",
    "wall clock",
    "slow sync",
    "disk error",
)
"""Every kind of fault; each kind is a method of `ClusterFaults`, and a run uses some kinds."""


class ClusterFaults:
    """The faults of one seed; `run` causes faults until cancelled, and `heal` ends all faults."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        kinds: tuple[str, ...],
        pause_seconds: float,
        losses_max: int,
        on_destroyed: Callable[[SimulatedBookie], None] = lambda _: None,
    ) -> None:
        """`on_destroyed` is called with a bookie that loses data or returns to an older state."""
        self.cluster = cluster
        self.kinds = kinds
        self.pause_seconds = pause_seconds
        self.losses_max = losses_max
        self._destroyed = on_destroyed
        self.choose = random.Random(f"faults/{cluster.seed}")
        self.lost: dict[str, None] = {}
        """The bookies that lost their data or returned to an older state, by host."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._held: dict[str, asyncio.Event] = {}
        """The bookies that supervisors may not start now, by host."""

    async def run(self) -> None:
        """Begin faults until cancelled, with random pauses; several faults may overlap."""
        while True:
            await asyncio.sleep(self.choose.expovariate(1 / self.pause_seconds))
            kind = self.choose.choice(self.kinds)
            self._under_way = {task for task in self._under_way if not task.done()}
            self._under_way.add(
                self.cluster.loop.create_task(self._carry_out(kind), name=f"fault {kind}")
            )

    async def heal(self) -> None:
        """End every fault, in the order in which the faults began."""
        tasks = sorted(self._under_way, key=hash)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def supervise(self) -> None:
        """For each bookie, start a supervisor that restarts the bookie after each end."""
        for bookie in self.cluster.bookies:
            name = f"supervisor of {bookie.host}"
            self._keepers.append(self.cluster.loop.create_task(self._supervise(bookie), name=name))

    async def end(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        for bookie in self.cluster.bookies:
            bookie.kill()
            await bookie.until_ended()

    async def _supervise(self, bookie: SimulatedBookie) -> None:
        while True:
            await bookie.until_ended()
            await asyncio.sleep(self.choose.uniform(*self.choose.choice(RESTART_SECONDS)))
            while (held := self._held.get(bookie.host)) is not None:
                await held.wait()
            if not bookie.is_running:
                bookie.start()

    async def _carry_out(self, kind: str) -> None:
        self.cluster.note(f"fault: {kind}")
        seconds = self.choose.choice((0.2, 1.0, 2.5, 8.0)) * (0.5 + self.choose.random())
        begin: Callable[[float], Awaitable[None]] = getattr(self, f"_{kind.replace(' ', '_')}")
        with contextlib.suppress(TimeoutError):
            await begin(seconds)

    # --- processes and disks -------------------------------------------------------------

    def _bookie(self) -> SimulatedBookie:
        return self.choose.choice(self.cluster.bookies)

    async def _kill(self, _: float) -> None:
        bookie = self._bookie()
        if bookie.is_running:
            self.cluster.note(f"kill {bookie.host}")
            self.cluster.count("bookie killed")
            bookie.kill()

    async def _power(self, _: float) -> None:
        self._cut_power(self._bookie())

    def _cut_power(self, bookie: SimulatedBookie) -> None:
        if bookie.is_running:
            self.cluster.note(f"power cut of {bookie.host}")
            self.cluster.count("power cut")
            bookie.kill(power=True)

    async def _power_after_a_fence(self, seconds: float) -> None:
        """Cut the power of a bookie shortly after the bookie has answered a fence."""
        self._cut_power(await self._next_fenced(seconds))

    async def _blackout_after_a_fence(self, seconds: float) -> None:
        """Cut the power of all bookies shortly after one bookie has answered a fence."""
        await self._next_fenced(seconds)
        self._cut_all_power(self.cluster.bookies)

    async def _next_fenced(self, seconds: float) -> SimulatedBookie:
        """Wait until a bookie has answered a fence, and the client may have got the answer."""
        fenced: asyncio.Future[SimulatedBookie] = self.cluster.loop.create_future()
        self.cluster.awaited_fences.append(fenced)
        async with asyncio.timeout(seconds):
            bookie = await fenced
        await asyncio.sleep(self.choose.uniform(0, 0.01))
        self.cluster.count("power cut after a fence")
        return bookie

    async def _blackout(self, _: float) -> None:
        """Cut the power of several machines, perhaps of all, at the same moment."""
        bookies = list(self.cluster.bookies)
        if self.choose.random() < 0.5:
            bookies = self.choose.sample(bookies, self.choose.randint(2, len(bookies)))
        self._cut_all_power(bookies)

    def _cut_all_power(self, bookies: list[SimulatedBookie]) -> None:
        self.cluster.note(f"blackout of {[bookie.host for bookie in bookies]}")
        self.cluster.count("blackout")
        for bookie in bookies:
            bookie.kill(power=True)

    async def _stop(self, _: float) -> None:
        bookie = self._bookie()
        self.cluster.note(f"stop {bookie.host}")
        await bookie.stop()

    def _may_lose(self, bookie: SimulatedBookie) -> bool:
        if bookie.host in self._held:
            return False
        if bookie.host not in self.lost and len(self.lost) >= self.losses_max:
            return False
        self.lost[bookie.host] = None
        return True

    @contextlib.contextmanager
    def _hold(self, bookie: SimulatedBookie) -> Iterator[None]:
        held = self._held[bookie.host] = asyncio.Event()
        try:
            yield
        finally:
            del self._held[bookie.host]
            held.set()

    async def _wipe(self, seconds: float) -> None:
        """Replace the bookie's disks, and delete its cookie as an operator does."""
        bookie = self._bookie()
        if not self._may_lose(bookie):
            return
        with self._hold(bookie):
            self.cluster.note(f"wipe {bookie.host}")
            bookie.kill()
            await bookie.until_ended()
            deleting = self.cluster.loop.create_task(self._forget_cookie(bookie.host))
            try:
                await asyncio.sleep(seconds)
                await asyncio.shield(deleting)
            finally:
                # The operator finishes the wipe, even if the fault is healed meanwhile.
                bookie.left = Left(boots=bookie.left.boots + 1, lives=bookie.lives)
                self._destroyed(bookie)
                while not deleting.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.shield(deleting)
                bookie.wipes += 1
                self.cluster.count("wiped bookie returned")

    async def _forget_cookie(self, bookie_id: str) -> None:
        """Delete a bookie's cookie like `bookie cookie delete --force`; retry until this works."""
        admin = SimulatedProcess("admin")
        PROCESS.set(admin)
        while True:
            try:
                async with SimulatedSession(self.cluster, admin) as store:
                    status = await read_status(store)
                    if bookie_id in {*status.writable, *status.read_only}:
                        await asyncio.sleep(0.2)
                        continue
                    cookies = CookieManager(store)
                    found = await cookies.read_latest(bookie_id)
                    if found is not None:
                        await cookies.delete(bookie_id, found.version)
                    return
            except BookieError:
                await asyncio.sleep(0.2)

    async def _older(self, seconds: float) -> None:
        """Stop a bookie and copy its disk; later restore this older state."""
        bookie = self._bookie()
        if not bookie.is_serving or not self._may_lose(bookie):
            return
        with self._hold(bookie):
            await bookie.stop()
            await bookie.until_ended()
            copy, wipes = bookie.left, bookie.wipes
        await asyncio.sleep(max(seconds, RESTART_SECONDS[-1][1]))
        if bookie.host in self._held or bookie.wipes != wipes:
            # The copy has the bookie's identity from before the wipe, so a bookie with this copy
            # could never start.
            return
        with self._hold(bookie):
            self.cluster.note(f"older state of {bookie.host}")
            bookie.kill()
            await bookie.until_ended()
            bookie.left = replace(copy, boots=bookie.left.boots + 1, lives=bookie.lives)
            self._destroyed(bookie)
            self.cluster.count("older bookie returned")

    async def _wall_clock(self, _: float) -> None:
        machine = self._bookie().machine
        if machine is not None:
            machine.clock.started += self.choose.choice((-3600.0, -5.0, 5.0, 86400.0))

    async def _slow_sync(self, seconds: float) -> None:
        machine = self._bookie().machine
        if machine is not None:
            _arm(machine, Fault("fdatasync", "journal", "stall", seconds=min(seconds, 2), times=3))

    async def _disk_error(self, _: float) -> None:
        machine = self._bookie().machine
        if machine is not None:
            call = self.choose.choice(("fdatasync", "pwritev", "kv_sync"))
            _arm(machine, Fault(call, "", errno=errno.EIO))
            self.cluster.count("disk failed")

    # --- the network ---------------------------------------------------------------------

    def _hosts(self) -> list[str]:
        return sorted({*self.cluster.live_processes, *(b.host for b in self.cluster.bookies)})

    async def _cut(self, links: list[tuple[str, str]], seconds: float) -> None:
        network = self.cluster.network
        for source, target in links:
            network.cut(source, target)
        try:
            await asyncio.sleep(seconds)
        finally:
            for source, target in links:
                network.heal(source, target)

    async def _pause(self, seconds: float) -> None:
        """Separate a bookie for a time from all other processes and the metadata store."""
        bookie = self._bookie()
        self.cluster.note(f"pause {bookie.host} for {seconds:.3f} s")
        others = [host for host in self._hosts() if host != bookie.host]
        links = [(bookie.host, host) for host in others] + [(host, bookie.host) for host in others]
        session = bookie.session
        if session is not None and bookie.is_serving:
            session.disconnect()
        try:
            await self._cut(links, seconds)
        finally:
            if session is not None and bookie.session is session and bookie.is_running:
                self._reconnect(session)

    async def _cut_both_ways(self, seconds: float) -> None:
        hosts = self._hosts()
        self.choose.shuffle(hosts)
        split = self.choose.randint(1, max(1, len(hosts) // 2))
        left, right = hosts[:split], hosts[split:]
        self.cluster.note(f"cut {left} off")
        links = [(a, b) for a in left for b in right] + [(b, a) for a in left for b in right]
        await self._cut(links, seconds)

    async def _cut_one_way(self, seconds: float) -> None:
        hosts = self._hosts()
        source = self.choose.choice(hosts)
        targets = [host for host in hosts if host != source and self.choose.random() < 0.5]
        self.cluster.note(f"cut {source} -> {targets}")
        links = [(source, target) for target in targets]
        if self.choose.random() < 0.5:
            links = [(target, source) for source, target in links]
        await self._cut(links, seconds)

    async def _slow_link(self, seconds: float) -> None:
        host = self.choose.choice(self._hosts())
        with self.cluster.network.slow([host], self.choose.choice((0.02, 0.2, 0.9))):
            await asyncio.sleep(seconds)

    async def _slow_network(self, seconds: float) -> None:
        """Slow down every bookie's links for a time, so that answers arrive in any order."""
        hosts = [bookie.host for bookie in self.cluster.bookies]
        with self.cluster.network.slow(hosts, self.choose.choice((0.1, 0.4))):
            await asyncio.sleep(seconds)

    async def _late_requests(self, seconds: float) -> None:
        """Make clients drop connections that carry slow adds; the clients then reconnect."""
        bookie = self._bookie()
        process = bookie.process
        with self.cluster.network.slow([bookie.host], 0.2):
            async with asyncio.timeout(seconds):
                while process is None or not any(item.carries_adds for item in process.connections):
                    await asyncio.sleep(0.05)
                    process = bookie.process
        for connection in list(process.connections):
            if connection.carries_adds or self.choose.random() < 0.5:
                connection.leave_behind(self.choose.uniform(*LATE_SECONDS))
                self.cluster.count("connection left behind")

    async def _reset(self, _: float) -> None:
        bookie = self._bookie()
        process = bookie.process
        if process is None or not process.is_alive:
            return
        for connection in list(process.connections):
            if self.choose.random() < 0.7:
                connection.break_up("the connection was reset")
                self.cluster.count("connection reset")

    # --- the metadata store --------------------------------------------------------------

    def _sessions(self) -> list[SimulatedSession]:
        bookies = [bookie.session for bookie in self.cluster.bookies if bookie.is_serving]
        clients = [
            session
            for client in self.cluster.clients
            if client.process.is_alive
            for session in client.sessions
        ]
        return [item for item in (*bookies, *clients) if item is not None and item.is_entered]

    @staticmethod
    def _reconnect(session: SimulatedSession) -> None:
        if session.is_entered:
            session.reconnect()

    async def _lost_replies(self, seconds: float) -> None:
        before = self.cluster.lost_replies
        if before >= LOST_SHARE:
            return
        self.cluster.lost_replies = LOST_SHARE
        try:
            await asyncio.sleep(seconds)
        finally:
            self.cluster.lost_replies = before

    async def _slow_metadata(self, seconds: float) -> None:
        self.cluster.slow_metadata += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.cluster.slow_metadata -= 1

    async def _no_metadata(self, seconds: float) -> None:
        sessions = [item for item in self._sessions() if self.choose.random() < 0.6]
        for session in sessions:
            session.disconnect()
        try:
            await asyncio.sleep(min(seconds, 2 * SESSION_SECONDS))
        finally:
            for session in sessions:
                self._reconnect(session)

    async def _held_watches(self, seconds: float) -> None:
        sessions = [item for item in self._sessions() if self.choose.random() < 0.5]
        for session in sessions:
            session.hold_watches()
        try:
            await asyncio.sleep(seconds)
        finally:
            for session in sessions:
                if session.is_entered:
                    session.release_watches()

    async def _expired_session(self, _: float) -> None:
        sessions = self._sessions()
        if sessions:
            self.cluster.count("session expired")
            self.choose.choice(sessions).expire_session()


def _arm(machine: SimulatedMachine, fault: Fault) -> None:
    machine.disk.faults.insert(0, fault)

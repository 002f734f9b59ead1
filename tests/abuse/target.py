"""One ``bookie serve`` process that is abused, a client that keeps the rules, and what they suffer.

A test starts a `Target`, and abuses it in the block of `Target.under_attack`. Meanwhile the honest
client appends, and somebody asks ``/readyz`` and ``/metrics``. Then the figures are judged and
printed. By `FACTOR` they may be worse than what we promise, because machines are busy.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from grpc import aio

from bookie.cluster.instance import read_instance_id
from bookie.daemon.local.process import child_environment
from bookie.metadata.connect import open_store
from tests.fault.daemon_process import Daemon, Home, new_home, serving
from tests.fault.raw_calls import RawBookie
from tests.unit.wire.http2_peer import SETTINGS, Peer

MIB = 1024 * 1024
GROWTH_MIB_MAX = 300
"""The most memory beyond that of the idle bookie."""

RATE_SHARE_MIN = 0.5
"""The least rate of the honest client, as a part of its rate before."""

DELAY_FACTOR_MAX = 5.0
"""The most by which the 99th percentile of its appends may grow."""

FACTOR = 5.0
"""The margin of those two in assertions."""

DELAY_SECONDS = 0.05
"""A delay below is not told from the noise of a busy machine."""

HOSTILE_ADDRESS = "127.0.0.2"
"""Another machine than that of the honest client, as far as the bookie knows."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

CALM_SECONDS = 2.0
"""The time without an attack, from which the figures before it come."""

PAGE_SECONDS_MAX = 60.0
"""A page comes at once; no page at all takes longer than this, even on a busy machine."""


@dataclass
class Figures:
    """What was seen during an attack."""

    idle_mib: float
    most_mib: float = 0.0
    pages: int = 0
    pages_failed: int = 0
    """Those whose connection was closed; who asks for a page asks again."""
    page_seconds_max: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What the attack itself counted."""

    def note(self, text: str) -> None:
        """Add to the printed line."""
        self.notes.append(text)


class HonestClient:
    """The process of `honest_client`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.appends: list[tuple[float, float]] = []
        """Of each acknowledged append: when it began, and how many seconds it took."""
        self.ledger_id = -1
        self._last: dict[str, int] = {}

    async def follow(self) -> None:
        """Read what it says until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if "at" in said:
                self.appends.append((said["at"], said["seconds"]))
            elif "ledger_id" in said:
                self.ledger_id = said["ledger_id"]
            else:
                self._last = said

    def stop(self) -> None:
        """Let it read everything back."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def check(self) -> int:
        """Check that all it was told is there; the number of its appends."""
        assert await self._process.wait() == 0
        assert self._last["wrong"] == 0
        assert self._last["appended"] == self._last["found"] == len(self.appends)
        return self._last["appended"]

    def rate_and_delay(self, began: float, ended: float) -> tuple[float, float]:
        """Appends a second that were acknowledged in a time, and their 99th percentile."""
        seconds = sorted(took for at, took in self.appends if began <= at + took <= ended)
        if not seconds:
            return 0.0, float("inf")
        return len(seconds) / (ended - began), seconds[int(0.99 * (len(seconds) - 1))]


class Target:
    """A bookie, and how to reach it."""

    def __init__(self, home: Home, daemon: Daemon, instance_id: str, honest: HonestClient) -> None:
        self.home = home
        self.daemon = daemon
        self.instance_id = instance_id
        self.honest = honest
        self.port = int(str(home.sections["listen"]["port"]))
        self.http_port = int(str(home.sections["http"]["port"]))

    @property
    def resident_mib(self) -> float:
        """The memory of the process."""
        pages = Path(f"/proc/{self.daemon.process.pid}/statm").read_text(encoding="ascii")
        return int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB

    @property
    def cpu_seconds(self) -> float:
        """The time of processors that the process has used."""
        stat = Path(f"/proc/{self.daemon.process.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @asynccontextmanager
    async def peer(self, *, introduced: bool = True) -> AsyncIterator[Peer]:
        """A hand-made connection of a machine of its own, whose calls name the cluster."""
        streams = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(HOSTILE_ADDRESS, 0)
        )
        peer = Peer(*streams)
        peer.instance_id = self.instance_id
        if introduced:
            peer.writer.write(PREFACE)
            peer.frame(SETTINGS, 0, 0, b"")
        try:
            yield peer
        finally:
            peer.writer.transport.abort()  # what was not taken stays unsent

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[RawBookie]:
        """Calls by gRPC's own client, which bounds nothing that it sends."""
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        async with aio.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            yield RawBookie(channel, self.instance_id)

    @asynccontextmanager
    async def under_attack(
        self, name: str, tell: Callable[[str, object], None]
    ) -> AsyncIterator[Figures]:
        """Measure, let the block attack, judge, and print a line."""
        calm = time.monotonic()
        await asyncio.sleep(CALM_SECONDS)
        began, figures = time.monotonic(), Figures(self.resident_mib)
        used = self.cpu_seconds
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(figures))
            asking = tasks.create_task(self._ask(figures))
            yield figures
            ended = time.monotonic()
            used = self.cpu_seconds - used
            await self._page("readyz")  # it answers after the attack, too
            watching.cancel()
            asking.cancel()
        assert self.daemon.process.returncode is None
        rate, delay = self.honest.rate_and_delay(calm, began)
        self.honest.stop()
        appended = await self.honest.check()
        rate_then, delay_then = self.honest.rate_and_delay(began, ended)
        growth = figures.most_mib - figures.idle_mib
        line = (
            f"{name}: {ended - began:.1f} s, {', '.join(figures.notes)}; honest"
            f" {rate:.0f}/s p99 {1000 * delay:.0f} ms -> {rate_then:.0f}/s p99"
            f" {1000 * delay_then:.0f} ms, {appended} read back; memory"
            f" {figures.idle_mib:.0f} + {growth:.0f} MiB, {used:.1f} s of CPU;"
            f" {figures.pages} pages, {figures.pages_failed} failed,"
            f" the slowest {figures.page_seconds_max:.2f} s"
        )
        within = rate_then >= RATE_SHARE_MIN * rate and delay_then <= DELAY_FACTOR_MAX * max(
            delay, DELAY_SECONDS
        )
        line += "; within what is promised" if within else "; BEYOND WHAT IS PROMISED"
        tell("figures", line)
        print(line)
        assert growth <= GROWTH_MIB_MAX, line
        assert figures.pages > figures.pages_failed, line
        assert rate_then >= RATE_SHARE_MIN * rate / FACTOR, line
        assert delay_then <= FACTOR * DELAY_FACTOR_MAX * max(delay, DELAY_SECONDS), line

    async def _watch(self, figures: Figures) -> None:
        while True:
            figures.most_mib = max(figures.most_mib, self.resident_mib)
            await asyncio.sleep(0.1)

    async def _ask(self, figures: Figures) -> None:
        while True:
            for name in ("readyz", "metrics"):
                began = time.monotonic()
                try:
                    await self._page(name)
                    figures.pages += 1
                except aiohttp.ClientConnectionError:
                    figures.pages_failed += 1
                took = time.monotonic() - began
                figures.page_seconds_max = max(figures.page_seconds_max, took)
            await asyncio.sleep(0.25)

    async def _page(self, name: str) -> str:
        url = f"http://127.0.0.1:{self.http_port}/{name}"
        limit = aiohttp.ClientTimeout(PAGE_SECONDS_MAX)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as answer:
            assert answer.status == 200
            return await answer.text()

    async def metric(self, sample: str) -> float:
        """The value of one of its metrics, by name and labels."""
        lines = (await self._page("metrics")).splitlines()
        (line,) = (line for line in lines if line.startswith(f"{sample} "))
        return float(line.split()[-1])


async def _read_on(lines: Any, kept: list[str]) -> None:
    """Read a log: a full pipe would stop the process."""
    while line := await lines.readline():
        kept.append(line.decode().rstrip())


@asynccontextmanager
async def target_in(path: Path, **sections: dict[str, object]) -> AsyncIterator[Target]:
    """A bookie with these settings, and its honest client."""
    home = await new_home(path)
    home.sections |= sections
    async with open_store(home.metadata_uri) as store:
        instance_id = await read_instance_id(store)
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(serving(home.write()))
        await daemon.until("registered")
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        reading = tasks.create_task(_read_on(daemon.process.stderr, daemon.lines))
        stack.callback(reading.cancel)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.abuse.honest_client", home.metadata_uri),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(os.environ),
        )
        stack.push_async_callback(_end, process)
        honest = HonestClient(process)
        tasks.create_task(honest.follow())
        async with asyncio.timeout(PAGE_SECONDS_MAX):
            while not honest.appends:  # noqa: ASYNC110  (a process tells by lines)
                await asyncio.sleep(0.02)
        yield Target(home, daemon, instance_id, honest)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()

"""The crash harness on devices that lose their power.

A life ends in one of three moments: under load, while the bookie boots, or after a kill at a
failpoint. Each time the power is cut, and unsynced bytes are gone. Then the devices get power
again, and the machine has another boot id.

The bookie must keep every promise it made, in its ordinary way: it reports no corruption and skips
the integrity check.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookie.daemon.local.layout import LocalBookie
from bookie.daemon.local.process import BookieProcess
from bookie.errors import ShuttingDownError
from bookie.wire.client.channel import BookieChannel
from tests.fault.crash_harness import SETTINGS, CrashHarness, Kill
from tests.fault.test_crash_kill import series
from tests.system.devices import Volume
from tests.system.driven_bookie import EXIT_DISK_FAILED
from tests.system.tracing import TracedProcess, log_events

LINGER_SECONDS_MAX = 0.1
BOOT_SECONDS_GUESS = 1.0
ALARMS = {"corruption", "limbo"}
"""Events that say that a bookie does not trust its data any more."""


@dataclass(frozen=True, slots=True)
class Cut(Kill):
    """How a life ends by power: at a failpoint, after a time of load, or while the bookie boots."""

    booting: bool = False
    """`after_seconds` is then a share of the time that a boot takes."""
    volumes: tuple[int, ...] = ()
    """Which devices lose their power; none named means all."""
    wait: bool = False
    """The bookie has to find out and end by itself; otherwise it is killed soon after."""


def cuts(seed: int) -> list[Kill]:
    """The series of kills of that seed, each followed by a power cut, and cuts while booting."""
    lives: list[Kill] = []
    for index, kill in enumerate(series(seed)):
        lives.append(Cut(kill.failpoint, kill.after_seconds))
        if index % 4 == 2:
            share = 0.4 + 0.006 * ((index * 37 + seed * 17) % 100)
            lives.append(Cut(after_seconds=share, booting=True))
    return lives


class PowerHarness(CrashHarness):
    """One bookie on volumes that lose their power after each life."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        volumes: Sequence[Volume],
        *,
        boot_id: Path,
        inject: Sequence[str] = (),
        cut_power: bool = True,
    ) -> None:
        """A bookie whose journal is on the first volume and whose ledgers are on the last.

        Args:
            directory: for settings, the log and the cluster's metadata; it never loses power.
            seed: of everything that is left to chance.
            volumes: one or two, mounted.
            boot_id: the file that says which start of the machine this is.
            inject: options of strace, for a kernel that does not do what it says.
            cut_power: false lets lives end by SIGKILL alone.
        """
        self._volumes = list(volumes)
        self._boot_id = boot_id
        self._inject = inject
        self._cut_power = cut_power
        self._boot_seconds = BOOT_SECONDS_GUESS
        self._events_read = 0
        storage = {
            **SETTINGS["storage"],
            "journal_dir": f"{volumes[0].path}/journal",
            "ledgers_dir": f"{volumes[-1].path}/ledgers",
        }
        settings = {**SETTINGS, "storage": storage, "log": {"format": "json"}}
        super().__init__(directory, seed, settings)

    async def live(self, kill: Kill) -> None:
        """One life, and the restart of the machine after it."""
        await super().live(kill)
        if self._cut_power:
            self._power_cycle(kill)

    def _power_cycle(self, kill: Kill) -> None:
        """What lost no power before loses it now, and everything is mounted again."""
        chosen = kill.volumes if isinstance(kill, Cut) and kill.volumes else None
        for index, volume in enumerate(self._volumes):
            if chosen is None and not self.device_fails:
                volume.cut()
            if chosen is None or index in chosen:
                volume.restore()
        # A device that came back on a machine that went on is the harder case for the boot.
        if chosen is None and self.random.random() < 0.8:
            self._boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        self.device_fails = self.journal_is_gone = False

    def _cut(self, kill: Kill) -> None:
        self.device_fails = True
        chosen = kill.volumes if isinstance(kill, Cut) else ()
        # Where the power really fails, nobody hears an answer after it. Here the process lives on,
        # and a sync that is under way while ext4 is shut down may report success. It waits for the
        # end of its transaction, and an abort looks the same.
        self.journal_is_gone = 0 in (chosen or (0,))
        for index in chosen or range(len(self._volumes)):
            self._volumes[index].cut()

    # --- how lives begin and end -------------------------------------------------------------

    def _new_process(self, member: LocalBookie, directory: Path) -> BookieProcess:
        return TracedProcess(member, directory, options=tuple(self._inject))

    async def _boot(self, kill: Kill) -> tuple[int, bool]:
        if not (isinstance(kill, Cut) and kill.booting):
            began = asyncio.get_running_loop().time()
            result = await super()._boot(kill)
            self._boot_seconds = asyncio.get_running_loop().time() - began
            self._check_log()
            return result
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._start_or_end())
            await asyncio.wait((starting,), timeout=kill.after_seconds * self._boot_seconds)
            self._cut(kill)
            await asyncio.sleep(self.random.uniform(0, LINGER_SECONDS_MAX))
            if self._process.pid is not None:
                await self._process.kill()
        assert self._ended_rightly(), self._story()
        self._check_log()
        return 1, True

    async def _start_or_end(self) -> None:
        with contextlib.suppress(ShuttingDownError):
            await self._process.start()

    async def _load_until_killed(self, channel: BookieChannel, kill: Kill) -> bool:
        async with asyncio.TaskGroup() as tasks:
            writing_back = tasks.create_task(self._write_back())
            by_itself = await super()._load_until_killed(channel, kill)
            writing_back.cancel()
        return by_itself

    async def _write_back(self) -> None:
        """The kernel writes dirty pages when it likes: a cut then leaves some of what is new."""
        while not self.device_fails and not self._inject:
            self.random.choice(self._volumes).write_back_some(self.random)
            await asyncio.sleep(self.random.uniform(0, 0.02))

    async def _end(self, kill: Kill) -> None:
        if self._cut_power:
            self._cut(kill)
            if isinstance(kill, Cut) and kill.wait:
                await self._process.wait()
                return
            await asyncio.sleep(self.random.uniform(0, LINGER_SECONDS_MAX))
        if self._process.pid is not None:
            await self._process.kill()

    def _ended_rightly(self) -> bool:
        if not self.device_fails:
            return self._process.exit_status == -9
        # The index is read through a map: a page that the device does not bring is a SIGBUS.
        return self._process.exit_status in (-9, EXIT_DISK_FAILED, -signal.SIGBUS)

    # --- what it says ------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """What the bookie logged since this was asked last."""
        events = log_events(self._process.log_path)
        new, self._events_read = events[self._events_read :], len(events)
        return new

    def _check_log(self) -> None:
        """The bookie never doubts what it has after a power cut, let alone loses it."""
        for event in self.events():
            assert event["event"] not in ALARMS, f"{event}{self._story()}"
            if event["event"] == "engine_started":
                assert not event["rebuilt"], f"{event}{self._story()}"

    async def finish(self) -> None:
        """Boot once more, check every promise, and stop in order."""
        await super().finish()
        self._check_log()

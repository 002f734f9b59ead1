"""Makes a bookie read-only before a device is full, and writable again when there is room.

Two thresholds avoid rapid changes: above `disk_usage_max` the bookie refuses new entries, below
`disk_usage_low_watermark` the bookie accepts entries again. After a device was full, there must
also be room for the next growth step of a journal file and for the reserve
(`Directories.has_room`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from bookie.config import NodeSettings
from bookie.env import DiskUsage, Pause
from bookie.node.bookie import Bookie
from bookie.node.engine.engine import Engine
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

DISK_USAGE = "disk usage"
"""The name of the reason for read-only mode that the disk watch adds."""

CHECK_INTERVAL_SECONDS = 1.0
"""The time between two checks of the devices; when space is freed, writers wait at most this
long."""


class DiskWatch:
    """Checks how full the devices of one bookie are."""

    def __init__(
        self,
        bookie: Bookie,
        engine: Engine,
        settings: NodeSettings,
        metrics: Metrics,
        usages: Callable[[], dict[str, DiskUsage]],
        has_room: Callable[[], Awaitable[bool]],
    ) -> None:
        """`has_room` returns True if devices that were full have room for entries again."""
        self._bookie = bookie
        self._engine = engine
        self._settings = settings
        self._interval = Pause()
        self._metrics = metrics
        self._usages = usages
        self._has_room = has_room

    @property
    def settings(self) -> NodeSettings:
        """The settings with the watermarks; after a change, the devices are checked at once."""
        return self._settings

    @settings.setter
    def settings(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._interval.end()

    async def look(self) -> None:
        """Check the devices once; the event loop reads free space, a thread does the other work.

        Raises:
            OSError: a device failed.
        """
        fullest = 0.0
        for name, usage in self._usages().items():
            self._metrics.disk_free_bytes.labels(name).set(usage.free_bytes)
            self._metrics.disk_total_bytes.labels(name).set(usage.total_bytes)
            if usage.total_bytes:
                fullest = max(fullest, 1 - usage.free_bytes / usage.total_bytes)
        if fullest > self._settings.disk_usage_max:
            self._bookie.set_read_only(DISK_USAGE, read_only=True)
        elif fullest < self._settings.disk_usage_low_watermark:
            self._bookie.set_read_only(DISK_USAGE, read_only=False)
            # A low usage is not enough: on a small device, the next journal file may exceed the
            # free space.
            if await self._has_room():
                await self._engine.device_has_room()

    async def run(self) -> NoReturn:
        while True:
            try:
                await self.look()
            except OSError as error:
                # The engine handles a failed device.
                _log.warning("disk_watch_failed", reason=str(error))
            await self._interval.wait(lambda: CHECK_INTERVAL_SECONDS)

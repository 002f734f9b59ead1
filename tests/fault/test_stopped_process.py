"""A bookie that the system stops for longer than a sync may take goes on when it is continued."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from bookie.api import WriterHandle, connect
from tests.fault.daemon_process import Daemon, new_home, serving
from tests.unit.ledger.real_cluster import until

SYNC_FAIL_SECONDS = 4.0
"""More than a sync takes on a busy machine: only the stop may look like a dead device."""

STOPPED_SECONDS = SYNC_FAIL_SECONDS + 0.5
APPENDS_IN_FLIGHT = 64
PAYLOAD_BYTES = 64 * 1024


class Load:
    """Appends in flight at all times, so that the journal always has something to sync."""

    def __init__(self, writer: WriterHandle) -> None:
        self._writer = writer
        self.acknowledged: dict[int, bytes] = {}
        self._next = 0

    async def run(self) -> None:
        """Append without an end; any error ends the test."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(APPENDS_IN_FLIGHT):
                tasks.create_task(self._append())

    async def _append(self) -> None:
        while True:
            payload = b"%d" % self._next
            self._next += 1
            payload = payload.ljust(PAYLOAD_BYTES, b".")
            self.acknowledged[await self._writer.append(payload)] = payload[:20]

    async def goes_on(self, daemon: Daemon) -> None:
        """Wait until more entries were acknowledged than could be under way, or the bookie ends."""
        wanted = len(self.acknowledged) + 2 * APPENDS_IN_FLIGHT
        process = daemon.process
        await until(lambda: process.returncode is not None or len(self.acknowledged) >= wanted)
        assert process.returncode is None, f"the bookie exited with {process.returncode}"


async def stop_for_a_while(daemon: Daemon) -> None:
    """SIGSTOP, and SIGCONT after longer than a sync may take."""
    daemon.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_SECONDS)
    daemon.process.send_signal(signal.SIGCONT)


async def test_a_stop_is_no_dead_device(tmp_path: Path) -> None:
    """Under load, three times: the bookie serves on, and has all that it acknowledged."""
    home = await new_home(tmp_path)
    home.sections["storage"] |= {
        "sync_warn_seconds": SYNC_FAIL_SECONDS / 2,
        "sync_fail_seconds": SYNC_FAIL_SECONDS,
    }
    home.sections["metadata"]["session_timeout_seconds"] = 60.0
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        async with connect(
            home.metadata_uri, session_timeout_seconds=60.0, add_timeout_seconds=60.0
        ) as client:
            writer = await client.create_ledger(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
            )
            load = Load(writer)
            async with asyncio.TaskGroup() as tasks:
                appending = tasks.create_task(load.run())
                try:
                    for _ in range(3):
                        await load.goes_on(daemon)
                        await stop_for_a_while(daemon)
                    await load.goes_on(daemon)
                finally:
                    appending.cancel()
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            stored = {
                entry.entry_id: bytes(entry.payload[:20])
                async for entry in reader.read(0, reader.last_entry_id)
            }
        assert load.acknowledged.items() <= stored.items()
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0

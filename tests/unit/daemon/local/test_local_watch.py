"""The watch over the processes of a local cluster: a bookie that dies while it starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from bookie.daemon.local import supervisor
from bookie.daemon.local.process import BookieProcess
from bookie.daemon.local.supervisor import LocalCluster, watch_processes
from bookie.errors import OperationTimeoutError, ShuttingDownError


class DyingProcess:
    """A bookie that died, dies in its next two starts, and then runs."""

    id = "bookie-1"
    pid = 7
    is_stopping = False

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self.log_path.write_text("a port is taken\n", encoding="utf-8")
        self.failures = [ShuttingDownError("it died"), OperationTimeoutError("it hangs")]
        self.runs = asyncio.Event()
        self._lives = 0

    async def wait(self) -> int:
        self._lives += 1
        if self._lives > 1:
            await asyncio.Event().wait()
        return 1

    async def start(self) -> None:
        if self.failures:
            self.is_stopping = True  # a start that takes too long is killed
            raise self.failures.pop(0)
        self.is_stopping = False
        self.runs.set()


async def test_a_bookie_that_dies_during_its_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it runs, with a longer pause after each failure."""
    monkeypatch.setattr(supervisor, "RESTART_DELAY_SECONDS", 0.01)
    process = DyingProcess(tmp_path / "log")
    watched = LocalCluster(tmp_path, "memory://x", (cast("BookieProcess", process),))
    said: list[str] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch_processes(watched, said.append, restart=True))
        await process.runs.wait()
        await asyncio.sleep(0)
        watching.cancel()
    assert said == [
        "bookie-1 ended with status 1: a port is taken",
        "it died; it is started again in 0.02 s",
        "it hangs; it is started again in 0.04 s",
        "bookie-1 is back, pid 7",
    ]

"""Notifications to systemd and the watch over the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.config import Supervision
from bookie.daemon.loop import observe_loop_lag
from bookie.daemon.systemd import ServiceManager, beat


@pytest.fixture(params=["path", "abstract"])
def manager_socket(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, socket.socket]]:
    """A socket as systemd would listen on, and its name as the environment says it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if request.param == "path":
            name = address = str(tmp_path / "notify")
        else:
            name, address = f"@bookie-test-{os.getpid()}", f"\0bookie-test-{os.getpid()}"
        listener.bind(address)
        listener.settimeout(5)
        yield name, listener


def test_each_state_is_one_datagram(manager_socket: tuple[str, socket.socket]) -> None:
    """Ready, alive and stopping arrive as systemd spells them."""
    name, listener = manager_socket
    manager = ServiceManager(Supervision(name, None))
    manager.ready("serving")
    manager.alive()
    manager.stopping()
    assert [listener.recv(1024).decode() for _ in range(3)] == [
        "READY=1\nSTATUS=serving",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=stopping",
    ]


@pytest.mark.parametrize("address", ["", "/nonexistent/socket"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    """Outside systemd, and when it does not listen, a notification is dropped."""
    ServiceManager(Supervision(address, None)).ready("serving")


async def test_beat_is_at_once_and_again() -> None:
    """The first sign of life does not wait for the interval."""
    beats = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(beat(beats.release, interval_seconds=0.001))
        for _ in range(3):
            await beats.acquire()
        task.cancel()


async def test_a_long_slice_shows_as_lag() -> None:
    """A slice of Python that holds the loop is observed as lag of about its length."""
    lags: asyncio.Queue[float] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(observe_loop_lag(lags.put_nowait, interval_seconds=0.001))
        assert await lags.get() >= 0
        until = loop.time() + 0.05
        while loop.time() < until:
            pass
        observed = [await lags.get()]
        task.cancel()
    assert max(observed) > 0.03

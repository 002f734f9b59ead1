"""Handles signals in the event loop: some signals request a stop, other signals are only logged.

SIGTERM and SIGINT request a stop. SIGHUP requests a stop only in a program that runs in a terminal.
A daemon only logs SIGHUP, because operators send SIGHUP to many daemons to reload files. A daemon
also logs SIGUSR1 and SIGUSR2. Without a handler, SIGHUP, SIGUSR1 or SIGUSR2 would kill the process
silently.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)

NOTED_SIGNALS = (signal.SIGHUP, *USER_SIGNALS)

_PR_SET_PDEATHSIG = 1


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals until `noting` handles them; call `ignore` in the main thread."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def noting(*numbers: signal.Signals, note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` with the name of each of `numbers` that arrives; after the block ignore them."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, note, number.name)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        ignore(*numbers)


@asynccontextmanager
async def until_signal(*, hangup: bool = False) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set by the first SIGTERM or SIGINT within the block.

    A second SIGTERM ends the process at once, and a second SIGINT raises KeyboardInterrupt.

    Args:
        hangup: True lets SIGHUP set the event, too, unless the process ignores SIGHUP (``nohup``).
            A second SIGHUP is ignored, because a closed terminal sends SIGHUP twice.
    """
    loop = asyncio.get_running_loop()
    requested = asyncio.Event()
    heeds_hangup = hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = (*STOP_SIGNALS, signal.SIGHUP) if heeds_hangup else STOP_SIGNALS

    def release() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        if heeds_hangup:
            ignore(signal.SIGHUP)

    def request() -> None:
        requested.set()
        release()

    for number in numbers:
        loop.add_signal_handler(number, request)
    try:
        yield requested
    finally:
        release()


def stop_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGTERM to this process when the parent process ends.

    If the parent has already ended, the function itself sends SIGTERM to this process.

    Args:
        parent: the process id of the parent; the id is 1 if the parent is a container's first
            process. A process whose parent has ended gets another parent, which is not always
            process 1.

    Source: prctl(2), PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)

"""Turn signals into events of the loop, or into log lines that say that they do nothing.

SIGTERM and SIGINT stop a program. SIGHUP stops a program in a terminal. A daemon only logs SIGHUP,
because other daemons reload or reopen files then. A daemon logs SIGUSR1 and SIGUSR2, too. Without a
handler these three signals would kill the process silently.
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
"""Signals that a daemon only logs."""

_PR_SET_PDEATHSIG = 1
_INIT = 1


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals until `noting` handles them; call this in the main thread."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def noting(*numbers: signal.Signals, note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` in the loop with the name of each such signal; after the block ignore them."""
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

    A second signal has its default effect: it ends the process without an orderly stop (SIGINT by
    KeyboardInterrupt).

    Args:
        hangup: SIGHUP stops, too, unless the process was told to ignore it (``nohup``). Two of them
            come from a closed terminal, so a second one is ignored.
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


def stop_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the parent dies; send it now if the parent is dead.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == _INIT:
        os.kill(os.getpid(), signal.SIGTERM)

"""Reads the environment variables that a parent process sets and that are not settings of bookie.

A service manager gives the name of its notification socket, as `sd_notify(3)` describes. A crash
test gives the failpoints at which the process is killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bookie.ids import DIGITS_MAX

FAILPOINT_VARIABLE = "BOOKIE_FAILPOINT"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The parameters for notifying the service manager.

    `notify_socket` is the path of a datagram socket. A leading ``@`` means the abstract namespace;
    without a service manager, the path is empty. If the service manager gets no message from this
    process for `watchdog_seconds`, the manager kills the process. Without a watchdog,
    `watchdog_seconds` is None.
    """

    notify_socket: str
    watchdog_seconds: float | None


def read_supervision(
    pid: int | None = None, environment: Mapping[str, str] | None = None
) -> Supervision:
    """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; a malformed WATCHDOG_USEC is ignored.

    If WATCHDOG_PID is set and differs from `pid`, the result has no watchdog, because the manager
    watches another process.
    """
    variables = os.environ if environment is None else environment
    microseconds = variables.get("WATCHDOG_USEC", "")
    watched = variables.get("WATCHDOG_PID", str(pid or os.getpid()))
    seconds = None
    is_number = microseconds.isdecimal() and len(microseconds) <= DIGITS_MAX
    if is_number and int(microseconds) > 0 and watched == str(pid or os.getpid()):
        seconds = int(microseconds) / 1e6
    return Supervision(variables.get("NOTIFY_SOCKET", ""), seconds)


def read_failpoints(environment: Mapping[str, str] | None = None) -> str:
    """Return a crash test's failpoints (``name:nth``, comma separated); empty outside tests."""
    variables = os.environ if environment is None else environment
    return variables.get(FAILPOINT_VARIABLE, "")

"""Environment variables, other than settings, that a parent process passes to the daemon.

A service manager passes the name of its notification socket, as `sd_notify(3)` defines it. A crash
test passes the failpoint at which the process is killed.
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
    the path is empty without a service manager. If the manager gets no message for
    `watchdog_seconds`, it kills this process; None means no watchdog.
    """

    notify_socket: str
    watchdog_seconds: float | None


def read_supervision(
    pid: int | None = None, environment: Mapping[str, str] | None = None
) -> Supervision:
    """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; malformed values count as absent.

    If WATCHDOG_PID differs from `pid`, the watchdog is for another process and counts as absent.
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
    """Return the failpoints to arm (``name:nth``, comma separated); always empty outside tests."""
    variables = os.environ if environment is None else environment
    return variables.get(FAILPOINT_VARIABLE, "")

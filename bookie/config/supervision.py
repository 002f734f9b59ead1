"""What those who start the daemon tell it through its environment, beside settings.

A service manager says how it wants to be notified, as `sd_notify(3)` defines it. A test of crashes
says where the process shall be killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

FAILPOINT_VARIABLE = "BOOKIE_FAILPOINT"


@dataclass(frozen=True, slots=True)
class Supervision:
    """How the service manager wants to be told.

    `notify_socket` is the path of a datagram socket (a leading ``@`` stands for the abstract
    namespace), empty when nobody listens. `watchdog_seconds` is the silence after which the manager
    kills this process, None when it does not watch.
    """

    notify_socket: str
    watchdog_seconds: float | None


def read_supervision(
    pid: int | None = None, environment: Mapping[str, str] | None = None
) -> Supervision:
    """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; what is malformed counts as absent.

    A watchdog meant for another process (`pid` is not WATCHDOG_PID) is not ours to feed.
    """
    variables = os.environ if environment is None else environment
    microseconds = variables.get("WATCHDOG_USEC", "")
    watched = variables.get("WATCHDOG_PID", str(pid or os.getpid()))
    seconds = None
    if microseconds.isdecimal() and int(microseconds) > 0 and watched == str(pid or os.getpid()):
        seconds = int(microseconds) / 1e6
    return Supervision(variables.get("NOTIFY_SOCKET", ""), seconds)


def read_failpoints(environment: Mapping[str, str] | None = None) -> str:
    """The failpoints to arm (``name:nth``, comma separated); empty, as always outside tests."""
    variables = os.environ if environment is None else environment
    return variables.get(FAILPOINT_VARIABLE, "")

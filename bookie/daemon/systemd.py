"""Tell systemd that the bookie is ready, stopping or still alive.

Each message is one datagram of ``NAME=value`` lines to the socket of the service manager. Without a
service manager, this module sends nothing. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import NoReturn

from bookie.config import Supervision


class ServiceManager:
    """Sends messages to the service manager that started this process."""

    def __init__(self, supervision: Supervision) -> None:
        address = supervision.notify_socket
        # A leading "@" means the abstract namespace of Linux, whose names begin with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Tell the manager that the bookie serves; ``systemctl status`` shows the text `status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Tell the manager that the bookie is alive; call this twice in each watchdog interval."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(message.encode(), self._address)
            except OSError:
                return  # a service manager that cannot receive messages must not stop the bookie


async def beat(send: Callable[[], None], *, interval_seconds: float) -> NoReturn:
    """Call `send` at once, then every `interval_seconds`; a stuck event loop stops the calls."""
    while True:
        send()
        await asyncio.sleep(interval_seconds)

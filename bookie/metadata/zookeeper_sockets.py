"""Sockets of the connection to ZooKeeper: made in time, and waited for in one system call."""

from __future__ import annotations

import math
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Threads only for the connection, and no attempt to connect that lasts a whole session."""

    def __init__(self, connect_seconds_max: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._connect_seconds_max = connect_seconds_max
        self._tls = tls

    def start(self) -> None:
        """Nothing to start: no callback goes through kazoo's queues."""
        self._running = True

    def stop(self) -> None:
        """Nothing to stop."""
        self._running = False

    def select(
        self,
        readers: Sequence[socket.socket],
        writers: Sequence[socket.socket],
        _: Sequence[socket.socket],
        timeout: float | None = None,
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """Those that can be read, and written; one that broke is both. `timeout` is in seconds.

        One system call, where kazoo makes and closes a selector each time.
        """
        waiting = select.poll()
        for ready_for, some in ((select.POLLIN, readers), (select.POLLOUT, writers)):
            for one in some:
                waiting.register(one, ready_for)
        # Rounded up, or the last part of a millisecond is waited for in a loop.
        ready = dict(waiting.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [one for one in readers if one.fileno() in ready],
            [one for one in writers if one.fileno() in ready],
            [],
        )

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **options: Any
    ) -> socket.socket:
        """Connect, within the bound; kazoo's own leaves a socket open when TLS fails."""
        bounded = min(timeout, self._connect_seconds_max)
        made = socket.create_connection(address, bounded)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=hostname)
        except BaseException:
            made.close()
            raise
        return made

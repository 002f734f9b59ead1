"""Detects a fork after the use of gRPC, because gRPC then hangs or crashes in the child process.

A process may fork after it opened a channel, if the child does not use gRPC. A trial call of gRPC
could hang in the child, so this module records each use of gRPC before the fork.
"""

from __future__ import annotations

import os

from bookie.errors import ConfigurationError


class GrpcUse:
    """Records the use of gRPC in this process, and a fork that broke gRPC."""

    def __init__(self) -> None:
        self._was_used = self._is_broken = False
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self) -> None:
        """Record that this process is about to open a channel.

        Raises:
            ConfigurationError: a parent process used gRPC before it forked this process.
        """
        self.require_usable()
        self._was_used = True

    def require_usable(self) -> None:
        """Raise an error if a fork has broken gRPC, because work with gRPC would hang.

        Raises:
            ConfigurationError: a parent process used gRPC before it forked this process.
        """
        if self._is_broken:
            raise ConfigurationError(
                "the parent process had opened clients before it was forked, and gRPC does not "
                "survive that; connect only after forks, or start processes with spawn"
            )

    def _after_fork(self) -> None:
        self._is_broken |= self._was_used


grpc_use = GrpcUse()

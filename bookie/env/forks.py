"""gRPC does not survive a fork: a child that uses it hangs or crashes.

A process that opened a channel may fork as long as the child opens no channel. A child cannot find
out by trying whether gRPC works, so this module remembers the use of gRPC.
"""

from __future__ import annotations

import os

from bookie.errors import ConfigurationError


class GrpcUse:
    """Remembers the use of gRPC in this process, and a fork that broke it."""

    def __init__(self) -> None:
        self._was_used = self._is_broken = False
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self) -> None:
        """Note that a channel is about to be opened in this process.

        Raises:
            ConfigurationError: a process before this one had used gRPC before it was forked.
        """
        self.require_usable()
        self._was_used = True

    def require_usable(self) -> None:
        """Raise an error if a fork has broken gRPC, because work with gRPC would hang.

        Raises:
            ConfigurationError: a process before this one had used gRPC before it was forked.
        """
        if self._is_broken:
            raise ConfigurationError(
                "the parent process had opened clients before it was forked, and gRPC does not "
                "survive that; connect only after forks, or start processes with spawn"
            )

    def _after_fork(self) -> None:
        self._is_broken |= self._was_used


grpc_use = GrpcUse()
"""The use of gRPC in this process."""

"""What a fork does to gRPC: it does not survive, and whoever uses it in the child hangs or crashes.

A process that opened a channel may fork as long as the child opens none. A child cannot find out by
trying, so this module remembers it.
"""

from __future__ import annotations

import os

from bookie.errors import ConfigurationError


class GrpcUse:
    """Whether gRPC was used in this process, and whether a fork broke it."""

    def __init__(self) -> None:
        self._was_used = self._is_broken = False
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self) -> None:
        """A channel is about to be opened in this process.

        Raises:
            ConfigurationError: a process before this one had used gRPC before it was forked.
        """
        self.require_usable()
        self._was_used = True

    def require_usable(self) -> None:
        """Refuse to begin what would hang.

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
"""That of this process."""

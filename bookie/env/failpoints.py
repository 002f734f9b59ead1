"""Named places in the code where a test may kill the process by a real signal.

A failpoint acts only if it was armed by name when the daemon started. When the process passes an
armed failpoint for the nth time, SIGKILL ends the process before any handler or flush.
"""

from __future__ import annotations

import os
import signal

from bookie.errors import ConfigurationError

FAILPOINTS = (
    "journal.before_write",
    "journal.after_write",
    "journal.before_sync",
    "journal.after_sync",
    "journal.before_roll",
    "journal.after_create",
    "journal.after_roll",
    "add.before_ack",
    "fence.before_ack",
    "checkpoint.after_swap",
    "checkpoint.after_barrier",
    "checkpoint.before_commit",
    "checkpoint.after_commit",
    "checkpoint.before_unlink",
    "compaction.before_write",
    "compaction.after_log_written",
    "compaction.after_log_renamed",
    "compaction.before_commit",
    "compaction.after_commit",
    "compaction.before_unlink",
    "removal.after_rename",
    "removal.before_step",
    "boot.after_log_written",
    "boot.after_log_renamed",
    "boot.before_commit",
    "boot.after_commit",
    "cookie.after_metadata_new",
    "cookie.after_directory",
    "cookie.before_ready",
    "cookie.after_ready",
)
"""The names of all failpoints, grouped by the component that passes them."""


class Failpoints:
    """The armed failpoints of one process; if no failpoint is armed, `hit` costs one look-up."""

    def __init__(self, spec: str = "") -> None:
        """Arm the failpoints of `spec`: ``name`` or ``name:nth``, comma separated; nth from 1.

        Raises:
            ConfigurationError: a name is unknown or a count is not a positive number.
        """
        self._countdown: dict[str, int] = {}
        for item in filter(None, spec.split(",")):
            name, _, nth = item.partition(":")
            if name not in FAILPOINTS:
                raise ConfigurationError(f"there is no failpoint named {name!r}")
            if nth and (not nth.isdigit() or int(nth) < 1):
                raise ConfigurationError(f"failpoint {item!r} needs a positive count")
            self._countdown[name] = int(nth or 1)

    def hit(self, name: str) -> None:
        if self._countdown and name in self._countdown:
            self._countdown[name] -= 1
            if self._countdown[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

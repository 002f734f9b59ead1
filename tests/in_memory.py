"""Where tests keep files that need no device."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")


def memory_directory() -> Path | None:
    """A directory in memory, where a sync takes no time; None if this machine has none."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None

"""Stop when the process that started this one ends, in whatever way.

Source: prctl(2), PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_INIT = 1


def stop_with_parent() -> None:
    """Ask the kernel for SIGTERM at the parent's death; at once if it is dead already."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == _INIT:
        os.kill(os.getpid(), signal.SIGTERM)

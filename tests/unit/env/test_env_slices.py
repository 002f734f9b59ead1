"""Short slices, in a process of its own: they are for ever."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import os, threading
from bookie.env.slices import SLICE_NANOSECONDS, ask_for_short_slices, slice_nanoseconds

before = slice_nanoseconds()
nice = os.nice(3)
if ask_for_short_slices():
    found = []
    thread = threading.Thread(target=lambda: found.append(slice_nanoseconds()))
    thread.start()
    thread.join()
    assert found == [slice_nanoseconds()] == [SLICE_NANOSECONDS], found
else:
    assert slice_nanoseconds() == before
assert os.nice(0) == nice, "the share of the processor changed"
"""


def test_threads_inherit_short_slices() -> None:
    """Where the system has them; elsewhere nothing changes. The share stays what it was."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""Kept memory and short slices, each in a process of its own: they are for ever."""

from __future__ import annotations

import subprocess
import sys

ALLOCATION = """
import ctypes, resource
from bookie.env.process_tuning import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def churn():
    before = faults()
    for _ in range(100):
        first, second = bytearray(3 << 20), bytearray(1 << 20)
        del first, second
    return faults() - before

churn()
assert keep_freed_memory()
churn()
assert churn() < 100, "freed memory went back to the system"
"""

SLICES = """
import os, threading
from bookie.env.process_tuning import SLICE_NANOSECONDS, ask_for_short_slices, slice_nanoseconds

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


def test_freed_memory_is_kept() -> None:
    """Blocks of some MiB are allocated again and again without a page fault each."""
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATION], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_threads_inherit_short_slices() -> None:
    """If the system has short slices; otherwise nothing changes. The share stays what it was."""
    done = subprocess.run(
        [sys.executable, "-c", SLICES], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

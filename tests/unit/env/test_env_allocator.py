"""The allocator's thresholds, in a process of their own: they are for ever."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import ctypes, resource
from bookie.env.allocator import keep_freed_memory

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


def test_freed_memory_is_kept() -> None:
    """Blocks of some MiB are allocated again and again without a page fault each."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

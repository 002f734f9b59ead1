"""The event loop of the daemon and of clients that move data: uvloop, and memory that stays.

uvloop has 1.5 to 3 times the throughput of asyncio's own loop, and a third of its 99th percentile.
This was measured with batches of 64 entries of 1 KB on 2 cores. See also `keep_freed_memory`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import TypeVar

from bookie.env.allocator import keep_freed_memory

T = TypeVar("T")


def prepare_process() -> None:
    """Prepare a process of its own for moving data.

    The process keeps freed memory. The garbage collector ignores imported objects, which live as
    long as the process. That saves an eighth of a start with ten thousand ledgers.
    """
    keep_freed_memory()
    if not gc.get_freeze_count():
        gc.freeze()
    gc.enable()


def run(main: Coroutine[object, object, T]) -> T:
    """Run `main` on a new event loop until it ends, then close the loop.

    Ctrl-C cancels `main` and raises KeyboardInterrupt when it has cleaned up.
    """
    import uvloop

    prepare_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)

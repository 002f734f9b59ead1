"""A counter whose state is a log: any process takes it over, and goes on without a gap.

The state machine is `value += amount`. The owner of the log replays it, then counts. A second
process that opens the log fences the first one, so that both never count at the same time.

With `make run` in one terminal, start this in two others, one after the other::

    export BOOKIE_METADATA=local://$PWD/data/metadata
    .venv/bin/python examples/replicated_counter.py
"""

import argparse
import asyncio
import os

from bookie import BookKeeper, connect
from bookie.errors import LogTakenOverError

LOG = "counter"


async def replay(bk: BookKeeper, end: int) -> int:
    """The value after all records before the offset `end`."""
    value = 0
    async for record in bk.read_log(LOG, end=end):
        value += int(record.value)
    return value


async def count(bk: BookKeeper, times: int, pause_seconds: float) -> None:
    """Own the log, and add 1 again and again."""
    async with bk.open_log(LOG) as log:
        # Nobody else appends from here on, so that the state is complete.
        value = await replay(bk, log.next_offset())
        print(f"took over at {value}", flush=True)
        for _ in range(times):
            await log.append(b"1")
            value += 1
            print(value, flush=True)
            await asyncio.sleep(pause_seconds)


async def main() -> None:
    """Count until another process takes over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--pause-seconds", type=float, default=0.1)
    options = parser.parse_args()
    async with connect(os.environ["BOOKIE_METADATA"]) as bk:
        try:
            await count(bk, options.times, options.pause_seconds)
        except LogTakenOverError as error:
            # Whether the last addition counts is known to the new owner only.
            print(f"ended: {error}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())

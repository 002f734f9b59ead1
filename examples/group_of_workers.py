"""Workers that share a log of jobs: each job has one worker, and jobs of one key keep their order.

The log has four partitions. The members of the group divide them, again whenever one comes or goes.
A worker commits a job when it is done. Jobs of a worker that died come again, to another one.

With `make run` in one terminal, start two workers in others, then make jobs::

    export BOOKIE_METADATA=local://$PWD/data/metadata
    .venv/bin/python examples/group_of_workers.py work anna
    .venv/bin/python examples/group_of_workers.py work bert
    .venv/bin/python examples/group_of_workers.py make 20
"""

import asyncio
import os
import sys
from contextlib import suppress

from bookie import BookKeeper, connect
from bookie.api import NewRecord
from bookie.errors import LogExistsError

LOG = "jobs"
GROUP = "workers"


async def make(bk: BookKeeper, count: int) -> None:
    """Append jobs of ten customers."""
    jobs = [NewRecord(b"job %d" % n, key=b"customer %d" % (n % 10)) for n in range(count)]
    async with bk.open_log(LOG) as log:
        await log.append_many(jobs)


async def work(bk: BookKeeper, name: str) -> None:
    """Do jobs until the process is interrupted."""

    def report(assigned: frozenset[object]) -> None:
        print(f"{name} has", *sorted(map(str, assigned)), flush=True)

    async with bk.join_group(GROUP, logs=[LOG], member=name, on_change=report) as member:
        async for job in member:
            print(f"{name}: {job.value.decode()} of {(job.key or b'').decode()}", flush=True)
            await member.commit(job)


async def main(verb: str, argument: str) -> None:
    """Make jobs, or work."""
    async with connect(os.environ["BOOKIE_METADATA"]) as bk:
        with suppress(LogExistsError):
            await bk.create_log(LOG, partitions=4)
        await (make(bk, int(argument)) if verb == "make" else work(bk, argument))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:3]))

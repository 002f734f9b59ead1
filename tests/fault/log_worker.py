"""A writer or a consumer in a process of its own, which its parent kills or stops.

``python -m tests.fault.log_worker ROLE URI LOG NAME SEED``; each event is a line on standard
output, written before the operation is sent, and again after its return.
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.fault.consuming_actors import ConsumingActor
from tests.fault.log_actors import WritingActor
from tests.fault.lossy_cluster import client_of
from tests.log_history.log_events import AnyLogEvent, line_of


def _say(event: AnyLogEvent) -> None:
    sys.stdout.write(line_of(event) + "\n")
    sys.stdout.flush()


def _count(what: str) -> None:
    sys.stdout.write(f"count {what}\n")
    sys.stdout.flush()


async def _main(role: str, uri: str, log: str, name: str, seed: str) -> None:
    rng = random.Random(seed)
    async with client_of(uri) as bk:
        if role == "write":
            await WritingActor(name, bk, log, rng, _say, _count).run()
        else:
            await ConsumingActor(name, bk, log, rng, _say, _count).run()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

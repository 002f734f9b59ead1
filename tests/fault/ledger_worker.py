"""A writer in a process of its own, which its parent kills.

``python -m tests.fault.ledger_worker URI`` prints the ledger's id, then each acknowledged entry's.
The payload of entry *n* is `payload_of(n)`.
"""

from __future__ import annotations

import asyncio
import sys

from bookie.api import connect
from tests.fault.lossy_cluster import create

SESSION_SECONDS = 2.0
"""Of the writer. The store ends the session so long after the kill."""


def payload_of(entry_id: int) -> bytes:
    """What the writer appends as this entry."""
    return b"%d" % entry_id * 20


async def _main(uri: str) -> None:
    async with connect(uri, session_timeout_seconds=SESSION_SECONDS) as bk:
        writer = await create(bk)
        print(writer.ledger_id, flush=True)
        while True:
            print(await writer.append(payload_of(writer.last_entry_id + 1)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

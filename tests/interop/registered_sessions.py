"""A process with many sessions of one metadata store, each of which holds a bookie's registration.

``python registered_sessions.py URI SESSION-TIMEOUT FIRST COUNT``: the sessions of the bookies
numbered from FIRST on. It prints how many of them are registered, a line at each change. It ends in
order when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, suppress

from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.errors import MetadataUnavailableError
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore

OPENED_AT_A_TIME = 5


def registration(number: int) -> Registration:
    """The registration of the bookie of this number."""
    return Registration(
        bookie_id=f"b{number:03}",
        endpoints=(Endpoint("bookie", "127.0.0.1", 1 + number, "grpc"),),
        labels={},
        total_bytes=1,
        free_bytes=1,
        read_only=False,
        version="test",
    )


async def _tell(registrations: list[BookieRegistration]) -> None:
    told = -1
    while True:
        count = sum(one.is_registered for one in registrations)
        if count != told:
            told = count
            print(count, flush=True)
        await asyncio.sleep(0.05)


async def _main(uri: str, timeout: str, first: str, count: str) -> None:
    registrations: list[BookieRegistration] = []
    turns = asyncio.Semaphore(OPENED_AT_A_TIME)
    async with AsyncExitStack() as stack:

        async def opened() -> MetadataStore:
            """A session; on a busy machine the servers may not answer at once."""
            while True:
                with suppress(MetadataUnavailableError):
                    return await stack.enter_async_context(
                        open_store(uri, session_timeout_seconds=float(timeout))
                    )

        async def register(number: int) -> None:
            async with turns:
                store = await opened()
                registrations.append(
                    await stack.enter_async_context(BookieRegistration(store, registration(number)))
                )

        async with asyncio.TaskGroup() as tasks:
            teller = tasks.create_task(_tell(registrations))
            async with asyncio.TaskGroup() as opening:
                for number in range(int(first), int(first) + int(count)):
                    opening.create_task(register(number))
            await asyncio.to_thread(os.read, 0, 1)
            teller.cancel()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

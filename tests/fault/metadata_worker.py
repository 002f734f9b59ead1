"""A process that uses a local metadata store and is told by its parent when to do what.

``python metadata_worker.py ROLE DIRECTORY SESSION-TIMEOUT ARGUMENT``; it reports line by line on
standard output.
"""

from __future__ import annotations

import asyncio
import random
import sys

from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.errors import BadVersionError, IdentityError, MetadataError, SessionLostError
from bookie.metadata.connect import open_store
from bookie.metadata.local.backend import LocalStore
from bookie.metadata.local.tree import TreeWriter
from bookie.metadata.model import Delete, Put
from bookie.metadata.store import MetadataStore


def _say(*words: object) -> None:
    print(*words, flush=True)


async def _count(store: MetadataStore, times: str) -> None:
    """Increment /counter by compare-and-set."""
    done = 0
    while done < int(times):
        record = await store.get("/counter")
        assert record is not None
        try:
            await store.put("/counter", b"%d" % (int(record.value) + 1), version=record.version)
        except BadVersionError:
            continue
        done += 1


async def _hold(store: MetadataStore, count: str) -> None:
    """Own ephemeral records, and report what happens to the session."""
    await store.transaction(
        [Put(f"/leases/{i}", b"held", ephemeral=True) for i in range(int(count))]
    )
    async with store.session_events() as events:
        _say("ready")
        async for event in events:
            _say(event.value)


async def _churn(store: MetadataStore, seed: str) -> None:
    """Write, delete and lease at random for ever; report what is durable."""
    dice = random.Random(int(seed))

    async def work() -> None:
        while True:
            key = f"/churn/{dice.randrange(6)}/{dice.randrange(6)}"
            lease = f"/leases/{seed}/{dice.randrange(4)}"
            try:
                match dice.randrange(4):
                    case 0:
                        await store.delete(key)
                    case 1:
                        await store.transaction([Delete(key), Put(key + "-moved", b"")])
                    case 2:
                        await store.put(lease, b"", ephemeral=True)
                    case _:
                        stat = await store.put(f"/acknowledged/{seed}", b"")
                        _say("acknowledged", stat.version)
            except SessionLostError:
                raise
            except MetadataError:
                await store.put(key, b"x")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(work())


async def _hold_transaction(store: MetadataStore, kind: str) -> None:
    """Stay inside a transaction until the parent sends a line."""
    assert isinstance(store, LocalStore)
    environment = store._require_open()

    def wait(_: TreeWriter | None = None) -> None:
        _say("inside")
        sys.stdin.readline()

    if kind == "write":
        await environment.submit(wait)
    else:
        with environment.read():
            wait()
    _say("outside")


async def _register(store: MetadataStore, bookie_id: str) -> None:
    """Be registered as a bookie until killed."""
    registration = Registration(bookie_id, (Endpoint("bookie", "localhost", 3181, "grpc"),))
    try:
        async with BookieRegistration(store, registration):
            _say("registered")
            await asyncio.Event().wait()
    except IdentityError as error:
        _say(error)


_ROLES = {
    "register": _register,
    "count": _count,
    "hold": _hold,
    "churn": _churn,
    "transaction": _hold_transaction,
}


async def _main(role: str, directory: str, timeout_seconds: str, argument: str) -> None:
    async with open_store(
        f"local://{directory}", session_timeout_seconds=float(timeout_seconds)
    ) as store:
        await _ROLES[role](store, argument)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

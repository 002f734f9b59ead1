"""A process that holds a lock and acts under it, without ever asking whether it still holds it.

``python -m tests.histories.holder_process URI SESSION-SECONDS NAME LOCK [MODE]``

It acquires the lock and acts again and again. Each act has the condition that it took when it
acquired the lock. It queues anew when an act is refused. It acts with another session than that of
the lock. So only the condition refuses a late act. Beside that it owns a leased record as long as
its session lives. Each entry of a history is a line of JSON on standard output. Its times are of a
clock that all processes of the machine share.

MODE ``unguarded`` is a seeded bug: it acts without the condition.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, replace

from bookie.coordination.lock import Lock
from bookie.coordination.locks import LockManager
from bookie.coordination.participant import Participant
from bookie.errors import (
    BadVersionError,
    LockLostError,
    MetadataUnavailableError,
    NoSuchKeyError,
    SessionLostError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.model import Check, Put
from bookie.metadata.store import MetadataStore
from tests.histories.history import Acquisition, Effect

OWNED = "/owned"
"""Below it each process has a leased record of its name."""

_PACE_SECONDS = 0.01


def _say(entry: Acquisition | Effect) -> None:
    print(json.dumps({"kind": type(entry).__name__, **asdict(entry)}), flush=True)


class Holder:
    """One process under `name`, which contends for `path` and acts through `effects`."""

    def __init__(self, name: str, path: str, effects: MetadataStore, *, guarded: bool) -> None:
        self._name = name
        self._path = path
        self._effects = effects
        self._guarded = guarded

    async def contend(self, locks: LockManager) -> None:
        """Acquire the lock, act until refused, and again, until killed."""
        while True:
            called = time.monotonic()
            lock = await locks.acquire(self._path)
            _say(Acquisition(self._name, self._path, called, time.monotonic(), lock.token))
            await self._act(lock)
            await lock.release()

    async def _act(self, lock: Lock) -> None:
        token = lock.token
        try:
            check = lock.check()
        except LockLostError:
            return
        is_accepted = True
        while is_accepted:
            await asyncio.sleep(_PACE_SECONDS)
            effect = Effect(self._name, self._path, token, time.monotonic(), 0.0, -1)
            try:
                revision = await self._do(check)
            except (BadVersionError, NoSuchKeyError):
                is_accepted = False
                revision = -1
            except (MetadataUnavailableError, SessionLostError):
                continue
            _say(replace(effect, returned=time.monotonic(), revision=revision))

    async def _do(self, check: Check) -> int:
        put = Put(f"{self._path}-effect", self._name.encode())
        done = await self._effects.transaction([check, put] if self._guarded else [put])
        stat = done[-1]
        assert stat is not None
        assert stat.revision is not None
        return stat.revision


async def _main(uri: str, session_seconds: str, name: str, path: str, mode: str = "") -> None:
    timeout = float(session_seconds)
    async with (
        open_store(uri, session_timeout_seconds=timeout) as session,
        open_store(uri, session_timeout_seconds=timeout) as effects,
        Participant(session) as participant,
    ):
        await session.put(f"{OWNED}/{name}", b"", ephemeral=True)
        holder = Holder(name, path, effects, guarded=mode != "unguarded")
        await holder.contend(LockManager(participant, owner=name))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

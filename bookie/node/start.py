"""The order in which a bookie comes up, and, by nesting, in which it goes down.

1. the directories are locked for this process;
2. the cookies are compared, or stamped if the bookie is new;
3. the engine boots: index, replay, new journal;
4. if durable data may have been lost, every ledger of this bookie is in limbo, open ones fenced;
5. requests are served; beside them the ledgers in limbo are checked.

Registration comes after all of it and belongs to the caller: nobody may be told that this bookie is
there before it can be believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import bookie
from bookie.cluster.cookies import CookieManager
from bookie.cluster.ledgers import LedgerManager
from bookie.config import GarbageSettings, NodeSettings, StorageSettings
from bookie.env import Environment
from bookie.errors import ConfigurationError, DiskFullError, StorageFailedError
from bookie.node.bookie import Bookie, open_bookie
from bookie.node.disk_watch import DiskWatch
from bookie.node.garbage import GarbageCollector
from bookie.node.identity import Decision, ensure_identity
from bookie.node.integrity import put_ledgers_in_limbo
from bookie.node.integrity_check import IntegrityCheck
from bookie.storage.boot import Identity
from bookie.storage.directories import locked_directories
from bookie.storage.engine import Engine, open_engine
from bookie.storage.files import DISK_FULL_ERRNOS
from bookie.storage.index import INTEGRITY_SUSPECT
from bookie.storage.index_place import make_index
from bookie.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class StartedBookie:
    """A bookie that serves, and the engine under it."""

    bookie: Bookie
    engine: Engine
    garbage: GarbageCollector
    check: IntegrityCheck
    watch: DiskWatch

    def apply(
        self, storage: StorageSettings, limits: NodeSettings, garbage: GarbageSettings
    ) -> None:
        """Go by other settings from now on, as far as they are dynamic.

        Each part has its section as an attribute `settings`, and reads it anew in each round.
        """
        for part in (self.engine.scrubber, self.engine.compactor):
            if part.settings != storage:
                part.settings = storage
        for part_of_node in (self.bookie, self.check, self.watch):
            if part_of_node.settings != limits:
                part_of_node.settings = limits
        if self.garbage.settings != garbage:
            self.garbage.settings = garbage


_GARBAGE_DEFAULTS = GarbageSettings()


@asynccontextmanager
async def start_bookie(
    environment: Environment,
    storage: StorageSettings,
    limits: NodeSettings,
    metrics: Metrics,
    *,
    cookies: CookieManager,
    ledgers: LedgerManager,
    bookie_id: str,
    instance_id: str,
    garbage: GarbageSettings = _GARBAGE_DEFAULTS,
) -> AsyncIterator[StartedBookie]:
    """A bookie for the duration of the block; stopped in order at its end.

    Raises:
        DirectoryLockedError, CookieError: the directories are not ours to use.
        FormatError: a newer version wrote something in them.
        ConfigurationError: a directory cannot be used, or its device is full.
        StorageFailedError: (in a group) a disk failed; the process must exit with code 74.
    """
    with locked_directories(environment.disk, storage) as directories:
        try:
            decision = await ensure_identity(
                environment,
                directories,
                cookies,
                bookie_id,
                instance_id,
                partial(make_index, environment, storage, directories),
            )
        except (OSError, DiskFullError) as error:
            if isinstance(error, DiskFullError) or error.errno in DISK_FULL_ERRNOS:
                raise ConfigurationError(f"no room for cookies and index: {error}") from error
            raise StorageFailedError(f"a cookie or the index failed: {error}") from error
        identity = Identity(bookie_id, instance_id, stamped_before=decision is Decision.START)
        async with open_engine(environment, storage, metrics, directories, identity) as engine:
            if engine.integrity.value == INTEGRITY_SUSPECT:
                await put_ledgers_in_limbo(engine, ledgers, bookie_id)
            async with open_bookie(
                engine,
                limits,
                metrics,
                bookie_id=bookie_id,
                instance_id=instance_id,
                version=bookie.__version__,
                usage=lambda: environment.disk.usage(directories.ledgers),
            ) as served:
                watch = DiskWatch(
                    served,
                    engine,
                    limits,
                    metrics,
                    lambda: {
                        "journal": environment.disk.usage(directories.journal),
                        "ledgers": environment.disk.usage(directories.ledgers),
                    },
                    lambda: environment.workers.run(
                        "room", directories.has_room, storage.journal_step_bytes
                    ),
                )
                collector = GarbageCollector(
                    environment.clock, engine, ledgers, instance_id, garbage, metrics
                )
                check = IntegrityCheck(
                    environment, engine, ledgers, limits, metrics, bookie_id=bookie_id
                )
                async with asyncio.TaskGroup() as tasks:
                    beside = [
                        tasks.create_task(watch.run(), name="disk-watch"),
                        tasks.create_task(collector.run(), name="garbage-collector"),
                        tasks.create_task(check.run(), name="integrity-check"),
                        tasks.create_task(engine.scrubber.run(), name="scrubber"),
                    ]
                    try:
                        yield StartedBookie(served, engine, collector, check, watch)
                    finally:
                        for task in beside:
                            task.cancel()

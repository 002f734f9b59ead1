"""The repair service of a process: its auditor, its replicator and its reclaimer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import NoReturn

from bookie.config import RepairSettings, RpcSettings, Sources
from bookie.env import Backoff, Clock, gather, jitter
from bookie.errors import BookieError
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.repair_history import RepairHistory
from bookie.ledger.ledger_client import open_ledger_client
from bookie.metadata.store import MetadataStore
from bookie.node.own_copies import OwnCopies
from bookie.repair.auditor import Auditor
from bookie.repair.own_damage import OwnDamage
from bookie.repair.replicator import Replicator
from bookie.repair.unnamed_copies import Reclaimer
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics, event_log

RESTART_SECONDS_MIN = 1.0
RESTART_SECONDS_MAX = 60.0

_log = event_log(__name__)


async def keep_repairing(
    store: MetadataStore,
    sources: Sources,
    rpc: RpcSettings,
    settings: Callable[[], RepairSettings],
    metrics: Metrics,
    clock: Clock,
    worker: str,
    own_damage: OwnDamage | None = None,
    own_copies: OwnCopies | None = None,
) -> NoReturn:
    """Audit and repair until cancelled; after an error, begin again after a pause.

    Args:
        store: the metadata store; its session owns the repair locks and the auditor's candidacy.
        sources: the sources of the client's settings and of the placement.
        rpc: message sizes and keepalive of connections to bookies.
        settings: returns the present section ``[repair]``.
        metrics: counts the outcomes.
        clock: measures delays, and gives the times in records.
        worker: the bookie's id, which names this process in locks and records.
        own_damage: the incomplete ledgers of this process's bookie; None without a bookie.
        own_copies: the copies on the bookie `worker`; with None, no copies are reclaimed.
    """
    pauses = Backoff(RESTART_SECONDS_MIN, RESTART_SECONDS_MAX, jitter)
    marks = UnderreplicationManager(store, worker, clock)
    history = RepairHistory(store, worker, clock)

    async def attempt() -> None:
        async with open_ledger_client(store, sources, rpc) as client:
            here = RepairWorker(client, store, settings, metrics, clock, worker, marks)
            works: list[Coroutine[object, object, NoReturn]] = [
                Auditor(here).run(),
                Replicator(here, history).run(),
                history.run(),
            ]
            if own_damage is not None:
                works.append(own_damage.run())
            if own_copies is not None:
                works.append(Reclaimer(here, own_copies).run())
            await gather(works)

    this = asyncio.current_task()
    assert this is not None
    while True:
        # A task group may leave its task cancelled, so each attempt runs in a new task.
        running = asyncio.get_running_loop().create_task(attempt())
        try:
            await running
        except Exception as error:  # noqa: BLE001  (an error here must not end the bookie)
            first = _first(error)
            if isinstance(first, BookieError):
                _log.warning("repair_stopped", reason=str(first))
            else:
                metrics.errors_total.labels("unexpected").inc()
                _log.error("repair_crashed", first)
        if this.cancelling():
            raise asyncio.CancelledError  # another error replaced the cancellation
        await asyncio.sleep(pauses.next())


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

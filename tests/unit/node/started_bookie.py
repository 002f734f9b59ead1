"""A bookie from its directories and a metadata store, and metadata of ledgers that name it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.cluster.cookies import CookieManager
from bookie.config import NodeSettings
from bookie.env import ThreadWorkers
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.store import MetadataStore
from bookie.node.start import StartedBookie, start_bookie
from tests.unit.node.engine.machine import IDENTITY, KEY, Machine


@asynccontextmanager
async def started(
    machine: Machine, store: MetadataStore, ledgers: LedgerManager | None = None
) -> AsyncIterator[StartedBookie]:
    """A bookie, from its directories and a metadata store."""
    async with (
        ThreadWorkers(read_threads=1) as workers,
        start_bookie(
            machine.environment(workers),
            machine.settings,
            NodeSettings(),
            machine.metrics,
            cookies=CookieManager(store),
            ledgers=ledgers or LedgerManager(store),
            bookie_id=IDENTITY.bookie_id,
            instance_id=IDENTITY.instance_id,
        ) as bookie,
    ):
        yield bookie


async def stamped(machine: Machine, store: MetadataStore) -> None:
    """Let the bookie join the cluster, before there is a ledger that could name it."""
    async with started(machine, store):
        pass


def metadata(
    ledger_id: int,
    state: LedgerState,
    *ensembles: tuple[str, ...],
    last: int = 500,
    write_quorum: int = 1,
) -> LedgerMetadata:
    """A ledger whose fragments have these bookies, a hundred entries to each but the last."""
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(ensembles[0]),
        write_quorum_size=write_quorum,
        ack_quorum_size=1,
        state=state,
        fragments=tuple(Fragment(100 * i, names) for i, names in enumerate(ensembles)),
        last_entry_id=last if state is LedgerState.CLOSED else -1,
        length=1 if state is LedgerState.CLOSED else 0,
        password_key=KEY,
    )

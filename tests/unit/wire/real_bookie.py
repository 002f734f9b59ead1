"""A real bookie on real files, and requests that it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import crc32c

from bookie.cluster.cookies import CookieManager
from bookie.config import NodeSettings, StorageSettings
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.env import ThreadWorkers, system_environment
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.connect import open_store
from bookie.node.bookie import Bookie
from bookie.node.start import start_bookie
from bookie.telemetry import Metrics
from bookie.wire.codec import encode_add_request
from tests.unit.wire.fake_node import INSTANCE_ID

DIGESTER = digester_for_key(DigestType.CRC32C, b"")


@asynccontextmanager
async def real_bookie(directory: Path, metrics: Metrics) -> AsyncIterator[Bookie]:
    """A bookie that stores in `directory`."""
    storage = StorageSettings(
        journal_dir=directory / "journal",
        ledgers_dir=directory / "ledgers",
        index_map_bytes=1 << 30,
        reserve_bytes=0,
    )
    for path in (storage.journal_dir, storage.ledgers_dir):
        path.mkdir()
    async with (
        open_store(f"memory://{directory.name}") as store,
        ThreadWorkers() as workers,
        start_bookie(
            system_environment(workers),
            storage,
            NodeSettings(),
            metrics,
            cookies=CookieManager(store),
            ledgers=LedgerManager(store),
            bookie_id="b1",
            instance_id=INSTANCE_ID,
        ) as started,
    ):
        yield started.bookie


def add_request(request_id: int, ledger_id: int, first: int, payloads: list[bytes]) -> bytes:
    """The wire bytes of an add with right packets and checksum; its packets' LAC is -1."""
    length_before = sum(map(len, payloads)) * (first // max(1, len(payloads)))
    batch = pack_batch(ledger_id, first, -1, length_before, payloads, DIGESTER)
    return encode_add_request(
        request_id, ledger_id, batch, payload_crc32c=crc32c.crc32c(batch.payload)
    )

"""Ledgers of real bookies whose metadata is in each backend."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.api import connect
from bookie.errors import LedgerFencedError
from tests.conformance.backends import Backend
from tests.unit.ledger.real_cluster import real_cluster


async def test_what_was_written_is_read_and_who_was_fenced_stays_fenced(
    backend: Backend, tmp_path: Path
) -> None:
    """Cases 152, 153: ten entries, read by another client, which then recovers an open ledger."""
    async with (
        asyncio.timeout(60),
        real_cluster(tmp_path / "cluster", uri=backend.uri) as cluster,
        connect(cluster.uri) as bk,
        connect(cluster.uri) as other,
    ):
        payloads = [b"%d" % i for i in range(10)]
        async with await bk.create_ledger() as writer:
            assert await writer.append_many(payloads) == range(10)
        reader = await other.open_ledger(writer.ledger_id)
        assert reader.is_closed
        assert [entry.payload async for entry in reader.read()] == payloads

        writer = await bk.create_ledger()
        await writer.append_many(payloads)
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert (reader.is_closed, reader.last_entry_id) == (True, 9)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"late")
        assert [entry.payload async for entry in reader.read()] == payloads

"""Memory of a client: a dropped writer leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.errors import ClientClosedError, LedgerFencedError, LogTakenOverError
from bookie.ledger.write.handle import WriterHandle
from tests.unit.ledger.real_cluster import real_cluster

SECONDS_MAX = 120.0


async def fenced_writer(bk: BookKeeper) -> WriterHandle:
    """A writer that has heard that its ledger was taken over."""
    writer = await bk.create_ledger()
    await writer.append(b"x")
    await bk.open_ledger(writer.ledger_id, recover=True)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"y")
    return writer


async def test_a_fenced_writer_that_is_dropped_is_freed(tmp_path: Path) -> None:
    """A process that loses ledgers to others for months must not grow with each."""
    async with real_cluster(tmp_path) as cluster, connect(cluster.uri) as bk:
        dropped = weakref.ref(await fenced_writer(bk))
        async with asyncio.timeout(SECONDS_MAX):
            while dropped() is not None:
                await asyncio.sleep(0.01)
                gc.collect()


async def test_a_writer_dropped_without_close_warns_and_is_freed(tmp_path: Path) -> None:
    """Its ledger stays open. The client has let go of the writer and of its places in the lanes."""
    async with real_cluster(tmp_path) as cluster, connect(cluster.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"x")
        slots, pool, dropped = writer._lanes._slots, writer._pool, weakref.ref(writer)
        del writer
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            async with asyncio.timeout(SECONDS_MAX):
                while dropped() is not None or any(slot in slot.lane._users for slot in slots):
                    await asyncio.sleep(0.01)
                    gc.collect()
        assert [str(found.message) for found in caught if found.category is ResourceWarning] == [
            "the writer of ledger 0 was dropped without close; it stays open"
        ]
        await asyncio.sleep(0)
        assert not pool._on_close


async def test_a_dropped_writer_of_a_log_warns_once(bk: BookKeeper) -> None:
    """It owns the log until the client ends. One that was closed, or has ended, says nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with bk.open_log("closed"):
            pass
        former = await bk.open_log("orders")
        writer = await bk.open_log("orders")
        with pytest.raises(LogTakenOverError):
            await former.append(b"late")
        dropped = weakref.ref(writer)
        del writer
        async with asyncio.timeout(SECONDS_MAX):
            while dropped() is not None:
                await asyncio.sleep(0.01)
                gc.collect()
    assert [str(found.message) for found in caught if found.category is ResourceWarning] == [
        "the writer of the log orders was dropped without close; it owns the log until its client "
        "is closed"
    ]


async def test_a_closed_writer_does_not_warn(tmp_path: Path) -> None:
    """Neither does one whose client was closed: that is documented to abandon it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with real_cluster(tmp_path) as cluster:
            async with connect(cluster.uri) as bk:
                async with bk.create_ledger() as closed:
                    pass
                left = await bk.create_ledger()
            del closed, left
            gc.collect()


async def test_a_fenced_writer_can_still_be_asked(tmp_path: Path) -> None:
    """The ledger is closed where it would have closed it; nothing hangs after the client's end."""
    async with real_cluster(tmp_path) as cluster, asyncio.timeout(SECONDS_MAX):
        async with connect(cluster.uri) as bk:
            closed, left = await fenced_writer(bk), await fenced_writer(bk)
            with pytest.raises(LedgerFencedError):
                await closed.force()
            assert (await closed.close()).last_entry_id == 0
        assert (await closed.close()).last_entry_id == 0
        for call in (left.close(), left.force()):
            with pytest.raises((ClientClosedError, LedgerFencedError)):
                await call

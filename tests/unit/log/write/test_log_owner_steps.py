"""Events between two steps of an owner."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie.api import BookKeeper, LogWriter, connect
from bookie.errors import NoSuchLedgerError
from bookie.ledger.write.append_queue import NewEntries
from bookie.log.record.log_record import Producer
from bookie.log.write import takeover
from bookie.log.write.partition_writer import PartitionWriter
from bookie.log.write.unconfirmed import Segment, Unconfirmed
from tests.unit.ledger.real_cluster import RealCluster, until
from tests.unit.log.appending import error_of
from tests.unit.log.written_logs import head_of, left_over, values_of


def owner_of(log: LogWriter) -> Any:
    """The writer of the log's only partition, whose parts a test replaces."""
    (writer,) = log._partitions.values()
    assert isinstance(writer, PartitionWriter)
    return writer


def swallow_after(writer: Any, count: int) -> None:
    """The writer's next ledger takes `count` appends; later ones are never sent."""
    switch = writer._switch

    def switch_and_swallow(base_offset: int) -> None:
        switch(base_offset)
        handle = writer._segment.writer
        submit, taken = handle.submit, 0

        def submit_few(*arguments: Any) -> asyncio.Future[range]:
            nonlocal taken
            taken += 1
            if taken <= count:
                return submit(*arguments)  # type: ignore[no-any-return]
            return asyncio.get_running_loop().create_future()

        handle.submit = submit_few

    writer._switch = switch_and_swallow


async def test_a_snapshot_names_no_record_that_was_lost(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """A ledger was fenced before a producer's record came into it, and the owner crashes just when
    the next ledger has a snapshot and not yet the record. The producer sends it again."""
    async with connect(cluster.uri) as other:
        old = await other.open_log("orders")
        first = await old.append(b"first")
        await bk.open_ledger(first.ledger_id, recover=True)
        writer = owner_of(old)
        swallow_after(writer, 1)
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(error_of(old.append(b"0", producer=("shop", 0))))
            await until(lambda: writer.ledger_id != first.ledger_id)
            await until(lambda: writer._segment.writer.last_add_confirmed == 0)
            async with bk.open_log("orders") as new:
                again = await new.append(b"0", producer=("shop", 0))
                assert await new.append(b"0", producer=("shop", 0)) == again
            lost.cancel()
    assert await values_of(bk, cluster.store, "orders") == [b"first", b"0"]


async def test_a_crash_in_a_roll_leaves_no_gap(cluster: RealCluster, bk: BookKeeper) -> None:
    """The old ledger's last records do not arrive. So none is acknowledged behind them."""
    async with connect(cluster.uri) as other:
        old = await other.open_log("orders")
        first = await old.append(b"first")
        writer = owner_of(old)
        handle = writer._segment.writer
        handle._send = lambda batch, slot: None  # what is appended from now on is lost on its way
        async with asyncio.TaskGroup() as tasks:
            stuck = tasks.create_task(error_of(old.append(b"stuck")))
            await until(lambda: handle.last_entry_id == 1)
            rolling = tasks.create_task(error_of(old.roll()))
            await until(lambda: writer._next is not None or writer.ledger_id != first.ledger_id)
            behind = tasks.create_task(error_of(old.append(b"behind")))
            assert writer.ledger_id == first.ledger_id, "appends go on in the next ledger"
            writer.abandon()
        assert all([stuck.result(), rolling.result(), behind.result()])
    async with bk.open_log("orders") as new:
        assert (await new.append(b"second")).offset == 1
    assert await values_of(bk, cluster.store, "orders") == [b"first", b"second"]


async def test_a_crash_in_a_roll_keeps_the_offsets_of_producers(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """The old ledger's range is still open when the next one has records. What the new owner reads
    back from there gets the offsets that it has."""
    async with connect(cluster.uri) as other:
        old = await other.open_log("orders")
        first = [await old.append(b"%d" % n, producer=("shop", n)) for n in range(3)]
        writer = owner_of(old)

        async def never(_: object) -> None:
            await asyncio.Event().wait()

        writer._close_range = never
        async with asyncio.TaskGroup() as tasks:
            rolling = tasks.create_task(error_of(old.roll()))
            await until(lambda: writer.ledger_id != first[0].ledger_id)
            second = [await old.append(b"%d" % n, producer=("shop", n)) for n in range(3, 6)]
            assert len((await head_of(cluster.store, "orders")).open_ranges) == 2
            writer.abandon()
            await rolling
    async with bk.open_log("orders") as new:
        again = [await new.append(b"%d" % n, producer=("shop", n)) for n in range(3, 6)]
    assert again == second
    assert len(await values_of(bk, cluster.store, "orders")) == 6


async def test_a_producers_call_that_was_cut_keeps_its_numbers() -> None:
    """Records in a closed ledger are confirmed; the rest keeps its numbers, each time."""
    segment = Segment(cast("Any", SimpleNamespace(ledger_id=7)), 0, 100, 0.0)
    values = [b"%d" % number for number in range(6)]
    appended = Unconfirmed(NewEntries.of(values), segment, Producer("shop", 10))
    appended.first_entry_id = 3
    assert appended.next_producer == ("shop", 10)
    appended.keep(4)
    assert appended.next_producer == ("shop", 12)
    assert appended.entries.payloads == values[2:]
    appended.first_entry_id = 0
    appended.keep(0)
    assert appended.next_producer == ("shop", 13)
    assert [(run.first.offset, run.entries) for run in appended.runs] == [(103, 2), (100, 1)]
    appended.keep(-1)
    assert appended.next_producer == ("shop", 13)


async def test_a_ledger_that_a_sweep_took_is_in_no_chain(
    cluster: RealCluster, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opener was stopped for a day between making its ledger and adding it. The sweep deletes
    the ledger, and writes the head with that. The opener is told, and opens the log again."""
    await bk.create_log("orders")
    windows = takeover._Takeover._windows

    async def stopped(self: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        head = await cluster.store.get(self._partition.head_key)
        assert head is not None
        for ledger_id in await left_over(bk, cluster.store, "orders"):
            await bk.delete_ledger(ledger_id)
        await cluster.store.put(head.key, head.value)
        return await windows(self, *arguments)

    monkeypatch.setattr(takeover._Takeover, "_windows", stopped)
    with pytest.raises(NoSuchLedgerError):
        await bk.open_log("orders")
    assert not (await head_of(cluster.store, "orders")).ranges
    async with bk.open_log("orders") as log:
        await log.append(b"one")
    assert await values_of(bk, cluster.store, "orders") == [b"one"]

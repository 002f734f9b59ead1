"""Entries without digests: what the device gives back is checked by the bookie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES, EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.env import File
from bookie.ids import Status
from bookie.node.engine.block_check import BlockCheck, DigestSizes
from bookie.node.engine.engine import Engine
from bookie.node.engine.reader import ReadResult
from bookie.wire.commands import AddCommand
from tests.entry_batches import merged
from tests.unit.node.engine.machine import KEY, MIB, Machine, add, ids_of, read

KINDS = list(DigestType)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="engine")
async def _engine(machine: Machine) -> AsyncIterator[Engine]:
    async with machine.engine() as engine:
        yield engine


def entries(kind: DigestType, ledger_id: int, first: int, count: int) -> EntryBatch:
    """Entries of 30 bytes with digests of this kind; lengths as of a ledger of such entries."""
    payloads = [f"{ledger_id}/{first + i}".encode().ljust(30, b".") for i in range(count)]
    digester = digester_for_key(kind, b"password")
    return pack_batch(ledger_id, first, first - 1, 30 * first, payloads, digester)


async def store(engine: Engine, batch: EntryBatch) -> None:
    """Add a batch, durably."""
    state = await engine.load(batch.ledger_id)
    command = AddCommand(batch, batch.ledger_id, KEY, crc32c(batch.payload))
    outcome = engine.add(state, command, -1)
    assert (await outcome).status is Status.OK


def packet(result: ReadResult) -> bytes:
    """The bytes of a read."""
    return b"" if result.batch is None else bytes(result.batch.payload)


@pytest.mark.parametrize("place", ["memtable", "index", "entry log"])
async def test_no_flipped_bit_of_a_ledger_without_digests_is_returned(
    machine: Machine, engine: Engine, place: str
) -> None:
    """Wherever in the block it is: the entry comes as it was written, or not at all."""
    whole = entries(DigestType.DUMMY, 7, 0, 6)
    await store(engine, whole)
    path = machine.journals()[0]
    if place != "memtable":
        await engine.checkpoint()
    if place == "entry log":
        for number in range(20):
            await add(engine, 9, [number], size=100_000)
        await engine.roll()
        await engine.checkpoint()
        await engine.delete(await engine.load(9), machine.clock.now_ms())
        await engine.checkpoint()
        assert (await engine.compactor.round(force=True)).files
        path = machine.log_files()[0]
    data = path.read_bytes()
    start = data.index(bytes(whole.payload))
    end = start + len(whole.payload)
    size = len(whole.payload) // 6
    refused = 0
    for position in range(start - 90, end):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        entry_id = min(max(position - start, 0) // size, 5)
        for first, last in ((entry_id, entry_id), (0, 5)):
            result = await read(engine, 7, first, last)
            if result.batch is None:
                assert result.stopped_by is Status.IO_ERROR
                refused += 1
            else:
                assert packet(result) == bytes(whole.clip(first, last).payload), position
    assert refused >= 2 * (end - start)
    path.write_bytes(data)
    assert packet(await read(engine, 7, 0, 5)) == bytes(whole.payload)


@pytest.mark.parametrize("kind", KINDS)
async def test_other_entries_of_a_damaged_block_are_returned(
    machine: Machine, engine: Engine, kind: DigestType
) -> None:
    """By the checksum of their record, or because their clients check them."""
    ours, others = entries(kind, 7, 3, 2), entries(DigestType.DUMMY, 8, 0, 2)
    outcomes = [
        engine.add(
            await engine.load(batch.ledger_id),
            AddCommand(batch, batch.ledger_id, KEY, crc32c(batch.payload)),
            max_lac=-1,
        )
        for batch in (ours, others)
    ]
    for outcome in outcomes:
        assert (await outcome).status is Status.OK
    path = machine.journals()[0]
    data = bytearray(path.read_bytes())
    data[data.index(bytes(others.payload)) + 40] ^= 1
    path.write_bytes(data)
    assert packet(await read(engine, 7, 3, 4)) == bytes(ours.payload)
    assert packet(await read(engine, 7, 4, 4)) == bytes(ours.clip(4, 4).payload)
    assert (await read(engine, 8, 0, 0)).stopped_by is Status.IO_ERROR
    assert ids_of(await read(engine, 8, 1, 1)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 5])
async def test_a_block_is_read_only_for_a_ledger_without_digests(
    machine: Machine, engine: Engine, kind: DigestType, first: int
) -> None:
    """The digest of each other ledger is found out at its first read."""
    await store(engine, entries(kind, 7, first, 8))
    for entry_id in range(first, first + 3):
        await read(engine, 7, entry_id, entry_id)
    machine.disk.calls.clear()
    assert ids_of(await read(engine, 7, first + 3, first + 3)) == [first + 3]
    assert ids_of(await read(engine, 7, first, first + 7)) == list(range(first, first + 8))
    is_checked = "pread" in machine.disk.names_called(".journal")
    assert is_checked == (kind is DigestType.DUMMY)


async def test_entries_in_several_blocks_are_checked(machine: Machine, engine: Engine) -> None:
    """One read of neighbours crosses the headers of blocks, small and large."""
    batches = [entries(DigestType.DUMMY, 7, first, 3) for first in range(0, 30, 3)]
    for batch in batches:
        await store(engine, batch)
    whole = merged(batches)
    assert packet(await read(engine, 7, 0, 29)) == bytes(whole.payload)
    digester = digester_for_key(DigestType.DUMMY, b"")
    large = pack_batch(8, 0, -1, 0, [bytes([i]) * (MIB // 8) for i in range(1, 3)], digester)
    await store(engine, large)
    assert packet(await read(engine, 8, 0, 1)) == bytes(large.payload)
    assert packet(await read(engine, 8, 1, 1)) == bytes(large.clip(1, 1).payload)
    path = machine.journals()[-1]
    data = bytearray(path.read_bytes())
    data[data.index(bytes([2]) * 1000) + 500] ^= 4
    path.write_bytes(data)
    assert (await read(engine, 8, 1, 1)).stopped_by is Status.IO_ERROR
    assert (await read(engine, 8, 0, 0)).stopped_by is Status.IO_ERROR


async def test_a_file_that_is_removed_during_the_check_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction moved its entries, and their block is cut off already."""
    changes: dict[str, object] = {"journal_file_bytes_max": 8 * MIB, "block_bytes_max": MIB}
    machine = Machine(tmp_path / "m", changes=changes)
    whole = entries(DigestType.DUMMY, 7, 0, 6)
    async with machine.engine() as engine:
        for number in range(40):
            await add(engine, 9, [number], size=100_000)
        await store(engine, whole)
        await engine.roll()
        await engine.checkpoint()
        await engine.delete(await engine.load(9), machine.clock.now_ms())
        await engine.checkpoint()
        path = machine.journals()[0]
        reached, go_on = threading.Event(), threading.Event()
        check = BlockCheck.is_sound

        def held(self: BlockCheck, file: File, offset: int, size: int) -> bool:
            if not reached.is_set():
                reached.set()
                go_on.wait(30)
            return check(self, file, offset, size)

        monkeypatch.setattr(BlockCheck, "is_sound", held)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read(engine, 7, 0, 5))
            try:
                await asyncio.to_thread(reached.wait, 30)
                assert (await engine.compactor.round(force=True)).files
                await engine._removal.finish()
                assert not path.exists()
            finally:
                go_on.set()
        assert packet(reading.result()) == bytes(whole.payload)


def test_a_packet_that_is_too_short_teaches_nothing() -> None:
    """Also an empty one, whose checksum would be right."""
    digests = DigestSizes()
    for size in range(PACKET_HEADER_SIZE_BYTES + 4):
        assert not digests.protects(7, bytes(size))
    assert digests.known(7) is None
    ours = bytes(entries(DigestType.CRC32C, 7, 0, 1).payload)
    assert digests.protects(7, ours)
    assert digests.known(7) == 4

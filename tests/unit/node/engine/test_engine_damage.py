"""Damaged and lost files: bytes never synced go silently, durable entries stay or are errors.

A torn tail is cut off and forgotten. Damage to durable bytes is reported, and costs only the
damaged part. It sets the flag that makes the node fence and limbo its open ledgers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.env import Failpoints, open_lmdb
from bookie.errors import DiskFullError
from bookie.ids import Status
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.engine import Engine
from bookie.node.engine.files import read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES
from bookie.node.engine.format.index_rows import file_key, ledger_key
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.index.deleted_ledgers import META_DELETING
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND, META_FORMAT, META_MARK, TABLES
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from bookie.node.engine.scan import ScannedBlock, blocks
from tests.unit.node.engine.machine import (
    IDENTITY,
    KIB,
    MIB,
    Machine,
    add,
    assert_holds,
    batch,
    fence,
    ids_of,
    read,
    start_add,
    stored_ids,
)

BLOCKS = 12

Damage = Callable[[Path, ScannedBlock], None]


def flip_body(path: Path, block: ScannedBlock) -> None:
    """One bit of the records."""
    _flip(path, block.body_offset + len(block.body) // 2)


def flip_header(path: Path, block: ScannedBlock) -> None:
    """One bit of the block's header."""
    _flip(path, block.offset + 9)


def zero(path: Path, block: ScannedBlock) -> None:
    """The whole block, as an allocated block that was never written."""
    with path.open("r+b") as file:
        file.seek(block.offset)
        file.write(bytes(block.end - block.offset))


def cut(path: Path, block: ScannedBlock) -> None:
    """The file from the middle of the block on."""
    with path.open("r+b") as file:
        file.truncate((block.offset + block.end) // 2)


def tear(path: Path, block: ScannedBlock) -> None:
    """The second half of the block, as a write that was interrupted."""
    with path.open("r+b") as file:
        middle = (block.offset + block.end) // 2
        file.seek(middle)
        file.write(bytes(block.end - middle))


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


IN_PLACE = [flip_body, flip_header, zero, tear]
ALL = [*IN_PLACE, cut]


def scan(machine: Machine, path: Path) -> list[ScannedBlock]:
    """The valid blocks of a file."""
    file = machine.disk.open(str(path))
    found = list(blocks(file, read_header(file), FILE_HEADER_SIZE_BYTES, 0))
    file.close()
    return found


async def write_blocks(engine: Engine, ledger_id: int = 7) -> None:
    """One entry to a block, each durable."""
    for entry_id in range(BLOCKS):
        await add(engine, ledger_id, [entry_id], size=KIB)


async def mark_idle(engine: Engine) -> None:
    """The work of an idle second."""
    request = JournalRequest(RequestKind.MARKER, lambda request: None)
    engine._queue.submit(request)
    await engine.force()


# --- E9: torn or corrupt ------------------------------------------------------------------------


@pytest.mark.parametrize("damage", IN_PLACE)
async def test_the_last_block_may_be_torn(machine: Machine, damage: Damage) -> None:
    """Its sync is unproven, so it is dropped without a report."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    damage(path, scan(killed, path)[-1])
    async with killed.engine() as engine:
        assert engine.report.corrupt == ()
        assert not engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(BLOCKS - 1))
        assert (await add(engine, 7, [BLOCKS - 1])).status is Status.OK


def cut_before(path: Path, block: ScannedBlock) -> None:
    """The file from the block on."""
    with path.open("r+b") as file:
        file.truncate(block.offset)


def put_in_place_of(position: int) -> Damage:
    """A damage: another block of the same file stands there, as after a write to a wrong place."""

    def damage(path: Path, block: ScannedBlock) -> None:
        with path.open("r+b") as file:
            # All blocks here are of one size, behind the first, which has the ledger's key.
            file.seek(block.offset + position * (block.end - block.offset))
            copy = file.read(block.end - block.offset)
            file.seek(block.offset)
            file.write(copy)

    return damage


@pytest.mark.parametrize(
    ("damage", "position"),
    [
        (cut, -1),
        (cut_before, -1),
        (cut, 5),
        (cut_before, 5),
        (put_in_place_of(-1), -1),
        (put_in_place_of(-4), -1),
        (put_in_place_of(-4), 5),
        (put_in_place_of(1), 5),
        (put_in_place_of(BLOCKS - 1 - 5), 5),
    ],
)
async def test_what_no_crash_leaves_is_corruption(
    machine: Machine, damage: Damage, position: int
) -> None:
    """A crash keeps a file's length and its blocks in place, so even the last block was durable."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    damage(path, scan(killed, path)[position])
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 1
        assert engine.needs_integrity_check
        lost = set(range(BLOCKS)) - set(await stored_ids(engine, 7))
        if damage in {cut, cut_before}:
            assert lost == set(range(BLOCKS)[position:])
        else:
            assert lost == {range(BLOCKS)[position]}


async def test_a_new_file_that_lost_all_its_blocks_was_cut(machine: Machine) -> None:
    """It had been begun because of a block."""
    async with machine.engine() as engine:
        entry_id = 0
        while len(machine.journals()) < 2:
            await add(engine, 7, [entry_id], size=100 * KIB)
            entry_id += 1
        killed = machine.killed("kill")
    with killed.journals()[-1].open("r+b") as file:
        file.truncate(FILE_HEADER_SIZE_BYTES)
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 1
        assert await stored_ids(engine, 7) == list(range(entry_id - 1))


async def test_a_new_file_that_never_took_a_block_was_not_cut(machine: Machine) -> None:
    """A roll on request, and then the last checkpoint found the device full."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        engine._queue.submit(JournalRequest(RequestKind.ROLL, lambda request: None))
        await engine.force()
        engine._has_marker = True
        machine.store.errors.append(DiskFullError("full"))
    assert len(machine.journals()) == 2
    async with machine.engine() as engine:
        assert not engine.report.clean
        assert engine.report.corrupt == ()
        assert await stored_ids(engine, 7) == list(range(BLOCKS))


async def test_a_file_that_was_closed_after_a_full_device_is_not_cut(machine: Machine) -> None:
    """It keeps the room that says that no file follows."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        machine.store.errors.append(DiskFullError("full"))
    (path,) = machine.journals()
    assert path.stat().st_size == scan(machine, path)[-1].end + 512
    async with machine.engine() as engine:
        assert not engine.report.clean
        assert engine.report.corrupt == ()
        assert await stored_ids(engine, 7) == list(range(BLOCKS))


async def test_deferred_blocks_before_a_torn_one_are_kept_and_those_behind_it_are_not(
    machine: Machine,
) -> None:
    """Blocks that were never synced may be missing in any order: the first gap is the end."""
    async with machine.engine() as engine:
        await add(engine, 7, [0])
        for entry_id in range(1, 6):
            await add(engine, 7, [entry_id], deferred_sync=True)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    zero(path, scan(killed, path)[3])
    async with killed.engine() as engine:
        assert engine.report.corrupt == ()
        assert await stored_ids(engine, 7) == [0, 1, 2]


@pytest.mark.parametrize("damage", IN_PLACE)
@pytest.mark.parametrize("position", [0, 1, BLOCKS // 2, BLOCKS - 2])
async def test_a_damaged_block_before_a_durable_one_is_corruption(
    machine: Machine, damage: Damage, position: int
) -> None:
    """A later block says how far the file was synced; the blocks behind the damage are kept."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    damage(path, scan(killed, path)[position])
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 1
        assert path.name in engine.report.corrupt[0]
        assert killed.metrics.errors_total.labels("corruption")._value.get() == 1
        assert engine.needs_integrity_check
        expected = [i for i in range(BLOCKS) if i != position]
        assert await stored_ids(engine, 7) == expected
        for entry_id in expected:
            result = await read(engine, 7, entry_id, entry_id)
            assert_holds(result, batch(7, [entry_id], size=KIB))
    async with killed.engine() as engine:
        assert engine.report.corrupt == (), "it is reported once"
        assert engine.needs_integrity_check, "and stays to be checked"
        await engine.integrity.set(INTEGRITY_SOUND)
    async with killed.engine() as engine:
        assert not engine.needs_integrity_check


async def test_two_damaged_regions_are_both_stepped_over(machine: Machine) -> None:
    """Each is reported."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    found = scan(killed, path)
    for position in (2, 3, 7):
        flip_body(path, found[position])
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 2
        assert await stored_ids(engine, 7) == [0, 1, 4, 5, 6, 8, 9, 10, 11]


@pytest.mark.parametrize("damage", IN_PLACE)
async def test_a_vouching_block_makes_damage_to_the_last_one_visible(
    machine: Machine, damage: Damage
) -> None:
    """That is what it is written for."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        await mark_idle(engine)
        killed = machine.killed("kill")
    (path,) = killed.journals()
    damage(path, scan(killed, path)[-2])
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 1
        assert await stored_ids(engine, 7) == list(range(BLOCKS - 1))


@pytest.mark.parametrize("damage", ALL)
async def test_the_next_file_tells_where_its_predecessor_ended(
    machine: Machine, damage: Damage
) -> None:
    """Damage to the last block of an earlier file is corruption, even if the file is cut off."""
    async with machine.engine() as engine:
        entry_id = 0
        while len(machine.journals()) < 3:
            await add(engine, 7, [entry_id], size=100 * KIB)
            entry_id += 1
        killed = machine.killed("kill")
    path = killed.journals()[1]
    found = scan(killed, path)
    damage(path, found[-1])
    async with killed.engine() as engine:
        assert len(engine.report.corrupt) == 1
        kept = await stored_ids(engine, 7)
        assert len(kept) == entry_id - 1
        assert set(range(entry_id)) - set(kept) == {
            len(scan(killed, killed.journals()[0])) + len(found) - 1
        }


@pytest.mark.parametrize("damage", ALL)
async def test_what_lies_below_the_mark_was_durable(machine: Machine, damage: Damage) -> None:
    """A file that ends before the mark, or another file in its place, is reported."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        await engine.checkpoint()
        killed = machine.killed("kill")
    (path,) = killed.journals()
    damage(path, scan(killed, path)[-1])
    async with killed.engine() as engine:
        if damage is cut:
            assert "ends before the mark" in engine.report.corrupt[0]
            assert engine.needs_integrity_check
        # Without a look at what the index has already, the rest is found when it is read.
        result = await read(engine, 7, BLOCKS - 1, BLOCKS - 1)
        # An entry whose digest is right needs no header; the others fail with their block.
        assert (result.stopped_by is Status.IO_ERROR) is (damage is not flip_header)
        assert (await read(engine, 7, 0, BLOCKS - 2)).stopped_by is Status.OK


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_lost_journal_file_is_noticed(machine: Machine, which: int) -> None:
    """That of the mark, one behind it, one in the middle: the chain of files has a gap."""
    async with machine.engine() as engine:
        entry_id = 0
        while len(machine.journals()) < 4:
            await add(engine, 7, [entry_id], size=100 * KIB)
            entry_id += 1
        killed = machine.killed("kill")
    path = killed.journals()[which]
    lost = len(scan(killed, path))
    path.unlink()
    async with killed.engine() as engine:
        assert engine.report.corrupt
        assert engine.needs_integrity_check
        assert len(await stored_ids(engine, 7)) == entry_id - lost


async def test_a_journal_file_of_another_life_is_noticed(machine: Machine, tmp_path: Path) -> None:
    """The number is right, the nonce is not: a backup was put back."""
    other = Machine(tmp_path / "other")
    for one in (machine, other):
        async with one.engine() as engine:
            for entry_id in range(30):
                await add(engine, 7, [entry_id], size=100 * KIB)
            one.root = one.killed("kill").root
    shutil.copy(other.journals()[1], machine.journals()[1])
    async with machine.engine() as engine:
        assert engine.report.corrupt
        assert engine.needs_integrity_check


@pytest.mark.parametrize("offset", [0, 9, 30, 4093])
async def test_a_damaged_file_header_is_corruption(machine: Machine, offset: int) -> None:
    """The name is given only once the header is durable."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    _flip(killed.journals()[0], offset)
    async with killed.engine() as engine:
        assert engine.report.corrupt
        assert engine.needs_integrity_check
        assert await stored_ids(engine, 7) == []


async def test_a_file_that_the_index_points_into_is_missed(machine: Machine) -> None:
    """Its entries are errors, not absent, for as long as it is gone."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        killed = machine.killed("kill")
    async with killed.engine():
        pass
    killed.log_files()[0].unlink()
    for _ in range(2):
        async with killed.engine() as engine:
            assert "missing" in engine.report.corrupt[0]
            assert engine.needs_integrity_check
            assert (await read(engine, 7, 0, 5)).stopped_by is Status.IO_ERROR


# --- E10: the index is lost or damaged ----------------------------------------------------------


async def live(engine: Engine) -> None:
    """Entries in every kind of place, fences, an overwritten and a deleted ledger."""
    await add(engine, 7, range(200))
    await fence(engine, 8)
    await engine.checkpoint()
    await add(engine, 7, range(200, 300))
    await fence(engine, 7)
    await add(engine, 7, [5], recovery=True, salt=1)
    await add(engine, 9, range(0, 50, 7))


async def check_rebuilt(engine: Engine) -> None:
    """Everything of `live`, and word of what happened."""
    assert engine.report.rebuilt
    assert engine.needs_integrity_check
    assert not engine.report.clean
    assert await stored_ids(engine, 7) == list(range(300))
    assert_holds(await read(engine, 7, 0, 4), batch(7, range(5)))
    assert_holds(await read(engine, 7, 5, 5), batch(7, [5], salt=1))
    assert_holds(await read(engine, 7, 6, 299), batch(7, range(6, 300)))
    assert await stored_ids(engine, 9) == list(range(0, 50, 7))
    for ledger_id in (7, 8):
        assert (await add(engine, ledger_id, [400])).status is Status.FENCED
    row = engine._booted.index.ledger(7)
    assert row is not None
    assert (row.entries, row.last_entry_id, row.fenced) == (300, 299, True)
    live_bytes = sum(file.live_bytes for file in engine._booted.index.files().values())
    row9 = engine._booted.index.ledger(9)
    assert row9 is not None
    assert live_bytes == row.payload_bytes + row9.payload_bytes


def lose_directory(machine: Machine) -> None:
    """With everything in it."""
    shutil.rmtree(machine.index)


def lose_file(machine: Machine) -> None:
    """The data, not the directory."""
    (machine.index / "data.mdb").unlink()


def overwrite(machine: Machine) -> None:
    """Something else stands there now."""
    (machine.index / "data.mdb").write_bytes(b"nonsense" * 4096)


def cut_off(machine: Machine) -> None:
    """The end of it is gone."""
    path = machine.index / "data.mdb"
    with path.open("r+b") as file:
        # Behind the pages in use stand up to 256 KiB of zeros.
        file.truncate(8192)


def empty(machine: Machine) -> None:
    """A file without content."""
    (machine.index / "data.mdb").write_bytes(b"")


@pytest.mark.parametrize("lose", [lose_directory, lose_file, overwrite, cut_off, empty])
@pytest.mark.parametrize("stop", ["kill", "replayed"])
async def test_a_lost_index_is_made_again_from_the_files(
    machine: Machine, lose: Callable[[Machine], None], stop: str
) -> None:
    """From journals alone, and from journals and entry logs."""
    async with machine.engine() as engine:
        await live(engine)
        after = machine.killed("kill")
    if stop == "replayed":
        async with after.engine():
            pass
        assert after.log_files()
    lose(after)
    async with after.engine() as engine:
        await check_rebuilt(engine)
        await engine.checkpoint()
        killed = after.killed("again")
    async with killed.engine() as engine:
        assert not engine.report.rebuilt
        assert await stored_ids(engine, 7) == list(range(300))


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("locations", page_key(7, 1)),
        ("locations", page_key(7, 3)),
        ("ledgers", ledger_key(7)),
        ("ledgers", ledger_key(8)),
        ("meta", META_MARK),
    ],
    ids=["page", "replayed-page", "row", "idle-row", "mark"],
)
async def test_a_damaged_index_is_made_again(
    machine: Machine, table: str, key: bytes, crashed: bool
) -> None:
    """At once after a crash of the system; otherwise as soon as the start needs what is damaged."""
    async with machine.engine() as engine:
        await live(engine)
        after = machine.killed("kill")
    store = open_lmdb(str(after.index), 64 * MIB, TABLES)
    with store.write() as txn:
        value = bytearray(txn.get(table, key) or b"")
        value[-1] ^= 1
        txn.put(table, key, bytes(value))
    store.close()
    if crashed:
        after.clock.boot = "boot-2"
    async with after.engine() as engine:
        if crashed or key not in (page_key(7, 1), ledger_key(8)):
            await check_rebuilt(engine)
        elif table == "locations":
            assert (await read(engine, 7, 64, 64)).stopped_by is Status.IO_ERROR
            assert_holds(await read(engine, 7, 192, 299), batch(7, range(192, 300)))
    damaged = list(after.index.parent.glob("index.damaged-*"))
    assert len(damaged) == int(crashed or key not in (page_key(7, 1), ledger_key(8)))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("ledgers", bytes(4)),
        ("ledgers", ledger_key(9) + b"\0"),
        ("ledgers", b"\xff" * 8),
        ("files", bytes(2)),
        ("files", bytes(5)),
        ("meta", META_DELETING[:-1]),
        ("meta", META_DELETING + bytes(4)),
        ("meta", META_DELETING + bytes(9)),
    ],
    ids=["short", "long", "none", "short-file", "file", "cut", "short-deletion", "long-deletion"],
)
async def test_an_index_with_a_key_that_is_none_is_made_again(
    machine: Machine, table: str, key: bytes
) -> None:
    """The structure of the table is right, and so is the sum over all pairs."""
    async with machine.engine() as engine:
        await live(engine)
        after = machine.killed("kill")
    store = open_lmdb(str(after.index), 64 * MIB, TABLES)
    with store.write() as txn:
        txn.put(table, key, b"anything")
    store.close()
    async with after.engine() as engine:
        await check_rebuilt(engine)
        killed = after.killed("again")
    async with killed.engine() as engine:
        assert not engine.report.rebuilt


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("cut", [0, 2, 3])
@pytest.mark.parametrize("kind", ["journal", "log"])
async def test_a_file_whose_row_is_lost_is_not_removed(
    machine: Machine, kind: str, cut: int, crashed: bool
) -> None:
    """An empty key stands for a row that does not exist."""
    async with machine.engine() as engine:
        await live(engine)
        after = machine.killed("kill")
    async with after.engine():
        killed = after.killed("again")
    path = (killed.log_files() if kind == "log" else killed.journals())[0]
    key = file_key(int(path.stem))
    store = open_lmdb(str(killed.index), 64 * MIB, TABLES)
    with store.write() as txn:
        row = txn.get("files", key) or b""
        txn.delete("files", key)
        if cut:
            txn.put("files", key[:cut], row)
    store.close()
    if crashed:
        killed.clock.boot = "boot-2"
    async with killed.engine() as engine:
        assert path.exists()
        await check_rebuilt(engine)


async def test_an_interrupted_rebuild_is_made_again(machine: Machine) -> None:
    """Nothing of it counts before its commit."""
    async with machine.engine() as engine:
        await live(engine)
        after = machine.killed("kill")
    lose_directory(after)
    after.store.errors.append(OSError(5, "broken"))
    with pytest.raises(Exception, match="failed during the start"):
        async with after.engine():
            pass
    async with after.engine() as engine:
        await check_rebuilt(engine)


async def test_a_rebuild_is_committed_in_batches(machine: Machine) -> None:
    """Half an index lacks mark and format. Every start begins anew, until one is done."""
    machine.changes["checkpoint_entries"] = 10
    async with machine.engine() as engine:
        for entry_id in range(60):
            await add(engine, 6, [entry_id], size=100 * KIB)
        await live(engine)
        after = machine.killed("kill")
    lose_directory(after)
    for nth in (2, 3, 2):
        after.failpoints = _KillAtCommit(nth)
        with pytest.raises(_Killed):
            async with after.engine():
                pass
        store = open_lmdb(str(after.index), 64 * MIB, TABLES)
        with store.read() as txn:
            assert txn.get("meta", META_MARK) is None
            assert txn.get("meta", META_FORMAT) is None
            assert txn.count("locations") > 0
        store.close()
    after.failpoints = Failpoints()
    async with after.engine() as engine:
        assert await stored_ids(engine, 6) == list(range(60))
        assert engine.report.rebuilt
        assert engine.needs_integrity_check
        assert_holds(await read(engine, 7, 6, 299), batch(7, range(6, 300)))
        live_bytes = sum(row.live_bytes for row in engine._booted.index.files().values())
        rows = [engine._booted.index.ledger(ledger_id) for ledger_id in (6, 7, 9)]
        assert live_bytes == sum(row.payload_bytes for row in rows if row is not None)


class _Killed(BaseException):
    """Thrown where the process would have died."""


class _KillAtCommit(Failpoints):
    """Dies behind the nth commit of a start."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self._left = nth

    def hit(self, name: str) -> None:
        """Die here?"""
        self._left -= name == "boot.after_commit"
        if not self._left:
            raise _Killed


async def test_a_rebuild_steps_over_damage(machine: Machine) -> None:
    """The rest of the files is worth keeping."""
    async with machine.engine() as engine:
        await write_blocks(engine)
        after = machine.killed("kill")
    (path,) = after.journals()
    flip_body(path, scan(after, path)[4])
    lose_directory(after)
    async with after.engine() as engine:
        assert engine.report.rebuilt
        assert await stored_ids(engine, 7) == [i for i in range(BLOCKS) if i != 4]


async def test_stamped_directories_without_index_and_files_have_lost_everything(
    machine: Machine,
) -> None:
    """The cookies alone would make a fresh bookie of one that acknowledged entries."""
    stamped = Identity(IDENTITY.bookie_id, IDENTITY.instance_id, stamped_before=True)
    async with machine.engine(stamped) as engine:
        assert "gone" in engine.report.corrupt[0]
        assert engine.needs_integrity_check
        await engine.integrity.set(INTEGRITY_SOUND)
        await add(engine, 7, range(3))
    async with machine.engine(stamped) as engine:
        assert engine.report.clean
        assert not engine.needs_integrity_check
    for directory in (machine.journal, machine.logs, machine.index):
        shutil.rmtree(directory)
    async with machine.engine(stamped) as engine:
        assert "gone" in engine.report.corrupt[0]
        assert engine.needs_integrity_check


async def test_a_truncated_journal_file_is_not_extended_with_holes(machine: Machine) -> None:
    """A start gives only unused room back to the file system."""
    async with machine.engine() as engine:
        waiter = await start_add(engine, batch(7, range(10)))
        assert (await waiter).status is Status.OK
        killed = machine.killed("kill")
    (path,) = killed.journals()
    end = scan(killed, path)[-1].end
    assert path.stat().st_size > end
    async with killed.engine() as engine:
        assert path.stat().st_size == end
        assert ids_of(await read(engine, 7, 0, 9)) == list(range(10))

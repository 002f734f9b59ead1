"""Starting: after a stop, a kill at every failpoint, two kills, a power cut, and on other terms."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.entry.entry import pack_lac
from bookie.env import Failpoints
from bookie.env.failpoints import FAILPOINTS
from bookie.errors import ConfigurationError, CookieError, DirectoryLockedError, FormatError
from bookie.ids import Status
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.engine import Engine
from bookie.node.engine.files import read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.index.entry_index import META_FORMAT
from bookie.node.engine.scan import link_of
from tests.unit.node.engine.machine import (
    DIGESTER,
    IDENTITY,
    KEY,
    KIB,
    OTHER_KEY,
    Machine,
    Snapshots,
    add,
    assert_holds,
    batch,
    fence,
    ids_of,
    read,
    stored_ids,
)

OK, FENCED = Status.OK, Status.FENCED


class Killed(BaseException):
    """Thrown where the process would have died."""


class KillAt(Failpoints):
    """Dies where it is told to, at the nth passage."""

    def __init__(self, name: str, nth: int = 1) -> None:
        super().__init__()
        self.name = name
        self.left = nth

    def hit(self, name: str) -> None:
        """Die here?"""
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                raise Killed(name)


class Promises:
    """The entries acknowledged so far; it must hold after any crash."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, int]] = {}
        """Ledger → entry → salt of the acknowledged bytes."""
        self.fenced: set[int] = set()

    def copy(self) -> Promises:
        """As they are now."""
        other = Promises()
        other.entries = {ledger: dict(known) for ledger, known in self.entries.items()}
        other.fenced = set(self.fenced)
        return other

    async def add(self, engine: Engine, ledger_id: int, ids: list[int], *, salt: int = 0) -> None:
        """Add, and take note once it is acknowledged."""
        recovery = salt > 0
        outcome = await add(engine, ledger_id, ids, size=20 * KIB, salt=salt, recovery=recovery)
        assert outcome.status is OK
        self.entries.setdefault(ledger_id, {}).update(dict.fromkeys(ids, salt))

    async def fence(self, engine: Engine, ledger_id: int) -> None:
        """Fence, and take note once it is answered."""
        assert (await fence(engine, ledger_id)).status is OK
        self.fenced.add(ledger_id)

    async def check(self, engine: Engine, overwritten: dict[int, set[int]]) -> None:
        """Everything holds; entries that were being overwritten may have either content."""
        for ledger_id, known in self.entries.items():
            for entry_id, salt in known.items():
                result = await read(engine, ledger_id, entry_id, entry_id)
                assert result.batch is not None, (ledger_id, entry_id, result)
                salts = {salt} | ({1} if entry_id in overwritten.get(ledger_id, set()) else set())
                payloads = [
                    bytes(batch(ledger_id, [entry_id], size=20 * KIB, salt=possible).payload)
                    for possible in salts
                ]
                assert bytes(result.batch.payload) in payloads
            assert (await add(engine, ledger_id, [10**6], key=OTHER_KEY)).status is (
                Status.UNAUTHORIZED
            )
        for ledger_id in self.fenced:
            assert (await add(engine, ledger_id, [10**6])).status is FENCED


OVERWRITTEN = {1: {3, 4}}


async def live(engine: Engine, promises: Promises) -> None:
    """A life that passes every failpoint of the engine: adds, fences, rolls, checkpoints, moves."""
    for first in range(0, 40, 4):
        await promises.add(engine, 1, list(range(first, first + 4)))
        await promises.add(engine, 2, [first // 4])
    await promises.fence(engine, 3)
    await engine.checkpoint()
    await promises.fence(engine, 1)
    await promises.add(engine, 1, [3, 4], salt=1)
    await promises.add(engine, 4, list(range(0, 30, 3)))
    for first in range(0, 160, 8):
        await promises.add(engine, 5, list(range(first, first + 8)))
    await engine.checkpoint()
    state = await engine.load(5)
    promises.entries.pop(5)
    await engine.delete(state, 10**15)
    await engine.checkpoint()
    await promises.add(engine, 6, [0])
    await promises.fence(engine, 7)
    await engine.checkpoint()
    await promises.add(engine, 6, [1])
    await engine.compactor.round(force=True)
    await promises.add(engine, 6, [2])


async def test_every_failpoint_may_be_the_last_thing_that_happens(
    machine: Machine, tmp_path: Path
) -> None:
    """Each passage of each failpoint leaves directories that boot and hold every promise."""
    promises = Promises()
    left: list[tuple[str, Machine, Promises]] = []
    seen: dict[str, int] = {}

    def passed(name: str) -> None:
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= 3 or seen[name] % 11 == 0:
            # First what was promised: dead files go while something else is promised.
            promised = promises.copy()
            left.append((name, machine.killed(f"{name}-{seen[name]}"), promised))

    machine.failpoints = Snapshots(passed)
    async with machine.engine() as engine:
        await live(engine, promises)
        killed = machine.killed("kill")
    # The failpoints of a start come when there is something to replay.
    machine.root = killed.root
    async with machine.engine():
        pass
    of_the_engine = {name for name in FAILPOINTS if not name.startswith("cookie.")}
    assert seen.keys() == of_the_engine
    for name, after, promised in left:
        async with after.engine() as engine:
            assert engine.report.corrupt == (), name
            await promised.check(engine, OVERWRITTEN)


BOOT_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("boot.")]


@pytest.mark.parametrize("first", BOOT_FAILPOINTS)
@pytest.mark.parametrize("second", [*BOOT_FAILPOINTS, ""])
async def test_two_kills_during_starts_lose_nothing(
    machine: Machine, first: str, second: str
) -> None:
    """After an interrupted start, the next one begins again from the old files."""
    promises = Promises()
    async with machine.engine() as engine:
        for entry_id in range(0, 60, 6):
            await promises.add(engine, 1, list(range(entry_id, entry_id + 6)))
        await engine.checkpoint()
        await promises.add(engine, 1, [60])
        await promises.fence(engine, 2)
        killed = machine.killed("kill")
    for name in filter(None, (first, second)):
        killed.failpoints = KillAt(name)
        with pytest.raises(Killed):
            async with killed.engine():
                pass
        killed.failpoints = Failpoints()
    async with killed.engine() as engine:
        assert engine.report.corrupt == ()
        assert not engine.report.rebuilt
        await promises.check(engine, {})
        files = engine._booted.index.files()
        on_disk = {int(path.stem) for path in (*killed.journals(), *killed.log_files())}
        assert on_disk - files.keys() <= {engine._booted.writer.current.header.number}
        await engine.checkpoint()
        assert len(killed.log_files()) == 1, "logs of interrupted starts are gone"
    async with killed.engine() as engine:
        assert engine.report.clean
        await promises.check(engine, {})


@pytest.mark.parametrize("name", BOOT_FAILPOINTS)
async def test_a_kill_during_the_very_first_start_is_no_loss(machine: Machine, name: str) -> None:
    """There was no data yet, so the next start skips the check."""
    for _ in range(2):
        machine.failpoints = KillAt(name)
        with pytest.raises(Killed):
            async with machine.engine():
                pass
    machine.failpoints = Failpoints()
    async with machine.engine() as engine:
        assert engine.report.corrupt == ()
        assert not engine.needs_integrity_check
        assert (await add(engine, 7, [0])).status is OK


async def test_a_clean_stop_leaves_nothing_to_do(machine: Machine) -> None:
    """And says so; the next start finds everything in the index."""
    async with machine.engine() as engine:
        assert not engine.report.clean, "the first start has nothing to be clean after"
        await add(engine, 7, range(50))
    async with machine.engine() as engine:
        assert engine.report.clean
        assert (engine.report.blocks, engine.report.entries) == (0, 0)
        assert await stored_ids(engine, 7) == list(range(50))


@pytest.mark.parametrize("how", ["kill", "power"])
async def test_a_start_removes_the_marker_of_a_clean_stop(machine: Machine, how: str) -> None:
    """The removal is durable before the engine accepts anything."""
    async with machine.engine() as engine:
        await add(engine, 7, range(3))
    async with machine.engine() as engine:
        assert engine.report.clean
        left = machine.killed(how) if how == "kill" else machine.without_power(how)
    async with left.engine() as engine:
        assert not engine.report.clean
        assert await stored_ids(engine, 7) == [0, 1, 2]
    async with left.engine() as engine:
        assert engine.report.clean


async def test_many_starts_do_not_pile_up_files(machine: Machine) -> None:
    """Each start makes a journal and perhaps a log; what is dead goes."""
    for round_ in range(8):
        async with machine.engine() as engine:
            await add(engine, 7, [round_])
            killed = machine.killed(f"kill-{round_}")
        machine.root = killed.root
    async with machine.engine() as engine:
        await engine.checkpoint()
        await engine.checkpoint()
        assert len(machine.journals()) <= 2
        assert await stored_ids(engine, 7) == list(range(8))
        live_files = {n for n, row in engine._booted.index.files().items() if row.live_bytes}
        assert len(live_files) == 8


async def test_what_a_crash_left_over_is_removed(machine: Machine) -> None:
    """Temporary files and entry logs that no transaction registered."""
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
    header = FileHeader(FileKind.ENTRY_LOG, 77, b"x" * 16, 512)
    leftovers = [
        machine.journal / "00000099.journal.tmp",
        machine.logs / "00000098.log.tmp",
        machine.logs / "00000077.log",
    ]
    for path in leftovers:
        path.write_bytes(header.encode())
    async with machine.engine() as engine:
        assert not any(path.exists() for path in leftovers)
        assert await stored_ids(engine, 7) == list(range(5))
        numbers = [int(path.stem) for path in machine.journals()]
        assert max(numbers) > 77, "no number is used twice"


async def test_replayed_entries_are_written_anew_before_they_are_served(machine: Machine) -> None:
    """Bytes in the page cache may never have reached the device."""
    async with machine.engine() as engine:
        await add(engine, 7, range(20))
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        assert_holds(await read(engine, 7, 0, 19), batch(7, range(20)))
        (log,) = killed.log_files()
        places = engine._booted.index.files()[int(log.stem)]
        assert places.live_bytes == len(batch(7, range(20)).payload)
        off = killed.without_power("off")
    calls = [(c.name, Path(c.path).name) for c in killed.disk.calls]
    assert ("drop_cache", "data.mdb") in calls
    assert ("drop_cache", "00000001.journal") in calls
    synced = calls.index(("fdatasync", f"{log.name}.tmp"))
    assert synced < calls.index(("rename", log.name)) < calls.index(("sync_directory", "logs"))
    async with off.engine() as engine:
        assert engine.report.operating_system_crashed
        assert_holds(await read(engine, 7, 0, 19), batch(7, range(20)))


async def test_after_a_power_cut_the_index_is_walked(machine: Machine) -> None:
    """An orderly stop and a kill need no walk."""
    async with machine.engine() as engine:
        await add(engine, 7, range(20))
        await engine.checkpoint()
        killed, off = machine.killed("kill"), machine.without_power("off")
    for after, crashed in ((killed, False), (off, True), (machine, False)):
        async with after.engine() as engine:
            assert engine.report.operating_system_crashed is crashed
            assert not engine.report.rebuilt
            assert await stored_ids(engine, 7) == list(range(20))


async def test_directories_of_another_bookie_or_cluster_refuse(machine: Machine) -> None:
    """And are left as they were."""
    async with machine.engine() as engine:
        await add(engine, 7, [0])
    for identity in (
        Identity("b2", IDENTITY.instance_id),
        Identity("b1", "5c2b0c1e-0000-4000-8000-000000000002"),
    ):
        with pytest.raises(CookieError, match="belongs to"):
            async with machine.engine(identity):
                pass
    async with machine.engine() as engine:
        assert engine.report.clean
        assert await stored_ids(engine, 7) == [0]


async def test_a_second_engine_on_the_directories_refuses(machine: Machine) -> None:
    """While the first one serves."""
    async with machine.engine() as engine:
        with pytest.raises(DirectoryLockedError):
            async with machine.engine():
                pass
        assert (await add(engine, 7, [0])).status is OK


async def test_directories_that_are_the_same_or_no_directories_refuse(tmp_path: Path) -> None:
    """In one sentence."""
    (tmp_path / "file").write_text("no directory")
    for changes in (
        {"journal_dir": tmp_path / "file" / "journal"},
        {"ledgers_dir": tmp_path / "file"},
    ):
        machine = Machine(tmp_path / "m", changes=dict(changes))
        with pytest.raises(ConfigurationError, match="cannot use"):
            async with machine.engine():
                pass


async def test_a_newer_format_refuses_and_is_not_touched(machine: Machine) -> None:
    """Of the index, of a journal file."""
    async with machine.engine() as engine:
        await add(engine, 7, [0])
        killed = machine.killed("kill")
        with engine._booted.index._store.write() as txn:
            txn.put("meta", META_FORMAT, b"2")
        newer_index = machine.killed("index")
    path = killed.journals()[0]
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(with_header_crc(bytes(data)))
    for after in (killed, newer_index):
        before = {p: p.read_bytes() for p in (*after.journals(), *after.log_files())}
        with pytest.raises(FormatError, match="newer"):
            async with after.engine():
                pass
        assert {p: p.read_bytes() for p in (*after.journals(), *after.log_files())} == before


def with_header_crc(data: bytes) -> bytes:
    """The file with the right checksum in its header, so that only the version is wrong."""
    from crc32c import crc32c

    head = data[:4092]
    return head + crc32c(head).to_bytes(4, "little") + data[4096:]


async def test_the_mark_of_a_start_is_the_new_file(machine: Machine) -> None:
    """Everything before it is in the index."""
    async with machine.engine() as engine:
        await add(engine, 7, [0])
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        current = engine._booted.writer.current.header
        assert engine._booted.index.mark() == Mark(current.number, 4096, 0, current.nonce)
        assert ids_of(await read(engine, 7, 0, 0)) == [0]


async def test_a_long_replay_is_committed_in_batches(machine: Machine) -> None:
    """Memory holds one batch; a kill behind any of them loses and repeats nothing."""
    promises = Promises()
    async with machine.engine() as engine:
        for first in range(0, 60, 3):
            await promises.add(engine, 1, [first, first + 1, first + 2])
            await promises.add(engine, 2, [first])
        await promises.add(engine, 1, [3, 4], salt=1)
        await promises.fence(engine, 2)
        killed = machine.killed("kill")
    killed.changes["checkpoint_entries"] = 7
    counted = killed.killed("count")
    passages: list[str] = []
    counted.failpoints = Snapshots(passages.append)
    async with counted.engine() as engine:
        assert engine.report.corrupt == ()
        assert engine.report.entries == 82
        await promises.check(engine, {})
        assert await stored_ids(engine, 1) == list(range(60))
        row = engine._booted.index.ledger(1)
        assert row is not None
        assert (row.entries, row.last_entry_id) == (60, 59)
    batches = passages.count("boot.after_commit")
    assert batches > 2
    for name in ("boot.after_log_renamed", "boot.after_commit"):
        after = killed.killed(name)
        for nth in range(1, batches + 1):
            after.failpoints = KillAt(name, 1 if nth % 2 else 2)
            try:
                async with after.engine():
                    break
            except Killed:
                continue
        after.failpoints = Failpoints()
        async with after.engine() as engine:
            assert engine.report.corrupt == ()
            assert not engine.needs_integrity_check
            await promises.check(engine, {})
            live = sum(row.live_bytes for row in engine._booted.index.files().values())
            rows = [engine._booted.index.ledger(ledger_id) for ledger_id in (1, 2)]
            assert live == sum(row.payload_bytes for row in rows if row is not None)


async def promise_states(engine: Engine) -> bytes:
    """Entries with an explicit LAC and a fence, one limbo, one lone fence; the LAC's packet."""
    packet = pack_lac(1, 8, DIGESTER)
    await add(engine, 1, range(10), size=20 * KIB)
    engine.publish_lac(await engine.load(1), packet, KEY)
    await fence(engine, 1)
    await add(engine, 2, range(10), size=20 * KIB)
    await engine.set_limbo(await engine.load(2), in_limbo=True, fence=False)
    await fence(engine, 3)
    # The last batch is committed with the new mark.
    await add(engine, 4, range(20), size=20 * KIB)
    await engine.force()
    return packet


async def check_states(engine: Engine, packet: bytes) -> None:
    """All of that is so."""
    assert engine.report.corrupt == ()
    one, two, three = [await engine.load(ledger_id) for ledger_id in (1, 2, 3)]
    assert (one.lac_packet, one.max_lac) == (packet, 8)
    assert [state.fenced for state in (one, two, three)] == [True, False, True]
    assert [state.limbo for state in (one, two, three)] == [False, True, False]
    assert (await add(engine, 1, [10])).status is FENCED
    assert (await add(engine, 3, [0])).status is FENCED
    assert (await add(engine, 2, [10], key=OTHER_KEY)).status is Status.UNAUTHORIZED


@pytest.mark.parametrize("dies_at", [*BOOT_FAILPOINTS, ""])
@pytest.mark.parametrize("batch", [7, 10**6])
async def test_a_replay_keeps_what_is_known_of_ledgers(
    machine: Machine, dies_at: str, batch: int
) -> None:
    """It survives a second kill, and the loss of the first journals and of the index."""
    async with machine.engine() as engine:
        packet = await promise_states(engine)
        killed = machine.killed("kill")
    old = killed.journals()
    killed.changes["checkpoint_entries"] = batch
    if dies_at:
        killed.failpoints = KillAt(dies_at)
        with pytest.raises(Killed):
            async with killed.engine():
                pass
        killed.failpoints = Failpoints()
    async with killed.engine() as engine:
        await check_states(engine, packet)
        await engine.checkpoint()
        assert not set(old) & set(killed.journals()), "nothing points into them any more"
        again = killed.killed("again")
    shutil.rmtree(again.index)
    for after in (killed, again):
        async with after.engine() as engine:
            assert engine.report.rebuilt == (after is again)
            await check_states(engine, packet)


@pytest.mark.parametrize("dies_at", [*BOOT_FAILPOINTS, ""])
async def test_a_log_of_a_replay_has_what_stood_before_the_mark(
    machine: Machine, dies_at: str
) -> None:
    """Keys, fences and LACs of its ledgers survive the journal and the index that had them."""
    packet = pack_lac(1, 8, DIGESTER)
    async with machine.engine() as engine:
        engine.publish_lac(await engine.load(1), packet, KEY)
        await fence(engine, 1)
        await engine.set_limbo(await engine.load(2), in_limbo=True, fence=False)
        await engine.checkpoint()
        for ledger_id in (1, 2):
            await add(engine, ledger_id, [9], recovery=True)
        killed = machine.killed("kill")
    if dies_at:
        killed.failpoints = KillAt(dies_at)
        with pytest.raises(Killed):
            async with killed.engine():
                pass
        killed.failpoints = Failpoints()
    old = killed.journals()[0]
    async with killed.engine() as engine:
        await engine.checkpoint()
        assert not old.exists(), "nothing points into it any more"
    shutil.rmtree(killed.index)
    async with killed.engine() as engine:
        assert engine.report.rebuilt
        one, two = [await engine.load(ledger_id) for ledger_id in (1, 2)]
        assert (one.lac_packet, one.fenced, one.limbo) == (packet, True, False)
        assert (two.fenced, two.limbo) == (False, True)
        assert (await add(engine, 1, [10])).status is FENCED
        for ledger_id in (1, 2):
            assert await stored_ids(engine, ledger_id) == [9]
            refused = await add(engine, ledger_id, [10], key=OTHER_KEY)
            assert refused.status is Status.UNAUTHORIZED


async def test_damage_in_an_early_batch_is_remembered(machine: Machine) -> None:
    """The next start begins behind it and would not find it again."""
    async with machine.engine() as engine:
        for entry_id in range(60):
            await add(engine, 7, [entry_id], size=20 * KIB)
        killed = machine.killed("kill")
    (path,) = killed.journals()[:1]
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    killed.changes["checkpoint_entries"] = 10
    killed.failpoints = KillAt("boot.after_commit")
    with pytest.raises(Killed):
        async with killed.engine():
            pass
    killed.failpoints = Failpoints()
    async with killed.engine() as engine:
        assert engine.needs_integrity_check
        assert await stored_ids(engine, 7) == list(range(1, 60))


async def test_an_entry_log_comes_after_what_it_was_made_from(machine: Machine) -> None:
    """A rebuild takes it there, and an entry that was added anew meanwhile stays the newer one."""
    async with machine.engine() as engine:
        await add(engine, 7, range(20))
        await add(engine, 7, [4], recovery=True, salt=1)
        killed = machine.killed("kill")
    async with killed.engine() as engine:
        await add(engine, 7, [5], recovery=True, salt=2)
        again = killed.killed("again")
    (log,) = again.log_files()
    file = again.disk.open(str(log))
    header = read_header(file)
    link = link_of(file, header)
    file.close()
    assert link is not None
    assert link.predecessor_number == int(machine.journals()[0].stem)
    # As a compaction leaves it: a log with the highest number of all, made from old files.
    number = 1 + max(int(path.stem) for path in (*again.journals(), *again.log_files()))
    data = replace(header, number=number).encode() + log.read_bytes()[FILE_HEADER_SIZE_BYTES:]
    log.with_name(f"{number:08d}.log").write_bytes(data)
    shutil.rmtree(again.index)
    async with again.engine() as engine:
        assert engine.report.rebuilt
        assert_holds(await read(engine, 7, 4, 4), batch(7, [4], salt=1))
        assert_holds(await read(engine, 7, 5, 5), batch(7, [5], salt=2))


async def test_only_a_start_after_an_orderly_stop_believes_the_index(machine: Machine) -> None:
    """A kill, a start that failed, a version without the word, and another size are doubts."""
    async with machine.engine() as engine:
        await add(engine, 7, range(5))
        killed = machine.killed("kill")
    for image in (machine, killed):
        async with image.engine() as engine:
            assert await stored_ids(engine, 7) == list(range(5))
    assert machine.trusted == [False, True]
    assert killed.trusted == [False]
    machine.failpoints = KillAt("boot.before_commit")
    with pytest.raises(Killed):
        async with machine.engine():
            pass
    machine.failpoints = Failpoints()
    async with machine.engine():
        pass
    assert machine.trusted == [False, True, True, False]
    (killed.root / "ledgers" / "STOPPED").unlink()
    async with killed.engine():
        pass
    with (killed.index / "data.mdb").open("ab") as file:
        file.write(bytes(4096))
    async with killed.engine():
        pass
    assert killed.trusted == [False, False, False]


@pytest.mark.parametrize("orderly", [True, False])
async def test_an_orderly_start_reads_two_pages_of_the_index(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, orderly: bool
) -> None:
    """A billion entries would take a minute."""
    async with machine.engine() as engine:
        for ledger_id in range(200):
            await add(engine, ledger_id, range(0, 640, 64))
        await engine.checkpoint()
        killed = machine.killed("kill")
    place = machine if orderly else killed
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("data.mdb"):
            read.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    async with place.engine() as engine:
        assert await stored_ids(engine, 5) == list(range(0, 640, 64))
        assert (sum(read) < 16 * KIB) == orderly


async def test_damage_during_an_orderly_stop_is_no_denial(machine: Machine) -> None:
    """The checksums of pages and rows notice it when somebody asks."""
    async with machine.engine() as engine:
        await add(engine, 7, range(64 * 40))
        await add(engine, 8, range(5))
    path = machine.index / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.find(page_key(7, 3))
    while at >= 0:
        data[at + 100] ^= 1
        at = data.find(page_key(7, 3), at + 1)
    path.write_bytes(data)
    async with machine.engine() as engine:
        assert machine.trusted[-1]
        found = await read(engine, 7, 3 * 64, 3 * 64)
        assert found.stopped_by is Status.IO_ERROR
        assert await stored_ids(engine, 8) == list(range(5))

"""The scrubber: everything is read; damage is reported once, and forgotten when it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.ids import Status
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.pages import page_key
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO
from bookie.node.engine.scrub import META_DAMAGE, META_POSITION
from tests.unit.node.engine.machine import KIB, MIB, Machine, add, read


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 1 << 40})


async def live(engine: Engine) -> None:
    """Entries in several files, all of them indexed."""
    for entry_id in range(0, 60, 2):
        await add(engine, 7, [entry_id, entry_id + 1], size=40 * KIB)
    await add(engine, 8, range(100))
    await engine.checkpoint()


async def scrub(engine: Engine) -> dict[tuple[int, int], str]:
    """One pass; what is known to be damaged after it."""
    await engine.scrubber.scrub()
    return engine.scrubber.findings


def flip(path: Path, what: bytes) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


async def test_a_sound_bookie_has_nothing_to_report(machine: Machine) -> None:
    """Every file and page is read; also what a start wrote anew, and the journal up to the mark."""
    async with machine.engine() as engine:
        await live(engine)
        assert await scrub(engine) == {}
        report = engine.scrubber.report
        assert (report.passes, report.files) == (1, len(machine.journals()))
        assert report.bytes > 60 * 40 * KIB
        assert report.pages == 3
        await add(engine, 8, [100])
        killed = machine.killed("kill")
        assert not engine.needs_integrity_check
    async with killed.engine() as engine:
        assert await scrub(engine) == {}
        assert engine.scrubber.report.files == len(engine._booted.index.files()) == 4


@pytest.mark.parametrize("size", [0, 4, 13])
async def test_a_finding_whose_place_is_none_is_no_finding(machine: Machine, size: int) -> None:
    """Its key in the index was damaged; what it was about is found again."""
    async with machine.engine() as engine:
        await live(engine)
        engine._booted.index.put_meta({META_DAMAGE + bytes(size): b"somewhere"})
    async with machine.engine() as engine:
        assert engine.scrubber.findings == {}


async def test_damage_is_found_reported_once_and_remembered(machine: Machine) -> None:
    """The part behind it is read all the same."""
    async with machine.engine() as engine:
        await live(engine)
        first, second = machine.journals()[:2]
        flip(first, b"7/4/0:")
        flip(second, b"7/30/0:" if b"7/30/0:" in second.read_bytes() else b"7/28/0:")
        found = await scrub(engine)
        assert {number for number, _ in found} == {int(first.stem), int(second.stem)}
        assert engine.needs_integrity_check
        assert engine.integrity.value == INTEGRITY_IN_LIMBO
        count = machine.metrics.errors_total.labels("scrub")._value
        assert count.get() == 2
        before = dict(found)
        assert await scrub(engine) == before
        assert count.get() == 2
        assert "damaged at offset" in str(engine.scrubber.status()["report"])
    async with machine.engine() as engine:
        assert engine.scrubber.findings == before
        assert engine.needs_integrity_check
        assert (await read(engine, 7, 0, 1)).stopped_by is Status.OK


async def test_all_damage_of_a_file_is_found(machine: Machine) -> None:
    """The scrubber goes on behind each damaged block."""
    async with machine.engine() as engine:
        await live(engine)
        path = machine.journals()[0]
        for entry_id in (2, 6, 12):
            flip(path, f"7/{entry_id}/0:".encode())
        found = await scrub(engine)
        assert [number for number, _ in found] == [int(path.stem)] * 3
        assert engine.scrubber.report.bytes > 55 * 40 * KIB
        assert engine.scrubber.report.files == len(machine.journals())


async def test_what_was_mended_or_removed_is_forgotten(machine: Machine) -> None:
    """By the next pass over the place."""
    async with machine.engine() as engine:
        await live(engine)
        path = machine.journals()[0]
        sound = path.read_bytes()
        flip(path, b"7/4/0:")
        assert len(await scrub(engine)) == 1
        path.write_bytes(sound)
        assert await scrub(engine) == {}
        flip(path, b"7/4/0:")
        assert len(await scrub(engine)) == 1
        # As a compaction does.
        engine._files.remove(int(path.stem))
        assert await scrub(engine) == {}
    async with machine.engine() as engine:
        assert engine.scrubber.findings == {}


async def test_a_file_that_cannot_be_read_is_damage(machine: Machine) -> None:
    """The pass goes on with the next one."""
    async with machine.engine() as engine:
        await live(engine)
        path = machine.journals()[0]
        machine.disk.fail("pread_uncached", path.name, 5, times=1000)
        found = await scrub(engine)
        assert [number for number, _ in found] == [int(path.stem)]
        assert engine.scrubber.report.files == len(machine.journals())
        machine.disk.heal()
        assert await scrub(engine) == {}


async def test_a_damaged_page_is_found(machine: Machine) -> None:
    """Its neighbours are not suspected."""
    async with machine.engine() as engine:
        await live(engine)
        with engine._booted.index.store.write() as txn:
            value = bytearray(txn.get("locations", page_key(8, 1)) or b"")
            value[-1] ^= 1
            txn.put("locations", page_key(8, 1), bytes(value))
        (sentence,) = (await scrub(engine)).values()
        assert page_key(8, 1).hex() in sentence


async def test_a_pass_goes_on_where_it_was(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roughly: the place is remembered now and then, and forgotten at the end of the pass."""
    monkeypatch.setattr("bookie.node.engine.scrub.REMEMBER_BYTES", MIB)
    async with machine.engine() as engine:
        await live(engine)
        last = int(machine.journals()[-1].stem)
        machine.disk.fail("pread_uncached", machine.journals()[-1].name, 5, times=1000)
        steps = engine.scrubber._scrub_index

        async def stop() -> None:
            raise OSError(5, "the pass ends here")

        monkeypatch.setattr(engine.scrubber, "_scrub_index", stop)
        await engine.scrubber.scrub()
        position = engine._booted.index.meta(META_POSITION)
        assert position
        machine.disk.heal()
        monkeypatch.setattr(engine.scrubber, "_scrub_index", steps)
        await engine.scrubber.scrub()
        assert engine.scrubber.report.files < last
        assert engine._booted.index.meta(META_POSITION) == b""
        await engine.scrubber.scrub()
        assert engine.scrubber.report.files == len(machine.journals())


async def test_damage_without_entries_is_forgotten(machine: Machine) -> None:
    """Recovery adds put its entries elsewhere; the place itself stays as it is."""
    async with machine.engine() as engine:
        await live(engine)
        path = machine.journals()[0]
        flip(path, b"7/4/0:")
        assert len(await scrub(engine)) == 1
        await add(engine, 7, [4], size=40 * KIB, recovery=True)
        await engine.checkpoint()
        assert len(await scrub(engine)) == 1, "its neighbour in the block is still there"
        await add(engine, 7, [5], size=40 * KIB, recovery=True)
        await engine.checkpoint()
        assert await scrub(engine) == {}
        count = machine.metrics.errors_total.labels("scrub")._value
        assert count.get() == 1
        assert await scrub(engine) == {}
    async with machine.engine() as engine:
        assert await scrub(engine) == {}
        assert count.get() == 1, "what has no entries is no news for the next process"


async def test_damage_that_grows_is_found(machine: Machine) -> None:
    """It begins where the index points to nothing, and reaches into the next block."""
    async with machine.engine() as engine:
        await live(engine)
        path = machine.journals()[0]
        flip(path, b"7/4/0:")
        await add(engine, 7, [4, 5], size=40 * KIB, recovery=True)
        await engine.checkpoint()
        assert await scrub(engine) == {}
        flip(path, b"7/6/0:")
        ((number, _),) = await scrub(engine)
        assert number == int(path.stem)


async def test_findings_of_a_former_process_settle_without_a_pass(machine: Machine) -> None:
    """Their files are read again, since nobody knows the ends of the damage."""
    async with machine.engine() as engine:
        await live(engine)
        flip(machine.journals()[0], b"7/4/0:")
        flip(machine.journals()[0], b"7/8/0:")
        assert len(await scrub(engine)) == 2
        await add(engine, 7, [4, 5], size=40 * KIB, recovery=True)
    async with machine.engine() as engine:
        await engine.checkpoint()
        assert len(engine.scrubber.findings) == 2
        await engine.scrubber.settle()
        assert len(engine.scrubber.findings) == 1
        await add(engine, 7, [8, 9], size=40 * KIB, recovery=True)
        await engine.checkpoint()
        await engine.scrubber.settle()
        assert engine.scrubber.findings == {}
    async with machine.engine() as engine:
        assert engine.scrubber.findings == {}


async def test_a_damaged_page_keeps_all_findings(machine: Machine) -> None:
    """It may point to the place; once it is written anew, both findings go."""
    async with machine.engine() as engine:
        await live(engine)
        flip(machine.journals()[0], b"7/4/0:")
        assert len(await scrub(engine)) == 1
        await add(engine, 7, [4, 5], size=40 * KIB, recovery=True)
        await engine.checkpoint()
        store, key = engine._booted.index.store, page_key(8, 1)
        with store.write() as txn:
            sound = txn.get("locations", key)
            assert sound is not None
            txn.put("locations", key, sound[:-1] + bytes([sound[-1] ^ 1]))
        assert len(await scrub(engine)) == 2
        with store.write() as txn:
            txn.put("locations", key, sound)
        assert await scrub(engine) == {}

"""A live scan finds the same in steps of any size, and no step reads more than its share."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from bookie.node.engine.engine import Engine
from bookie.node.engine.reclaim import live_scan
from bookie.node.engine.reclaim.live_scan import Found, scan_live
from tests.unit.node.engine.machine import KIB, MIB, Machine, add, batch, start_add

Alive = dict[tuple[int, int], tuple[int, bytes]]
"""Ledger and entry id → offset in the file, and the packet."""


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m", changes={"journal_file_bytes_max": 4 * MIB})


async def fill(machine: Machine, engine: Engine) -> Path:
    """A journal of small and large blocks, some of it dead; its path."""
    choose = random.Random(7)
    following = dict.fromkeys(range(1, 6), 0)
    for _ in range(60):
        waiters = []
        # Requests that come while a block is written become one block.
        for _ in range(choose.choice((1, 1, 1, 20))):
            ledger_id = choose.randint(1, 5)
            ids = range(following[ledger_id], following[ledger_id] + choose.choice((1, 3, 30)))
            following[ledger_id] = ids.stop
            entries = batch(ledger_id, ids, size=choose.choice((40, 700)))
            waiters.append(await start_add(engine, entries))
        for waiter in waiters:
            await waiter
    await add(engine, 9, range(3), size=150 * KIB)
    await engine.delete(await engine.load(5), machine.clock.now_ms())
    await engine.roll()
    await engine.checkpoint()
    return machine.journals()[0]


def look(machine: Machine, engine: Engine, path: Path) -> tuple[list[Found], Alive]:
    """All steps of a scan, and what they found together."""
    steps = list(scan_live(machine.disk, engine._booted.index, int(path.stem), str(path)))
    alive: Alive = {}
    for item in (item for step in steps for item in step.live):
        found = item.batch
        ends = np.cumsum(np.asarray(found.sizes))
        for entry_id, offset, size, end in zip(
            found.entry_ids().tolist(),
            item.offsets.tolist(),
            np.asarray(found.sizes).tolist(),
            ends.tolist(),
            strict=True,
        ):
            key = (found.ledger_id, entry_id)
            assert key not in alive
            alive[key] = (offset, bytes(found.payload[end - size : end]))
    return steps, alive


@pytest.mark.parametrize("damaged", [False, True])
async def test_steps_of_any_size_find_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Also behind a damaged block; offsets and packets are those of the file."""
    async with machine.engine() as engine:
        path = await fill(machine, engine)
        if damaged:
            data = bytearray(path.read_bytes())
            data[data.index(b"3/40/0:")] ^= 1
            path.write_bytes(data)
        steps, expected = look(machine, engine, path)
        assert len(expected) > 500
        assert steps[-1].is_last
        data = bytearray(path.read_bytes())
        for offset, packet in expected.values():
            assert data[offset : offset + len(packet)] == packet
        ledgers = set().union(*(step.ledgers for step in steps))
        for step_bytes in (512, 4096, 10_000, 64 * KIB):
            monkeypatch.setattr(live_scan, "STEP_BYTES", step_bytes)
            smaller, alive = look(machine, engine, path)
            assert alive == expected
            assert set().union(*(step.ledgers for step in smaller)) == ledgers
            assert len(smaller) > len(steps)
            assert max(step.bytes_read for step in smaller) <= step_bytes
            assert smaller[-1].is_last
        assert sum(step.bytes_read for step in steps) == pytest.approx(len(data), rel=0.1)

"""The read-only switch of an operator: it survives what it must, and nothing else."""

from __future__ import annotations

import errno

import pytest

from bookie.errors import DiskFullError, StorageFailedError
from bookie.metadata.store import MetadataStore
from bookie.node.bookie import COMMAND
from bookie.node.engine.directories import locked_directories
from bookie.node.start import StartedBookie
from tests.unit.node.engine.machine import Machine
from tests.unit.node.started_bookie import started


def _state(bookie: StartedBookie) -> tuple[bool, bool]:
    """Whether it is read-only by the switch, and whether that persists."""
    return COMMAND in bookie.bookie.read_only_reasons(), bookie.switch.persists


async def test_a_switch_that_persists_survives_restarts(
    machine: Machine, store: MetadataStore
) -> None:
    async with started(machine, store) as bookie:
        assert _state(bookie) == (False, False)
        await bookie.switch.set(read_only=True, persist=True)
        assert _state(bookie) == (True, True)
    for _ in range(2):
        async with started(machine, store) as bookie:
            assert _state(bookie) == (True, True)
    async with started(machine, store) as bookie:
        await bookie.switch.set(read_only=False)
        assert _state(bookie) == (False, False)
    async with started(machine, store) as bookie:
        assert _state(bookie) == (False, False)


async def test_a_switch_that_does_not_persist(machine: Machine, store: MetadataStore) -> None:
    """It ends with the process, and does not end one that persists."""
    async with started(machine, store) as bookie:
        await bookie.switch.set(read_only=True)
        assert _state(bookie) == (True, False)
    async with started(machine, store) as bookie:
        assert _state(bookie) == (False, False)
        await bookie.switch.set(read_only=True, persist=True)
        await bookie.switch.set(read_only=True)
        assert _state(bookie) == (True, True)
    async with started(machine, store) as bookie:
        assert _state(bookie) == (True, True)


@pytest.mark.parametrize("kept", [0, 1])
async def test_the_switch_survives_a_power_cut(
    machine: Machine, store: MetadataStore, kept: int
) -> None:
    """In both directions: what was answered is durable."""
    async with started(machine, store) as bookie:
        for number, read_only in enumerate((True, False, True)):
            await bookie.switch.set(read_only=read_only, persist=read_only)
            after = machine.without_power(f"off-{number}", kept)
            with locked_directories(after.disk, after.settings) as directories:
                assert directories.is_read_only() is read_only


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)]
)
async def test_a_switch_that_cannot_be_kept_changes_nothing(
    machine: Machine, store: MetadataStore, number: int, error: type[Exception]
) -> None:
    async with started(machine, store) as bookie:
        machine.disk.fail("create", "READONLY", number)
        with pytest.raises(error, match="the switch could not be kept"):
            await bookie.switch.set(read_only=True, persist=True)
        assert _state(bookie) == (False, False)
        await bookie.switch.set(read_only=True, persist=True)
        machine.disk.fail("unlink", "READONLY", number)
        with pytest.raises(error, match="the switch could not be removed"):
            await bookie.switch.set(read_only=False)
        assert _state(bookie) == (True, True)
        await bookie.switch.set(read_only=False)
        assert _state(bookie) == (False, False)

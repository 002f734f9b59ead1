"""A machine, a metadata store and a bookie for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.unit.node.engine.machine import IDENTITY, Machine
from tests.unit.node.node_room import Room, serving


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "m")


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        await initialize_cluster(store)
        await store.put(keys.INSTANCE_ID, IDENTITY.instance_id.encode())
        yield store


@pytest.fixture(name="room")
async def _room(machine: Machine) -> AsyncIterator[Room]:
    async with serving(machine) as room:
        yield room

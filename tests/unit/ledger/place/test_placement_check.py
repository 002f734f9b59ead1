"""Placement by cluster settings and registrations, and the check of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import Sources
from bookie.errors import ConfigurationError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.place import PlacementPolicy
from bookie.ledger.place.labels import BookieLabels
from bookie.ledger.place.placement_check import FragmentPlacement, PlacementCheck
from bookie.ledger.place.placement_view import PlacementView
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from bookie.telemetry import configure_logging

SECONDS_MAX = 120.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """A store with an empty cluster."""
    async with open_store(f"memory://{tmp_path.name}") as opened:
        await initialize_cluster(opened)
        yield opened


def bookie(bookie_id: str, free_bytes: int = 0, **labels: str) -> Registration:
    return Registration(
        bookie_id, (Endpoint("bookie", "127.0.0.1", 1, "grpc"),), labels, free_bytes=free_bytes
    )


def sources(**variables: str) -> Sources:
    return Sources.read(environment=variables)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (a snapshot tells nobody)
            await asyncio.sleep(0.001)


async def test_policy_and_labels_are_those_of_now(store: MetadataStore) -> None:
    """A client that is connected goes by the next setting and the next label of a bookie."""
    settings = ClusterSettings(store)
    await settings.set({"placement.policy": "zone"})
    async with (
        BookieRegistration(store, bookie("b1", 7, zone="a", rack="r1")) as registered,
        BookieDirectory(store) as directory,
        PlacementView(store, directory, sources()) as view,
    ):
        assert view.now().policy is PlacementPolicy.ZONE
        assert view.now().domains(["b1", "b2"]) == ("a", "")
        assert not view.now().weights
        await settings.set({"placement.policy": "rack", "placement.weigh_free_space": "true"})
        await until(lambda: view.now().policy is PlacementPolicy.RACK)
        assert view.now().weights == {"b1": 7}
        await registered.update(bookie("b1", 7, rack="r2"))
        await until(lambda: view.now().domains(["b1"]) == ("r2",))
        await settings.unset(["placement.policy"])
        await until(lambda: view.now().policy is PlacementPolicy.DEFAULT)


async def test_a_client_may_overrule_its_cluster(store: MetadataStore) -> None:
    """By variable, file or flag, as for a bookie."""
    await ClusterSettings(store).set({"placement.policy": "zone", "placement.enforce": "true"})
    own = sources(BOOKIE_PLACEMENT__POLICY="rack")
    async with BookieDirectory(store) as directory, PlacementView(store, directory, own) as view:
        assert view.now().policy is PlacementPolicy.RACK
        assert view.now().enforce


async def test_wrong_settings_stop_a_start_and_nothing_else(store: MetadataStore) -> None:
    """Written past the command that checks them; wrong settings of other sections do not matter."""
    log = StringIO()
    configure_logging("info", "json", stream=log)
    await store.put(keys.setting("log.level"), b"loud")
    await store.put(keys.setting("placement.policy"), b"rack")
    async with BookieDirectory(store) as directory:
        async with PlacementView(store, directory, sources()) as view:
            await store.put(keys.setting("placement.policy"), b"shelf")
            await until(lambda: "setting_ignored" in log.getvalue())
            assert view.now().policy is PlacementPolicy.RACK
            assert "placement.policy" in json.loads(log.getvalue())["reason"]
        with pytest.raises(ConfigurationError, match=r"placement\.policy"):
            async with PlacementView(store, directory, sources()):
                pass


def ledger(ledger_id: int, sizes: tuple[int, int, int], *ensembles: str) -> LedgerMetadata:
    """An open ledger whose fragments begin at 0, 10, …, on bookies with names of one letter."""
    fragments = tuple(
        Fragment(10 * number, tuple(ensemble)) for number, ensemble in enumerate(ensembles)
    )
    return LedgerMetadata(ledger_id, *sizes, LedgerState.OPEN, fragments)


async def checked(store: MetadataStore, *ledger_ids: int) -> list[FragmentPlacement]:
    damaged: list[int] = []
    check = PlacementCheck(store, sources())
    found = [fragment async for fragment in check.run(ledger_ids, damaged.append)]
    assert not damaged
    return found


async def test_every_write_set_is_checked(store: MetadataStore) -> None:
    """By the labels of now; those of an absent bookie are the ones that its operator gave it."""
    manager = LedgerManager(store)
    await manager.create(ledger(1, (3, 3, 2), "abc", "abe"))
    await manager.create(ledger(2, (4, 2, 2), "acbd", "abcd"))
    closed = await manager.create(ledger(3, (2, 2, 1), "ac", "ab"))
    await manager.write(closed.value.closed(9, 0), closed.version)
    await BookieLabels(store).change("e", {"rack": "r2"})
    async with AsyncExitStack() as stack:
        racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
        for bookie_id, rack in racks.items():
            registration = BookieRegistration(store, bookie(bookie_id, rack=rack))
            await stack.enter_async_context(registration)
        found = await checked(store)
        assert [(one.ledger_id, one.spans, one.wanted) for one in found] == [
            *((1, 1, 1), (1, 1, 1), (2, 1, 1), (2, 1, 1), (3, 1, 1))
        ]
        await ClusterSettings(store).set({"placement.policy": "rack"})
        found = await checked(store)
        assert [(one.ledger_id, one.first_entry_id, one.spans) for one in found] == [
            (1, 0, 2),
            (1, 10, 2),
            (2, 0, 2),
            # Four bookies in two racks, but entry 0 has both copies in r1.
            (2, 10, 1),
            # The second fragment begins behind the end.
            (3, 0, 2),
        ]
        assert [one.is_right for one in found] == [True, True, True, False, True]
        assert found[1].domains == ("r1", "r1", "r2")
        assert await checked(store, 3) == [found[4]]
        await ClusterSettings(store).set({"placement.domains_min": "3"})
        assert [one.wanted for one in await checked(store)] == [3, 3, 2, 2, 2]

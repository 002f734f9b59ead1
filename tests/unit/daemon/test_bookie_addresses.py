"""The addresses of bookies are known by their registrations, and stay known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import pytest

from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.daemon import bookie_addresses
from bookie.daemon.bookie_addresses import BookieAddresses, addresses_of
from bookie.env import beside
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.unit.wire.fake_node import until


@pytest.fixture(name="store")
async def _store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_store(f"memory://{tmp_path.name}") as store:
        yield store


def registration(bookie_id: str, *hosts: str) -> Registration:
    endpoints = [Endpoint(f"e{number}", host, 3181, "grpc") for number, host in enumerate(hosts)]
    return Registration(bookie_id, tuple(endpoints))


class Names:
    """Answers for a name server."""

    def __init__(self, **addresses: str) -> None:
        self.addresses = addresses

    def __call__(self, host: str) -> frozenset[str]:
        if host not in self.addresses:
            raise OSError(host)
        return frozenset(self.addresses[host].split())


async def test_registrations_are_followed(store: MetadataStore) -> None:
    """Bookies that come later too; one that goes away keeps its place for its return."""
    names = Names(one="10.0.0.1 fd00::1", two="10.0.0.2", other="10.0.0.3")
    known = BookieAddresses(names)
    async with beside([known.follow(store), known.keep_resolved()]):
        async with BookieRegistration(store, registration("b1", "one", "other")):
            await until(lambda: all(x in known for x in ("10.0.0.1", "fd00::1", "10.0.0.3")))
        assert "10.0.0.2" not in known
        async with BookieRegistration(store, registration("b2", "two")):
            await until(lambda: "10.0.0.2" in known)
        assert "10.0.0.1" in known


async def test_a_bookie_that_moves_takes_its_place_along(store: MetadataStore) -> None:
    """The address of its earlier host is nobody's."""
    known = BookieAddresses(Names(one="10.0.0.1", two="10.0.0.2"))
    async with beside([known.follow(store), known.keep_resolved()]):
        async with BookieRegistration(store, registration("b1", "one")):
            await until(lambda: "10.0.0.1" in known)
        async with BookieRegistration(store, registration("b1", "two")):
            await until(lambda: "10.0.0.2" in known)
        assert "10.0.0.1" not in known


async def test_names_are_resolved_again(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod has another address after its restart; without an answer the last one holds."""
    monkeypatch.setattr(bookie_addresses, "RESOLVE_SECONDS", 0.01)
    names = Names(one="10.0.0.1")
    known = BookieAddresses(names)
    async with (
        beside([known.follow(store), known.keep_resolved()]),
        BookieRegistration(store, registration("b1", "one", "unknown")),
    ):
        await until(lambda: "10.0.0.1" in known)
        names.addresses = {}
        await asyncio.sleep(0.1)
        assert "10.0.0.1" in known
        names.addresses = {"one": "10.0.0.9"}
        await until(lambda: "10.0.0.9" in known)
        assert "10.0.0.1" not in known


async def test_a_silent_name_server_delays_no_stop(store: MetadataStore) -> None:
    """Its thread is left behind, and its late answer is nobody's."""
    begun, answer = Event(), Event()

    def resolve(_: str) -> frozenset[str]:
        begun.set()
        answer.wait()
        return frozenset({"10.0.0.1"})

    known = BookieAddresses(resolve)
    async with BookieRegistration(store, registration("b1", "one")):
        async with beside([known.follow(store), known.keep_resolved()]):
            await until(begun.is_set)
        answer.set()
        await asyncio.sleep(0.05)
    assert "10.0.0.1" not in known


def test_addresses_stand_for_themselves() -> None:
    """As the system writes them, which is how sockets name their peers."""
    assert addresses_of("127.0.0.1") == {"127.0.0.1"}
    assert addresses_of("0:0::1") == {"::1"}

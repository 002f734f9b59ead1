"""The parts of the product's repair, with the explorer's world in the place of store and bookies.

Everything that decides is the product's: marks and locks, moves and fills, the survey, the proof
before a reclaim, the choice of newcomers. Only records of the store, calls to bookies and the
session are questions (`Doors`). No decision rests on the other keys, and they are never there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any, NoReturn, Self, cast
from unittest.mock import patch

import numpy as np

from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.layout import FLAT
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import ClientSettings, PlacementSettings, RepairSettings
from bookie.env import SystemClock
from bookie.errors import NoSuchKeyError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies import marks as marks_module
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.rebalance_plan import SlotMove
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.place.placement_view import placement_of
from bookie.metadata.model import Delete, Operation, Record, Stat
from bookie.metadata.store import MetadataStore
from bookie.node.engine.reclaim.copy_removal import CopyRemoved
from bookie.repair import comparison
from bookie.repair.auditor import Auditor
from bookie.repair.rebalance import Rebalance
from bookie.repair.replicator import Replicator
from bookie.repair.unnamed_copies import Reclaimer
from bookie.repair.worker import RepairWorker
from bookie.telemetry import Metrics
from bookie.wire.codec import parse_add_request
from bookie.wire.commands import LedgerRow, ReadCommand, ReadReply
from bookie.wire.grpc.credentials import ChannelSecurity
from tests.explorer.explored_machines import LEDGER_ID, batch_of, bodies_of
from tests.explorer.replayed import Begin, Doors

SEEN = (keys.LEDGERS, keys.MARKED_LEDGERS, keys.REPAIR_LOCKS, keys.COOKIES)
"""Below these are the records that decisions rest on."""

_ENDPOINT = Endpoint("bookie", "nowhere", 1, "grpc")


def _is_seen(key: str) -> bool:
    return key.startswith(SEEN)


class _StoppedClock(SystemClock):
    """It always says the same, so that records of equal content are equal."""

    def monotonic(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return 0


class DoorStore(MetadataStore):
    """The session of one process with the explorer's store."""

    backend = "the explorer's store"
    session_timeout_seconds = 10.0

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    @property
    def is_session_certain(self) -> bool:
        return self._doors.view.is_certain

    async def get(self, key: str) -> Record | None:
        found = await self._doors.ask("get", key) if _is_seen(key) else None
        return None if found is None else _record(key, *found)

    async def exists(self, key: str) -> bool:
        return await self.get(key) is not None

    async def get_children(self, key: str) -> list[str]:
        if key not in (keys.LOST_BOOKIES, keys.REPAIR_LOCKS):
            return []
        return list(await self._doors.ask("children", key))

    async def scan_children(self, key: str, *, after: str = "") -> AsyncIterator[Record]:
        if key == keys.LEDGERS and after < FLAT.key(LEDGER_ID).rpartition("/")[2]:
            found = await self.get(FLAT.key(LEDGER_ID))
            assert found is not None
            yield found

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        if not any(_is_seen(one.key) for one in operations):
            if any(isinstance(one, Delete) for one in operations):
                raise NoSuchKeyError("it was never there")
            return [_stat(one.key, 0, is_mine=False) for one in operations]
        versions = await self._doors.ask("transact", *operations)
        return [
            None if version is None else _stat(one.key, version, is_mine=False)
            for one, version in zip(operations, versions, strict=True)
        ]

    async def sync(self) -> None:
        """Reads are up to date here."""

    def watch(self, prefix: str) -> NoReturn:
        raise NotImplementedError(prefix)

    def session_events(self) -> NoReturn:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """The session ends when the explorer says so."""


def _record(key: str, value: bytes, version: int, is_mine: bool) -> Record:
    return Record(value, _stat(key, version, is_mine=is_mine))


def _stat(key: str, version: int, *, is_mine: bool) -> Stat:
    return Stat(key, version, None, None, None, is_mine, is_mine, first_version=False)


class _Channel:
    """Calls to one bookie, by connections that stay, or by those that a survey makes."""

    def __init__(self, doors: Doors, bookie_id: str, listing: str = "list") -> None:
        self._doors = doors
        self._listing = listing
        self._bookie_id = bookie_id

    async def read(
        self, command: ReadCommand, *, timeout: float, incarnation: str = ""
    ) -> ReadReply:
        del timeout, incarnation  # no former self answers here
        status, bodies, following, stopped_by = await self._doors.ask(
            "read", self._bookie_id, *command[1:3], command.stripe_modulus, *command[-2:]
        )
        batch = batch_of(bodies) if bodies else None
        return ReadReply(status, "", batch, following, stopped_by)

    async def list_entries(
        self, ledger_id: int, first: int = 0, last: int = NO_ENTRY, **_: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        assert ledger_id == LEDGER_ID
        found = await self._doors.ask(self._listing, self._bookie_id, first, last)
        if found:
            ids = np.array(found, np.int64)
            yield ids, ids

    async def list_ledgers(self) -> AsyncIterator[list[LedgerRow]]:
        entries, limbo = await self._doors.ask("row", self._bookie_id)
        if entries:
            yield [LedgerRow(LEDGER_ID, False, limbo, 0, entries - 1, entries, 0, NO_ENTRY)]

    async def close(self) -> None:
        """Nothing is open."""


class _Lane:
    """Adds to one bookie of one incarnation."""

    def __init__(self, doors: Doors, bookie_id: str, incarnation: str, *, recovery: bool) -> None:
        self._doors = doors
        self._about = bookie_id, incarnation
        self._is_recovery = recovery

    async def request(self, request_id: int, data: bytes) -> tuple[Status, str]:
        number, command = parse_add_request(data)
        assert number == request_id
        assert command.recovery is self._is_recovery, "each kind of adds has its own lane"
        assert command.batch is not None
        bodies = bodies_of(command.batch)
        return await self._doors.ask("add", *self._about, command.recovery, bodies), ""


class _Connection:
    def __init__(self, doors: Doors, bookie_id: str) -> None:
        self._doors = doors
        self._bookie_id = bookie_id

    def channel(self) -> _Channel:
        return _Channel(self._doors, self._bookie_id)

    def recovery(self, incarnation: str) -> _Lane:
        return _Lane(self._doors, self._bookie_id, incarnation, recovery=True)

    def plain(self, incarnation: str) -> _Lane:
        return _Lane(self._doors, self._bookie_id, incarnation, recovery=False)


class _Pool:
    """A client's connections."""

    settings = ClientSettings()
    security = ChannelSecurity()

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self.next_request_id = count(1).__next__

    def connection(self, bookie_id: str) -> _Connection:
        return _Connection(self._doors, bookie_id)


class _Directory:
    """The registered bookies, all of them writable."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def bookies(self) -> Mapping[str, Registration]:
        return {
            name: Registration(name, (_ENDPOINT,), incarnation=incarnation)
            for name, incarnation in self._doors.view.registered
        }

    def all(self) -> Mapping[str, Registration]:
        return self.bookies()

    def names(self) -> frozenset[str]:
        return frozenset(self.bookies())

    def arrivals(self, bookie_id: str) -> int:
        del bookie_id
        return 0


class _Session:
    """A process's part in the coordination."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    @property
    def is_certain(self) -> bool:
        return self._doors.view.is_certain

    @property
    def session_epoch(self) -> int:
        return self._doors.view.epoch


class _OwnCopies:
    """The copies of the bookie in this process."""

    def __init__(self, doors: Doors, bookie_id: str) -> None:
        self._doors = doors
        self._bookie_id = bookie_id

    async def pages(self) -> AsyncIterator[list[int]]:
        entries, _ = await self._doors.ask("row", self._bookie_id)
        yield [LEDGER_ID] if entries else []

    async def find_objection(self) -> str:
        return ""

    async def known_end(self, ledger_id: int, last: int) -> int:
        del ledger_id
        return int(await self._doors.ask("known end", self._bookie_id, last))

    async def remove(self, ledger_id: int, key: bytes, may_go: Callable[[], bool]) -> CopyRemoved:
        del ledger_id, key
        await self._doors.ask("turn")
        if not may_go():
            return CopyRemoved(0, 0, is_whole=False)
        # In the same turn.
        return CopyRemoved(await self._doors.ask("remove", self._bookie_id), 0, is_whole=True)


@cache
def _metrics() -> Metrics:
    return Metrics()


def _first(start: int, stop: int | None = None, step: int = 1) -> int:
    """In the place of chance: bookies are alike."""
    del start, stop, step
    return 0


class _Place:
    """What all works of one process share."""

    def __init__(self, doors: Doors, worker: str) -> None:
        self.store, clock = DoorStore(doors), _StoppedClock()
        directory: Any = _Directory(doors)
        pool: Any = _Pool(doors)
        settings = PlacementSettings()
        placement: Any = SimpleNamespace(now=lambda: placement_of(settings, directory.all()))
        ensembles = Ensembles(directory, placement, CookieManager(self.store))
        ensembles._pick = _first
        manager = LedgerManager(self.store, FLAT)
        self.client = LedgerClient("", directory, ensembles, pool, manager, cast("Any", None))
        self.marks = UnderreplicationManager(self.store, worker, clock)
        repair = RepairSettings(unnamed_copies_grace_seconds=0)
        self.here = RepairWorker(
            self.client, self.store, lambda: repair, _metrics(), clock, worker, self.marks
        )


def audit(doors: Doors, worker: str) -> Any:
    """A survey that lists every entry; it returns the bookies that did not answer."""

    async def work() -> tuple[str, ...]:
        place = _Place(doors, worker)
        gone = await Departures(place.store, keys.LOST_BOOKIES).names()
        return (await Auditor(place.here).survey(gone, is_deep=True)).silent

    return work()


def repair(doors: Doors, worker: str) -> Any:
    """One attempt of a replicator on the ledger."""
    return Replicator(_Place(doors, worker).here)._repair(LEDGER_ID)


def reclaim(doors: Doors, worker: str) -> Any:
    """One round of the reclaimer of the bookie `worker`."""
    copies: Any = _OwnCopies(doors, worker)
    session: Any = _Session(doors)
    return Reclaimer(_Place(doors, worker).here, copies).round(session)


def exchange(doors: Doors, worker: str) -> Any:
    """A rebalance moves a slot; `worker` names the former bookie and the newcomer: ``b0>b3``."""
    place = _Place(doors, worker)
    former, _, newcomer = worker.partition(">")
    move = SlotMove(LEDGER_ID, 0, former, newcomer, 1)
    rebalance = Rebalance(place.client, place.store, worker, 0, lambda _: None)
    return rebalance._make_one([move], place.marks)


KINDS: Mapping[str, Callable[[Doors, str], Any]] = {
    "audit": audit,
    "repair": repair,
    "reclaim": reclaim,
    "exchange": exchange,
}


def begin_of(kind: str, worker: str) -> Begin:
    """What a process of this kind does, from its begin on."""

    async def begin(doors: Doors) -> object:
        with _in_place(doors, worker):
            return await KINDS[kind](doors, worker)

    return begin


@contextmanager
def _in_place(doors: Doors, worker: str) -> Iterator[None]:
    """Tokens follow from the worker, and the survey's connections lead to the doors."""

    def token_hex(size: int) -> str:
        doors.tokens += 1
        return f"{worker}-{doors.tokens}-{size}"

    def channel(*_: Any, bookie_id: str, **__: Any) -> _Channel:
        return _Channel(doors, bookie_id, "survey")

    with (
        patch.object(marks_module, "secrets", SimpleNamespace(token_hex=token_hex)),
        patch.object(comparison, "BookieChannel", channel),
    ):
        yield

"""A bookie on a machine that a test can break, and the requests that it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from crc32c import crc32c

from bookie.config import NodeSettings
from bookie.entry.batch import EntryBatch
from bookie.ids import NO_ENTRY
from bookie.node.bookie import Bookie, open_bookie
from bookie.node.engine.engine import Engine
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply, Reply
from tests.unit.node.engine.machine import IDENTITY, KEY, Machine, batch


@dataclass(slots=True)
class Room:
    """A bookie that serves."""

    machine: Machine
    engine: Engine
    bookie: Bookie


@asynccontextmanager
async def serving(machine: Machine, settings: NodeSettings | None = None) -> AsyncIterator[Room]:
    """A bookie on the directories of `machine`."""
    async with (
        machine.engine() as engine,
        open_bookie(
            engine,
            settings or NodeSettings(),
            machine.metrics,
            bookie_id=IDENTITY.bookie_id,
            instance_id=IDENTITY.instance_id,
            version="0",
            usage=lambda: machine.disk.usage(str(machine.root)),
        ) as bookie,
    ):
        yield Room(machine, engine, bookie)


def add_command(
    entries: EntryBatch,
    *,
    key: bytes = KEY,
    recovery: bool = False,
    deferred_sync: bool = False,
    lac_packet: bytes = b"",
) -> AddCommand:
    """An add that is right."""
    return AddCommand(
        entries,
        entries.ledger_id,
        key,
        crc32c(entries.payload),
        recovery=recovery,
        deferred_sync=deferred_sync,
        lac_packet=lac_packet,
    )


def read_command(ledger_id: int, first: int, last: int, **changes: object) -> ReadCommand:
    """A read of a range, with the right key if it fences."""
    command = ReadCommand(ledger_id, first, last, master_key=KEY)
    return command._replace(**changes)  # type: ignore[arg-type]  # names are checked


async def add_unnamed(bookie: Bookie, ledger_id: int, ids: Iterable[int]) -> Reply:
    """Add entries for a client that names no incarnation."""
    return await bookie.add_unnamed(add_command(batch(ledger_id, ids)))


async def add(
    bookie: Bookie,
    ledger_id: int,
    ids: Iterable[int],
    *,
    key: bytes = KEY,
    recovery: bool = False,
    lac: int = NO_ENTRY,
    salt: int = 0,
) -> Reply:
    """Add entries and wait for the answer."""
    entries = batch(ledger_id, ids, lac=lac, salt=salt)
    return await bookie.add(add_command(entries, key=key, recovery=recovery))


async def read(bookie: Bookie, ledger_id: int, first: int, last: int) -> ReadReply:
    """Read a range."""
    return await bookie.read(read_command(ledger_id, first, last))


def ids_of(reply: ReadReply) -> list[int]:
    """The ids in an answer."""
    return [] if reply.batch is None else reply.batch.entry_ids().tolist()

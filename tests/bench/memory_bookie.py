"""A bookie that stores nothing durably: the ceiling of what gRPC and the client allow.

It parses and answers exactly the messages that a real one does. It keeps batches in a dictionary,
and gives the same responses to reads from memory. Run as a process, it registers like a bookie::

    python -m tests.bench.memory_bookie METADATA_URI BOOKIE_ID [forgets]

One that forgets keeps nothing at all: fresh memory for everything would cost more than the rest.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable

from bookie.cluster.instance import read_instance_id
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import NodeSettings, RpcSettings
from bookie.daemon.loop import run
from bookie.entry.batch import EntryBatch
from bookie.env import Outcome
from bookie.ids import MAX_ID, Status
from bookie.metadata.connect import open_store
from bookie.telemetry import Metrics
from bookie.wire.commands import (
    AddCommand,
    Info,
    LacReply,
    LacState,
    LedgerRow,
    ReadCommand,
    ReadReply,
    Reply,
)
from bookie.wire.unary_codec import Ranges
from tests.entry_batches import merged
from tests.served_node import serve

_OK = Reply(Status.OK)


class _NoWatcher:
    def subscribe(self, ledger_id: int) -> None:
        """Nothing is ever reported."""

    def unsubscribe(self, ledger_id: int) -> None:
        """Nothing is ever reported."""

    def close(self) -> None:
        """Nothing is ever reported."""


class MemoryBookie:
    """Answers OK to everything, from memory."""

    def __init__(self, instance_id: str, bookie_id: str = "memory", *, keeps: bool = True) -> None:
        self.instance_id = instance_id
        self.bookie_id = bookie_id
        self.incarnation = ""
        self._keeps = keeps
        self.settings = NodeSettings()
        self._batches: dict[int, list[EntryBatch]] = {}
        self._responses: dict[tuple[int, int], ReadReply] = {}

    def try_admit_add(self, size: int, recovery: bool = False, /) -> bool:
        """Everything is admitted."""
        return True

    async def admit_add(self, size: int, /) -> None:
        """Everything is admitted."""

    def add(self, command: AddCommand, admitted: int = 0, /) -> Outcome[Reply]:
        """Keep the batch and answer at once."""
        if command.batch is not None and self._keeps:
            self._batches.setdefault(command.ledger_id, []).append(command.batch)
        return Outcome.of(_OK)

    def add_unnamed(self, command: AddCommand, admitted: int = 0, /) -> Outcome[Reply]:
        """Nothing is remembered that could be lost."""
        return self.add(command, admitted)

    def try_read(self, command: ReadCommand, /) -> ReadReply | None:
        """Nothing has to be waited for."""
        key = (command.ledger_id, command.first_entry_id)
        return self._responses.get(key)

    async def read(self, command: ReadCommand) -> ReadReply:
        """The response that was made when this range was asked for first."""
        key = (command.ledger_id, command.first_entry_id)
        reply = self._responses.get(key)
        if reply is None:
            reply = self._responses[key] = self._build(command)
        return reply

    def _build(self, command: ReadCommand) -> ReadReply:
        chosen: list[EntryBatch] = []
        size = 0
        limit = min(command.max_bytes or MAX_ID, self.settings.read_bytes_max)
        for batch in self._batches.get(command.ledger_id, []):
            if batch.last_entry_id < command.first_entry_id:
                continue
            part = batch.clip(command.first_entry_id, command.last_entry_id)
            if not part.count or (chosen and size + part.payload_bytes > limit):
                break
            chosen.append(part)
            size += part.payload_bytes
        if not chosen:
            return ReadReply(Status.NO_SUCH_ENTRY, "no such entry", None, command.first_entry_id)
        batch = merged(chosen)
        return ReadReply(Status.OK, "", batch, batch.last_entry_id + 1)

    async def read_lac(self, ledger_id: int, master_key: bytes) -> LacReply:
        """Nothing is known."""
        return LacReply(Status.NO_SUCH_LEDGER, "nothing is kept")

    async def fence(self, ledger_id: int, master_key: bytes) -> LacReply:
        """Nothing is known."""
        return LacReply(Status.NO_SUCH_LEDGER, "nothing is kept")

    async def force(self, ledger_id: int) -> Reply:
        """Nothing is durable, and it says OK."""
        return _OK

    async def write_lac(self, ledger_id: int, master_key: bytes, packet: bytes) -> Reply:
        """Forgotten at once."""
        return _OK

    async def list_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, key: bytes
    ) -> AsyncIterator[Ranges]:
        """Nothing."""
        ranges: list[Ranges] = []
        for item in ranges:
            yield item

    async def list_ledgers(self, after_ledger_id: int) -> AsyncIterator[list[LedgerRow]]:
        """Nothing."""
        pages: list[list[LedgerRow]] = []
        for page in pages:
            yield page

    async def info(self) -> Info:
        """A bookie without a disk."""
        return Info("memory", self.instance_id, "0", False, 0, 0, len(self._batches))

    def watch(self, callback: Callable[[LacState], None]) -> _NoWatcher:
        """Nothing changes."""
        return _NoWatcher()


async def main(uri: str, bookie_id: str, *, keeps: bool) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_store(uri) as store:
        bookie = MemoryBookie(await read_instance_id(store), bookie_id, keeps=keeps)
        async with serve(bookie, "127.0.0.1", 0, RpcSettings(drain_seconds=0.1), Metrics()) as port:
            endpoints = (Endpoint("bookie", "127.0.0.1", port, "grpc"),)
            registration = Registration(bookie_id, endpoints)
            async with BookieRegistration(store, registration):
                await stop.wait()


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2], keeps="forgets" not in sys.argv[3:]))

"""What clients of a simulated cluster call, with the events that the checker of ledgers gets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

from bookie.api import BookKeeper, ReaderHandle, WriterHandle
from bookie.entry.entry import Entry
from bookie.errors import (
    BookieError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bookie.testing.simulation.simulated_cluster import SimulatedClient, SimulatedCluster
from tests.cluster_sim.lives_of_ids import LivesOfIds
from tests.ledger_history.ledger_events import (
    AppendEvent,
    CloseEvent,
    DeleteEvent,
    ForceEvent,
    HistoryRecorder,
    OpenEvent,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
    copies_of,
    digest_of,
)

OPERATION_SECONDS_MAX = 15.0
"""A client gives up then; the outcome of what it did is unknown."""


class RecordedCalls:
    """Calls of all clients of one seed, and the ledgers that they know."""

    def __init__(self, cluster: SimulatedCluster, recorder: HistoryRecorder) -> None:
        self.cluster = cluster
        self.recorder = recorder
        self.ledgers: list[int] = []
        self.passwords: dict[int, bytes] = {}
        self.lives = LivesOfIds()
        self.deleted: Counter[int] = Counter()
        """Ids, and how often somebody tried to delete their ledger."""
        self.used_again: set[int] = set()
        """Ids whose ledger was deleted and made anew; nobody deletes that one."""
        self._payloads = 0
        self._handles = 0
        self._kept: list[WriterHandle] = []
        """So that no writer is dropped before the end."""

    def new_handle(self, client: SimulatedClient) -> str:
        """A name for a writer or reader of the client."""
        self._handles += 1
        return f"{client.host}/{self._handles}"

    def keep(self, writer: WriterHandle, password: bytes = b"") -> None:
        """A ledger was created."""
        self._kept.append(writer)
        self.passwords[writer.ledger_id] = password
        self.ledgers.append(writer.ledger_id)

    async def append(
        self,
        client: SimulatedClient,
        writer: WriterHandle,
        handle: str,
        choose: random.Random,
        *,
        is_deferred: bool = False,
    ) -> bool:
        """Append a few payloads; whether they were acknowledged."""
        payloads = []
        for _ in range(choose.choice((1, 1, 1, 3, 12))):
            self._payloads += 1
            payloads.append(
                b"%s-%d-" % (handle.encode(), self._payloads) + bytes(choose.choice((0, 0, 200)))
            )
        event = self.recorder.invoke(
            AppendEvent(
                process=client.host,
                ledger_id=self.lives.of(writer.metadata),
                handle=handle,
                digests=tuple(map(digest_of, payloads)),
                is_deferred=is_deferred,
            )
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                if len(payloads) == 1:
                    ids: tuple[int, ...] = (await writer.append(payloads[0]),)
                else:
                    ids = tuple(await writer.append_many(payloads))
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            self.met(error, "deletion met by a writer")
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        if client.process.is_alive:
            event.ok(entry_ids=ids)
            self.cluster.counts["append"] += 1
        return True

    def met(self, error: BaseException, what: str) -> None:
        """Count an error that says that the ledger is gone, or that the id has another one."""
        if isinstance(error, UnauthorizedError) and "the id was used twice" in str(error):
            self.cluster.count("another life refused")
        if isinstance(error, NoSuchLedgerError):
            self.cluster.count(what)

    async def force(self, client: SimulatedClient, writer: WriterHandle, handle: str) -> None:
        """Make durable what was appended with deferred sync."""
        event = self.recorder.invoke(
            ForceEvent(process=client.host, ledger_id=self.lives.of(writer.metadata), handle=handle)
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                await writer.force()
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        event.ok()
        self.cluster.count("force")

    async def close(self, client: SimulatedClient, writer: WriterHandle, handle: str) -> None:
        """Close the writer's ledger."""
        event = self.recorder.invoke(
            CloseEvent(process=client.host, ledger_id=self.lives.of(writer.metadata), handle=handle)
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                metadata = await writer.close()
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        event.ok(last_entry_id=metadata.last_entry_id, length=metadata.length)
        self.cluster.counts["close"] += 1

    async def open(
        self, client: SimulatedClient, bookkeeper: BookKeeper, ledger_id: int, *, recover: bool
    ) -> tuple[ReaderHandle, str] | None:
        """Open a ledger, or recover it; None if that failed."""
        handle = self.new_handle(client)
        event = self.recorder.invoke(
            OpenEvent(process=client.host, ledger_id=ledger_id, handle=handle, is_recovery=recover)
        )
        password = self.passwords[ledger_id]
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                reader = await bookkeeper.open_ledger(ledger_id, password=password, recover=recover)
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        length = reader.metadata.length if reader.is_closed else 0
        event.ok(
            ledger_id=self.lives.of(reader.metadata),
            is_closed=reader.is_closed,
            last_entry_id=reader.last_entry_id,
            length=length,
        )
        self.cluster.counts["recovery" if recover else "open"] += 1
        return reader, handle

    async def read_all(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> bool:
        """Read a ledger up to its last entry; whether that was possible."""
        last = reader.last_entry_id
        event = self.recorder.invoke(
            ReadEvent(
                process=client.host,
                ledger_id=self.lives.of(reader.metadata),
                handle=handle,
                first=0,
                last=last,
            )
        )
        entries: list[tuple[int, bytes]] = []
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                async with contextlib.aclosing(reader.read_batches(0, last)) as batches:
                    async for batch in batches:
                        entries += [(entry.entry_id, bytes(entry.payload)) for entry in batch]
        except NoSuchEntryError as error:
            event.info(error, entries=copies_of(entries), denied=len(entries))
            if reader.ledger_id in self.deleted:
                self.cluster.count("deletion met by a reader")
            return False
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error, entries=copies_of(entries))
            self.met(error, "deletion met by a reader")
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        event.ok(entries=copies_of(entries))
        self.cluster.counts["read"] += 1
        return True

    async def refresh(self, client: SimulatedClient, reader: ReaderHandle, handle: str) -> None:
        """Ask for the LAC."""
        event = self.recorder.invoke(
            ReadLacEvent(
                process=client.host, ledger_id=self.lives.of(reader.metadata), handle=handle
            )
        )
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                last = await reader.refresh()
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            self.met(error, "deletion met by a reader")
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        event.ok(last_entry_id=last)

    def tailed(
        self, client: SimulatedClient, reader: ReaderHandle, handle: str, entry: Entry
    ) -> None:
        """A tail has delivered an entry."""
        number = self.lives.of(reader.metadata)
        event = TailEvent(process=client.host, ledger_id=number, handle=handle, start=0)
        copies = copies_of([(entry.entry_id, bytes(entry.payload))])
        self.recorder.invoke(event).ok(entries=copies)
        self.cluster.counts["tailed"] += 1

    async def delete(self, client: SimulatedClient, bookkeeper: BookKeeper, ledger_id: int) -> bool:
        """Delete a ledger; whether that is known to be done."""
        number = self.lives.newest(ledger_id)
        event = self.recorder.invoke(DeleteEvent(process=client.host, ledger_id=number))
        self.deleted[ledger_id] += 1
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                await bookkeeper.delete_ledger(ledger_id)
        except (BookieError, TimeoutError, asyncio.CancelledError) as error:
            event.info(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        event.ok()
        self.cluster.note(f"{client.host} deletes {ledger_id}")
        self.cluster.count("deletion")
        return True

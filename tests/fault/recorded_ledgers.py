"""Clients of real bookies whose operations on ledgers go into a history for the checker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from bookie.api import BookKeeper, ReaderHandle, WriterHandle
from bookie.entry.digest import digester_for_key
from bookie.errors import BookieError, NoSuchEntryError, NoSuchLedgerError
from bookie.ids import Status
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.verification import verify_read
from bookie.wire.commands import ReadCommand
from tests.fault.lossy_cluster import healed
from tests.ledger_history.ledger_checker import HistoryVerdict, check_ledgers
from tests.ledger_history.ledger_events import (
    AppendEvent,
    CloseEvent,
    DeleteEvent,
    FinalFragment,
    FinalLedger,
    FinalLedgerState,
    FinalState,
    HistoryRecorder,
    OpenEvent,
    PayloadDigest,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
    copies_of,
    digest_of,
)

FAILURES = (BookieError, asyncio.CancelledError)


class RecordedWriter:
    """A writer, each of whose appends is recorded before it is sent."""

    def __init__(self, recorder: HistoryRecorder, process: str, writer: WriterHandle) -> None:
        self.writer = writer
        self._recorder = recorder
        self._process = process
        self._handle = f"writer of {writer.ledger_id}"

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self.writer.ledger_id

    async def append(self, payloads: Sequence[bytes]) -> range:
        """Append all of them; their outcome is unknown if this raises."""
        invocation = self._recorder.invoke(
            AppendEvent(
                process=self._process,
                ledger_id=self.ledger_id,
                handle=self._handle,
                digests=tuple(map(digest_of, payloads)),
            )
        )
        try:
            ids = await self.writer.append_many(payloads)
        except FAILURES as error:
            invocation.info(error)
            raise
        invocation.ok(entry_ids=tuple(ids))
        return ids

    async def close(self) -> None:
        """Close the ledger."""
        invocation = self._recorder.invoke(
            CloseEvent(process=self._process, ledger_id=self.ledger_id, handle=self._handle)
        )
        try:
            metadata = await self.writer.close()
        except FAILURES as error:
            invocation.info(error)
            raise
        invocation.ok(last_entry_id=metadata.last_entry_id, length=metadata.length)


class RecordedReader:
    """A reader, whatever it is told is recorded."""

    def __init__(
        self, recorder: HistoryRecorder, process: str, handle: str, reader: ReaderHandle
    ) -> None:
        self.reader = reader
        self._recorder = recorder
        self._process = process
        self._handle = handle
        self.tailed = 0
        """The entry that the tail waits for."""

    async def read_lac(self) -> int:
        """Ask for newer metadata and a newer LAC."""
        invocation = self._recorder.invoke(
            ReadLacEvent(
                process=self._process, ledger_id=self.reader.ledger_id, handle=self._handle
            )
        )
        try:
            lac = await self.reader.refresh()
        except FAILURES as error:
            invocation.fail(error)
            raise
        invocation.ok(last_entry_id=lac)
        return lac

    async def read(self, first: int, last: int) -> list[bytes]:
        """The payloads of these entries."""
        invocation = self._recorder.invoke(
            ReadEvent(
                process=self._process,
                ledger_id=self.reader.ledger_id,
                handle=self._handle,
                first=first,
                last=last,
            )
        )
        found: list[tuple[int, bytes]] = []
        try:
            async with aclosing(self.reader.read(first, last)) as entries:
                async for entry in entries:
                    found.append((entry.entry_id, entry.payload))  # noqa: PERF401  (kept on errors)
        except FAILURES as error:
            denied = first + len(found) if isinstance(error, NoSuchEntryError) else None
            invocation.fail(error, entries=copies_of(found), denied=denied)
            raise
        invocation.ok(entries=copies_of(found))
        return [payload for _, payload in found]

    async def tail(self, start: int) -> None:
        """Follow the ledger until it ends, or this is cancelled."""
        event = TailEvent(
            process=self._process,
            ledger_id=self.reader.ledger_id,
            handle=f"{self._handle}, tail",
            start=start,
        )
        self.tailed = start
        invocation = self._recorder.invoke(event)
        try:
            async with aclosing(self.reader.tail(start)) as entries:
                async for entry in entries:
                    invocation.ok(entries=copies_of([(entry.entry_id, entry.payload)]))
                    self.tailed = entry.entry_id + 1
                    invocation = self._recorder.invoke(event)
        except FAILURES as error:
            denied = self.tailed if isinstance(error, NoSuchEntryError) else None
            invocation.fail(error, denied=denied)
            raise


class RecordedLedgers:
    """All that clients do to the ledgers of one episode."""

    def __init__(self) -> None:
        self.recorder = HistoryRecorder(asyncio.get_running_loop().time)
        self.destroyed: set[str] = set()
        """Bookies that lost data."""
        self._finals: dict[int, FinalLedger] = {}
        self._readers = 0

    def writer(self, process: str, writer: WriterHandle) -> RecordedWriter:
        """Record what this writer does from now on."""
        return RecordedWriter(self.recorder, process, writer)

    async def open(
        self, process: str, client: BookKeeper, ledger_id: int, *, recover: bool = False
    ) -> RecordedReader:
        """Open a ledger for reading, or recover it."""
        self._readers += 1
        handle = f"reader {self._readers}"
        invocation = self.recorder.invoke(
            OpenEvent(process=process, ledger_id=ledger_id, handle=handle, is_recovery=recover)
        )
        try:
            reader = await client.open_ledger(ledger_id, recover=recover)
        except FAILURES as error:
            invocation.info(error)
            raise
        metadata = reader.metadata
        invocation.ok(
            is_closed=reader.is_closed,
            last_entry_id=reader.last_entry_id,
            length=metadata.length if reader.is_closed else 0,
        )
        return RecordedReader(self.recorder, process, handle, reader)

    async def delete(self, process: str, client: BookKeeper, ledger_id: int) -> None:
        """Delete a ledger, and look whether it is gone."""
        invocation = self.recorder.invoke(DeleteEvent(process=process, ledger_id=ledger_id))
        try:
            await client.delete_ledger(ledger_id)
        except FAILURES as error:
            invocation.info(error)
            raise
        invocation.ok()
        try:
            await client.ledger_metadata(ledger_id)
        except NoSuchLedgerError:
            final = self._finals.get(ledger_id, FinalLedger(ledger_id=ledger_id, state=_DELETED))
            self._finals[ledger_id] = replace(final, state=_DELETED, entries=None, copies=None)

    async def look(self, client: BookKeeper, ledger_id: int) -> LedgerMetadata:
        """Note how a ledger is now: its metadata, all entries, and each bookie's copies."""
        reader = await client.open_ledger(ledger_id)
        metadata = reader.metadata
        entries = [(entry.entry_id, entry.payload) async for entry in reader.read()]
        self._finals[ledger_id] = FinalLedger(
            ledger_id=ledger_id,
            state=FinalLedgerState[metadata.state.name],
            ensemble_size=metadata.ensemble_size,
            write_quorum_size=metadata.write_quorum_size,
            ack_quorum_size=metadata.ack_quorum_size,
            last_entry_id=metadata.last_entry_id,
            length=metadata.length,
            fragments=tuple(
                FinalFragment(one.first_entry_id, tuple(one.bookies)) for one in metadata.fragments
            ),
            entries=copies_of(entries),
            copies=await bookies_copies(client, metadata),
        )
        return metadata

    def counts(self) -> Counter[str]:
        """How many operations of each kind had each outcome."""
        events = self.recorder.history(FinalState(ledgers=())).events
        return Counter(f"{type(one).__name__} {one.outcome.value}" for one in events)

    def check(self) -> None:
        """Fail unless the history so far is valid; the ledgers are as they were last looked at."""
        final = FinalState(
            ledgers=tuple(self._finals.values()), destroyed=frozenset(self.destroyed)
        )
        result = check_ledgers(self.recorder.history(final))
        assert result.verdict is HistoryVerdict.VALID, result.describe()


_DELETED = FinalLedgerState.DELETED


# ---- copies


async def bookies_copies(
    client: BookKeeper, metadata: LedgerMetadata
) -> dict[str, dict[int, PayloadDigest]]:
    """The verified copies of a closed ledger, on the bookies that its metadata names."""
    copies: dict[str, dict[int, PayloadDigest]] = {}
    ends = [one.first_entry_id for one in metadata.fragments[1:]] + [metadata.last_entry_id + 1]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        for slot, bookie in enumerate(fragment.bookies):
            held = copies.setdefault(bookie, {})
            held.update(await _copies_of_slot(client, metadata, fragment, slot, end))
    return copies


async def _copies_of_slot(
    client: BookKeeper, metadata: LedgerMetadata, fragment: Fragment, slot: int, end: int
) -> dict[int, PayloadDigest]:
    """What a bookie holds of the entries of its slot that end before `end`."""
    bookie = fragment.bookies[slot]
    connection = client._connected.pool.connection(bookie)
    digester = digester_for_key(metadata.digest_type, metadata.password_key)
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    stripe = quorum.stripe_of(slot)
    following = stripe.next_id(fragment.first_entry_id)
    held: dict[int, PayloadDigest] = {}
    while following < end:
        command = ReadCommand(
            metadata.ledger_id,
            following,
            end - 1,
            max_entries=1000,
            max_bytes=1 << 20,
            stripe_modulus=stripe.modulus,
            stripe_first_residue=stripe.first_residue,
            stripe_count=stripe.count,
        )
        read = partial(connection.channel().read, command, timeout=60)
        told = verify_read(await healed(read), digester)
        held.update((entry.entry_id, digest_of(entry.payload)) for entry in told.entries)
        if told.batch is None:
            # Lost with the disk, or never stored: absent, or unknown.
            assert told.status is not Status.BAD_CHECKSUM
            following = stripe.next_id(following + 1)
        else:
            following = stripe.next_id(told.batch.last_entry_id + 1)
    return held

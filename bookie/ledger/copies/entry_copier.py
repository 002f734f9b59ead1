"""Copies entries of one ledger to one bookie: unchanged verified packets, by recovery adds.

A packet keeps its digest. So a copy equals its source byte by byte. A bookie acknowledges a
recovery add only after the entries are durable. If a bookie gets an entry twice, the newer copy
replaces the older copy, even a corrupt one.

If no member of the write set has a good copy, the copier asks the other registered bookies. If the
metadata store was restored from a backup, a bookie outside the write set may have a copy that moved
to it after the backup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookie.entry.batch import EntryBatch
from bookie.env import gather
from bookie.env.pace import Pace
from bookie.errors import BookieError, BookieUnreachableError, ReadOnlyError, error_for_status
from bookie.ids import BATCH_SIZE_BYTES_MAX, Status
from bookie.ledger.connection.calls import patiently
from bookie.ledger.copies.replica_plan import quorum_of
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Incarnations
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.ledger.read.verification import list_stored, read_command, verify_read
from bookie.ledger.striping import is_run
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX
from bookie.ledger.write.requests import RequestEncoder


class EntryCopier:
    """Copies entries of one ledger to one bookie.

    Args:
        client: the client with the connections to bookies.
        metadata: the ledger's metadata, which names the sources.
        target: the bookie that gets the entries.
        found_on: further sources: bookies that have entries, but should not store these entries.
        pace: bounds the bytes per second; None copies as fast as possible.
        incarnation: the target's incarnation; None reads it from the metadata store.
        needs_room: if True, refuse a target that is not writable, for example because its disk is
            nearly full. If False, recovery adds may also use the disk space that is reserved for
            fences.
    """

    def __init__(
        self,
        client: LedgerClient,
        metadata: LedgerMetadata,
        target: str,
        *,
        found_on: Sequence[str] = (),
        pace: Pace | None = None,
        incarnation: str | None = None,
        needs_room: bool = False,
    ) -> None:
        self._client = client
        self.metadata = metadata
        self.target = target
        self._found_on = found_on
        self._pace = pace
        self._needs_room = needs_room
        self._encoder = RequestEncoder(metadata, quorum_of(metadata), client.pool.next_request_id)
        self._incarnations = Incarnations(client.ensembles.cookies)
        if incarnation is not None:
            self._incarnations.known[target] = incarnation
        self._silent: set[str] = set()
        """Sources that did not answer the last read."""
        self.entries = self.packet_bytes = 0
        """The number of copied entries; `packet_bytes` is the size of their packets."""

    async def incarnation(self) -> str:
        """Return the incarnation to which entries are sent; empty if the target has no cookie.

        Raises:
            MetadataError, FormatError: the incarnation could not be read from the store.
        """
        return await self._incarnations.of(self.target)

    async def copy(self, first: int, last: int, stripe: Stripe = EVERY_ID) -> str:
        """Copy the entries whose ids are in `stripe`, from id `first` to id `last`, both inclusive.

        Return "" if all entries were copied. If an entry has no good copy, return the reason; all
        entries before this entry have then been copied.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            BookieError: the target did not accept the entries.
        """
        metadata = self.metadata
        position = stripe.next_id(first)
        while position <= last:
            batch, reasons = await self._good_copy(position, last, stripe)
            if batch is None:
                return f"no good copy of entry {position} ({'; '.join(reasons)})"
            # `read_latest` raises if the ledger was deleted, because a copy would then be useless.
            await self._client.ledgers.read_latest(metadata.ledger_id, metadata.c_token)
            if self._needs_room and self.target not in self._client.directory.bookies():
                raise ReadOnlyError(f"bookie {self.target} is read-only or away")
            if self._pace is not None:
                await self._pace.spend(batch.payload_bytes)
            await self._store(batch)
            self.entries += batch.count
            self.packet_bytes += batch.payload_bytes
            position = stripe.next_id(batch.last_entry_id + 1)
        return ""

    async def _good_copy(
        self, first: int, last: int, stripe: Stripe
    ) -> tuple[EntryBatch | None, list[str]]:
        """Return the verified packets of one read from `first` on, or None and all errors."""
        reasons = []
        for bookie_id in self._best_first(self._sources(first)):
            batch, reason = await self._read(bookie_id, first, last, stripe)
            if batch is not None:
                return batch, []
            reasons.append(f"{bookie_id}: {reason}")
        for bookie_id in await self._others_with(first):
            batch, reason = await self._read(bookie_id, first, last, stripe)
            if batch is not None:
                self._found_on = (*self._found_on, bookie_id)
                return batch, []
            reasons.append(f"{bookie_id}: {reason}")
        return None, reasons

    async def _others_with(self, entry_id: int) -> list[str]:
        """Return registered bookies that list an entry, except the target and known sources."""

        async def has_it(bookie_id: str) -> bool:
            try:
                pool = self._client.pool
                return bool(await list_stored(pool, bookie_id, self.metadata, entry_id, entry_id))
            except BookieError:
                return False  # this bookie cannot help

        known = {self.target, *self._sources(entry_id)}
        others = sorted(set(self._client.directory.all()) - known)
        found = await gather(map(has_it, others))
        return [name for name, has in zip(others, found, strict=True) if has]

    def _best_first(self, sources: Sequence[str]) -> list[str]:
        """Sort sources; silent and unregistered bookies come last, because they may time out."""
        registered = self._client.directory.all()
        return sorted(sources, key=lambda name: (name in self._silent, name not in registered))

    def _sources(self, entry_id: int) -> list[str]:
        fragment = self.metadata.fragment_of(entry_id)
        slots = quorum_of(self.metadata).write_set(entry_id)
        names = [fragment.bookies[slot] for slot in slots]
        others = [*names, *self._found_on]
        return [name for name in dict.fromkeys(others) if name != self.target]

    async def _read(
        self, bookie_id: str, first: int, last: int, stripe: Stripe
    ) -> tuple[EntryBatch | None, str]:
        command = read_command(
            self.metadata,
            first,
            last,
            stripe,
            max_entries=BATCH_ENTRIES_MAX,
            max_bytes=BATCH_SIZE_BYTES_MAX,
        )
        pool = self._client.pool
        try:
            channel = pool.connection(bookie_id).channel()
            # In a cluster without roles, a bookie limits the rate of a repair like the rate of a
            # client.
            reply = await patiently(
                lambda: channel.read(command, timeout=pool.settings.read_timeout_seconds),
                pool.settings.rate_patience_seconds,
            )
        except BookieError as error:
            self._silent.add(bookie_id)
            return None, str(error)
        self._silent.discard(bookie_id)
        told = verify_read(reply, self._encoder.digester)
        if told.batch is None:
            problem = told.stopped_by if told.status is Status.OK else told.status
            return None, told.message or problem.name.lower().replace("_", " ")
        if not is_run(told.batch, stripe, first):
            return None, "it left out entries"
        return told.batch, ""

    async def _store(self, batch: EntryBatch) -> None:
        """Store packets on the target, by a recovery add.

        Raises:
            BookieUnreachableError: the target did not answer in time.
            BookieError: the target refused the packets; the class depends on its status.
        """
        pool, target = self._client.pool, self.target
        request_id, data = self._encoder.entries(batch, recovery=True)
        lane = pool.connection(target).recovery(await self._incarnations.of(target))
        seconds = pool.settings.add_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                status, message = await lane.request(request_id, data)
        except TimeoutError as error:
            raise BookieUnreachableError(
                f"bookie {target} did not answer within {seconds:g} s"
            ) from error
        if status is not Status.OK:
            raise error_for_status(status, message)

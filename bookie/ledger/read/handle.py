"""The handle of a ledger's reader, which reads ranges, whole batches, and the tail.

A reader returns only confirmed entries, except in `read_unconfirmed`. A closed ledger ends with its
last entry. For a reader, an open ledger ends with the highest last add confirmed (LAC) that this
reader knows. A reader accepts a LAC only from a packet whose digest is correct. The LAC of a reader
never decreases.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from bookie.entry.digest import digester_for_key
from bookie.entry.entry import Entry, verify_batch
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    CorruptionError,
    NoSuchEntryError,
    UnavailableError,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.arguments import checked_entry_id
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.follow import Follower, read_lac
from bookie.ledger.read.read_ahead import ReadAhead
from bookie.ledger.read.reader import ReaderLimits
from bookie.metadata.versioned import Versioned
from bookie.wire.client.channel import ReadCommand

READ_ONE_BYTES_MAX = 1024 * 1024
"""The number of bytes that the bookie reserves for a read of one entry; it also returns larger
entries."""


class ReaderHandle:
    """Reads one ledger. `BookKeeper.open_ledger` creates readers. A reader has no `close`.

    Any number of reads may run concurrently. After the client was closed, reads raise
    ClientClosedError.
    """

    def __init__(
        self, found: Versioned[LedgerMetadata], pool: BookiePool, ledgers: LedgerManager
    ) -> None:
        self._found = found
        self._pool = pool
        self._ledgers = ledgers
        metadata = found.value
        self._digester = digester_for_key(metadata.digest_type, metadata.password_key)
        self._last_add_confirmed = NO_ENTRY
        self._quorum = Quorum.of(metadata)
        # Different readers of one ledger begin with different replicas.
        self._replica = random.randrange(metadata.write_quorum_size)  # noqa: S311  (load)
        self._limits = ReaderLimits(
            speculative_read_seconds=pool.settings.speculative_read_seconds,
            rate_patience_seconds=pool.settings.rate_patience_seconds,
        )
        self._patience_seconds = (
            pool.settings.read_timeout_seconds
            if metadata.write_quorum_size == 1
            else pool.settings.speculative_read_seconds
        )
        """The time, in seconds, after which another replica is asked if the first replica has not
        answered."""

    def __repr__(self) -> str:
        state = self.metadata.state.name
        return f"<ReaderHandle of ledger {self.ledger_id}, {state}, last={self.last_entry_id}>"

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this reader last read it."""
        return self._found.value

    @property
    def is_closed(self) -> bool:
        """True once the ledger is closed."""
        return self.metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The highest confirmed entry id that this reader knows; -1 if none. It never decreases."""
        metadata = self._found.value
        return metadata.last_entry_id if metadata.is_closed else self._last_add_confirmed

    @property
    def last_entry_id(self) -> int:
        """The last entry that is readable now; -1 in an empty ledger."""
        return self.last_add_confirmed

    async def refresh(self) -> int:
        """Read the ledger's metadata and LAC again; return `last_entry_id`.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            NotEnoughBookiesError: too few bookies answered to find the ledger's end.
            MetadataError: the metadata store failed.
        """
        self._pool.require_open()
        if not self.is_closed:
            self._adopt(await self._ledgers.read(self.ledger_id, self.metadata.c_token))
        if not self.is_closed:
            lac = await read_lac(self._pool, self.metadata, self._digester)
            self._last_add_confirmed = max(self._last_add_confirmed, lac)
        return self.last_entry_id

    async def read(
        self, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Read the entries from `first_entry_id` to `last_entry_id`, inclusive, in order.

        If `last_entry_id` is None, the read ends with the last readable entry.

        A range that ends right before its first entry is empty: `read(0, reader.last_entry_id)`
        yields nothing in an empty ledger.

        Raises:
            BadRequestError: the range is reversed, or ends beyond the last confirmed entry.
            NoSuchEntryError: every bookie that should store the entry answers that it does not
                exist.
            UnavailableError, CorruptionError: an entry could not be read from any bookie.
        """
        if first_entry_id == last_entry_id:
            self._pool.require_open()
            if alone := await self._read_one(await self._bounded(first_entry_id, last_entry_id)):
                yield alone[0]
                return
        async with aclosing(self.read_batches(first_entry_id, last_entry_id)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def read_batches(
        self, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Read like `read`, with the same errors, but several entries at a time, for speed."""
        self._pool.require_open()
        last = await self._bounded(first_entry_id, last_entry_id)
        async with aclosing(self._batches(first_entry_id, last, self._limits)) as batches:
            async for entries in batches:
                yield entries

    async def read_unconfirmed(
        self, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Read stored entries in order, confirmed or not, to inspect an open ledger.

        An entry beyond the last add confirmed has no guarantee: a recovery may drop the entry.
        Without `last_entry_id`, the read continues until no bookie has the next entry. A closed
        ledger has only confirmed entries.

        Raises:
            BadRequestError: the range is reversed, or ends beyond the end of a closed ledger.
            NoSuchLedgerError: the ledger was deleted.
            NoSuchEntryError: every bookie that should store the entry answers that it does not
                exist. If `last_entry_id` is None, this error is raised only for a confirmed entry.
            UnavailableError, CorruptionError: an entry could not be read from any bookie.
        """
        _check_range(first_entry_id, last_entry_id)
        self._pool.require_open()
        if not self.is_closed:
            self._adopt(await self._ledgers.read(self.ledger_id, self.metadata.c_token))
        confirmed = self.last_add_confirmed
        if last_entry_id is not None and not self.is_closed:
            confirmed = min(confirmed, last_entry_id)
        position = first_entry_id
        if position <= confirmed or self.is_closed:
            last = last_entry_id if self.is_closed else confirmed
            async with aclosing(self.read(position, last)) as entries:
                async for entry in entries:
                    yield entry
                    position = entry.entry_id + 1
        if self.is_closed:
            return
        last = MAX_ID if last_entry_id is None else last_entry_id
        # Use windows of one entry: in a larger window of a striped ledger, a missing entry would
        # also prevent the delivery of the entries before it.
        limits = replace(self._limits, striped_window_entries=1)
        try:
            async with aclosing(self._batches(position, last, limits)) as batches:
                async for batch in batches:
                    for entry in batch:
                        yield entry
        except NoSuchEntryError:
            if last_entry_id is not None:
                raise

    async def _batches(
        self, position: int, last: int, limits: ReaderLimits
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Read entries ``position … last``; NoSuchEntryError if the closed ledger ends earlier."""
        while position <= last:
            if self.is_closed and last > self.last_entry_id:
                raise NoSuchEntryError(
                    f"ledger {self.ledger_id} was closed and ends with entry {self.last_entry_id}"
                )
            read = ReadAhead(
                self.metadata,
                position,
                last,
                self._pool,
                self._digester,
                self._replica,
                limits,
            )
            try:
                while entries := await read.next():
                    yield entries
                    position = entries[-1].entry_id + 1
            except (NoSuchEntryError, UnavailableError, CorruptionError):
                # The ledger's bookies may have been replaced since the metadata was read.
                if not await self._has_newer_metadata():
                    raise
            finally:
                await read.close()

    async def _read_one(self, entry_id: int) -> Sequence[Entry]:
        """Read one entry from the preferred replica; return no entry after any failure.

        `_read_one` uses no state machine, timer or task, so it needs half of the processor time of
        a `RangeRead`. After a failure, the caller uses a `RangeRead`.
        """
        metadata = self._found.value
        slot = self._quorum.member(entry_id, self._replica)
        bookie_id = metadata.fragment_of(entry_id).bookies[slot]
        key = metadata.password_key
        command = ReadCommand(
            metadata.ledger_id, entry_id, entry_id, 1, READ_ONE_BYTES_MAX, master_key=key
        )
        try:
            channel = self._pool.connection(bookie_id).channel()
            reply = await channel.read_entry(command, timeout=self._patience_seconds)
            batch = reply.batch
            if (
                batch is not None
                and reply.status is Status.OK
                and len(batch.sizes) == 1
                and batch.first_entry_id == entry_id
            ):
                return verify_batch(batch, self._digester)
        except ClientClosedError:
            raise
        except BookieError:
            pass
        self._replica = (self._replica + 1) % self._quorum.write_quorum_size
        return ()

    async def read_acknowledged(
        self, first_entry_id: int, last_entry_id: int
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Read entries that were acknowledged, as the caller knows; ask no bookie for the LAC.

        A caller may know this from a log's metadata, even for entries beyond the LAC that bookies
        can prove.

        Raises:
            BadRequestError: the range is reversed.
            NoSuchLedgerError: the ledger was deleted.
            NoSuchEntryError, UnavailableError, CorruptionError: as in `read`.
        """
        checked_entry_id(last_entry_id, "the last entry id")
        _check_range(first_entry_id, last_entry_id)
        self._pool.require_open()
        if first_entry_id == last_entry_id and (alone := await self._read_one(first_entry_id)):
            yield alone
            return
        async with aclosing(self._batches(first_entry_id, last_entry_id, self._limits)) as batches:
            async for entries in batches:
                yield entries

    async def tail(self, start: int = 0) -> AsyncGenerator[Entry, None]:
        """Read entries from `start` on, including new entries, up to the end of the closed ledger.

        By default, the read starts at the ledger's first entry, as `bookie ledger tail` does. Pass
        `last_entry_id + 1` as `start` to get new entries only. The read yields new entries as soon
        as their writer has published a LAC that confirms them. The sequence of entries has no gaps
        and no repetitions. Close the generator, or leave the loop, to stop.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            NoSuchEntryError, UnavailableError, CorruptionError: as in `read`.
        """
        async with aclosing(self.tail_batches(start)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail_batches(self, start: int = 0) -> AsyncGenerator[Sequence[Entry], None]:
        """Read like `tail`, with the same errors, but several entries at a time, for speed."""
        if checked_entry_id(start, "start") < 0:
            raise BadRequestError(f"a tail cannot start at entry {start}")
        self._pool.require_open()
        follower = Follower(self._found, self._pool, self._ledgers, self._digester)
        follower.start()
        try:
            position = start
            while True:
                last = self.last_entry_id
                if position == last and (alone := await self._read_one(last)):
                    yield alone
                    position += 1
                elif position <= last:
                    async with aclosing(self.read_batches(position, last)) as batches:
                        async for batch in batches:
                            yield batch
                    position = last + 1
                elif self.is_closed:
                    return
                else:
                    lac = await follower.advance(self._last_add_confirmed)
                    self._last_add_confirmed = max(self._last_add_confirmed, lac)
                    self._adopt(follower.found)
        finally:
            await follower.close()

    async def _bounded(self, first: int, last: int | None) -> int:
        _check_range(first, last)
        if last is None:
            return self.last_entry_id
        if last <= self.last_add_confirmed:
            return last
        if last > await self.refresh():
            raise BadRequestError(
                f"entry {last} of ledger {self.ledger_id} is not confirmed; "
                f"the last one that is has id {self.last_entry_id}"
            )
        return last

    async def _has_newer_metadata(self) -> bool:
        before = self._found.version
        # No bookie returned a confirmed entry. Perhaps newer metadata names other bookies, so sync
        # the store.
        self._adopt(await self._ledgers.read_latest(self.ledger_id, self.metadata.c_token))
        return self._found.version != before

    def _adopt(self, found: Versioned[LedgerMetadata]) -> None:
        if found.version > self._found.version:
            self._found = found


def _check_range(first: int, last: int | None) -> None:
    """Check a range of entry ids; a range that ends right before its first entry is empty.

    Raises:
        BadRequestError: the ids are not a range.
    """
    if checked_entry_id(first, "the first entry id") < 0:
        raise BadRequestError(f"entries {first} to {last} are not a range of entry ids")
    if last is not None and checked_entry_id(last, "the last entry id") < first - 1:
        raise BadRequestError(f"the range of entries {first} to {last} is reversed")

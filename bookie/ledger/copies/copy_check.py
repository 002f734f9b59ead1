"""Reads and verifies every entry that one bookie should store, from this bookie alone.

A bookie *in limbo* may have lost entries, so the bookie never denies an entry. A bookie in limbo
answers UNKNOWN_LEDGER_STATE for each entry that it does not have. The check counts an entry with
this answer as missing, so that a repair stores the entry again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import digester_for_key
from bookie.entry.entry import parse_header
from bookie.env.backoff import Backoff
from bookie.env.pace import Pace
from bookie.errors import BookieError
from bookie.ids import Status
from bookie.ledger.connection.calls import patiently
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.copies.replica_plan import EntryRange, merged, stripe_ranges
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Stripe
from bookie.ledger.read.range_read import READ_BYTES_MAX, READ_ENTRIES_MAX
from bookie.ledger.read.verification import VerifiedRead, list_stored, read_command, verify_read
from bookie.ledger.striping import is_run

PATIENCE_SECONDS = 10.0
"""The time, in seconds, for which a bookie without a definite answer is asked again. A busy bookie
may lose its session and register again soon."""

WRONG = (Status.BAD_CHECKSUM, Status.IO_ERROR)
"""The statuses by which a bookie reports that its copy of an entry is damaged."""

ABSENT = (Status.NO_SUCH_ENTRY, Status.UNKNOWN_LEDGER_STATE)
"""The statuses for an entry that is not stored; a bookie in limbo answers UNKNOWN_LEDGER_STATE."""

NO_WORD = Status.SHUTTING_DOWN
"""The status of any failed call: the bookie said nothing about the entry."""

PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 1.0
"""The longest pause between two requests; each pause is twice as long as the previous pause."""


@dataclass(slots=True)
class CopyFindings:
    """The findings about one bookie's copies of a range of entries."""

    entries: int = 0
    """Number of entries with correct digests; `packet_bytes` is the size of their packets."""
    packet_bytes: int = 0
    missing: list[EntryRange] = field(default_factory=list)
    """Entries that the bookie does not have."""
    corrupt: list[EntryRange] = field(default_factory=list)
    """Entries that the bookie has, but with bytes that are wrong or cannot be read."""
    unread: list[EntryRange] = field(default_factory=list)
    """Entries about which the bookie did not answer."""
    in_limbo: bool = False
    """True if the bookie may have lost the missing entries."""
    reason: str = ""
    """The reason why entries are unread, or the error in the last corrupt entry."""
    last_entry_id: int = -1
    """The last verified entry. `length` is the ledger's length up to and with this entry, according
    to the entry's packet."""
    length: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.corrupt or self.unread)


class CopyCheck:
    """Checks copies of one ledger on one bookie."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookie_id: str,
        stripe: Stripe,
        pool: BookiePool,
        *,
        is_patient: bool = True,
        pace: Pace | None = None,
        incarnation: str = "",
    ) -> None:
        """Make a check.

        Args:
            metadata: the ledger's metadata.
            bookie_id: the bookie that is read.
            stripe: the entries that the bookie should store.
            pool: the pool whose connections are used.
            is_patient: if True, repeat a request for `PATIENCE_SECONDS` while its answers are not
                definite. If a bookie answers TOO_MANY_REQUESTS, the request is always repeated.
            pace: bounds the bytes per second that are read; None reads as fast as possible.
            incarnation: the incarnation that the bookie must have; if empty, any incarnation is
                accepted. If an older process of the bookie answers, the entries count as unread.
        """
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._stripe = stripe
        self._digester = digester_for_key(metadata.digest_type, metadata.password_key)
        self._pool = pool
        self._is_patient = is_patient
        self._pace = pace
        self._incarnation = incarnation
        self._timeout = pool.settings.read_timeout_seconds

    async def run(self, first: int, last: int) -> CopyFindings:
        """Read and verify the stripe's entries from `first` to `last`, both inclusive."""
        found = CopyFindings()
        position = self._stripe.next_id(first)
        while position <= last:
            told = await self._read(position, last)
            at, problem = position, told.status
            if told.status is Status.OK:
                at, problem = told.next_entry_id, told.stopped_by
            if told.batch is not None:
                self._count(found, told.batch)
                if self._pace is not None:
                    await self._pace.spend(told.batch.payload_bytes)
            if problem is Status.OK and at > position:
                position = self._stripe.next_id(at)
            elif problem is Status.NO_SUCH_LEDGER:
                found.missing += stripe_ranges(self._stripe, at, last)
                break
            elif problem in ABSENT:
                found.in_limbo |= problem is Status.UNKNOWN_LEDGER_STATE
                try:
                    end = await self._end_of_hole(at, last)
                except BookieError as error:
                    found.unread += stripe_ranges(self._stripe, at, last)
                    found.reason = str(error)
                    break
                found.missing += stripe_ranges(self._stripe, at, end)
                position = self._stripe.next_id(end + 1)
            elif problem in WRONG:
                found.corrupt.append((at, at))
                found.reason = told.message or problem.name.lower().replace("_", " ")
                position = self._stripe.next_id(at + 1)
            else:
                found.unread += stripe_ranges(self._stripe, at, last)
                found.reason = told.message or problem.name.lower().replace("_", " ")
                break
        found.missing, found.corrupt = merged(found.missing), merged(found.corrupt)
        return found

    async def _read(self, position: int, last: int) -> VerifiedRead:
        """Read from `position` on; ask again after an indefinite answer."""
        pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
        now = asyncio.get_running_loop().time
        due = now() + (PATIENCE_SECONDS if self._is_patient else 0)
        seen_wrong = False
        while True:
            told = await self._read_once(position, last)
            problem = told.status
            if problem is Status.OK and told.batch is not None:
                if told.stopped_by is Status.OK or told.stopped_by.is_definite_negative:
                    return told
                # The answer stopped before an entry that failed. The next read starts with this
                # entry, and has its own attempts.
                return VerifiedRead(Status.OK, told.batch, told.entries, told.next_entry_id)
            if problem is Status.OK:
                problem = told.stopped_by
            if problem in (Status.OK, Status.NO_SUCH_LEDGER, *ABSENT) or seen_wrong:
                return told
            if problem in WRONG:
                seen_wrong = True  # a disk error stays, so one more read is enough
            elif now() + (pause := pauses.next()) > due or problem is Status.UNAUTHORIZED:
                return told
            else:
                await asyncio.sleep(pause)

    async def _read_once(self, position: int, last: int) -> VerifiedRead:
        stripe = self._stripe
        command = read_command(
            self._metadata,
            position,
            last,
            stripe,
            max_entries=READ_ENTRIES_MAX,
            max_bytes=READ_BYTES_MAX,
        )
        try:
            channel = self._pool.connection(self._bookie_id).channel()
            # In a cluster without roles, a bookie limits the rate of a repair like the rate of a
            # client. A bookie that answers TOO_MANY_REQUESTS does not count as silent.
            reply = await patiently(
                lambda: channel.read(command, timeout=self._timeout, incarnation=self._incarnation),
                self._pool.settings.rate_patience_seconds,
            )
        except BookieError as error:
            status = Status.UNAUTHORIZED if error.status is Status.UNAUTHORIZED else NO_WORD
            return VerifiedRead(status, message=str(error))
        told = verify_read(reply, self._digester)
        if told.batch is not None and not is_run(told.batch, stripe, position):
            message = "the bookie left out entries without saying so"
            return VerifiedRead(NO_WORD, message=message)
        return told

    async def _end_of_hole(self, at: int, last: int) -> int:
        """Return the last missing id: the id before the next id that the bookie lists as stored."""
        if at >= last:
            return last
        listed = await list_stored(
            self._pool,
            self._bookie_id,
            self._metadata,
            at + 1,
            last,
            incarnation=self._incarnation,
        )
        wanted = (
            self._stripe.next_id(max(begin, at + 1))
            for begin, end in listed
            if self._stripe.next_id(max(begin, at + 1)) <= end
        )
        return next(wanted, last + 1) - 1

    def _count(self, found: CopyFindings, batch: EntryBatch) -> None:
        found.entries += len(batch.sizes)
        found.packet_bytes += len(batch.payload)
        offset = int(batch.offsets()[-2])
        header = parse_header(memoryview(batch.payload)[offset:])
        found.last_entry_id, found.length = header.entry_id, header.length

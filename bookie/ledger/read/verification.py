"""Asks one bookie, checks the digests of its answers, and extracts the payloads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import Digester
from bookie.entry.entry import Entries, Entry, parse_header, unpack_lac, unpack_packet, verify_batch
from bookie.errors import ChecksumError, FormatError, NoSuchLedgerError, TooManyRequestsError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.wire.client.channel import LacReply, ReadCommand, ReadReply


@dataclass(frozen=True, slots=True)
class VerifiedRead:
    """The answer to a read after its digests were checked.

    If an entry's digest fails, `batch` and `entries` end before this entry, `next_entry_id` is its
    id, and `stopped_by` is `Status.BAD_CHECKSUM`.
    """

    status: Status
    batch: EntryBatch | None = None
    entries: Sequence[Entry] = ()
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK
    message: str = ""
    retry_after_ms: int = 0
    """With TOO_MANY_REQUESTS: the pause in ms that the bookie asks for; 0 if it asks for none."""


@dataclass(frozen=True, slots=True)
class VerifiedLac:
    """The end of a ledger, as proven by the packets of one bookie."""

    status: Status
    last_add_confirmed: int = NO_ENTRY
    last_entry_id: int = NO_ENTRY
    last_length: int = 0
    message: str = ""


def verify_read(reply: ReadReply, digester: Digester) -> VerifiedRead:
    """Verify every packet of an answer."""
    batch = reply.batch
    if reply.status is not Status.OK or batch is None:
        return VerifiedRead(
            reply.status,
            next_entry_id=reply.next_entry_id,
            stopped_by=reply.stopped_by,
            message=reply.message,
            retry_after_ms=reply.retry_after_ms,
        )
    try:
        entries = verify_batch(batch, digester)
    except ChecksumError:
        return _verified_prefix(batch, digester)
    return VerifiedRead(
        Status.OK, batch, entries, reply.next_entry_id, reply.stopped_by, reply.message
    )


def _verified_prefix(batch: EntryBatch, digester: Digester) -> VerifiedRead:
    payloads: list[bytes] = []
    ids: list[int] = batch.entry_ids().tolist()
    for entry_id, packet in zip(ids, batch.packets(), strict=True):
        try:
            payload = unpack_packet(batch.ledger_id, entry_id, packet, digester)
        except ChecksumError as error:
            prefix = batch.clip(batch.first_entry_id, entry_id - 1) if payloads else None
            entries = Entries(ids[: len(payloads)], payloads)
            return VerifiedRead(
                Status.OK, prefix, entries, entry_id, Status.BAD_CHECKSUM, str(error)
            )
        payloads.append(payload)
    raise AssertionError("a batch failed its digests, but none of its packets did")


def verify_lac(ledger_id: int, reply: LacReply, digester: Digester) -> VerifiedLac:
    """Return the LAC that the packets of an answer prove; BAD_CHECKSUM if any packet is wrong."""
    if reply.status is not Status.OK and not reply.status.is_definite_negative:
        return VerifiedLac(reply.status, message=reply.message)
    lac = last = NO_ENTRY
    length = 0
    try:
        if reply.last_entry:
            header = parse_header(reply.last_entry)
            unpack_packet(ledger_id, header.entry_id, reply.last_entry, digester)
            lac, last, length = header.last_add_confirmed, header.entry_id, header.length
        if reply.lac_packet:
            lac = max(lac, unpack_lac(ledger_id, reply.lac_packet, digester))
    except (ChecksumError, FormatError) as error:
        return VerifiedLac(Status.BAD_CHECKSUM, message=str(error))
    return VerifiedLac(reply.status, lac, last, length)


def read_command(
    metadata: LedgerMetadata,
    first_entry_id: int,
    last_entry_id: int,
    stripe: Stripe = EVERY_ID,
    *,
    max_entries: int,
    max_bytes: int,
    fence: bool = False,
) -> ReadCommand:
    """Create a request for the ids ``first_entry_id … last_entry_id`` (inclusive) of a stripe."""
    return ReadCommand(
        metadata.ledger_id,
        first_entry_id,
        last_entry_id,
        max_entries,
        max_bytes,
        fence,
        metadata.password_key,
        stripe.modulus,
        stripe.first_residue,
        stripe.count,
    )


async def list_stored(
    pool: BookiePool,
    bookie_id: str,
    metadata: LedgerMetadata,
    first: int,
    last: int = NO_ENTRY,
    *,
    incarnation: str = "",
) -> list[tuple[int, int]]:
    """Return the ranges of ids that a bookie lists as stored, from `first` to `last` (-1: the end).

    If `incarnation` is not empty, only a bookie of this incarnation answers.

    Raises:
        BookieError: the bookie did not answer, or has another incarnation.
    """
    channel = pool.connection(bookie_id).channel()
    ranges: list[tuple[int, int]] = []
    waited = 0.0
    while True:
        try:
            async for firsts, lasts in channel.list_entries(
                metadata.ledger_id,
                first,
                last,
                key=metadata.password_key,
                timeout=pool.settings.read_timeout_seconds,
                incarnation=incarnation,
            ):
                ranges += zip(firsts.tolist(), lasts.tolist(), strict=True)
        except NoSuchLedgerError:
            return []
        except TooManyRequestsError as error:
            # A bookie refuses a listing only before its first page, so `ranges` is still empty.
            waited += error.retry_after_seconds
            if not error.retry_after_seconds or waited > pool.settings.rate_patience_seconds:
                raise
            await asyncio.sleep(error.retry_after_seconds)
        else:
            return ranges

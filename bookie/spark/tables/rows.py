"""Converts records of the metadata store to rows of the tables; a row is a tuple of columns.

Times are in microseconds since 1970, in Arrow's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bookie.api.maintenance import ListedCursor, ListedPartition
from bookie.cluster.registration_record import Registration
from bookie.errors import BadRequestError
from bookie.ids import LOG_TAG
from bookie.ledger.copies.replica_audit import ReplicaVerdict
from bookie.ledger.copies.replica_plan import fragment_ends, quorum_of
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Stripe
from bookie.log.catalog.log_metadata import NO_TIME_MS, LogRange
from bookie.log.catalog.logs import LogName
from bookie.log.head.chain import live_bytes

Row = tuple[Any, ...]

UNREADABLE = "UNREADABLE"
"""The state of a ledger whose metadata is damaged."""


def ledger_row(metadata: LedgerMetadata) -> Row:
    """Return the row of a ledger in the table ``ledgers``."""
    closed = metadata.is_closed
    return (
        metadata.ledger_id,
        metadata.state.name,
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        metadata.digest_type.name,
        metadata.has_password,
        len(metadata.fragments),
        metadata.last_entry_id if closed else None,
        metadata.last_entry_id + 1 if closed else None,
        metadata.length if closed else None,
        _moment(metadata.ctime_ms if metadata.ctime_ms >= 0 else None),
        log_of(metadata),
        list(metadata.custom_metadata.items()),
    )


def unreadable_row(ledger_id: int) -> Row:
    """Return the row of a ledger whose metadata is damaged."""
    return (ledger_id, UNREADABLE, *[None] * 11, [])


def log_of(metadata: LedgerMetadata) -> str | None:
    """Return the name of the log to which a ledger belongs; None if it belongs to none."""
    tag = metadata.custom_metadata.get(LOG_TAG)
    if tag is None:
        return None
    text = tag.decode("utf-8", "replace").partition(" ")[0]
    try:
        return str(LogName.parse(text))  # the form that all other tables use
    except BadRequestError:
        return text


def fragment_rows(metadata: LedgerMetadata) -> Iterator[Row]:
    """Yield a row of the table ``fragments`` for each fragment that has entries or is open."""
    for first, bookies, last in fragment_ends(metadata):
        entries = None if last is None else last - first + 1
        yield (metadata.ledger_id, first, last, entries, list(bookies))


def replica_rows(metadata: LedgerMetadata, states: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row of the table ``replicas`` for each fragment and bookie.

    The number of bytes is an estimate from the mean entry size.
    """
    quorum = quorum_of(metadata)
    mean = 0.0
    if metadata.is_closed and metadata.last_entry_id >= 0:
        mean = metadata.length / (metadata.last_entry_id + 1)
    for first, bookies, last in fragment_ends(metadata):
        for slot, bookie in enumerate(bookies):
            count = None if last is None else stripe_count(quorum.stripe_of(slot), first, last)
            size = None if count is None else round(count * mean)
            state = states.get(bookie, "lost")
            yield (metadata.ledger_id, first, slot, bookie, state, last, count, size)


def stripe_count(stripe: Stripe, first: int, last: int) -> int:
    """Return the number of ids from `first` to `last`, both included, that belong to a stripe."""
    if last < first:
        return 0
    if stripe.modulus == 0:
        return last - first + 1
    return _below(stripe, last + 1) - _below(stripe, first)


def _below(stripe: Stripe, end: int) -> int:
    """Count the stripe's ids from ``first_residue - modulus`` up to, but not including, `end`."""
    whole, rest = divmod(end - stripe.first_residue + stripe.modulus, stripe.modulus)
    return whole * stripe.count + min(rest, stripe.count)


def bookie_row(registration: Registration, state: str) -> Row:
    """Return the row of a bookie in the table ``bookies``."""
    endpoint = registration.endpoint("bookie")
    address = None if endpoint is None else endpoint.address
    labels = registration.labels
    return (
        registration.bookie_id,
        state,
        address,
        labels.get("rack"),
        labels.get("zone"),
        list(labels.items()),
        registration.total_bytes,
        registration.free_bytes,
        registration.incarnation,
    )


def log_row(listed: ListedPartition) -> Row:
    """Return a partition's row of ``logs``; the end is null while the last ledger is open."""
    head, owner = listed.head, listed.head.owner
    end = head.ranges[-1].end_offset if head.ranges else head.start_offset
    return (
        listed.name,
        listed.number,
        listed.definition.mode.value,
        listed.definition.log_id,
        _moment(listed.definition.created_ms),
        head.epoch,
        None if owner is None else owner.name,
        None if owner is None else _moment(owner.since_ms),
        head.start_offset,
        end,
        live_bytes(head),
        len(head.ranges),
        head.next_chunk - head.first_chunk,
        [one.ledger_id for one in head.open_ranges],
        _moment(head.end_ms),
    )


def cursor_row(listed: ListedCursor) -> Row:
    """Return the row of a cursor in the table ``cursors``."""
    cursor = listed.cursor
    return (
        listed.log,
        listed.partition,
        listed.name,
        cursor.offset,
        cursor.epoch,
        cursor.owner,
        _moment(cursor.committed_ms or None),
        cursor.is_protected,
    )


def history_rows(log: str, ranges: Iterable[tuple[int, LogRange]]) -> Iterator[Row]:
    """Yield a row of the table ``history`` for each range of each partition, numbered in order."""
    numbers: dict[int, int] = {}
    for partition, one in ranges:
        number = numbers.get(partition, 0)
        numbers[partition] = number + 1
        yield (
            log,
            partition,
            number,
            one.ledger_id,
            one.first_entry_id,
            one.last_entry_id,
            one.base_offset,
            one.end_offset,
            one.count,
            one.size_bytes,
            _moment(one.end_ms),
        )


def verdict_row(verdict: ReplicaVerdict) -> Row:
    """Return the row of a verdict in the table ``audit``."""
    return (
        verdict.ledger_id,
        verdict.fragment,
        verdict.bookie_id,
        verdict.first_entry_id,
        verdict.last_entry_id,
        verdict.verdict,
        verdict.entries,
        verdict.packet_bytes,
        [{"first": first, "last": last} for first, last in verdict.ranges],
        list(verdict.found_on),
        verdict.detail,
    )


def in_parts(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Divide the rows into parts of at most `size` rows; without rows, return one empty part."""
    return [list(rows[start : start + size]) for start in range(0, max(len(rows), 1), size)]


def _moment(ms: int | None) -> int | None:
    return None if ms is None or ms == NO_TIME_MS else ms * 1000

"""The changes of a partition's head: pure functions that return the changed head.

A partition is a chain of ledgers. The owner of a partition takes the partition over, adds ledgers,
and closes them. Other processes truncate the partition, join its closed ranges or, in a
transactional log, publish ranges. Each change is written by compare-and-set. A function that would
break a rule raises an error, so every head obeys these rules:

================================== ==============================================================
rule                               why
================================== ==============================================================
an owner takes the partition over  the former owner then cannot add a ledger that the new owner
first, and fences ledgers second   does not know
ledger n+1 is added only if ledger so at most two ledgers are open, and a new owner has to fence
n-1 is closed                      only these two
ledgers are closed in order        a ledger's first offset follows from the end of the ledger
                                   before it
an empty ledger is removed         otherwise each owner that appends nothing would leave a range
the newest closed range stays if   a new owner reads it to recognise records that are sent again,
it has a snapshot of producers     even after the truncation of these records
================================== ==============================================================

Source: the ledger lists of Apache BookKeeper's protocol document; here, the head names the owner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.log.catalog.log_metadata import LogChunk, LogHead, LogOwner, LogRange

HEAD_RANGES_MAX = 256
"""The number of ranges above which the oldest ranges of a head move to chunks.

A head of this size has some 16 KB, so one transaction of the metadata store has room for 40 heads.
"""

CHUNK_RANGES = 128
"""The number of ranges in a chunk. A truncation removes only whole chunks, so chunks are small."""


def taken_over(head: LogHead, owner: LogOwner, *, first_epoch: int = 1) -> LogHead:
    """Give the partition to `owner` in a new epoch.

    The owner must then fence the ledgers of the open ranges.

    If the partition had no owner before, the new epoch is `first_epoch`.
    """
    return replace(head, epoch=head.epoch + 1 if head.epoch else first_epoch, owner=owner)


def given_up(head: LogHead) -> LogHead:
    """Remove the owner from the head. The owner must close its ledgers before this call.

    Raises:
        BadRequestError: a range is open.
    """
    if head.open_ranges:
        raise BadRequestError("an owner leaves a partition only when all its ranges are closed")
    return replace(head, owner=None)


def with_ledger(head: LogHead, ledger_id: int) -> LogHead:
    """Add a new ledger as the last range of the head. The range is open.

    Raises:
        BadRequestError: two ranges are open; the older range must be closed first.
    """
    if len(head.open_ranges) > 1:
        raise BadRequestError(f"ledger {ledger_id} cannot be added while two ranges are open")
    base = None if head.open_ranges else end_offset(head)
    return replace(head, ranges=(*head.ranges, LogRange(ledger_id, 0, None, base)))


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a closed ledger that belongs to the chain."""

    ledger_id: int
    last_entry_id: int
    """The last entry of the ledger; -1 if the ledger is empty."""
    greatest_ms: int | None
    """The greatest timestamp up to the ledger's last entry; None if the ledger is empty."""
    size_bytes: int
    has_producers: bool = False
    """True if the ledger has a snapshot of producers."""


def with_closed(head: LogHead, end: LedgerEnd) -> LogHead:
    """Close the oldest open range at `end`. If the range is empty, remove it from the chain.

    Raises:
        BadRequestError: the ledger of `end` is not the ledger of the oldest open range.
    """
    at = len(head.ranges) - len(head.open_ranges)
    if at == len(head.ranges) or head.ranges[at].ledger_id != end.ledger_id:
        raise BadRequestError(f"ledger {end.ledger_id} is not the oldest open one of its partition")
    found = head.ranges[at]
    end_ms = head.end_ms if end.greatest_ms is None else max(head.end_ms, end.greatest_ms)
    closed = replace(
        found, last_entry_id=end.last_entry_id, end_ms=end_ms, size_bytes=end.size_bytes
    )
    kept = (closed,) if closed.count else ()
    # The next range had no base offset while this range was open.
    behind = tuple(
        replace(one, base_offset=closed.end_offset if index == 0 else None)
        for index, one in enumerate(head.ranges[at + 1 :])
    )
    has_producers = end.has_producers if kept else head.has_producers
    ranges = (*head.ranges[:at], *kept, *behind)
    return replace(head, ranges=ranges, has_producers=has_producers)


def with_published(head: LogHead, ranges: Sequence[LogRange]) -> LogHead:
    """Append the closed `ranges` to the head and assign their offsets; skip empty ranges.

    Raises:
        BadRequestError: one of the `ranges`, or a range of the head, is open.
    """
    if head.open_ranges or any(one.is_open for one in ranges):
        raise BadRequestError("only closed ranges can be published")
    offset, end_ms = end_offset(head), head.end_ms
    added = []
    for one in ranges:
        if not one.count:
            continue
        end_ms = end_ms if one.end_ms is None else max(end_ms, one.end_ms)
        added.append(replace(one, base_offset=offset, end_ms=end_ms))
        offset += one.count
    return replace(head, ranges=(*head.ranges, *added))


def end_offset(head: LogHead) -> int:
    """Return the offset after the last closed range, at which the next range begins."""
    closed = len(head.ranges) - len(head.open_ranges)
    if not closed:
        # A head that has chunks also has a closed range, so this head has no chunks.
        return head.start_offset
    end = head.ranges[closed - 1].end_offset
    assert end is not None, "a closed range has a base"
    return end


def seal(
    head: LogHead, *, ranges_max: int = HEAD_RANGES_MAX, chunk_ranges: int = CHUNK_RANGES
) -> tuple[LogHead, tuple[LogChunk, ...]]:
    """Move the oldest ranges of a large head to chunks; return the new head and the chunks.

    The caller must write the head and the chunks in one transaction. At least one closed range
    stays in the head, because the end offset follows from this range.
    """
    assert ranges_max > chunk_ranges + 1, "two open ranges and a closed one stay"
    ranges, number, size = head.ranges, head.next_chunk, head.chunk_bytes
    chunks = []
    while len(ranges) > ranges_max:
        chunk = LogChunk(number, ranges[:chunk_ranges])
        chunks.append(chunk)
        size += size_of(chunk.ranges)
        ranges, number = ranges[chunk_ranges:], number + 1
    return replace(head, ranges=ranges, next_chunk=number, chunk_bytes=size), tuple(chunks)


def size_of(ranges: Iterable[LogRange]) -> int:
    """Return the payload bytes of those `ranges` that are closed."""
    return sum(one.size_bytes or 0 for one in ranges)


def live_ranges(head: LogHead) -> tuple[LogRange, ...]:
    """Return the head's ranges, except a truncated range kept for its snapshot of producers."""
    ends = [one.end_offset for one in head.ranges[:1]]
    if ends and ends[0] is not None and ends[0] <= head.start_offset:
        return head.ranges[1:]
    return head.ranges


def live_bytes(head: LogHead) -> int:
    """Return the payload bytes of the partition's closed ranges.

    A truncated range that is kept only for its snapshot of producers does not count.
    """
    return head.chunk_bytes + size_of(live_ranges(head))


def truncated(
    head: LogHead, before_offset: int, chunks: Sequence[LogChunk] = ()
) -> tuple[LogHead, list[LogRange]]:
    """Remove the entries before `before_offset`; return the new head and the removed ranges.

    A range stays in the head if it is open, has an entry at or after `before_offset`, or has the
    newest snapshot of producers. `chunks` are the oldest chunks, in order, that end at or before
    `before_offset`. Chunks that the head no longer names are ignored, so the same truncation can be
    tried again on a newer head.

    Raises:
        BadRequestError: `before_offset` is after the end of the last closed range. BadRequestError
            is also raised if `chunks` are not the oldest chunks, or have an entry at or after
            `before_offset`.
    """
    if before_offset > end_offset(head):
        raise BadRequestError(
            f"offset {before_offset} is behind the last closed range, "
            f"which ends before {end_offset(head)}"
        )
    chunks = [chunk for chunk in chunks if chunk.number >= head.first_chunk]
    for number, chunk in enumerate(chunks, head.first_chunk):
        end = chunk.ranges[-1].end_offset
        if not number == chunk.number < head.next_chunk or end is None or end > before_offset:
            raise BadRequestError(
                f"chunk {chunk.number} cannot be removed before offset {before_offset}: it is not "
                "the oldest one, or it has a later entry"
            )
    gone = [one for chunk in chunks for one in chunk.ranges]
    first_chunk, size = head.first_chunk + len(chunks), head.chunk_bytes - size_of(gone)
    start = max(head.start_offset, before_offset)
    count = 0
    if first_chunk == head.next_chunk:
        closed = len(head.ranges) - len(head.open_ranges) - head.has_producers
        ends = [one.end_offset for one in head.ranges[: max(0, closed)]]
        count = sum(end is not None and end <= start for end in ends)
    gone += head.ranges[:count]
    changed = replace(
        head,
        start_offset=start,
        first_chunk=first_chunk,
        chunk_bytes=size,
        ranges=head.ranges[count:],
    )
    return changed, gone


def range_of_offset(ranges: Sequence[LogRange], offset: int) -> int:
    """Return the index of the last range that begins at or before `offset`; -1 if there is none."""
    known = [one.base_offset for one in ranges if one.base_offset is not None]
    return bisect_right(known, offset) - 1


def range_of_time(ranges: Sequence[LogRange], timestamp_ms: int) -> int:
    """Return the index of the first range that may have a record of `timestamp_ms` or later.

    An open range always counts, because its owner may append later records. If all ranges end
    before this time, the result is ``len(ranges)``.
    """
    for index, one in enumerate(ranges):
        if one.end_ms is None or one.end_ms >= timestamp_ms:
            return index
    return len(ranges)


CHUNKS_REWRITTEN_MAX = 48
"""The most chunks that one change of a head writes.

One transaction has room for this many chunks.
"""


@dataclass(frozen=True, slots=True)
class JoinedRanges:
    """Consecutive closed ranges, and the joined range, which has copies of all their entries."""

    before: tuple[LogRange, ...]
    after: LogRange

    @property
    def has_all(self) -> bool:
        """True if `after` is closed, and has the offsets and end time of the original ranges."""
        first, last = self.before[0], self.before[-1]
        return (
            (self.after.base_offset, self.after.end_offset) == (first.base_offset, last.end_offset)
            and self.after.end_ms == last.end_ms
            and not self.after.is_open
        )


def place_of(ranges: Sequence[LogRange], part: Sequence[LogRange]) -> int:
    """Return the index at which `part` begins in `ranges`; -1 if a range of `part` is missing."""
    base = part[0].base_offset or 0
    at = bisect_left(ranges, base, key=lambda one: MAX_ID if (b := one.base_offset) is None else b)
    return at if tuple(ranges[at : at + len(part)]) == tuple(part) else -1


def compacted(
    head: LogHead,
    chunks: Sequence[LogChunk],
    joined: Iterable[JoinedRanges],
    *,
    ranges_max: int = HEAD_RANGES_MAX,
) -> tuple[LogHead, tuple[LogChunk, ...], list[LogRange]]:
    """Replace ranges by joined ranges; return the new head, new chunks and removed ranges.

    `chunks` are all chunks that `head` names. A chunk never changes. So if a joined range replaces
    ranges of a chunk, the whole chain is written anew without its truncated ranges. The new head
    then has the newest `ranges_max` ranges. New chunks, with new numbers, have all other ranges.
    Offsets, times, the owner and open ranges do not change.

    Raises:
        BadRequestError: `chunks` are not all chunks of the head, or the new chunks are too many for
            one transaction. BadRequestError is also raised if the ranges to replace are not part of
            the chain, or include its newest closed range.
    """
    if [one.number for one in chunks] != list(range(head.first_chunk, head.next_chunk)):
        raise BadRequestError("a chain is compacted only by all of its chunks")
    in_chunks = [one for chunk in chunks for one in chunk.ranges]
    ranges = [*in_chunks, *head.ranges]
    newest = len(ranges) - len(head.open_ranges) - 1
    kept: list[LogRange] = []
    at, changed_from = 0, len(ranges)
    for one in sorted(joined, key=lambda one: one.after.base_offset or 0):
        begin = place_of(ranges, one.before)
        end = begin + len(one.before)
        if not one.has_all or begin < at or end > newest:
            raise BadRequestError(
                f"ledger {one.after.ledger_id} cannot stand for ranges that are open, the newest "
                "ones, or not part of the chain"
            )
        kept += [*ranges[at:begin], one.after]
        at, changed_from = end, min(changed_from, begin)
    kept += ranges[at:]
    if changed_from >= len(in_chunks):
        return replace(head, ranges=tuple(kept[len(in_chunks) :])), (), _without(ranges, kept)
    newest = len(kept) - len(head.open_ranges) - 1
    kept = [
        one
        for index, one in enumerate(kept)
        if index >= newest or (one.end_offset or 0) > head.start_offset
    ]
    old, new = kept[:-ranges_max], kept[-ranges_max:]
    number = head.next_chunk
    sealed = tuple(
        LogChunk(number + at // CHUNK_RANGES, tuple(old[at : at + CHUNK_RANGES]))
        for at in range(0, len(old), CHUNK_RANGES)
    )
    if len(sealed) > CHUNKS_REWRITTEN_MAX:
        raise BadRequestError(
            f"{len(kept)} ranges would be left, and one change writes at most "
            f"{ranges_max + CHUNKS_REWRITTEN_MAX * CHUNK_RANGES}"
        )
    changed = replace(
        head,
        ranges=tuple(new),
        first_chunk=number,
        next_chunk=number + len(sealed),
        chunk_bytes=size_of(old),
    )
    return changed, sealed, _without(ranges, kept)


def _without(ranges: Iterable[LogRange], kept: Iterable[LogRange]) -> list[LogRange]:
    stays = set(kept)
    return [one for one in ranges if one not in stays]

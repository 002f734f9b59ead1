"""The steps of a partition's head against a list of entries.

Owners come and go, ledgers are added and closed, ranges are published, sealed, truncated and
joined, in any order. Limits of heads and chunks are small: ranges move to chunks all the time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import (
    LogChunk,
    LogHead,
    LogOwner,
    LogRange,
    decode_log_chunk,
    decode_log_head,
    encode_log_chunk,
    encode_log_head,
)
from bookie.log.head.chain import (
    JoinedRanges,
    LedgerEnd,
    compacted,
    end_offset,
    given_up,
    live_bytes,
    live_ranges,
    range_of_offset,
    range_of_time,
    seal,
    size_of,
    taken_over,
    truncated,
    with_closed,
    with_ledger,
    with_published,
)

LIMITS = [(3, 1), (5, 3), (9, 4)]
"""Of ranges in a head and in a chunk."""

TIMES = st.lists(st.integers(0, 50), max_size=5)


class ModelEntry(NamedTuple):
    """One entry of the partition; its index in the list is its offset."""

    ledger_id: int
    entry_id: int
    time_ms: int


class ChainModel(RuleBasedStateMachine):
    """One partition: its head, its chunks, and the entries that they must name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = LogHead("a1")
        self.chunks: dict[int, LogChunk] = {}
        self.limits = LIMITS[0]
        self.entries: list[ModelEntry] = []
        self.sizes: dict[int, int] = {}
        """Payload bytes by the ledger, which has one range."""
        self.open: list[int] = []
        self.start = 0
        self.has_producers = False
        self.epoch = 0
        self.is_owned = False
        self.ledgers = 0
        self.gone: list[LogRange] = []

    @initialize(limits=st.sampled_from(LIMITS))
    def begin(self, limits: tuple[int, int]) -> None:
        """The sizes of a head and of a chunk."""
        self.limits = limits

    def write(self, head: LogHead) -> None:
        """Seal and write, with the chunks in the same step, like the keeper of a head."""
        ranges_max, chunk_ranges = self.limits
        head, chunks = seal(head, ranges_max=ranges_max, chunk_ranges=chunk_ranges)
        self.head = decode_log_head(encode_log_head(head))
        assert self.head == head
        for chunk in chunks:
            assert chunk.number not in self.chunks
            self.chunks[chunk.number] = decode_log_chunk(encode_log_chunk(chunk))
            assert self.chunks[chunk.number] == chunk
        assert len(head.ranges) <= ranges_max

    def new_ledger(self) -> int:
        """Ids of ledgers do not ascend."""
        self.ledgers += 1
        return self.ledgers ^ 5

    # ---- owners

    @rule()
    def take_over(self) -> None:
        """Allowed at any time."""
        self.epoch += 1
        self.is_owned = True
        self.write(taken_over(self.head, LogOwner("owner", self.epoch)))

    @rule()
    def give_up(self) -> None:
        """Refused while a ledger is open."""
        if self.open:
            with pytest.raises(BadRequestError):
                given_up(self.head)
            return
        self.is_owned = False
        self.write(given_up(self.head))

    # ---- ledgers

    @rule()
    def add(self) -> None:
        """Refused while two are open."""
        if len(self.open) == 2:
            with pytest.raises(BadRequestError):
                with_ledger(self.head, 999)
            return
        ledger_id = self.new_ledger()
        self.open.append(ledger_id)
        self.write(with_ledger(self.head, ledger_id))

    @precondition(lambda self: self.open)
    @rule(
        times=TIMES, tells_all=st.booleans(), size=st.integers(0, 100), has_producers=st.booleans()
    )
    def close(self, times: list[int], tells_all: bool, size: int, has_producers: bool) -> None:
        """The oldest open ledger has these entries; records may tell older ones' times or not."""
        ledger_id = self.open.pop(0)
        before = [one.time_ms for one in self.entries] if tells_all else []
        greatest = max([*before, *times]) if times else None
        for entry_id, time_ms in enumerate(times):
            self.entries.append(ModelEntry(ledger_id, entry_id, time_ms))
        self.sizes[ledger_id] = size
        self.has_producers = has_producers if times else self.has_producers
        end = LedgerEnd(ledger_id, len(times) - 1, greatest, size, has_producers)
        self.write(with_closed(self.head, end))

    @precondition(lambda self: len(self.open) == 2)
    @rule()
    def close_out_of_order(self) -> None:
        """Refused: the offsets of the second one are not known."""
        with pytest.raises(BadRequestError):
            with_closed(self.head, LedgerEnd(self.open[1], 3, 1, 1))

    @rule(
        published=st.lists(st.tuples(st.integers(0, 9), TIMES, st.integers(0, 100)), max_size=6),
    )
    def publish(self, published: list[tuple[int, list[int], int]]) -> None:
        """Refused while a ledger is open."""
        ranges = []
        added = []
        for first, times, size in published:
            ledger_id = self.new_ledger()
            last, end_ms = first + len(times) - 1, max(times, default=None)
            ranges.append(LogRange(ledger_id, first, last, None, end_ms, size))
            added += [ModelEntry(ledger_id, first + i, time) for i, time in enumerate(times)]
            self.sizes[ledger_id] = size
        if self.open:
            with pytest.raises(BadRequestError):
                with_published(self.head, ranges)
            return
        self.entries += added
        self.write(with_published(self.head, ranges))

    # ---- truncating

    @rule(share=st.floats(0, 1), leaves=st.integers(0, 2))
    def truncate(self, share: float, leaves: int) -> None:
        """Before any offset; some of the chunks that could go may be left for the next time."""
        before = round(share * len(self.entries))
        whole = [one for one in self.live_chunks() if _end(one.ranges[-1]) <= before]
        self.cut(before, whole[: max(0, len(whole) - leaves)])

    @rule()
    def truncate_everything(self) -> None:
        """Nothing that is closed stays, except the newest range if it tells of producers."""
        newest = self.listed()[-1:] if self.has_producers else []
        self.cut(len(self.entries), self.live_chunks())
        assert self.listed() == newest
        assert all(one.is_open for one in live_ranges(self.head))
        assert live_bytes(self.head) == 0
        assert not self.chunks

    @rule(beyond=st.integers(1, 3))
    def truncate_beyond_the_end(self, beyond: int) -> None:
        """Refused: an open ledger may end anywhere."""
        with pytest.raises(BadRequestError):
            truncated(self.head, len(self.entries) + beyond)

    @precondition(lambda self: self.chunks)
    @rule()
    def truncate_a_chunk_too_many(self) -> None:
        """Refused: the chunk has a later entry."""
        chunks = self.live_chunks()
        with pytest.raises(BadRequestError):
            truncated(self.head, _end(chunks[-1].ranges[-1]) - 1, chunks)

    def cut(self, before: int, chunks: list[LogChunk]) -> None:
        """Truncate, and delete the chunks that the head no longer names."""
        head, gone = truncated(self.head, before, chunks)
        again, nothing = truncated(head, before, chunks)
        assert (again, nothing) == (head, [])
        self.start = max(self.start, before)
        self.gone += gone
        self.write(head)
        for chunk in chunks:
            del self.chunks[chunk.number]

    # ---- compacting

    @precondition(lambda self: len(self.listed()) > 2)
    @rule(cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6), size=st.integers(0, 100))
    def compact(self, cuts: list[int], size: int) -> None:
        """Some runs of closed ranges become one each; the newest closed one stays."""
        ranges = self.listed()
        edges = sorted({cut % len(ranges) for cut in cuts})
        joined = []
        for begin, end in list(pairwise(edges))[::2]:
            before = tuple(ranges[begin:end])
            ledger_id = self.new_ledger()
            count = sum(one.count or 0 for one in before)
            after = replace(
                before[-1],
                ledger_id=ledger_id,
                first_entry_id=0,
                last_entry_id=count - 1,
                base_offset=before[0].base_offset,
                size_bytes=size,
            )
            joined.append(JoinedRanges(before, after))
        chunks, before_head = self.live_chunks(), self.head
        head, sealed, gone = compacted(before_head, chunks, joined, ranges_max=self.limits[0])
        self.adopt_compaction(head, sealed, gone, joined, size)
        if joined and joined[0].before != (joined[0].after,):
            with pytest.raises(BadRequestError):  # they are not there any more
                compacted(self.head, self.live_chunks(), joined, ranges_max=self.limits[0])

    def adopt_compaction(
        self,
        head: LogHead,
        sealed: tuple[LogChunk, ...],
        gone: list[LogRange],
        joined: list[JoinedRanges],
        size: int,
    ) -> None:
        """Write the head, and change the model: the entries are the same, in other ledgers."""
        replaced = [one for each in joined for one in each.before]
        truncated_ones = [one for one in gone if one not in replaced]
        kept = {one.after for one in joined} & {
            *head.ranges,
            *(r for c in sealed for r in c.ranges),
        }
        for one in joined:
            self.sizes[one.after.ledger_id] = size
            if one.after not in kept:
                assert _end(one.after) <= self.start
                truncated_ones.append(one.after)
            base = one.after.base_offset or 0
            for at in range(one.after.count or 0):
                time_ms = self.entries[base + at].time_ms
                self.entries[base + at] = ModelEntry(one.after.ledger_id, at, time_ms)
        self.gone += sorted(truncated_ones, key=_end)
        assert set(replaced) <= set(gone)
        before = self.head
        self.head = decode_log_head(encode_log_head(head))
        assert self.head == head
        assert replace(head, ranges=(), first_chunk=0, next_chunk=0, chunk_bytes=0) == replace(
            before, ranges=(), first_chunk=0, next_chunk=0, chunk_bytes=0
        )
        assert len(head.ranges) <= max(self.limits[0], len(before.ranges))
        if head.first_chunk == before.first_chunk:
            assert not sealed
            return
        assert head.first_chunk == before.next_chunk
        self.chunks = {one.number: decode_log_chunk(encode_log_chunk(one)) for one in sealed}

    @precondition(lambda self: len(self.listed()) > 1)
    @rule(change=st.sampled_from(["base", "count", "end_ms", "order", "newest", "chunks"]))
    def compact_wrongly(self, change: str) -> None:
        """Refused: a joined range that has other entries, or stands elsewhere."""
        ranges = self.listed()
        before = tuple(ranges[:-1])
        base, count = before[0].base_offset or 0, sum(one.count or 0 for one in before)
        after = LogRange(777, 0, count - 1, base, before[-1].end_ms, 1)
        chunks = self.live_chunks()
        match change:
            case "base":
                after = replace(after, base_offset=base + 1)
            case "count":
                after = replace(after, last_entry_id=count)
            case "end_ms":
                after = replace(after, end_ms=(after.end_ms or 0) + 1)
            case "order":
                before = (*before, before[0])
            case "newest":
                before = tuple(ranges)
                after = replace(
                    after, last_entry_id=_end(ranges[-1]) - base - 1, end_ms=ranges[-1].end_ms
                )
            case _:
                chunks = [*chunks, LogChunk(self.head.next_chunk, before)]
        with pytest.raises(BadRequestError):
            compacted(self.head, chunks, [JoinedRanges(before, after)])

    # ---- what must hold

    def live_chunks(self) -> list[LogChunk]:
        """The chunks that the head names, in order."""
        return [self.chunks[n] for n in range(self.head.first_chunk, self.head.next_chunk)]

    def listed(self) -> list[LogRange]:
        """The closed ranges of chunks and head."""
        ranges = [one for chunk in self.live_chunks() for one in chunk.ranges]
        return ranges + [one for one in self.head.ranges if not one.is_open]

    @invariant()
    def every_entry_was_listed_once(self) -> None:
        """At its offset; what is not listed any more is before the start."""
        ranges = self.listed()
        named = [
            (one.ledger_id, entry_id)
            for one in (*self.gone, *ranges)
            for entry_id in range(one.first_entry_id, one.first_entry_id + (one.count or 0))
        ]
        assert named == [(one.ledger_id, one.entry_id) for one in self.entries]
        assert all(one.count for one in ranges)
        assert all(_end(one) <= self.start for one in self.gone)
        offset = sum(one.count or 0 for one in self.gone)
        for one in ranges:
            assert one.base_offset == offset
            offset = _end(one)
        assert end_offset(self.head) == offset == len(self.entries)

    @invariant()
    def chunks_are_those_that_the_head_names(self) -> None:
        """Their sizes are in the head, and those of ranges are what their ledgers had."""
        assert sorted(self.chunks) == list(range(self.head.first_chunk, self.head.next_chunk))
        for one in self.listed():
            assert one.size_bytes == self.sizes[one.ledger_id]
        in_chunks = sum(size_of(chunk.ranges) for chunk in self.chunks.values())
        assert self.head.chunk_bytes == in_chunks

    @invariant()
    def times_do_not_go_back(self) -> None:
        """A range ends with a time that no entry up to its end exceeds, among those listed."""
        ranges = self.listed()
        ends = [one.end_ms for one in ranges if one.end_ms is not None]
        assert len(ends) == len(ranges)
        assert ends == sorted(ends)
        first = len(self.entries) - sum(one.count or 0 for one in ranges)
        for one in ranges:
            latest = max(entry.time_ms for entry in self.entries[first : _end(one)])
            assert (one.end_ms or 0) >= latest
        assert not ends or self.head.end_ms == ends[-1]
        assert not ends or ends[-1] <= max(entry.time_ms for entry in self.entries)

    @invariant()
    def open_ledgers_are_the_last_ones(self) -> None:
        """The first of them begins where the closed ones end."""
        ranges = self.head.open_ranges
        assert [one.ledger_id for one in ranges] == self.open
        assert [one.base_offset for one in ranges] == [len(self.entries), None][: len(ranges)]

    @invariant()
    def owner_and_start_are_as_told(self) -> None:
        """Nothing else changes them."""
        assert self.head.epoch == self.epoch
        assert (self.head.owner is not None) == self.is_owned
        assert self.head.start_offset == self.start
        assert self.head.has_producers == self.has_producers

    @invariant()
    def ranges_are_found(self) -> None:
        """By each offset, and by each time: no earlier range has an entry of that time or later."""
        closed = self.listed()
        first = len(self.entries) - sum(one.count or 0 for one in closed)
        for offset in range(first, len(self.entries)):
            found = closed[range_of_offset(closed, offset)]
            assert (found.base_offset or 0) <= offset < _end(found)
        assert range_of_offset(closed, first - 1) == -1
        times = [entry.time_ms for entry in self.entries[first:]]
        for time_ms in {0, *times, 51}:
            index = range_of_time(closed, time_ms)
            before = closed[index].base_offset or 0 if index < len(closed) else len(self.entries)
            assert all(one < time_ms for one in times[: before - first])
            assert index == len(closed) or (closed[index].end_ms or 0) >= time_ms


def _end(one: LogRange) -> int:
    assert one.end_offset is not None
    return one.end_offset


TestChain = ChainModel.TestCase
TestChain.settings = settings(stateful_step_count=60)


def test_a_large_publication_is_sealed_at_once() -> None:
    """As many chunks as it takes, in the step that publishes it."""
    ranges = [LogRange(i, 0, 0, None, 1, 1) for i in range(100)]
    published = with_published(LogHead("a1"), ranges)
    head, chunks = seal(published, ranges_max=5, chunk_ranges=3)
    listed = [one for chunk in chunks for one in chunk.ranges] + list(head.ranges)
    assert listed == list(published.ranges)
    assert (len(head.ranges), len(chunks), head.chunk_bytes) == (4, 32, 96)
    assert replace(head, ranges=(), next_chunk=0, chunk_bytes=0) == LogHead("a1")


def test_the_whole_chain_is_written_anew_if_a_chunk_has_to_change() -> None:
    """Its survivors fill the head first; the oldest ones are in chunks with new numbers."""
    ranges = [LogRange(i, 0, 0, None, 1, 1) for i in range(1000)]
    head, chunks = seal(with_published(LogHead("a1"), ranges))
    assert (len(chunks), head.first_chunk, head.next_chunk) == (6, 0, 6)
    everything = [*(one for chunk in chunks for one in chunk.ranges), *head.ranges]
    first = JoinedRanges(tuple(everything[:2]), LogRange(5000, 0, 1, 0, 1, 7))
    after, sealed, gone = compacted(head, chunks, [first])
    assert gone == everything[:2]
    assert [len(one.ranges) for one in sealed] == [128, 128, 128, 128, 128, 103]
    assert [one.number for one in sealed] == list(range(6, 12))
    assert (after.first_chunk, after.next_chunk, after.chunk_bytes) == (6, 12, 742 + 7)
    rest = JoinedRanges(tuple(everything[:-1]), LogRange(5001, 0, 998, 0, 1, 9))
    after, sealed, gone = compacted(head, chunks, [rest])
    assert (after.first_chunk, after.next_chunk, after.chunk_bytes, sealed) == (6, 6, 0, ())
    assert [one.ledger_id for one in after.ranges] == [5001, 999]
    last = JoinedRanges(tuple(everything[-3:-1]), LogRange(5002, 0, 1, 997, 1, 9))
    after, sealed, _ = compacted(head, chunks, [last])
    assert (after.first_chunk, after.next_chunk, after.chunk_bytes, sealed) == (0, 6, 768, ())


def test_a_chain_that_one_transaction_cannot_take_is_refused() -> None:
    """At most 48 chunks of 128 ranges and a head of 256 are rewritten."""
    ranges = [LogRange(i, 0, 0, None, 1, 1) for i in range(256 + 48 * 128 + 2)]
    head, chunks = seal(with_published(LogHead("a1"), ranges))
    pair = JoinedRanges(tuple(chunks[0].ranges[:2]), LogRange(9000, 0, 1, 0, 1, 2))
    with pytest.raises(BadRequestError, match=r"6401 ranges would be left, and .* at most 6400"):
        compacted(head, chunks, [pair])
    three = JoinedRanges(tuple(chunks[0].ranges[:3]), LogRange(9000, 0, 2, 0, 1, 2))
    assert len(compacted(head, chunks, [three])[1]) == 48

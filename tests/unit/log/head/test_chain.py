"""The changes of a partition's head: each rule of the chain, by examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import BadRequestError
from bookie.log.catalog.log_metadata import (
    NO_TIME_MS,
    LogChunk,
    LogHead,
    LogOwner,
    LogRange,
    encode_log_chunk,
    encode_log_head,
)
from bookie.log.head.chain import (
    CHUNK_RANGES,
    HEAD_RANGES_MAX,
    LedgerEnd,
    end_offset,
    given_up,
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
from bookie.metadata.model import TRANSACTION_OPERATIONS_MAX, TRANSACTION_SIZE_BYTES_MAX

EMPTY = LogHead("a1")
OWNER = LogOwner("host-1:42", 5)
EXAMPLE = LogHead(
    "a1",
    epoch=3,
    owner=OWNER,
    ranges=(LogRange(1, 0, 9, 0, 50, 100), LogRange(2, 0, 4, 10, 60, 10)),
)
"""Two closed ledgers with fifteen entries."""


def end(ledger_id: int, last: int, greatest_ms: int | None = 70, size: int = 1) -> LedgerEnd:
    """The end of a ledger."""
    return LedgerEnd(ledger_id, last, greatest_ms, size)


# ---- owners


def test_each_owner_begins_an_epoch() -> None:
    """The ranges stay as they are, open ones too."""
    head = with_ledger(EXAMPLE, 7)
    other = LogOwner("host-2:1", 9)
    assert taken_over(head, other) == replace(head, epoch=4, owner=other)
    assert taken_over(taken_over(EMPTY, OWNER), OWNER).epoch == 2


def test_an_owner_leaves_when_all_is_closed() -> None:
    """Its epoch stays: the next owner has a greater one."""
    assert given_up(EXAMPLE) == replace(EXAMPLE, owner=None)
    with pytest.raises(BadRequestError, match="only when all its ranges are closed"):
        given_up(with_ledger(EXAMPLE, 7))


# ---- ledgers


def test_the_first_ledger_begins_at_offset_0() -> None:
    """An open range knows its offset if the range before it is closed."""
    assert with_ledger(EMPTY, 7).ranges == (LogRange(7, 0, None, 0),)
    assert with_ledger(EXAMPLE, 7).ranges[-1] == LogRange(7, 0, None, 15)


def test_a_second_open_ledger_does_not_know_its_offset() -> None:
    """It learns it when the first one is closed."""
    head = with_ledger(with_ledger(EXAMPLE, 7), 8)
    assert head.ranges[2:] == (LogRange(7, 0, None, 15), LogRange(8, 0, None, None))
    closed = with_closed(head, end(7, 2))
    assert closed.ranges[2:] == (LogRange(7, 0, 2, 15, 70, 1), LogRange(8, 0, None, 18))
    encode_log_head(head)
    encode_log_head(closed)


def test_a_third_open_ledger_is_refused() -> None:
    """Fencing the last two would not reach it."""
    head = with_ledger(with_ledger(EXAMPLE, 7), 8)
    with pytest.raises(BadRequestError, match="ledger 9 cannot be added while two ranges are open"):
        with_ledger(head, 9)
    assert with_ledger(with_closed(head, end(7, 2)), 9).ranges[-1].ledger_id == 9


def test_ledgers_are_closed_in_order() -> None:
    """Only the oldest open one may be; none that is closed, or unknown."""
    head = with_ledger(with_ledger(EXAMPLE, 7), 8)
    for ledger_id in (8, 2, 99):
        with pytest.raises(BadRequestError, match=f"ledger {ledger_id} is not the oldest open"):
            with_closed(head, end(ledger_id, 2))
    with pytest.raises(BadRequestError, match="ledger 2 is not"):
        with_closed(EXAMPLE, end(2, 4))
    with pytest.raises(BadRequestError, match="ledger 2 is not"):
        with_closed(EMPTY, end(2, 4))


def test_an_empty_ledger_leaves_the_chain() -> None:
    """The ledger behind it begins where it began."""
    head = with_ledger(with_ledger(EXAMPLE, 7), 8)
    closed = with_closed(head, end(7, -1, None, 0))
    assert closed.ranges[2:] == (LogRange(8, 0, None, 15),)
    assert with_closed(closed, end(8, -1, None, 0)) == EXAMPLE
    assert with_closed(with_ledger(EMPTY, 7), end(7, -1, None, 0)) == EMPTY


def test_times_do_not_go_back() -> None:
    """A ledger with older records than the one before it ends with that one's time."""
    assert with_closed(with_ledger(EXAMPLE, 7), end(7, 0, 55)).ranges[-1].end_ms == 60
    assert with_closed(with_ledger(EXAMPLE, 7), end(7, 0, 65)).ranges[-1].end_ms == 65
    assert with_closed(with_ledger(EXAMPLE, 7), end(7, 0, None)).ranges[-1].end_ms == 60
    assert with_closed(with_ledger(EMPTY, 7), end(7, 0, None)).ranges[-1].end_ms == NO_TIME_MS


# ---- publishing


def test_published_ranges_continue_the_offsets() -> None:
    """Offsets and times are assigned here; what the publisher told of them is replaced."""
    head = with_published(
        EXAMPLE,
        [
            LogRange(7, 3, 5, None, 55, 9),
            LogRange(8, 0, -1, None, 99, 0),
            LogRange(8, 0, 0, 77, 65, 1),
        ],
    )
    assert head.ranges[2:] == (LogRange(7, 3, 5, 15, 60, 9), LogRange(8, 0, 0, 18, 65, 1))
    encode_log_head(head)
    assert with_published(EXAMPLE, []) == EXAMPLE
    assert with_published(EMPTY, [LogRange(7, 4, 4, None, 1, 1)]).ranges[0].base_offset == 0


def test_open_ranges_are_not_published() -> None:
    """Neither is one behind an open range."""
    with pytest.raises(BadRequestError, match="only closed ranges"):
        with_published(EXAMPLE, [LogRange(7, 0, None, None)])
    with pytest.raises(BadRequestError, match="only closed ranges"):
        with_published(with_ledger(EXAMPLE, 7), [LogRange(8, 0, 5, None, 1, 1)])


def test_a_published_range_tells_its_size() -> None:
    """A head with one that does not is never written."""
    with pytest.raises(BadRequestError, match="end time or size"):
        encode_log_head(with_published(EXAMPLE, [LogRange(7, 0, 5, None, 70, None)]))


# ---- sealing


def chain_of(count: int) -> LogHead:
    """A head with `count` closed ranges of two entries and three bytes each."""
    ranges = tuple(LogRange(i, 0, 1, 2 * i, 10 * i, 3) for i in range(count))
    return LogHead("a1", ranges=ranges)


def test_a_head_of_allowed_size_is_left_alone() -> None:
    """So most changes write one record."""
    head = with_ledger(chain_of(4), 99)
    assert seal(head, ranges_max=5, chunk_ranges=2) == (head, ())
    assert seal(EMPTY) == (EMPTY, ())


def test_the_oldest_ranges_move_to_chunks() -> None:
    """As many chunks as it takes; numbers go on, and the sizes are kept."""
    whole = replace(chain_of(9), first_chunk=3, next_chunk=5, chunk_bytes=1000)
    head, chunks = seal(whole, ranges_max=5, chunk_ranges=2)
    assert chunks == (LogChunk(5, whole.ranges[:2]), LogChunk(6, whole.ranges[2:4]))
    assert head == replace(whole, ranges=whole.ranges[4:], next_chunk=7, chunk_bytes=1012)
    assert end_offset(head) == end_offset(whole) == 18


def test_sealing_begins_beyond_the_limit() -> None:
    """By default, a chunk takes half of a full head."""
    assert seal(chain_of(HEAD_RANGES_MAX))[1] == ()
    head, (chunk,) = seal(chain_of(HEAD_RANGES_MAX + 1))
    assert (len(head.ranges), len(chunk.ranges)) == (129, 128) == (CHUNK_RANGES + 1, CHUNK_RANGES)


def test_full_heads_of_40_partitions_fit_into_a_transaction() -> None:
    """With the chunk that each of them seals; numbers are as large as in an old and busy log."""
    ranges = tuple(
        LogRange(10**9, 0, 10**7 - 1, 10**12 + i * 10**7, 1_700_000_000_000, 2**30)
        for i in range(HEAD_RANGES_MAX + 1)
    )
    head, (chunk,) = seal(LogHead("0123456789abcdef", 10**6, OWNER, ranges, 0, 10**6, 2**50, 10**9))
    key_bytes = 300
    size = len(encode_log_head(head)) + len(encode_log_chunk(chunk)) + 2 * key_bytes
    assert 40 * size < TRANSACTION_SIZE_BYTES_MAX
    assert TRANSACTION_OPERATIONS_MAX > 40 * 2


# ---- truncating


def test_only_whole_ranges_go() -> None:
    """The start is exact, although the range that has it stays."""
    assert truncated(EXAMPLE, 9) == (replace(EXAMPLE, start_offset=9), [])
    first, second = EXAMPLE.ranges
    assert truncated(EXAMPLE, 10) == (
        replace(EXAMPLE, start_offset=10, ranges=(second,)),
        [first],
    )
    assert truncated(EXAMPLE, 15) == (
        replace(EXAMPLE, start_offset=15, ranges=()),
        [first, second],
    )


def test_a_truncation_does_not_go_back() -> None:
    """An older offset changes nothing."""
    head, _ = truncated(EXAMPLE, 12)
    assert truncated(head, 3) == (head, [])
    assert truncated(head, 12) == (head, [])


def test_what_is_open_stays() -> None:
    """Its end is unknown."""
    head = with_ledger(EXAMPLE, 7)
    changed, gone = truncated(head, 15)
    assert (changed.ranges, len(gone)) == ((LogRange(7, 0, None, 15),), 2)
    with pytest.raises(BadRequestError, match=r"offset 16 is behind .* ends before 15"):
        truncated(head, 16)


def test_offsets_go_on_when_everything_was_truncated() -> None:
    """No offset is given twice."""
    head, _ = truncated(EXAMPLE, 15)
    assert end_offset(head) == 15
    assert with_ledger(head, 7).ranges == (LogRange(7, 0, None, 15),)
    one = LogRange(8, 0, 0, None, 1, 1)
    assert with_published(head, [one]).ranges[0].base_offset == 15
    assert end_offset(truncated(with_ledger(EXAMPLE, 7), 15)[0]) == 15


def test_chunks_go_before_ranges_of_the_head() -> None:
    """Ranges of the head stay while a chunk stays; only whole chunks go."""
    head, chunks = seal(chain_of(9), ranges_max=5, chunk_ranges=2)
    begun, gone = truncated(head, 17, chunks[:1])
    assert gone == list(chunks[0].ranges)
    assert begun == replace(head, start_offset=17, first_chunk=1, chunk_bytes=6)
    done, gone = truncated(begun, 17, chunks[1:])
    assert gone == [*chunks[1].ranges, *head.ranges[:-1]]
    assert (done.ranges, done.chunk_bytes) == (head.ranges[-1:], 0)
    assert (done.first_chunk, done.next_chunk) == (2, 2)


def test_chunks_with_later_entries_are_not_removed() -> None:
    """Neither are chunks from the middle, nor chunks that never were."""
    head, chunks = seal(chain_of(9), ranges_max=5, chunk_ranges=2)
    assert truncated(head, 4, chunks[:1])[1] == list(chunks[0].ranges)
    for wrong, before, number in (
        (chunks[:1], 3, 0),
        (chunks, 7, 1),
        (chunks[1:], 18, 1),
        (chunks[::-1], 18, 1),
        ((*chunks, LogChunk(2, head.ranges[:1])), 18, 2),
    ):
        with pytest.raises(BadRequestError, match=f"chunk {number} cannot be removed"):
            truncated(head, before, wrong)


def test_a_truncation_can_be_tried_again_on_a_newer_head() -> None:
    """Chunks that another truncation took meanwhile are not counted twice."""
    head, chunks = seal(chain_of(9), ranges_max=5, chunk_ranges=2)
    begun, _ = truncated(head, 4, chunks[:1])
    assert truncated(begun, 4, chunks[:1]) == (begun, [])
    assert truncated(begun, 8, chunks)[1] == list(chunks[1].ranges)
    done, _ = truncated(begun, 18, chunks)
    assert (done.chunk_bytes, done.first_chunk, done.ranges) == (0, 2, ())


# ---- looking up


def test_a_range_is_found_by_its_offset() -> None:
    """The last known range takes what is behind it; an open one of unknown offset takes nothing."""
    ranges = with_ledger(with_ledger(truncated(EXAMPLE, 10)[0], 7), 8).ranges
    assert [one.base_offset for one in ranges] == [10, 15, None]
    found = [range_of_offset(ranges, offset) for offset in (0, 9, 10, 14, 15, 999)]
    assert found == [-1, -1, 0, 0, 1, 1]
    assert range_of_offset((), 0) == -1


def test_a_range_is_found_by_its_time() -> None:
    """The first whose greatest timestamp is not smaller; an open one may have any."""
    found = [range_of_time(EXAMPLE.ranges, ms) for ms in (-(2**63), 50, 51, 60, 61)]
    assert found == [0, 0, 1, 1, 2]
    assert range_of_time(with_ledger(EXAMPLE, 7).ranges, 61) == 2
    assert range_of_time((), 0) == 0


def test_the_size_is_that_of_closed_ranges() -> None:
    """An open range has no size yet."""
    assert size_of(with_ledger(EXAMPLE, 7).ranges) == 110
    assert size_of([]) == 0

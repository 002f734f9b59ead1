"""Definitions, heads and chunks of logs: round trips, and the rules of their ranges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bookie.errors import BadRequestError, FormatError, NewerFormatError
from bookie.ids import MAX_ID
from bookie.log.catalog.log_metadata import (
    NO_TIME_MS,
    PARTITIONS_MAX,
    LogChunk,
    LogDefinition,
    LogHead,
    LogMode,
    LogOwner,
    LogRange,
    decode_log_chunk,
    decode_log_definition,
    decode_log_head,
    encode_log_chunk,
    encode_log_definition,
    encode_log_head,
)

DEFINITION = LogDefinition("a1b2", LogMode.TRANSACTIONAL, 32, 1_700_000_000_000, is_deleted=True)
CLOSED = (
    LogRange(3, 0, 9, 100, 50, 1000),
    LogRange(4, 5, 4, 110, 50, 0),
    LogRange(4, 0, 0, 110, 60, 7),
)
OPEN = LogRange(9, 0, None, 111)
NEXT = LogRange(10, 0, None, None)
HEAD = LogHead(
    log_id="a1b2",
    epoch=7,
    owner=LogOwner("host-1:42", 1_700_000_000_001),
    ranges=(*CLOSED, OPEN, NEXT),
    first_chunk=2,
    next_chunk=5,
    chunk_bytes=12345,
    start_offset=77,
)
CHUNK = LogChunk(4, CLOSED)


def test_definition_round_trip() -> None:
    """Every field survives; of most logs only the id is told."""
    for definition in (DEFINITION, LogDefinition("x"), LogDefinition("x" * 64, LogMode.WRITER)):
        assert decode_log_definition(encode_log_definition(definition)) == definition
    assert decode_log_definition(encode_log_definition(LogDefinition("x"))).partitions == 1


def test_head_round_trip() -> None:
    """Every field survives, with an owner and without one."""
    for head in (HEAD, LogHead("x"), replace(HEAD, owner=None, ranges=())):
        assert decode_log_head(encode_log_head(head)) == head


def test_chunk_round_trip() -> None:
    """Every range survives."""
    assert decode_log_chunk(encode_log_chunk(CHUNK)) == CHUNK


def test_ranges_know_their_extent() -> None:
    """Count and end follow from first, last and base; open ranges have none."""
    assert [(r.is_open, r.count, r.end_offset) for r in HEAD.ranges] == [
        (False, 10, 110),
        (False, 0, 110),
        (False, 1, 111),
        (True, None, None),
        (True, None, None),
    ]
    assert LogRange(1, 0, 4, None).end_offset is None


def test_a_head_knows_its_open_ranges_and_its_last_time() -> None:
    """Open ranges are the last ones; the time is that of the last closed one."""
    assert HEAD.open_ranges == (OPEN, NEXT)
    assert replace(HEAD, ranges=(*CLOSED, OPEN)).open_ranges == (OPEN,)
    assert replace(HEAD, ranges=CLOSED).open_ranges == ()
    assert HEAD.end_ms == 60
    assert replace(HEAD, ranges=(replace(OPEN, base_offset=77),)).end_ms == NO_TIME_MS
    assert LogHead("x").end_ms == NO_TIME_MS


def with_ranges(*ranges: LogRange) -> LogHead:
    """The head with other ranges."""
    return replace(HEAD, ranges=ranges)


def closed(
    ledger_id: int,
    first: int,
    last: int,
    base: int | None = 0,
    *,
    end_ms: int | None = 1,
    size: int | None = 1,
) -> LogRange:
    """A closed range, described as one."""
    return LogRange(ledger_id, first, last, base, end_ms, size)


BAD_HEADS = [
    (with_ranges(closed(-1, 0, 0)), "ids out of range"),
    (with_ranges(closed(2**63, 0, 0)), "ids out of range"),
    (with_ranges(closed(1, -1, 0)), "ids out of range"),
    (with_ranges(closed(1, 2**63, 2**63)), "ids out of range"),
    (with_ranges(closed(1, 5, 3)), "ends before it starts"),
    (with_ranges(closed(1, 5, 2**63)), "ends before it starts"),
    (with_ranges(closed(1, 0, 3), closed(2, 0, 3, 5)), "another offset"),
    (with_ranges(closed(1, 0, 3), LogRange(2, 0, None, 5)), "another offset"),
    (with_ranges(closed(1, 0, 3, -1)), "base offset out of range"),
    (with_ranges(closed(1, 0, 3, 2**63)), "base offset out of range"),
    (with_ranges(closed(1, 0, 3, None)), "lacks a base offset"),
    (with_ranges(OPEN, replace(NEXT, base_offset=112)), "wrongly has or lacks a base"),
    (with_ranges(replace(OPEN, base_offset=None)), "wrongly has or lacks a base"),
    (with_ranges(OPEN, closed(2, 0, 3, None)), "after an open one"),
    (with_ranges(OPEN, NEXT, replace(NEXT, ledger_id=11)), "3 ranges are open, 2 may be"),
    (with_ranges(closed(1, 0, 3, end_ms=None)), "end time or size"),
    (with_ranges(closed(1, 0, 3, size=None)), "end time or size"),
    (with_ranges(replace(OPEN, end_ms=5, size_bytes=5)), "end time or size"),
    (with_ranges(replace(OPEN, end_ms=5)), "end time or size"),
    (with_ranges(replace(OPEN, size_bytes=5)), "end time or size"),
    (with_ranges(closed(1, 0, 3, size=-1)), "size is out of range"),
    (with_ranges(closed(1, 0, 3, size=2**63)), "size is out of range"),
    (with_ranges(closed(1, 0, 3, end_ms=9), closed(2, 0, 3, 4, end_ms=8)), "goes back"),
    (with_ranges(closed(1, 0, 3, end_ms=2**63)), "goes back"),
    (replace(HEAD, epoch=-1), "epoch"),
    (replace(HEAD, epoch=2**63), "epoch"),
    (replace(HEAD, first_chunk=-1), "chunk numbers"),
    (replace(HEAD, first_chunk=6), "chunk numbers"),
    (replace(HEAD, next_chunk=2**63), "chunk numbers"),
    (replace(HEAD, chunk_bytes=-1), "size of the chunks"),
    (replace(HEAD, chunk_bytes=2**63), "size of the chunks"),
    (replace(HEAD, start_offset=-1), "start offset"),
    (replace(HEAD, start_offset=2**63), "start offset"),
]


@pytest.mark.parametrize(("head", "message"), BAD_HEADS)
def test_impossible_heads_are_not_encoded(head: LogHead, message: str) -> None:
    """A head that breaks a rule is never written."""
    with pytest.raises(BadRequestError, match=message):
        encode_log_head(head)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (LogChunk(-1, CLOSED), "number"),
        (LogChunk(2**63, CLOSED), "number"),
        (LogChunk(0, ()), "at least one range"),
        (LogChunk(0, (LogRange(1, 0, None, 0),)), "1 ranges are open, 0 may be"),
    ],
)
def test_impossible_chunks_are_not_encoded(chunk: LogChunk, message: str) -> None:
    """A chunk that could still change is never written."""
    with pytest.raises(BadRequestError, match=message):
        encode_log_chunk(chunk)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (LogDefinition(""), "id is empty"),
        (LogDefinition("x" * 65), "too long"),
        (LogDefinition("x", partitions=0), "not 0"),
        (LogDefinition("x", partitions=PARTITIONS_MAX + 1), "1 to 1024 partitions"),
    ],
)
def test_impossible_definitions_are_not_encoded(definition: LogDefinition, message: str) -> None:
    """A log has an id, and at least one partition."""
    with pytest.raises(BadRequestError, match=message):
        encode_log_definition(definition)


def changed(data: bytes, **fields: object) -> bytes:
    """A record's bytes with some fields replaced."""
    return json.dumps({**json.loads(data), **fields}).encode()


def changed_head(**fields: object) -> bytes:
    """The head's bytes with some fields replaced."""
    return changed(encode_log_head(HEAD), **fields)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_log_chunk(CHUNK), "another name"),
        (changed_head(log_id=None), "log_id is not text"),
        (changed_head(epoch="7"), "epoch is not a whole number"),
        (changed_head(epoch=-1), "the epoch is out of range"),
        (changed_head(owner="host"), "owner is not an object"),
        (changed_head(owner={"name": "host"}), "since_ms is missing"),
        (changed_head(owner={"name": "host", "since_ms": 1, "claim": 7}), "claim is not text"),
        (changed_head(ranges=None), "ranges is not a list"),
        (changed_head(ranges=[[1, 2, 3, 4]]), "rows of 6"),
        (changed_head(ranges=[[1, 2, 3, 0.5, 0, 0]]), "whole numbers"),
        (changed_head(ranges=[[1, 2, 3, True, 0, 0]]), "whole numbers"),
        (changed_head(ranges=[[None, 2, 3, 0, 0, 0]]), "no ledger"),
        (changed_head(ranges=[[1, None, 3, 0, 0, 0]]), "no first entry"),
        (changed_head(ranges=[[1, 5, 3, 0, 0, 0]]), "ends before it starts"),
        (changed_head(start_offset=2**63), "start_offset"),
    ],
)
def test_bad_heads_are_refused(data: bytes, message: str) -> None:
    """Damaged and impossible heads are format errors, which name the format."""
    with pytest.raises(FormatError, match=message) as caught:
        decode_log_head(data)
    assert "bookie-log-head" in str(caught.value)


def test_bad_chunks_are_refused() -> None:
    """An open range in a chunk's bytes is a format error."""
    data = encode_log_chunk(CHUNK).replace(b"[4,0,0,110,60,7]", b"[4,0,null,110,null,null]")
    with pytest.raises(FormatError, match="bookie-log-chunk: 1 ranges are open"):
        decode_log_chunk(data)
    with pytest.raises(FormatError, match="another name"):
        decode_log_chunk(encode_log_head(HEAD))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "anarchy"}, "anarchy"),
        ({"log_id": ""}, "id is empty"),
        ({"partitions": 0}, "not 0"),
        ({"partitions": None}, "partitions is not a whole number"),
        ({"is_deleted": 1}, "is_deleted is not true or false"),
    ],
)
def test_bad_definitions_are_refused(fields: dict[str, object], message: str) -> None:
    """Damaged and impossible definitions are format errors."""
    with pytest.raises(FormatError, match=message) as caught:
        decode_log_definition(changed(encode_log_definition(DEFINITION), **fields))
    assert "bookie-log" in str(caught.value)


def test_newer_records_are_refused_as_newer() -> None:
    """A program that is too old tells it, and does not call the record damaged."""
    with pytest.raises(NewerFormatError):
        decode_log_head(changed_head(version=2))
    with pytest.raises(NewerFormatError):
        decode_log_chunk(changed(encode_log_chunk(CHUNK), version=2))
    with pytest.raises(NewerFormatError):
        decode_log_definition(changed(encode_log_definition(DEFINITION), version=2))


def test_the_largest_numbers_survive() -> None:
    """Offsets and times of up to 63 bits, and the smallest time."""
    last = LogRange(MAX_ID, 0, 0, MAX_ID - 1, MAX_ID, MAX_ID)
    first = LogRange(MAX_ID, MAX_ID, MAX_ID, MAX_ID - 2, NO_TIME_MS, 0)
    head = LogHead("x", MAX_ID, LogOwner("", -1), (first, last), MAX_ID, MAX_ID, MAX_ID, MAX_ID)
    assert decode_log_head(encode_log_head(head)) == head

"""Heads and chunks of logs: round trips, and the rules of their ranges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bookie.errors import BadRequestError, FormatError
from bookie.formats.digest import DigestType
from bookie.formats.log_metadata import (
    LogChunk,
    LogHead,
    LogMode,
    LogPolicies,
    LogRange,
    decode_log_chunk,
    decode_log_head,
    encode_log_chunk,
    encode_log_head,
)
from bookie.ids import MAX_ID

CLOSED = (LogRange(3, 0, 9, 100), LogRange(4, 5, 4, 110), LogRange(4, 0, 0, 110))
HEAD = LogHead(
    mode=LogMode.WRITER,
    policies=LogPolicies(1, 1, 1, DigestType.HMAC, None, 60, 3600, 10**12, 10**13),
    ranges=(*CLOSED, LogRange(9, 0, None, 111), LogRange(10, 0, None, None)),
    first_chunk=2,
    next_chunk=5,
    start_offset=77,
    transactions={"app-2": 0, "app-1": MAX_ID},
)
CHUNK = LogChunk(4, CLOSED)


def test_head_round_trip() -> None:
    """Every field survives, and the order of transactions does not matter."""
    data = encode_log_head(HEAD)
    assert decode_log_head(data) == HEAD
    transactions = dict(reversed(list(HEAD.transactions.items())))
    assert encode_log_head(replace(HEAD, transactions=transactions)) == data


@pytest.mark.parametrize("mode", list(LogMode))
def test_empty_head_round_trip(mode: LogMode) -> None:
    """A new log has no ranges."""
    assert decode_log_head(encode_log_head(LogHead(mode))) == LogHead(mode)


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


def with_ranges(*ranges: LogRange) -> LogHead:
    """The head with other ranges."""
    return replace(HEAD, ranges=ranges)


def with_policies(**policies: int | None) -> LogHead:
    """The head with other policies."""
    return replace(HEAD, policies=replace(HEAD.policies, **policies))  # type: ignore[arg-type]


BAD_HEADS = [
    (with_ranges(LogRange(-1, 0, 0, 0)), "ids out of range"),
    (with_ranges(LogRange(2**63, 0, 0, 0)), "ids out of range"),
    (with_ranges(LogRange(1, -1, 0, 0)), "ids out of range"),
    (with_ranges(LogRange(1, 5, 3, 0)), "ends before it starts"),
    (with_ranges(LogRange(1, 5, 2**63, 0)), "ends before it starts"),
    (with_ranges(LogRange(1, 0, 3, 0), LogRange(2, 0, 3, 5)), "another offset"),
    (with_ranges(LogRange(1, 0, 3, -1)), "base offset out of range"),
    (with_ranges(LogRange(1, 0, 3, None)), "lacks a base offset"),
    (with_ranges(LogRange(1, 0, None, 0), LogRange(2, 0, None, 5)), "wrongly has"),
    (with_ranges(LogRange(1, 0, None, 0), LogRange(2, 0, 3, None)), "after an open one"),
    (
        with_ranges(
            LogRange(1, 0, None, 0), LogRange(2, 0, None, None), LogRange(3, 0, None, None)
        ),
        "3 ranges are open",
    ),
    (replace(HEAD, mode=LogMode.TRANSACTIONAL), "transactional"),
    (replace(HEAD, first_chunk=-1), "chunk numbers"),
    (replace(HEAD, first_chunk=6), "chunk numbers"),
    (replace(HEAD, start_offset=-1), "start offset"),
    (replace(HEAD, transactions={"app": -1}), "batch number"),
    (with_policies(ack_quorum_size=2), "do not ascend"),
    (with_policies(ack_quorum_size=0, write_quorum_size=0), "do not ascend"),
    (with_policies(ensemble_size=2**63), "do not ascend"),
    (with_policies(quota_bytes=0), "a limit"),
    (with_policies(roll_bytes_max=2**63), "a limit"),
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
        (LogChunk(0, ()), "at least one range"),
        (LogChunk(0, (LogRange(1, 0, None, 0),)), "1 ranges are open, 0 may be"),
    ],
)
def test_impossible_chunks_are_not_encoded(chunk: LogChunk, message: str) -> None:
    """A chunk that could still change is never written."""
    with pytest.raises(BadRequestError, match=message):
        encode_log_chunk(chunk)


def changed_head(**fields: object) -> bytes:
    """The head's bytes with some fields replaced."""
    return json.dumps({**json.loads(encode_log_head(HEAD)), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_log_chunk(CHUNK), "another name"),
        (changed_head(version=2), "newer version"),
        (changed_head(mode="anarchy"), "anarchy"),
        (changed_head(policies={}), "ensemble_size is missing"),
        (
            changed_head(
                policies={
                    "ensemble_size": 1,
                    "write_quorum_size": 1,
                    "ack_quorum_size": 1,
                    "digest_type": "MD5",
                }
            ),
            "MD5",
        ),
        (changed_head(ranges=[[1, 2, 3]]), "rows of 4"),
        (changed_head(ranges=[[1, 2, 3, 0.5]]), "whole numbers"),
        (changed_head(ranges=[[1, 2, 3, True]]), "whole numbers"),
        (changed_head(ranges=[[None, 2, 3, 0]]), "no ledger"),
        (changed_head(ranges=[[1, 5, 3, 0]]), "ends before it starts"),
        (changed_head(transactions={"app": "x"}), "app is not a whole number"),
    ],
)
def test_bad_heads_are_refused(data: bytes, message: str) -> None:
    """Damaged, newer and impossible heads are format errors."""
    with pytest.raises(FormatError, match=message):
        decode_log_head(data)


def test_bad_chunks_are_refused() -> None:
    """An open range in a chunk's bytes is a format error."""
    data = encode_log_chunk(CHUNK).replace(b"[4,0,0,110]", b"[4,0,null,110]")
    with pytest.raises(FormatError, match="open"):
        decode_log_chunk(data)
    with pytest.raises(FormatError, match="another name"):
        decode_log_chunk(encode_log_head(HEAD))

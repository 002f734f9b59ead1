"""Cursors of partitions: what round trips, and what is refused."""

from __future__ import annotations

import json

import pytest

from bookie.errors import FormatError, NewerFormatError
from bookie.ids import MAX_ID
from bookie.log.catalog.log_cursor import LogCursor, decode_log_cursor, encode_log_cursor

FULL = LogCursor(77, 3, "host-1:42", 1_700_000_000_000, is_protected=False)


@pytest.mark.parametrize("cursor", [FULL, LogCursor(0), LogCursor(MAX_ID, MAX_ID, "ä\n", -(2**63))])
def test_cursor_round_trip(cursor: LogCursor) -> None:
    """Every field survives."""
    assert decode_log_cursor(encode_log_cursor(cursor)) == cursor


def changed(**fields: object) -> bytes:
    """A cursor's bytes with some fields replaced."""
    return json.dumps({**json.loads(encode_log_cursor(FULL)), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"77", "another name"),
        (changed(offset=-1), "offset is -1"),
        (changed(offset=2**63), "offset is 9223372036854775808"),
        (changed(offset=None), "offset is not a whole number"),
        (changed(epoch=-1), "epoch is -1"),
        (changed(owner=None), "owner is not text"),
        (changed(committed_ms="now"), "committed_ms is not a whole number"),
        (changed(is_protected="yes"), "is_protected is not true or false"),
    ],
)
def test_bad_cursors_are_refused(data: bytes, message: str) -> None:
    """Damaged cursors are format errors, which name the format."""
    with pytest.raises(FormatError, match=message) as caught:
        decode_log_cursor(data)
    assert "bookie-log-cursor" in str(caught.value)


def test_a_newer_cursor_is_refused_as_newer() -> None:
    """A program that is too old tells it."""
    with pytest.raises(NewerFormatError):
        decode_log_cursor(changed(version=2))

"""Bounds of the rare messages."""

from __future__ import annotations

import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.errors import BadRequestError
from bookie.ids import MAX_ID, Status
from bookie.wire import unary_codec
from bookie.wire.commands import LedgerRow, Reply

MESSAGE_BYTES = 8 * 1024 * 1024
"""What the server lets through unless it is told otherwise."""


@pytest.mark.parametrize(
    ("first", "last"), [(MAX_ID + 1, MAX_ID + 1), (3, MAX_ID + 1), (2**64 - 1, 5)]
)
def test_ids_above_the_largest_are_no_negative_ids(first: int, last: int) -> None:
    """Numpy would take them as they lie in memory."""
    page = pb.ListEntriesResponse(range_first=[first], range_last=[last]).SerializeToString()
    with pytest.raises(BadRequestError, match="above 2\\^63-1"):
        unary_codec.parse_ranges(page)


def test_a_watch_of_the_most_ledgers_fits() -> None:
    """The longest ids, written in the longest way."""
    ids = [MAX_ID] * unary_codec.WATCH_IDS_MAX
    packed = unary_codec.encode_watch_change(unary_codec.WatchChange(ids, ()))
    one_by_one = b"".join(pb.WatchLacRequest(subscribe=[MAX_ID]).SerializeToString() for _ in ids)
    for data in (packed, one_by_one):
        assert list(unary_codec.parse_watch_request(data).subscribe) == ids


def test_a_large_watch_is_refused_before_it_is_parsed() -> None:
    """Its ids would take eight bytes for each byte of the message."""
    with pytest.raises(BadRequestError, match=f"has {MESSAGE_BYTES} bytes"):
        unary_codec.parse_watch_request(b"\x08\x01" * (MESSAGE_BYTES // 2))


def test_a_page_of_ledgers_has_room_for_the_largest_rows() -> None:
    """A bookie sends a thousand."""
    row = LedgerRow(*(MAX_ID, True, True, MAX_ID, MAX_ID, MAX_ID, MAX_ID, MAX_ID), b"k" * 8)
    page = unary_codec.encode_ledger_rows(Reply(Status.OK), [row] * 1000)
    assert 2 * len(page) < unary_codec.LEDGER_ROWS_BYTES_MAX
    assert unary_codec.parse_ledger_rows(page)[1] == [row] * 1000


def test_a_large_page_of_ledgers_is_refused_before_it_is_parsed() -> None:
    """Its four million empty rows would take most of a GiB."""
    with pytest.raises(BadRequestError, match=f"has {MESSAGE_BYTES} bytes"):
        unary_codec.parse_ledger_rows(b"\x1a\x00" * (MESSAGE_BYTES // 2))

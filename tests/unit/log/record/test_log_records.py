"""Records that are decoded together are those that are decoded one by one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import Entries, pack_batch, verify_batch
from bookie.errors import FormatError
from bookie.log.record.log_record import (
    LogPosition,
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
    plain_prefix,
)
from bookie.log.record.log_records import PlainRecords, decode_log_records

FIRST = LogPosition(ledger_id=7, entry_id=3, offset=100, partition=2)

DIGESTER = digester_for_key(DigestType.CRC32C, b"")


def alone(payloads: list[bytes]) -> Entries:
    """Entries without their packets."""
    return Entries(range(3, 3 + len(payloads)), payloads)


def as_they_come(payloads: list[bytes]) -> list[Entries]:
    """Entries as a reader gets them, with their packets; some of one size, and not."""
    if not payloads:
        return []
    many = payloads * 20
    whole = verify_batch(pack_batch(7, 3, -1, 0, many, DIGESTER), DIGESTER)
    return [
        whole[: len(payloads)],
        verify_batch(pack_batch(7, 3, -1, 0, payloads, DIGESTER), DIGESTER),
    ]


times = st.integers(-(2**63), 2**63 - 1)
values = st.binary(max_size=40)
producers = st.integers(0, 5).map(lambda sequence: Producer("app", sequence))
headers = st.dictionaries(st.text(max_size=2), st.binary(max_size=2), max_size=1)
records = st.tuples(
    times, values, st.none() | st.binary(max_size=3), headers, st.none() | producers
).map(lambda fields: LogRecord(*fields))
plain_payloads = st.tuples(times, values).map(lambda plain: plain_prefix(plain[0]) + plain[1])
keyed_payloads = st.tuples(
    times, values, st.none() | st.binary(max_size=3), st.none() | times, st.booleans()
).map(
    lambda one: encode_log_record(
        LogRecord(one[0], one[1], one[2]), greatest_ms=one[3], follows_control=one[4]
    )
)
payloads_of_any_kind = st.tuples(records, st.none() | times, st.booleans(), st.booleans()).map(
    lambda any_kind: encode_log_record(any_kind[0], greatest_ms=any_kind[1], is_control=any_kind[2])
)


@given(
    st.lists(plain_payloads, max_size=5)
    | st.lists(keyed_payloads, max_size=5)
    | st.lists(payloads_of_any_kind, max_size=5)
)
def test_together_and_one_by_one(payloads: list[bytes]) -> None:
    """Positions count every entry; control records are left out."""
    expected = [
        decode_log_record(payload, 7, 3 + at, 100 + at, 2)
        for at, payload in enumerate(payloads)
        if not payload[1] & 8
    ]
    for entries in (alone(payloads), *as_they_come(payloads)):
        found = decode_log_records(entries, FIRST)
        assert len(found) == len(expected)
        assert list(found) == expected
        assert [found[at] for at in range(len(found))] == expected
        for places in (slice(1, 3), slice(-1, None), slice(3, 1), slice(None, None, -1)):
            assert list(found[places]) == expected[places]


@given(st.lists(keyed_payloads, min_size=1, max_size=5))
def test_keyed_and_late_records_are_plain(payloads: list[bytes]) -> None:
    """So are those that follow a control record."""
    assert isinstance(decode_log_records(alone(payloads), FIRST), PlainRecords)


@given(st.lists(keyed_payloads, min_size=1, max_size=3), st.data())
def test_damage_is_found_together_as_one_by_one(payloads: list[bytes], data: st.DataObject) -> None:
    """One byte of the first part is another one, or the entry ends early."""
    at = data.draw(st.integers(0, len(payloads) - 1))
    damaged = bytearray(payloads[at])
    damaged[data.draw(st.integers(0, 15))] ^= data.draw(st.integers(1, 255))
    cut_off = payloads[at][: data.draw(st.integers(0, len(damaged)))]
    payloads[at] = data.draw(st.sampled_from([bytes(damaged), cut_off]))
    try:
        expected = [
            decode_log_record(payload, 7, 3 + place, 100 + place, 2)
            for place, payload in enumerate(payloads)
        ]
    except FormatError:
        with pytest.raises(FormatError):
            list(decode_log_records(alone(payloads), FIRST))
    else:
        is_control = len(payloads[at]) > 1 and payloads[at][1] & 8
        wanted = [one for place, one in enumerate(expected) if not (is_control and place == at)]
        assert list(decode_log_records(alone(payloads), FIRST)) == wanted


def test_plain_records_are_made_on_access() -> None:
    """They behave like a list of records."""
    found = decode_log_records(alone([plain_prefix(at) + b"%d" % at for at in range(4)]), FIRST)
    assert isinstance(found, PlainRecords)
    followers = [encode_log_record(LogRecord(5, b"x"), follows_control=True)]
    assert isinstance(decode_log_records(alone(followers), FIRST), PlainRecords)
    last = LogRecord(3, b"3", ledger_id=7, entry_id=6, offset=103, partition=2)
    assert found[-1] == last
    assert found[2:] == [found[2], last]
    assert found == list(found)
    assert found != 5
    assert "value=b'3'" in repr(found)
    with pytest.raises(IndexError):
        found[4]


def test_records_of_version_1_are_read_among_newer_ones() -> None:
    """A log that was compacted by a newer program may have both in one ledger."""
    old = struct.pack("<BBHIIHHqq", 1, 1, 0, 1, 0, 0, 0, 5, 0) + b"kold"
    new = plain_prefix(6) + b"new"
    for entries in (alone([old, new]), *as_they_come([old, new])):
        assert list(decode_log_records(entries, FIRST)) == [
            LogRecord(5, b"old", b"k", ledger_id=7, entry_id=3, offset=100, partition=2),
            LogRecord(6, b"new", ledger_id=7, entry_id=4, offset=101, partition=2),
        ]


def test_an_error_names_the_entry() -> None:
    """The batch before it is not lost: the reader's position is known."""
    with pytest.raises(FormatError, match="entry 4 of ledger 7"):
        decode_log_records(alone([plain_prefix(1), b"no record"]), FIRST)
    with pytest.raises(FormatError, match="entry 3 of ledger 7"):
        decode_log_records(alone([b"\x03" + plain_prefix(1)[1:]]), FIRST)


@pytest.mark.parametrize("sizes", [[32] * 40, [33] * 40, [32, 50] * 20, [0, 60] * 20, [40]])
def test_where_payloads_are(sizes: list[int]) -> None:
    """With packets and without."""
    payloads = [bytes([at]) * size for at, size in enumerate(sizes)]
    verified = verify_batch(pack_batch(7, 3, -1, 0, payloads, DIGESTER), DIGESTER)
    for entries in (verified, alone(payloads)):
        data, starts, ends = entries.located()
        found = [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]
        assert found == payloads


def test_a_long_batch_of_plain_records() -> None:
    """The usual case: the packets are in memory."""
    payloads = [plain_prefix(at) + bytes(at % 3) for at in range(100)]
    entries = verify_batch(pack_batch(7, 3, -1, 0, payloads, DIGESTER), DIGESTER)
    found = decode_log_records(entries, FIRST)
    assert isinstance(found, PlainRecords)
    assert list(found) == list(decode_log_records(alone(payloads), FIRST))
    assert [record.timestamp_ms for record in found] == list(range(100))


def test_comparing_lengths_makes_no_records() -> None:
    """Payloads that are none would fail if they were looked at."""
    found = decode_log_records(alone([plain_prefix(1)] * 2), FIRST)
    assert isinstance(found, PlainRecords)
    found.payloads = [None, None]  # type: ignore[list-item]
    assert found != ()

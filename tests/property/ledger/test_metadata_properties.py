"""Properties of what the metadata store and logs hold: ledgers, cookies, registrations, logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.registration_record import (
    Endpoint,
    Registration,
    decode_registration,
    encode_registration,
)
from bookie.entry.digest import DigestType
from bookie.errors import FormatError
from bookie.ids import MAX_ID
from bookie.ledger import metadata as ledger_metadata
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.log.catalog.log_cursor import LogCursor, decode_log_cursor, encode_log_cursor
from bookie.log.catalog.log_metadata import (
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
from bookie.log.record.log_record import (
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
    follows_control,
    greatest_timestamp_ms,
    is_control,
)

I64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, MAX_ID)
UTF8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Names by number: drawing them from a pattern takes most of the time otherwise.
BOOKIES = st.integers(0, 10**6).map(lambda number: f"Bookie-{number}.example:3181")


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    """Metadata of any ledger that may exist."""
    ensemble = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble))
    starts = [0, *sorted(draw(st.sets(st.integers(1, MAX_ID), max_size=4)))]
    members = st.lists(BOOKIES, min_size=ensemble, max_size=ensemble, unique=True)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=draw(IDS),
        ensemble_size=ensemble,
        write_quorum_size=write_quorum,
        ack_quorum_size=draw(st.integers(0, write_quorum)),
        state=state,
        fragments=tuple(Fragment(start, tuple(draw(members))) for start in starts),
        digest_type=draw(st.sampled_from(DigestType)),
        password_key=draw(st.binary(max_size=40)),
        ctime_ms=draw(st.integers(-1, 2**63 - 1)),
        last_entry_id=draw(st.integers(-1, MAX_ID)) if is_closed else -1,
        length=draw(IDS) if is_closed else 0,
        custom_metadata=draw(st.dictionaries(UTF8, st.binary(max_size=20), max_size=4)),
        c_token=draw(I64),
    )


@st.composite
def ranges(draw: st.DrawFn, open_max: int, closed_min: int = 1) -> tuple[LogRange, ...]:
    """Ranges that continue each other's offsets and times, the last ones open."""
    result: list[LogRange] = []
    counts = draw(st.lists(st.integers(0, 2**40), min_size=closed_min, max_size=4))
    times = sorted(draw(st.lists(I64, min_size=len(counts), max_size=len(counts))))
    base: int = draw(st.integers(0, 2**60))
    for count, end_ms in zip(counts, times, strict=True):
        first = draw(st.integers(0, 2**60))
        last = first + count - 1
        result.append(LogRange(draw(IDS), first, last, base, end_ms, draw(IDS)))
        base += count
    opened = range(draw(st.integers(0, open_max)))
    result += [LogRange(draw(IDS), draw(IDS), None, None if index else base) for index in opened]
    return tuple(result)


@st.composite
def heads(draw: st.DrawFn) -> LogHead:
    """Any head that may exist."""
    chunks = sorted(draw(st.tuples(IDS, IDS)))
    return LogHead(
        log_id=draw(UTF8),
        epoch=draw(IDS),
        owner=draw(st.none() | st.builds(LogOwner, UTF8, I64)),
        ranges=draw(ranges(2, closed_min=0)),
        first_chunk=chunks[0],
        next_chunk=chunks[1],
        chunk_bytes=draw(IDS),
        start_offset=draw(IDS),
    )


COOKIES = st.builds(
    Cookie,
    bookie_id=BOOKIES,
    journal_dirs=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    ledger_dirs=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    instance_id=st.text(max_size=9),
    unique_id=st.text(max_size=9),
    state=st.sampled_from(CookieState),
)
REGISTRATIONS = st.builds(
    Registration,
    bookie_id=BOOKIES,
    endpoints=st.lists(
        st.builds(
            Endpoint,
            name=st.text(max_size=9),
            host=st.text(max_size=9),
            port=st.integers(0, 65535),
            protocol=st.text(max_size=9),
        ),
        max_size=3,
    ).map(tuple),
    labels=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
    total_bytes=IDS,
    free_bytes=IDS,
    load=st.floats(allow_nan=False, allow_infinity=False),
    read_only=st.booleans(),
    version=st.text(max_size=9),
)
LOG_RECORDS = st.builds(
    LogRecord,
    timestamp_ms=I64,
    value=st.binary(max_size=50),
    key=st.none() | st.binary(max_size=9),
    headers=st.dictionaries(UTF8, st.binary(max_size=9), max_size=4),
    producer=st.none() | st.builds(Producer, UTF8, IDS),
    ledger_id=st.just(-1),
    entry_id=st.just(-1),
    offset=st.just(-1),
    partition=st.just(0),
)
CHUNKS = st.builds(LogChunk, number=IDS, ranges=ranges(0))
DEFINITIONS = st.builds(
    LogDefinition,
    log_id=st.text(min_size=1, max_size=64),
    mode=st.sampled_from(LogMode),
    partitions=st.integers(1, PARTITIONS_MAX),
    created_ms=I64,
    is_deleted=st.booleans(),
)
CURSORS = st.builds(
    LogCursor,
    offset=IDS,
    epoch=IDS,
    owner=st.text(max_size=9),
    committed_ms=I64,
    is_protected=st.booleans(),
)

Codec = tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]


def _decode_ledger(data: bytes) -> LedgerMetadata:
    return ledger_metadata.decode(1, data)


CODECS: dict[str, Codec] = {
    "ledger": (
        ledgers().map(lambda metadata: replace(metadata, ledger_id=1)),
        ledger_metadata.encode,
        _decode_ledger,
    ),
    "cookie": (COOKIES, encode_cookie, decode_cookie),
    "registration": (REGISTRATIONS, encode_registration, decode_registration),
    "log record": (LOG_RECORDS, encode_log_record, decode_log_record),
    "log definition": (DEFINITIONS, encode_log_definition, decode_log_definition),
    "log cursor": (CURSORS, encode_log_cursor, decode_log_cursor),
    "log head": (heads(), encode_log_head, decode_log_head),
    "log chunk": (CHUNKS, encode_log_chunk, decode_log_chunk),
}
BY_CODEC = pytest.mark.parametrize("codec", list(CODECS.values()), ids=list(CODECS))


@BY_CODEC
@given(data=st.data())
def test_round_trip(codec: Codec, data: st.DataObject) -> None:
    """Any value survives, and its bytes are canonical: decoded and encoded they are the same."""
    values, encode, decode = codec
    value = data.draw(values)
    encoded = encode(value)
    assert decode(encoded) == value
    assert encode(decode(encoded)) == encoded


@BY_CODEC
@given(data=st.data())
def test_random_bytes_raise_only_format_errors(codec: Codec, data: st.DataObject) -> None:
    """Random bytes are a value, or a format error."""
    _, _, decode = codec
    with contextlib.suppress(FormatError):
        decode(data.draw(st.binary(max_size=200)))


@BY_CODEC
@given(data=st.data())
def test_damaged_bytes_raise_only_format_errors(codec: Codec, data: st.DataObject) -> None:
    """Bytes with a few changed, removed or inserted are a value, or a format error."""
    values, encode, decode = codec
    damaged = bytearray(encode(data.draw(values)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        removed = data.draw(st.integers(0, 3))
        damaged[at : at + removed] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(FormatError):
        decode(bytes(damaged))


@given(LOG_RECORDS, st.none() | I64, st.booleans(), st.booleans())
def test_what_goes_with_a_record_is_told_without_decoding_it(
    record: LogRecord, greatest_ms: int | None, control: bool, follows: bool
) -> None:
    """Times and marks change neither the record nor each other."""
    data = encode_log_record(
        record, greatest_ms=greatest_ms, is_control=control, follows_control=follows
    )
    assert decode_log_record(data) == record
    before = record.timestamp_ms if greatest_ms is None else greatest_ms
    assert greatest_timestamp_ms(data) == max(record.timestamp_ms, before)
    assert (is_control(data), follows_control(data)) == (control, control or follows)


@given(st.binary(max_size=50))
def test_reading_times_from_random_bytes_raises_only_format_errors(data: bytes) -> None:
    """Marks are read from anything; a time is read, or a format error."""
    is_control(data)
    follows_control(data)
    with contextlib.suppress(FormatError):
        greatest_timestamp_ms(data)


@given(st.sampled_from([b"1", b"2", b"3"]), st.binary(max_size=200))
def test_ledger_metadata_of_every_version_raises_only_format_errors(
    version: bytes, body: bytes
) -> None:
    """Random bytes behind a right version line are metadata, or a format error."""
    with contextlib.suppress(FormatError):
        _decode_ledger(b"BookieMetadataFormatVersion\t" + version + b"\n" + body)


@given(st.text(st.sampled_from('quorumSizestae:{}<>[]"\\ \n\t#;,0x8uU-'), max_size=80))
def test_ledger_metadata_text_raises_only_format_errors(text: str) -> None:
    """Text that looks a little like protobuf text is metadata, or a format error."""
    with contextlib.suppress(FormatError):
        _decode_ledger(b"BookieMetadataFormatVersion\t2\n" + text.encode())


@given(ledgers(), IDS)
def test_every_entry_has_one_fragment(metadata: LedgerMetadata, entry_id: int) -> None:
    """The fragment of an entry starts at or before it, and the next one after it."""
    fragment = metadata.fragment_of(entry_id)
    index = metadata.fragments.index(fragment)
    assert fragment.first_entry_id <= entry_id
    assert all(later.first_entry_id > entry_id for later in metadata.fragments[index + 1 :])

"""Properties of what the metadata store and logs hold: ledgers, cookies, registrations, logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import FormatError
from bookie.formats import ledger_metadata
from bookie.formats.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.formats.digest import DigestType
from bookie.formats.ledger_metadata import Fragment, LedgerMetadata, LedgerState
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
from bookie.formats.log_record import (
    LogRecord,
    Producer,
    decode_log_record,
    encode_log_record,
)
from bookie.formats.registration import (
    Endpoint,
    Registration,
    decode_registration,
    encode_registration,
)
from bookie.ids import MAX_ID

I64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, MAX_ID)
UTF8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Names by number: drawing them from a pattern takes most of the time otherwise.
BOOKIES = st.integers(0, 10**6).map(lambda number: f"Bookie-{number}.example:3181")
LIMITS = st.none() | st.integers(1, MAX_ID)


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
def ranges(draw: st.DrawFn, open_max: int) -> tuple[LogRange, ...]:
    """Ranges that continue each other's offsets, the last ones open."""
    result: list[LogRange] = []
    base: int | None = draw(st.integers(0, 2**60))
    for count in draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=4)):
        assert base is not None
        first = draw(st.integers(0, 2**60))
        result.append(LogRange(draw(IDS), first, first + count - 1, base))
        base += count
    for _ in range(draw(st.integers(0, open_max))):
        result.append(LogRange(draw(IDS), draw(IDS), None, base))
        base = None
    return tuple(result)


@st.composite
def heads(draw: st.DrawFn) -> LogHead:
    """Any head that may exist."""
    mode = draw(st.sampled_from(LogMode))
    sizes = sorted(draw(st.lists(st.integers(1, 20), min_size=3, max_size=3)))
    chunks = sorted(draw(st.tuples(IDS, IDS)))
    return LogHead(
        mode=mode,
        policies=LogPolicies(
            sizes[2],
            sizes[1],
            sizes[0],
            draw(st.sampled_from(DigestType)),
            *(draw(LIMITS) for _ in range(5)),
        ),
        ranges=draw(ranges(2 if mode is LogMode.WRITER else 0)),
        first_chunk=chunks[0],
        next_chunk=chunks[1],
        start_offset=draw(IDS),
        transactions=draw(st.dictionaries(st.text(max_size=9), IDS, max_size=4)),
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
)
CHUNKS = st.builds(LogChunk, number=IDS, ranges=ranges(0))

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

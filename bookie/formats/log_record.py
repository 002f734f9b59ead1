"""A record of a log: the payload of a ledger entry that a log's writer appends.

Little endian:

====== ===== ====================================================================
offset bytes meaning
====== ===== ====================================================================
0      1     version, 1
1      1     flags: 1 has a key, 2 has a producer
2      2     number of headers (u16)
4      4     key length (u32), 0 without a key
8      4     length of all headers (u32)
12     2     producer id length (u16), 0 without a producer
14     2     reserved, 0
16     8     timestamp in ms since 1970 (i64)
24     8     producer's sequence number (i64), 0 without a producer
32     …     producer id (UTF-8), key, headers, value
====== ===== ====================================================================

Each header is {name length u16, value length u32, name (UTF-8), value}. The value is the rest. An
absent key and an empty key are different things. A record without headers is parsed with one
`struct` call and a few slices.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from bookie.errors import BadRequestError, FormatError
from bookie.formats.digest import BytesLike

LOG_RECORD_VERSION = 1
_FIXED = struct.Struct("<BBHIIHHqq")
_HEADER = struct.Struct("<HI")
_HAS_KEY = 1
_HAS_PRODUCER = 2
_NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Producer(NamedTuple):
    """Who appended a record, and as which of its records: lets a retry be recognised."""

    producer_id: str
    sequence: int
    """Rises from record to record of one producer; never negative."""


class LogRecord(NamedTuple):
    """One record. A tuple, because a reader makes one for each entry."""

    timestamp_ms: int
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = _NO_HEADERS
    producer: Producer | None = None


def encode_log_record(record: LogRecord) -> bytes:
    """The bytes of `record`.

    Raises:
        BadRequestError: a number, a name or a length does not fit its field.
    """
    timestamp_ms, value, key, headers, producer = record
    flags = 0
    producer_id, sequence = b"", 0
    try:
        if producer is not None:
            flags |= _HAS_PRODUCER
            producer_id, sequence = producer.producer_id.encode(), producer.sequence
        if key is not None:
            flags |= _HAS_KEY
        packed = b"".join([_encode_header(name, headers[name]) for name in headers])
        if sequence < 0:
            raise BadRequestError(f"a producer's sequence number cannot be {sequence}")
        fixed = _FIXED.pack(
            LOG_RECORD_VERSION,
            flags,
            len(headers),
            len(key or b""),
            len(packed),
            len(producer_id),
            0,
            timestamp_ms,
            sequence,
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise BadRequestError(f"a log record cannot be encoded: {error}") from error
    return b"".join((fixed, producer_id, key or b"", packed, value))


def decode_log_record(data: BytesLike) -> LogRecord:
    """The record in `data`, the payload of an entry.

    Raises:
        FormatError: not a log record, damaged, or of a newer version.
    """
    if len(data) < _FIXED.size:
        raise FormatError(f"a log record of {len(data)} bytes is shorter than its header")
    (
        version,
        flags,
        header_count,
        key_length,
        headers_length,
        producer_length,
        reserved,
        timestamp_ms,
        sequence,
    ) = _FIXED.unpack_from(data)
    if version != LOG_RECORD_VERSION:
        raise FormatError(
            f"a log record has version {version}, and this program reads {LOG_RECORD_VERSION}"
        )
    if flags & ~(_HAS_KEY | _HAS_PRODUCER) or reserved:
        raise FormatError(f"a log record has flags {flags}, which this version does not know")
    key_at = _FIXED.size + producer_length
    headers_at = key_at + key_length
    value_at = headers_at + headers_length
    if value_at > len(data):
        raise FormatError(
            f"a log record of {len(data)} bytes announces {value_at} before its value"
        )
    producer = None
    if flags & _HAS_PRODUCER:
        producer_id = _text(data[_FIXED.size : key_at], "producer id")
        if sequence < 0:
            raise FormatError(f"a log record has the producer sequence number {sequence}")
        producer = Producer(producer_id, sequence)
    elif producer_length or sequence:
        raise FormatError("a log record without a producer carries parts of one")
    key = None
    if flags & _HAS_KEY:
        key = bytes(data[key_at:headers_at])
    elif key_length:
        raise FormatError("a log record without a key has a key length")
    headers = _NO_HEADERS
    if header_count or headers_length:
        headers = _decode_headers(bytes(data[headers_at:value_at]), header_count)
    return LogRecord(timestamp_ms, bytes(data[value_at:]), key, headers, producer)


def _encode_header(name: str, value: bytes) -> bytes:
    encoded = name.encode()
    return _HEADER.pack(len(encoded), len(value)) + encoded + value


def _decode_headers(data: bytes, count: int) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    at = 0
    for _ in range(count):
        name_at = at + _HEADER.size
        if name_at > len(data):
            raise FormatError(f"a log record's {count} headers do not fit in {len(data)} bytes")
        name_length, value_length = _HEADER.unpack_from(data, at)
        value_at = name_at + name_length
        at = value_at + value_length
        if at > len(data):
            raise FormatError(f"a log record's {count} headers do not fit in {len(data)} bytes")
        headers[_text(data[name_at:value_at], "header name")] = data[value_at:at]
    if at != len(data):
        raise FormatError(f"a log record's {count} headers end before {len(data)} bytes")
    if len(headers) != count:
        raise FormatError("a log record has two headers of one name")
    return headers


def _text(data: BytesLike, what: str) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"a log record's {what} is not UTF-8") from error

"""The bytes of a log record: the payload of a ledger entry that a log's writer appends.

Little endian:

====== ===== ====================================================================
offset bytes meaning
====== ===== ====================================================================
0      1     version, 2
1      1     flags: 1 has a key, 2 has a producer, 4 is late, 8 is a control record,
             16 follows a control record
2      2     number of headers (u16)
4      4     key length (u32), 0 without a key
8      8     timestamp in ms since 1970 (i64)
16     8     only in a late record: the greatest timestamp so far, itself included (i64)
…      …     only with a producer: {sequence number i64, id length u16, id (UTF-8)}
…      …     key
…      …     only with headers: {length of all u32, then for each: name length u16,
             value length u32, name (UTF-8), value}
…      …     value: the rest
====== ===== ====================================================================

A record with an empty key differs from a record without a key. Most records have only the fixed 16
bytes and the key before the value; one `struct` call and two slices parse such a record.

Version 1 can be read, but is no longer written. The fixed part of version 1 has 32 bytes, and
contains all lengths and the sequence number.

A **late** record has a smaller timestamp than a record before it. Every record contains the
greatest timestamp so far, so a reader finds a time by binary search. A **control record** is for
the next writer of the partition; readers skip it (:mod:`bookie.log.record.producers`). While a
writer remembers idempotent producers, each of its ledgers has a control record, and the records
after the control record have flag 16.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bookie.entry.digest import BytesLike
from bookie.errors import BadRequestError, FormatError

LOG_RECORD_VERSION = 2
_FIXED = struct.Struct("<BBHIq")
_FIXED_VERSION_1 = struct.Struct("<BBHIIHHqq")
_PRODUCER = struct.Struct("<qH")
_HEADERS = struct.Struct("<I")
_HEADER = struct.Struct("<HI")
HAS_KEY = 1
_HAS_PRODUCER = 2
IS_LATE = 4
"""Flag of a record whose timestamp is smaller than the timestamp of an earlier record."""
_IS_CONTROL = 8
FOLLOWS_CONTROL = 16
"""Flag of a record that comes after a control record in its ledger."""
_FLAGS = HAS_KEY | _HAS_PRODUCER | IS_LATE | _IS_CONTROL | FOLLOWS_CONTROL
_TIME = struct.Struct("<q")
_TIME_AT = 8
NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
"""The empty mapping that is used for a record without headers."""


class Producer(NamedTuple):
    """The id of a producer, and the number that this producer gave to a record.

    A record that is sent again has the same number.
    """

    producer_id: str
    sequence: int
    """The number that the producer gave to the record.

    The numbers of a producer rise and are never negative.
    """


class LogPosition(NamedTuple):
    """The place of a record. To order records of a partition, compare only their `offset`."""

    ledger_id: int
    entry_id: int
    offset: int
    partition: int = 0


class LogRecord(NamedTuple):
    """One record of a log. The class is a tuple, because Python creates tuples fast."""

    timestamp_ms: int
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    producer: Producer | None = None
    ledger_id: int = -1
    """The ledger of the record. `ledger_id`, `entry_id` and `offset` are -1 before the append."""
    entry_id: int = -1
    offset: int = -1
    partition: int = 0
    """The number of the partition from which the record was read."""

    @property
    def position(self) -> LogPosition:
        """The position from which the record was read."""
        return LogPosition(self.ledger_id, self.entry_id, self.offset, self.partition)


def encode_log_record(
    record: LogRecord,
    *,
    greatest_ms: int | None = None,
    is_control: bool = False,
    follows_control: bool = False,
) -> bytes:
    """Encode `record` as bytes, without its position.

    `greatest_ms` is the greatest timestamp of the records before this one. If `greatest_ms` is None
    or smaller than the record's own timestamp, the record's own timestamp is used.

    Raises:
        BadRequestError: a part of the record does not fit its field, or is of another type.
    """
    timestamp_ms, value, key, headers, producer = record[:5]
    flags = (_IS_CONTROL if is_control else 0) | (FOLLOWS_CONTROL if follows_control else 0)
    late = numbered = b""
    try:
        if producer is not None:
            flags |= _HAS_PRODUCER
            producer_id, sequence = producer.producer_id.encode(), producer.sequence
            if sequence < 0:
                raise BadRequestError(f"a producer's sequence number cannot be {sequence}")
            numbered = _PRODUCER.pack(sequence, len(producer_id)) + producer_id
        if key is not None:
            flags |= HAS_KEY
            if type(key) is not bytes:
                key = bytes(memoryview(key))
        if greatest_ms is not None and greatest_ms > timestamp_ms:
            flags |= IS_LATE
            late = _TIME.pack(greatest_ms)
        packed = encode_headers(headers)
        fixed = _FIXED.pack(LOG_RECORD_VERSION, flags, len(headers), len(key or b""), timestamp_ms)
        return b"".join((fixed, late, numbered, key or b"", packed, value))
    except (struct.error, UnicodeEncodeError, TypeError, AttributeError) as error:
        raise _not_encoded(record, error) from error


def _not_encoded(record: LogRecord, error: Exception) -> BadRequestError:
    """Return the error for a record that cannot be encoded. The error names the wrong part."""
    parts: tuple[Any, ...] = record[:5]
    timestamp_ms, value, key, headers, producer = parts
    wrong = str(error)
    if not isinstance(value, bytes):
        wrong = f"its value must be bytes, not {type(value).__name__}"
    elif not isinstance(key, bytes | None):
        wrong = f"its key must be bytes, not {type(key).__name__}"
    elif not isinstance(timestamp_ms, int):
        wrong = f"its time must be ms since 1970, not {type(timestamp_ms).__name__}"
    elif not isinstance(headers, Mapping):
        wrong = f"its headers must map strings to bytes, and are {type(headers).__name__}"
    elif not isinstance(producer, Producer | None):
        wrong = f"its producer must be an id and a number, not {producer!r}"
    else:
        for name, one in headers.items():
            if not isinstance(name, str) or not isinstance(one, bytes):
                wrong = f"its headers must map strings to bytes, and {name!r} does not"
    return BadRequestError(f"a log record cannot be encoded: {wrong}")


def plain_prefix(
    timestamp_ms: int, *, greatest_ms: int | None = None, follows_control: bool = False
) -> bytes:
    """Return the bytes before the value of a record that has only a timestamp and a value.

    One prefix can be used for many records: ``plain_prefix(now) + value``.
    """
    return encode_log_record(
        LogRecord(timestamp_ms, b""), greatest_ms=greatest_ms, follows_control=follows_control
    )


def is_control(data: BytesLike) -> bool:
    """True if `data`, the payload of an entry, is a control record, which readers skip."""
    return len(data) > 1 and bool(data[1] & _IS_CONTROL)


def follows_control(data: BytesLike) -> bool:
    """True if `data` is a control record, or if its ledger has an earlier control record."""
    return len(data) > 1 and bool(data[1] & (FOLLOWS_CONTROL | _IS_CONTROL))


def greatest_timestamp_ms(data: BytesLike) -> int:
    """Return the greatest timestamp of all records up to and including the record `data`.

    Raises:
        FormatError: `data` is too short for a log record, or is a damaged record of version 1.
    """
    data = _from_version_1(data)
    late = len(data) > 1 and data[1] & IS_LATE
    try:
        (found,) = _TIME.unpack_from(data, _FIXED.size if late else _TIME_AT)
    except struct.error as error:
        raise FormatError(f"{len(data)} bytes are too few for a log record") from error
    return int(found)


def with_greatest(data: bytes, greatest_ms: int) -> bytes:
    """Return the record `data` with its greatest timestamp raised to at least `greatest_ms`.

    The result is at most 8 bytes longer than `data`.

    Raises:
        FormatError: `data` is too short for a log record, or is a damaged record of version 1.
    """
    if greatest_timestamp_ms(data) >= greatest_ms:
        return data
    data = bytes(_from_version_1(data))
    at = _FIXED.size
    rest = data[at + _TIME.size :] if data[1] & IS_LATE else data[at:]
    flags = bytes((data[0], data[1] | IS_LATE))
    return b"".join((flags, data[2:at], _TIME.pack(greatest_ms), rest))


def decode_log_record(
    data: BytesLike,
    ledger_id: int = -1,
    entry_id: int = -1,
    offset: int = -1,
    partition: int = 0,
) -> LogRecord:
    """Return the record in `data`, an entry's payload; the other arguments are the position.

    Raises:
        FormatError: `data` is not a log record, is damaged, or has a newer version.
    """
    if len(data) < _FIXED.size:
        raise FormatError(f"a log record of {len(data)} bytes is shorter than its header")
    version, flags, header_count, key_length, timestamp_ms = _FIXED.unpack_from(data)
    if version == 1:
        data = _from_version_1(data)
        return decode_log_record(data, ledger_id, entry_id, offset, partition)
    if version != LOG_RECORD_VERSION:
        raise FormatError(
            f"a log record has version {version}, and this program reads {LOG_RECORD_VERSION}"
        )
    if flags & ~_FLAGS:
        raise FormatError(f"a log record has flags {flags}, which this version does not know")
    at = _FIXED.size + (_TIME.size if flags & IS_LATE else 0)
    producer = None
    if flags & _HAS_PRODUCER:
        producer, at = _decode_producer(data, at)
    key = None
    value_at = at + key_length
    if flags & HAS_KEY:
        key = bytes(data[at:value_at])
    elif key_length:
        raise FormatError("a log record without a key has a key length")
    headers = NO_HEADERS
    if header_count:
        headers, value_at = _decode_headers(data, value_at, header_count)
    if value_at > len(data):
        raise _too_short(data, value_at)
    value = bytes(data[value_at:])
    return LogRecord(
        timestamp_ms, value, key, headers, producer, ledger_id, entry_id, offset, partition
    )


def _too_short(data: BytesLike, value_at: int) -> FormatError:
    return FormatError(f"a log record of {len(data)} bytes announces {value_at} before its value")


def _from_version_1(data: BytesLike) -> BytesLike:
    """Convert a record of version 1 to the present version; return other `data` unchanged.

    Raises:
        FormatError: the record is damaged.
    """
    if not data or data[0] != 1:
        return data
    fixed_size = _FIXED_VERSION_1.size
    if len(data) < fixed_size:
        raise _too_short(data, fixed_size)
    (_, flags, count, key_length, headers_length, id_length, reserved, timestamp_ms, sequence) = (
        _FIXED_VERSION_1.unpack_from(data)
    )
    id_at = fixed_size + (_TIME.size if flags & IS_LATE else 0)
    key_at = id_at + id_length
    headers_at = key_at + key_length
    value_at = headers_at + headers_length
    if value_at > len(data):
        raise _too_short(data, value_at)
    if reserved or (headers_length and not count):
        raise FormatError("a log record of version 1 has lengths without their parts")
    producer = headers = b""
    if flags & _HAS_PRODUCER:
        producer = _PRODUCER.pack(sequence, id_length) + data[id_at:key_at]
    elif id_length or sequence:
        raise FormatError("a log record without a producer carries parts of one")
    if count:
        headers = _HEADERS.pack(headers_length)
    fixed = _FIXED.pack(LOG_RECORD_VERSION, flags, count, key_length, timestamp_ms)
    late, rest = data[fixed_size:id_at], data[headers_at:]
    return b"".join((fixed, late, producer, data[key_at:headers_at], headers, rest))


def _decode_producer(data: BytesLike, at: int) -> tuple[Producer, int]:
    """Decode the producer at index `at` of `data`; return the producer and the index after it."""
    id_at = at + _PRODUCER.size
    if id_at > len(data):
        raise _too_short(data, id_at)
    sequence, length = _PRODUCER.unpack_from(data, at)
    end = id_at + length
    if end > len(data):
        raise _too_short(data, end)
    if sequence < 0:
        raise FormatError(f"a log record has the producer sequence number {sequence}")
    return Producer(_text(data[id_at:end], "producer id"), sequence), end


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    """Encode the headers of a record as bytes; return empty bytes if there are no headers.

    Raises:
        struct.error, UnicodeEncodeError, AttributeError, TypeError: `headers` is no mapping, or a
            name or a value is too long or of another type.
    """
    if not headers:
        if not isinstance(headers, Mapping):
            raise TypeError(f"headers must map strings to bytes, and are {headers!r}")
        return b""
    packed: list[bytes] = []
    for name, given in headers.items():
        encoded = name.encode()
        value = given if type(given) is bytes else bytes(memoryview(given))
        packed += (_HEADER.pack(len(encoded), len(value)), encoded, value)
    return _HEADERS.pack(sum(map(len, packed))) + b"".join(packed)


def _decode_headers(data: BytesLike, at: int, count: int) -> tuple[dict[str, bytes], int]:
    """Decode the headers at index `at` of `data`; return the headers and the index after them."""
    first_at = at + _HEADERS.size
    if first_at > len(data):
        raise _too_short(data, first_at)
    (length,) = _HEADERS.unpack_from(data, at)
    end = first_at + length
    if end > len(data):
        raise _too_short(data, end)
    return _headers_in(bytes(data[first_at:end]), count), end


def _headers_in(data: bytes, count: int) -> dict[str, bytes]:
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

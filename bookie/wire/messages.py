"""The part of protobuf's wire format that `codec` needs: varints, spans, packed arrays.

One scan of a message gives two dictionaries whose keys are *tags* (field number and wire type).
The scan copies no field: a length-delimited field becomes a span of the message. A packed array
becomes a numpy view of the message; an array in several pieces is copied. A known field with a
wrong wire type has another tag. So the field is skipped like an unknown field, as generated code
does.

========= ====================== =====================================
wire type what                   bytes
========= ====================== =====================================
0         varint                 7 bits a byte, low bits first, <= 10 bytes
1         fixed64                8, little endian
2         length-delimited       varint length, then the bytes
5         fixed32                4, little endian
========= ====================== =====================================

Groups (3, 4) do not exist in proto3 and are refused. A message of more than `FIELDS_MAX` fields is
refused too, because skipping a million fields would block the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bookie.errors import BadRequestError

FIELDS_MAX = 64
"""The largest number of fields in a message, including unknown fields and unpacked array
elements."""

_VARINT_64 = 1 << 64
_SIGN_64 = 1 << 63
_FIXED_SIZES = {1: 8, 5: 4}
_SMALL = [bytes((value,)) for value in range(128)]

Span = tuple[int, int]
"""Start and end (exclusive) of a length-delimited field inside its message."""


def varint(value: int) -> bytes:
    """Encode `value`, in 0 … 2**64 - 1, as a varint."""
    if value < 0x80:
        return _SMALL[value]
    # Usual ids and sizes take the fast path.
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_value(octets: bytes) -> int:
    """Decode a whole varint of at most nine bytes; no bytes mean 0."""
    size = len(octets)
    # A fast path for usual sizes, as in `varint`.
    if size == 1:
        return octets[0]
    if size == 2:
        return octets[0] & 0x7F | octets[1] << 7
    if size == 3:
        return octets[0] & 0x7F | (octets[1] & 0x7F) << 7 | octets[2] << 14
    value = shift = 0
    for octet in octets:
        value |= (octet & 0x7F) << shift
        shift += 7
    return value


def int64_varint(value: int) -> bytes:
    """Encode the value of an ``int64`` field as a varint: negative values take ten bytes."""
    return varint(value if value >= 0 else value + _VARINT_64)


def zigzag_varint(value: int) -> bytes:
    """Encode the value of a ``sint64`` field as a varint: small numbers take few bytes."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def to_int64(value: int) -> int:
    """Return the ``int64`` value of a scanned varint."""
    return value if value < _SIGN_64 else value - _VARINT_64


def to_sint64(value: int) -> int:
    """Return the ``sint64`` value of a scanned varint."""
    return value >> 1 if not value & 1 else -(value >> 1) - 1


class Fields:
    """The fields of one scanned message, by tag; of a repeated scalar, the last value counts."""

    __slots__ = ("data", "numbers", "spans")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.numbers: dict[int, int] = {}
        self.spans: dict[int, list[Span]] = {}

    def octets(self, tag: int, size_max: int) -> bytes:
        """Return a copy of a short ``bytes`` field; empty if absent.

        Raises:
            BadRequestError: The field is longer than `size_max` bytes.
        """
        spans = self.spans.get(tag)
        if spans is None:
            return b""
        start, end = spans[-1]
        if end - start > size_max:
            raise BadRequestError(
                f"a field of the message has {end - start} bytes; at most {size_max} are allowed"
            )
        return bytes(self.data[start:end])

    def text(self, tag: int) -> str:
        """Return a ``string`` field, empty if absent; bytes that are not UTF-8 are replaced."""
        spans = self.spans.get(tag)
        if spans is None:
            return ""
        start, end = spans[-1]
        return bytes(self.data[start:end]).decode("utf-8", "replace")

    def view(self, tag: int) -> memoryview:
        """Return a view of a ``bytes`` field; the view keeps the message alive."""
        spans = self.spans.get(tag)
        if spans is None:
            return memoryview(b"")
        start, end = spans[-1]
        return memoryview(self.data)[start:end]

    def array(self, tag: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return a packed array; None if the array is empty.

        The result is a read-only view of the message, or a copy if the array has several pieces.

        Raises:
            BadRequestError: The field's length is not a multiple of the element size.
        """
        spans = self.spans.get(tag)
        if spans is None:
            return None
        item_size = dtype.itemsize
        parts = []
        for start, end in spans:
            count, rest = divmod(end - start, item_size)
            if rest:
                raise BadRequestError(
                    f"a packed array of {end - start} bytes does not hold whole elements of "
                    f"{dtype.itemsize} bytes"
                )
            if count:
                parts.append(np.frombuffer(self.data, dtype, count, start))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def scan(data: bytes | memoryview, unpacked: Mapping[int, int]) -> Fields:  # noqa: C901, PLR0912  (inlined for speed)
    """Find the fields of a message without copying any field.

    Args:
        data: The whole message.
        unpacked: Tags of single array elements, mapped to the tags of the packed arrays. A sender
            may write an array packed or as single elements.

    Raises:
        BadRequestError: The bytes are not a protobuf message, or it has too many fields.
    """
    fields = Fields(data)
    numbers, spans = fields.numbers, fields.spans
    size = len(data)
    position = 0
    budget = FIELDS_MAX
    try:
        while position < size:
            budget -= 1
            if budget < 0:
                raise BadRequestError(f"the message has more than {FIELDS_MAX} fields")
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = _long_varint(data, position, tag)
            if tag < 8:
                raise BadRequestError("the message has a field with the number 0")
            wire_type = tag & 7
            if wire_type in _FIXED_SIZES:
                end = position + _FIXED_SIZES[wire_type]
                array_tag = unpacked.get(tag)
                if array_tag is None:
                    numbers[tag] = int.from_bytes(data[position:end], "little")
                else:  # one element of an array
                    spans.setdefault(array_tag, []).append((position, end))
                position = end
                continue
            value = data[position]  # the number itself, or the length of the following bytes
            position += 1
            if value >= 0x80:
                high = data[position]
                if high < 0x80:  # a varint of two bytes, the commonest of the longer ones
                    value += (high - 1) << 7
                    position += 1
                else:
                    value, position = _long_varint(data, position, value)
            if wire_type == 0:
                numbers[tag] = value
            elif wire_type == 2:
                spans.setdefault(tag, []).append((position, position + value))
                position += value
            else:
                raise BadRequestError(f"the message has a field of wire type {wire_type}")
    except IndexError:
        position = size + 1
    if position != size:
        raise BadRequestError("the message ends inside a field")
    return fields


def scan_numbers(data: bytes | memoryview) -> dict[int, int] | None:
    """Scan a short message of varint fields with field numbers below 16; None for other messages.

    The result is the same as the `numbers` of `scan`. For a read request of one entry, this
    function takes half the time of `scan`.
    """
    size = len(data)
    if size > FIELDS_MAX:
        return None
    numbers: dict[int, int] = {}
    position = 0
    try:
        while position < size:
            tag, value = data[position], data[position + 1]
            if tag & 0x87 or not tag:
                return None
            position += 2
            if value >= 0x80:
                value, position = _long_varint(data, position, value)
            numbers[tag] = value
    except (IndexError, BadRequestError):
        return None
    return numbers


def _long_varint(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Decode a varint from its `first` byte and the bytes at `position`; return value and end."""
    value = first & 0x7F
    shift = 7
    while True:
        octet = data[position]
        position += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            if value >= _VARINT_64:
                raise BadRequestError("a number of the message has more than 64 bits")
            return value, position
        shift += 7
        if shift > 63:
            raise BadRequestError("a number of the message has more than ten bytes")

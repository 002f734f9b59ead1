"""Encodes and parses the frequent messages: AddRequest, AddResponse, ReadRequest, ReadResponse.

Generated protobuf code would need Python work for each entry. With this module, a batch of a
thousand entries costs a few copies of arrays. Entry sizes and id steps have the same bytes in a
message as in a numpy array. A parsed payload is a view of the message.
``proto/bookie/v1/bookie.proto`` defines the contract. Like generated code, this module writes
fields in the order of their numbers and omits defaults.

In an AddRequest, the request id comes first and the payload last. Each client has one counter for
the request ids of adds. So the client encodes an add once, and sends the same bytes object to every
bookie of the write set. On one stream, request ids need not increase, because a batch may be sent
again after later batches. A bookie answers the adds of a stream in the order of the requests. Adds
that wait at the same time are joined into one message, and so are answers (`wire/coalesce.py`).

Parsers accept fields in any order and skip unknown fields. If a message breaks the contract in any
other way, a parser raises :class:`BadRequestError`, and never another error.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES, EntryBatch, sizes_of_one
from bookie.errors import BadRequestError
from bookie.ids import BATCH_SIZE_BYTES_MAX, ENTRY_SIZE_BYTES_MAX, MAX_ID, NO_ENTRY, Status
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply
from bookie.wire.messages import (
    Fields,
    int64_varint,
    scan,
    scan_numbers,
    to_int64,
    to_sint64,
    varint,
    varint_value,
    zigzag_varint,
)

MASTER_KEY_BYTES_MAX: Final = 64
"""The longest key in a request; bookie's keys have 32 bytes, those of Apache BookKeeper 20."""

LAC_PACKET_BYTES_MAX: Final = 64
"""The longest explicit-LAC packet: two numbers and the largest digest, with room to spare."""

MESSAGE_TEXT_CHARACTERS_MAX: Final = 512
"""The largest number of characters in an answer's sentence; a longer sentence is cut off."""

_FIXED32: Final = np.dtype("<u4")
_FIXED64: Final = np.dtype("<i8")  # id steps; values above 2^63 appear negative and are refused
_UINT32_MASK: Final = 0xFFFF_FFFF
_STATUSES: Final = tuple(Status)


# -- AddRequest ------------------------------------------------------------------------------------

_ADD_REQUEST_UNPACKED: Final = {0x29: 0x2A, 0x35: 0x32}

_VARINT: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"  # up to 63 bits
_LONE_ADD: Final = re.compile(
    rb"(?:\x08" + _VARINT + rb")?(?:\x10" + _VARINT + rb")?"  # request id, ledger id
    rb"(?:\x1a(?:\x14(.{20})|\x20(.{32})))?"  # master key
    rb"(?:\x20" + _VARINT + rb")?\x32\x04(.{4})"  # first entry id, the only size
    rb"(?:\x3d(.{4}))?(?:\x40(\x01))?(?:\x48(\x01))?"  # checksum, recovery, deferred sync
    rb"\x7a" + _VARINT,  # length of the payload, which follows
    re.DOTALL,
)
"""Matches a request with one entry, as `encode_add_request` writes it, up to its payload."""


def encode_add_request(
    request_id: int,
    ledger_id: int,
    batch: EntryBatch | None,
    *,
    master_key: bytes = b"",
    payload_crc32c: int = 0,
    recovery: bool = False,
    deferred_sync: bool = False,
    lac_packet: bytes = b"",
) -> bytes:
    """Encode one add request; if `batch` is None, the request carries only an explicit LAC.

    The payload is copied once. The encoder checks nothing, because the bookie checks the request.
    """
    head = bytearray()
    if request_id:
        head += b"\x08" + varint(request_id)
    if ledger_id:
        head += b"\x10" + int64_varint(ledger_id)
    if master_key:
        head += b"\x1a" + varint(len(master_key)) + master_key
    if batch is not None:
        if batch.first_entry_id:
            head += b"\x20" + zigzag_varint(batch.first_entry_id)
        _append_arrays(head, batch, b"\x2a", b"\x32")
    if payload_crc32c:
        head += b"\x3d" + payload_crc32c.to_bytes(4, "little")
    if recovery:
        head += b"\x40\x01"
    if deferred_sync:
        head += b"\x48\x01"
    if lac_packet:
        head += b"\x52" + varint(len(lac_packet)) + lac_packet
    if batch is None:
        return bytes(head)
    head += b"\x7a" + varint(len(batch.payload))
    return b"".join((head, batch.payload))


def parse_add_request(data: bytes | memoryview) -> tuple[int, AddCommand]:
    """Parse one add request, and return its request id and its command.

    The batch's payload and arrays are views of `data` and keep `data` alive. Bounds of ids and
    sizes are checked; the payload's checksum and the packets' headers are not.

    Raises:
        BadRequestError: The bytes are not a message, or a value is out of bounds; `request_id_of`
            may still find the request's id.
    """
    lone = _parse_lone_add(data)
    if lone is not None:
        return lone
    fields = scan(data, _ADD_REQUEST_UNPACKED)
    numbers = fields.numbers
    ledger_id = to_int64(numbers.get(0x10, 0))
    lac_packet = fields.octets(0x52, LAC_PACKET_BYTES_MAX)
    batch = _parse_batch(fields, ledger_id, to_sint64(numbers.get(0x20, 0)), 0x2A, 0x32)
    if batch is None:
        _check_ledger_id(ledger_id)
        if not lac_packet:
            raise BadRequestError("the request carries neither entries nor a last add confirmed")
    elif batch.count > 1 and len(batch.payload) > BATCH_SIZE_BYTES_MAX:
        raise BadRequestError(
            f"a batch of {batch.count} entries has {len(batch.payload)} bytes; "
            f"at most {BATCH_SIZE_BYTES_MAX} are allowed"
        )
    command = AddCommand(
        batch,
        ledger_id,
        fields.octets(0x1A, MASTER_KEY_BYTES_MAX),
        numbers.get(0x3D, 0),
        bool(numbers.get(0x40, 0)),
        bool(numbers.get(0x48, 0)),
        lac_packet,
    )
    return numbers.get(0x08, 0), command


def _parse_lone_add(data: bytes | memoryview) -> tuple[int, AddCommand] | None:
    """Parse a valid request with one entry, like `parse_add_request`; return None for others.

    This parser takes half the time of the general parser. Its time adds to the latency of each
    append of one entry. A writer of many ledgers sends mostly such appends.
    """
    match = _LONE_ADD.match(data)
    if match is None:
        return None
    request_id, ledger_id, short_key, key, entry_id, size, crc, recovery, deferred, length = (
        match.groups(b"")
    )
    start = match.end()
    payload_bytes = len(data) - start
    zigzag = varint_value(entry_id)
    if (
        payload_bytes != varint_value(length)
        or payload_bytes != int.from_bytes(size, "little")
        or not PACKET_HEADER_SIZE_BYTES <= payload_bytes <= ENTRY_SIZE_BYTES_MAX
        or zigzag & 1
    ):
        return None
    ledger = varint_value(ledger_id)
    payload = memoryview(data)[start:]
    batch = EntryBatch(ledger, zigzag >> 1, None, sizes_of_one(payload_bytes), payload)
    command = AddCommand(
        batch,
        ledger,
        key or short_key,
        int.from_bytes(crc, "little"),
        recovery != b"",
        deferred != b"",
    )
    return varint_value(request_id), command


def request_id_of(data: bytes | memoryview) -> int:
    """Return the request id at the start of an add request that may be malformed; 0 if unknown."""
    if data[:1] != b"\x08":
        return 0
    request_id = 0
    for position, octet in enumerate(data[1:11]):
        request_id |= (octet & 0x7F) << 7 * position
        if octet < 0x80:
            return request_id if request_id >> 64 == 0 else 0
    return 0


# -- AddResponse -----------------------------------------------------------------------------------


class AddAnswer(NamedTuple):
    """A bookie's answer to one add; `message` is a sentence about an error, or empty.

    With TOO_MANY_REQUESTS, `retry_after_ms` is the pause before the client should retry; 0 means
    that the bookie names no pause.
    """

    request_id: int
    status: Status
    message: str
    retry_after_ms: int = 0


def encode_add_response(
    request_id: int, status: Status, message: str = "", retry_after_ms: int = 0
) -> bytes:
    """Encode the answer to one add."""
    head = b"\x08" + varint(request_id) if request_id else b""
    if status:
        head += b"\x10" + varint(status)
    if message:
        head += _text_field(b"\x1a", message)
    if retry_after_ms:
        head += b"\x20" + varint(retry_after_ms)
    return head


def parse_add_response(data: bytes | memoryview) -> AddAnswer:
    """Parse a bookie's answer to one add.

    Raises:
        BadRequestError: The bytes are not an AddResponse, or its status is unknown.
    """
    numbers, text = scan_numbers(data), ""
    if numbers is None:
        fields = scan(data, {})
        numbers, text = fields.numbers, fields.text(0x1A)
    number = numbers.get
    return AddAnswer(
        number(0x08, 0), _status(number(0x10, 0)), text, number(0x20, 0) & _UINT32_MASK
    )


# -- ReadRequest -----------------------------------------------------------------------------------


def encode_streamed_read(request_id: int, command: ReadCommand, timeout_ms: int = 0) -> bytes:
    """Encode one read on a stream; with a `timeout_ms` of 0, the client waits without limit."""
    out = encode_read_request(command) + b"\x58" + varint(request_id)
    return out + b"\x60" + varint(timeout_ms) if timeout_ms else out


def encode_read_request(command: ReadCommand) -> bytes:
    """Encode one read. The encoder checks nothing, because the bookie checks the request."""
    out = bytearray()
    first, last = command.first_entry_id, command.last_entry_id
    if command.ledger_id:
        out += b"\x08" + int64_varint(command.ledger_id)
    if first:
        octets = zigzag_varint(first)
        out += b"\x10" + octets
        if first == last:
            out += b"\x18" + octets
    if last and first != last:
        out += b"\x18" + zigzag_varint(last)
    if command.max_entries:
        out += b"\x20" + varint(command.max_entries)
    if command.max_bytes:
        out += b"\x28" + varint(command.max_bytes)
    if command.fence:
        out += b"\x30\x01"
    if command.master_key:
        out += b"\x3a" + varint(len(command.master_key)) + command.master_key
    if command.stripe_modulus:
        out += b"\x40" + varint(command.stripe_modulus)
    if command.stripe_first_residue:
        out += b"\x48" + varint(command.stripe_first_residue)
    if command.stripe_count:
        out += b"\x50" + varint(command.stripe_count)
    return bytes(out)


def parse_read_request(data: bytes) -> ReadCommand:
    """Parse a read request, and check that ids and stripe are within their bounds.

    Raises:
        BadRequestError: The bytes are not a message, or a value is out of bounds.
    """
    return parse_streamed_read(data)[2]


def parse_streamed_read(data: bytes) -> tuple[int, int, ReadCommand]:
    """Parse a read on a stream: return its request id, its timeout in ms, and the read.

    Raises:
        BadRequestError: The bytes are not a message, or a value is out of bounds; `read_id_of` may
            still find the request's id.
    """
    numbers = scan_numbers(data)
    if numbers is not None:
        number, key = numbers.get, b""
    else:
        fields = scan(data, {})
        number, key = fields.numbers.get, fields.octets(0x3A, MASTER_KEY_BYTES_MAX)
    first, last = number(0x10, 0), number(0x18, 0)
    command = ReadCommand(
        to_int64(number(0x08, 0)),
        first >> 1 ^ -(first & 1),
        last >> 1 ^ -(last & 1),
        number(0x20, 0) & _UINT32_MASK,
        number(0x28, 0) & _UINT32_MASK,
        number(0x30, 0) != 0,
        key,
        number(0x40, 0) & _UINT32_MASK,
        number(0x48, 0) & _UINT32_MASK,
        number(0x50, 0) & _UINT32_MASK,
    )
    _check_ledger_id(command.ledger_id)
    first, last = command.first_entry_id, command.last_entry_id
    if first != NO_ENTRY and not 0 <= first <= last:
        raise BadRequestError(f"entries {first} to {last} are not a range of entry ids")
    modulus, count = command.stripe_modulus, command.stripe_count
    if modulus and not (command.stripe_first_residue < modulus and 1 <= count <= modulus):
        raise BadRequestError(
            f"a stripe of {count} residues from {command.stripe_first_residue} on "
            f"does not exist modulo {modulus}"
        )
    return number(0x58, 0), number(0x60, 0) & _UINT32_MASK, command


def read_id_of(data: bytes) -> int:
    """Return the request id of a read with a value out of bounds; 0 if unknown."""
    try:
        return scan(data, {}).numbers.get(0x58, 0)
    except BadRequestError:
        return 0


# -- ReadResponse ----------------------------------------------------------------------------------

_READ_RESPONSE_UNPACKED: Final = {0x21: 0x22, 0x2D: 0x2A}


def encode_read_response(reply: ReadReply, request_id: int = 0) -> bytes:
    """Encode the answer to one read; the payload is copied once."""
    head = bytearray()
    if reply.status:
        head += b"\x08" + varint(reply.status)
    if reply.message:
        head += _text_field(b"\x12", reply.message)
    batch = reply.batch
    if batch is not None:
        if batch.first_entry_id:
            head += b"\x18" + zigzag_varint(batch.first_entry_id)
        _append_arrays(head, batch, b"\x22", b"\x2a")
    if reply.next_entry_id:
        head += b"\x30" + zigzag_varint(reply.next_entry_id)
    if reply.stopped_by:
        head += b"\x38" + varint(reply.stopped_by)
    if reply.max_lac:
        head += b"\x40" + zigzag_varint(reply.max_lac)
    if request_id:
        head += b"\x48" + varint(request_id)
    if reply.retry_after_ms:
        head += b"\x50" + varint(reply.retry_after_ms)
    if batch is None or not len(batch.payload):
        return bytes(head)
    head += b"\x7a" + varint(len(batch.payload))
    return b"".join((head, batch.payload))


def parse_read_response(data: bytes, ledger_id: int) -> ReadReply:
    """Parse a bookie's answer to a read of `ledger_id`.

    The batch is a view of `data`. The parser checks the bounds of the batch, but not the ids and
    digests inside its packets.

    Raises:
        BadRequestError: The bytes are not a ReadResponse, or its parts contradict each other.
    """
    return read_reply_of(scan_read_response(data)[1], ledger_id)


def scan_read_response(data: bytes) -> tuple[int, Fields]:
    """Scan an answer to a read; return its request id, and the fields for `read_reply_of`.

    Answers on a stream are parsed in two steps, because an answer does not contain its ledger id.
    The first step finds the request id, which leads to the request and its ledger id. The second
    step is `read_reply_of`: a malformed reply then fails only its own request, not the stream.

    Raises:
        BadRequestError: The bytes are not a message.
    """
    fields = scan(data, _READ_RESPONSE_UNPACKED)
    return fields.numbers.get(0x48, 0), fields


def read_reply_of(fields: Fields, ledger_id: int) -> ReadReply:
    """Return the reply from a scanned message; errors are those of `parse_read_response`."""
    number = fields.numbers.get
    status, stopped_by = number(0x08, 0), number(0x38, 0)
    return ReadReply(
        _status(status) if status else Status.OK,
        fields.text(0x12),
        _parse_batch(fields, ledger_id, to_sint64(number(0x18, 0)), 0x22, 0x2A),
        to_sint64(number(0x30, 0)),
        _status(stopped_by) if stopped_by else Status.OK,
        to_sint64(number(0x40, 0)),
        number(0x50, 0) & _UINT32_MASK,
    )


# -- what messages share ---------------------------------------------------------------------------


def _append_arrays(head: bytearray, batch: EntryBatch, steps_tag: bytes, sizes_tag: bytes) -> None:
    if len(batch.sizes) == 1:
        # The size of a single entry needs no array, because it is the payload's size.
        head += sizes_tag + b"\x04" + len(batch.payload).to_bytes(4, "little")
        return
    if batch.steps is not None and len(batch.steps):
        _append_array(head, steps_tag, batch.steps, _FIXED64)
    if len(batch.sizes):
        _append_array(head, sizes_tag, batch.sizes, _FIXED32)


def _append_array(head: bytearray, tag: bytes, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    octets = values.astype(dtype, copy=False).tobytes()
    head += tag
    head += varint(len(octets))
    head += octets


def _parse_batch(
    fields: Fields, ledger_id: int, first_entry_id: int, steps_tag: int, sizes_tag: int
) -> EntryBatch | None:
    sizes = fields.array(sizes_tag, _FIXED32)
    steps = fields.array(steps_tag, _FIXED64)
    payload = fields.view(0x7A)
    if sizes is None:
        if steps is not None or len(payload):
            raise BadRequestError("the message has a payload or id steps, but no entry sizes")
        return None
    if steps is not None and len(steps) == len(sizes) - 1 and bool((steps == 1).all()):
        steps = None
    batch = EntryBatch(ledger_id, first_entry_id, steps, sizes, payload)
    batch.check_bounds()
    return batch


def _check_ledger_id(ledger_id: int) -> None:
    if not 0 <= ledger_id <= MAX_ID:
        raise BadRequestError(f"ledger id {ledger_id} is not in 0 … 2^63-1")


def _status(number: int) -> Status:
    if number >= len(_STATUSES):
        raise BadRequestError(f"the message has the unknown status {number}")
    return _STATUSES[number]


def _text_field(tag: bytes, text: str) -> bytes:
    octets = text[:MESSAGE_TEXT_CHARACTERS_MAX].encode("utf-8", "replace")
    return tag + varint(len(octets)) + octets

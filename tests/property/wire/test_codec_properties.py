"""The hand-written codec against the code generated from the proto file, both ways."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookie._pb import bookie_pb2 as pb
from bookie.entry.batch import EntryBatch
from bookie.errors import BadRequestError
from bookie.ids import MAX_ID, Status
from bookie.wire import coalesce, codec
from bookie.wire.commands import ReadCommand, ReadReply

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), MAX_ID)
LEDGER_IDS = st.integers(0, MAX_ID)
ENTRY_IDS = st.integers(0, 2**62)
KEYS = st.binary(max_size=codec.MASTER_KEY_BYTES_MAX)
STATUSES = st.sampled_from(Status)


@st.composite
def batches(draw: st.DrawFn) -> EntryBatch:
    """A batch within its bounds; dense, with gaps, of one entry or many."""
    sizes = draw(st.lists(st.integers(32, 200), min_size=1, max_size=40))
    steps = draw(
        st.none()
        | st.lists(st.integers(1, 2**40), min_size=len(sizes) - 1, max_size=len(sizes) - 1)
    )
    if steps is not None and all(step == 1 for step in steps):
        steps = None
    return EntryBatch(
        draw(LEDGER_IDS),
        draw(ENTRY_IDS),
        None if steps is None else np.array(steps, np.int64),
        np.array(sizes, np.int64),
        draw(st.binary(min_size=sum(sizes), max_size=sum(sizes))),
    )


def assert_same(left: EntryBatch | None, right: EntryBatch | None) -> None:
    if left is None or right is None:
        assert left is right
        return
    assert left.ledger_id == right.ledger_id
    assert left.first_entry_id == right.first_entry_id
    assert left.entry_ids().tolist() == right.entry_ids().tolist()
    assert left.sizes.tolist() == right.sizes.tolist()
    assert bytes(left.payload) == bytes(right.payload)


def steps_of(batch: EntryBatch) -> list[int]:
    return [] if batch.steps is None else batch.steps.tolist()


@given(
    UINT64, batches(), KEYS, UINT32, st.tuples(st.booleans(), st.booleans(), st.binary(max_size=64))
)
def test_an_add_request_has_the_bytes_of_the_generated_code_and_parses_back(
    request_id: int,
    batch: EntryBatch,
    key: bytes,
    crc: int,
    options: tuple[bool, bool, bytes],
) -> None:
    recovery, deferred_sync, lac_packet = options
    message = pb.AddRequest(
        request_id=request_id,
        ledger_id=batch.ledger_id,
        master_key=key,
        first_entry_id=batch.first_entry_id,
        entry_id_steps=steps_of(batch),
        entry_sizes=batch.sizes.tolist(),
        payload_crc32c=crc,
        recovery=recovery,
        deferred_sync=deferred_sync,
        lac_packet=lac_packet,
        payload=bytes(batch.payload),
    )
    data = codec.encode_add_request(
        request_id,
        batch.ledger_id,
        batch,
        master_key=key,
        payload_crc32c=crc,
        recovery=recovery,
        deferred_sync=deferred_sync,
        lac_packet=lac_packet,
    )
    assert data == message.SerializeToString(deterministic=True)
    parsed_id, command = codec.parse_add_request(data)
    assert parsed_id == request_id == codec.request_id_of(data)
    assert_same(command.batch, batch)
    assert command.ledger_id == batch.ledger_id
    assert (command.master_key, command.lac_packet) == (key, lac_packet)
    assert command.payload_crc32c == crc
    assert (command.recovery, command.deferred_sync) == (recovery, deferred_sync)


@settings(max_examples=max(100, settings().max_examples))
@given(
    st.tuples(UINT64, LEDGER_IDS, ENTRY_IDS, UINT32),
    KEYS | st.binary(min_size=20, max_size=20) | st.binary(min_size=32, max_size=32),
    st.binary(min_size=30, max_size=80),
    st.tuples(st.booleans(), st.booleans()),
    st.none() | st.tuples(st.integers(0, 60), st.binary(max_size=3)),
)
def test_the_short_way_of_one_entry_means_the_same_to_the_generated_code(
    numbers: tuple[int, int, int, int],
    key: bytes,
    payload: bytes,
    flags: tuple[bool, bool],
    damage: tuple[int, bytes] | None,
) -> None:
    """Also of bytes that were changed on the way: either it leaves them alone, or it is right."""
    request_id, ledger_id, entry_id, crc = numbers
    sizes = np.array([len(payload)], np.uint32)
    batch = EntryBatch(ledger_id, entry_id, None, sizes, payload)
    data = codec.encode_add_request(
        request_id,
        ledger_id,
        batch,
        master_key=key,
        payload_crc32c=crc,
        recovery=flags[0],
        deferred_sync=flags[1],
    )
    if damage is not None:
        position, octets = damage
        data = data[:position] + octets + data[position + 1 :]
    parsed = codec._parse_lone_add(data)
    if parsed is None:
        usual = len(key) in (0, 20, 32) and len(payload) >= 32
        usual = usual and request_id < 2**63 and entry_id < 2**62
        assert damage is not None or not usual
        return
    message = pb.AddRequest.FromString(data)
    parsed_id, command = parsed
    assert command.batch is not None
    assert parsed_id == message.request_id
    assert command.ledger_id == command.batch.ledger_id == message.ledger_id
    assert command.batch.first_entry_id == message.first_entry_id
    assert command.batch.steps is None
    assert not message.entry_id_steps
    assert command.batch.sizes.tolist() == list(message.entry_sizes)
    assert bytes(command.batch.payload) == message.payload
    assert command.master_key == message.master_key
    assert command.payload_crc32c == message.payload_crc32c
    assert command.recovery == message.recovery
    assert command.deferred_sync == message.deferred_sync
    assert command.lac_packet == message.lac_packet == b""


@given(UINT64, LEDGER_IDS, KEYS, st.binary(min_size=1, max_size=64))
def test_a_lac_alone_has_the_bytes_of_the_generated_code_and_parses_back(
    request_id: int, ledger_id: int, key: bytes, lac_packet: bytes
) -> None:
    message = pb.AddRequest(
        request_id=request_id, ledger_id=ledger_id, master_key=key, lac_packet=lac_packet
    )
    data = codec.encode_add_request(
        request_id, ledger_id, None, master_key=key, lac_packet=lac_packet
    )
    assert data == message.SerializeToString(deterministic=True)
    parsed_id, command = codec.parse_add_request(data)
    assert (parsed_id, command.batch, command.ledger_id) == (request_id, None, ledger_id)
    assert (command.master_key, command.lac_packet) == (key, lac_packet)


@given(UINT64, STATUSES, st.text(max_size=200), st.just(0) | UINT32)
def test_an_add_response_has_the_bytes_of_the_generated_code_and_parses_back(
    request_id: int, status: Status, text: str, retry_after_ms: int
) -> None:
    message = pb.AddResponse(
        request_id=request_id,
        status=status.value,  # type: ignore[arg-type]
        message=text,
        retry_after_ms=retry_after_ms,
    )
    data = codec.encode_add_response(request_id, status, text, retry_after_ms)
    assert data == message.SerializeToString(deterministic=True)
    assert codec.parse_add_response(data) == (request_id, status, text, retry_after_ms)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=coalesce.COALESCED_MAX))
def test_messages_in_a_message_have_the_bytes_of_the_generated_code_and_parse_back(
    messages: list[bytes],
) -> None:
    joined = coalesce.join_messages(messages)
    if len(messages) == 1:
        assert joined is messages[0]
        return
    for message in (pb.AddRequest(together=messages), pb.AddResponse(together=messages)):
        assert joined == message.SerializeToString(deterministic=True)
    assert coalesce.split_message(joined) == messages


@given(st.lists(st.integers(0, 170_000), min_size=2, max_size=12))
def test_a_message_of_a_message_keeps_at_most_eight_times_its_bytes(sizes: list[int]) -> None:
    """It may be the only one that is not refused."""
    messages = [bytes(size) for size in sizes]
    joined = coalesce.join_messages(messages)
    for message, part in zip(messages, coalesce.split_message(joined), strict=False):
        assert part == message
        if isinstance(part, memoryview):
            assert len(part) * 8 >= len(joined)


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=5), st.data())
def test_what_was_not_joined_is_not_split(messages: list[bytes], data: st.DataObject) -> None:
    """Cut off, or followed by anything else, it is refused; nothing is guessed."""
    joined = coalesce.join_messages(messages)
    ends, end = [], 0
    for message in messages:
        end += len(coalesce.join_messages([message, b""])) - 2
        ends.append(end)
    cut = data.draw(st.integers(1, len(joined) - 1))
    if cut in ends:
        assert coalesce.split_message(joined[:cut]) == messages[: ends.index(cut) + 1]
    else:
        with pytest.raises(BadRequestError):
            coalesce.split_message(joined[:cut])
    with pytest.raises(BadRequestError):
        coalesce.split_message(joined + b"\x10\x01")
    too_many = coalesce.join_messages([b"x"] * (coalesce.COALESCED_MAX + 1))
    with pytest.raises(BadRequestError):
        coalesce.split_message(too_many)


@st.composite
def read_commands(draw: st.DrawFn) -> ReadCommand:
    """A read within its bounds: of a range, of the last entry, of a stripe."""
    last = draw(st.integers(0, MAX_ID))
    modulus = draw(st.integers(0, 2**32 - 1))
    return ReadCommand(
        draw(LEDGER_IDS),
        draw(st.integers(0, last) | st.just(-1)),
        last,
        draw(UINT32),
        draw(UINT32),
        draw(st.booleans()),
        draw(KEYS),
        modulus,
        draw(st.integers(0, modulus - 1)) if modulus else 0,
        draw(st.integers(1, modulus)) if modulus else 0,
    )


@given(read_commands(), st.integers(1, 2**64 - 1), UINT32)
def test_a_read_request_has_the_bytes_of_the_generated_code_and_parses_back(
    command: ReadCommand, request_id: int, timeout_ms: int
) -> None:
    message = pb.ReadRequest(
        ledger_id=command.ledger_id,
        first_entry_id=command.first_entry_id,
        last_entry_id=command.last_entry_id,
        max_entries=command.max_entries,
        max_bytes=command.max_bytes,
        fence=command.fence,
        master_key=command.master_key,
        stripe_modulus=command.stripe_modulus,
        stripe_first_residue=command.stripe_first_residue,
        stripe_count=command.stripe_count,
    )
    data = codec.encode_read_request(command)
    assert data == message.SerializeToString(deterministic=True)
    assert codec.parse_read_request(data) == command
    message.request_id = request_id
    message.timeout_milliseconds = timeout_ms
    data = codec.encode_streamed_read(request_id, command, timeout_ms)
    assert data == message.SerializeToString(deterministic=True)
    assert codec.parse_streamed_read(data) == (request_id, timeout_ms, command)
    assert codec.read_id_of(data) == request_id


@given(
    STATUSES,
    st.text(max_size=100),
    st.none() | batches(),
    st.tuples(INT64, STATUSES, INT64),
    st.just(0) | UINT64,
    st.just(0) | UINT32,
)
def test_a_read_response_has_the_bytes_of_the_generated_code_and_parses_back(
    status: Status,
    text: str,
    batch: EntryBatch | None,
    end: tuple[int, Status, int],
    request_id: int,
    retry_after_ms: int,
) -> None:
    next_entry_id, stopped_by, max_lac = end
    message = pb.ReadResponse(
        status=status.value,  # type: ignore[arg-type]
        message=text,
        next_entry_id=next_entry_id,
        stopped_by=stopped_by.value,  # type: ignore[arg-type]
        max_lac=max_lac,
        request_id=request_id,
        retry_after_ms=retry_after_ms,
    )
    if batch is not None:
        message.first_entry_id = batch.first_entry_id
        message.entry_id_steps.extend(steps_of(batch))
        message.entry_sizes.extend(batch.sizes.tolist())
        message.payload = bytes(batch.payload)
    reply = ReadReply(status, text, batch, next_entry_id, stopped_by, max_lac, retry_after_ms)
    data = codec.encode_read_response(reply, request_id)
    assert codec.scan_read_response(data)[0] == request_id
    assert data == message.SerializeToString(deterministic=True)
    parsed = codec.parse_read_response(data, 7 if batch is None else batch.ledger_id)
    assert_same(parsed.batch, batch)
    assert (parsed.status, parsed.message) == (status, text)
    assert parsed.retry_after_ms == retry_after_ms
    assert (parsed.next_entry_id, parsed.stopped_by, parsed.max_lac) == (
        next_entry_id,
        stopped_by,
        max_lac,
    )


@st.composite
def wire_fields(draw: st.DrawFn) -> bytes:
    """One well-formed field with a known or unknown number and any wire type."""
    number = draw(st.integers(1, 20) | st.integers(1, 2**29 - 1))
    wire_type = draw(st.sampled_from((0, 1, 2, 5)))
    tag = _varint(number << 3 | wire_type)
    if wire_type == 0:
        return tag + _varint(draw(UINT64))
    if wire_type == 2:
        octets = draw(st.binary(max_size=80))
        return tag + _varint(len(octets)) + octets
    size = 8 if wire_type == 1 else 4
    return tag + draw(st.binary(min_size=size, max_size=size))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


PARSERS: list[Callable[[bytes], object]] = [
    codec.parse_add_request,
    coalesce.split_message,
    codec.parse_add_response,
    codec.parse_read_request,
    codec.scan_read_response,
    lambda data: codec.parse_read_response(data, 0),
]


@pytest.mark.parametrize("parse", PARSERS)
@settings(max_examples=max(100, settings().max_examples))
@given(data=st.binary(max_size=200) | st.lists(wire_fields(), max_size=12).map(b"".join))
@example(data=b"\x08")
@example(data=b"\x08" + b"\xff" * 10)
@example(data=b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(data=b"\x80")
@example(data=b"\x00\x00")
@example(data=b"\x32\x05aaaaa")
def test_no_bytes_raise_anything_but_a_bad_request(
    parse: Callable[[bytes], object], data: bytes
) -> None:
    with contextlib.suppress(BadRequestError):
        parse(data)
    codec.request_id_of(data)
    codec.read_id_of(data)


@settings(max_examples=max(100, settings().max_examples))
@given(st.lists(wire_fields(), max_size=12), st.randoms(use_true_random=False))
def test_what_parses_means_the_same_to_the_generated_code(
    fields: list[bytes], shuffle: object
) -> None:
    data = b"".join(fields)
    try:
        parsed = codec.parse_add_response(data)
    except BadRequestError:
        return
    try:
        message = pb.AddResponse.FromString(data)
    except DecodeError:  # the generated code refuses text that is not UTF-8; ours replaces it
        assert "�" in parsed.message
        return
    status, retry_after_ms = Status(message.status), message.retry_after_ms
    assert (message.request_id, status, message.message, retry_after_ms) == parsed


@given(batches(), UINT64, st.lists(wire_fields(), max_size=4), st.permutations(range(4)))
def test_fields_come_in_any_order_between_unknown_ones(
    batch: EntryBatch, request_id: int, extra: list[bytes], order: list[int]
) -> None:
    unknown = [field for field in extra if field[0] >= 0x80 and _number(field) > 15]
    parts = [
        b"\x08" + _varint(request_id),
        b"\x10" + _varint(batch.ledger_id),
        pb.AddRequest(
            first_entry_id=batch.first_entry_id, entry_id_steps=steps_of(batch)
        ).SerializeToString(),
        pb.AddRequest(
            entry_sizes=batch.sizes.tolist(), payload=bytes(batch.payload)
        ).SerializeToString(),
    ]
    pieces = [parts[position] for position in order]
    for position, field in enumerate(unknown):
        pieces.insert(position * 2, field)
    parsed_id, command = codec.parse_add_request(b"".join(pieces))
    assert parsed_id == request_id
    assert_same(command.batch, batch)


def _number(field: bytes) -> int:
    value = 0
    for position, octet in enumerate(field):
        value |= (octet & 0x7F) << 7 * position
        if octet < 0x80:
            break
    return value >> 3

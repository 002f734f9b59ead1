"""Bounds and odd encodings of the hot messages."""

from __future__ import annotations

import numpy as np
import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.entry.batch import EntryBatch
from bookie.errors import BadRequestError
from bookie.ids import BATCH_SIZE_BYTES_MAX, ENTRY_SIZE_BYTES_MAX, MAX_ID, Status
from bookie.wire import codec
from bookie.wire.commands import ReadCommand, ReadReply
from bookie.wire.messages import FIELDS_MAX


def batch_of(sizes: list[int], *, first: int = 0, steps: list[int] | None = None) -> EntryBatch:
    return EntryBatch(
        3,
        first,
        None if steps is None else np.array(steps, np.int64),
        np.array(sizes, np.int64),
        bytes(sum(sizes)),
    )


def add_request(**fields: object) -> bytes:
    message = pb.AddRequest(
        request_id=9, ledger_id=3, first_entry_id=5, entry_sizes=[40, 50], payload=bytes(90)
    )
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message.SerializeToString()


def test_the_batch_is_a_view_of_the_message() -> None:
    """The payload and the arrays of a parsed request are views."""
    data = codec.encode_add_request(1, 3, batch_of([40, 50]))
    _, command = codec.parse_add_request(data)
    assert command.batch is not None
    assert isinstance(command.batch.payload, memoryview)
    assert command.batch.payload.obj is data
    assert command.batch.sizes.base is not None
    assert not command.batch.sizes.flags.writeable


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ledger_id": -1}, "ledger id -1"),
        ({"first_entry_id": -1}, "entry id -1"),
        ({"first_entry_id": -(2**63)}, "entry id -9223372036854775808"),
        ({"first_entry_id": MAX_ID}, "entry id 9223372036854775808"),
        ({"entry_sizes": [40, 51]}, "add up to 91 bytes"),
        ({"entry_sizes": [40, 49]}, "add up to 89 bytes"),
        ({"entry_sizes": [31, 59]}, "smaller than its header"),
        ({"entry_sizes": [0, 90]}, "smaller than its header"),
        ({"entry_sizes": [2**32 - 6, 96]}, "larger than"),
        ({"entry_sizes": []}, "no entry sizes"),
        ({"entry_sizes": [], "payload": b""}, "neither entries nor"),
        ({"entry_sizes": [], "payload": b"", "ledger_id": -5, "lac_packet": b"x"}, "ledger id -5"),
        ({"entry_sizes": [], "payload": b"", "entry_id_steps": [1]}, "no entry sizes"),
        ({"entry_id_steps": [1, 1]}, "2 entries need 1 steps"),
        ({"entry_id_steps": [0]}, "do not ascend"),
        ({"entry_id_steps": [2**64 - 1]}, "do not ascend"),
        ({"entry_id_steps": [2**63]}, "do not ascend"),
        ({"entry_id_steps": [MAX_ID]}, "entry id 9223372036854775812"),
        ({"master_key": bytes(codec.MASTER_KEY_BYTES_MAX + 1)}, "65 bytes; at most 64"),
        ({"lac_packet": bytes(codec.LAC_PACKET_BYTES_MAX + 1)}, "65 bytes; at most 64"),
    ],
)
def test_an_add_request_out_of_bounds_is_refused(fields: dict[str, object], sentence: str) -> None:
    """Each bound of the contract is checked as whole numbers, and its sentence names the value."""
    data = add_request(**fields)
    with pytest.raises(BadRequestError, match=sentence):
        codec.parse_add_request(data)
    assert codec.request_id_of(data) == 9


def test_ids_up_to_the_largest_are_accepted() -> None:
    """The bounds are inclusive."""
    data = codec.encode_add_request(1, 3, batch_of([40, 40], first=0, steps=[MAX_ID]))
    _, command = codec.parse_add_request(data)
    assert command.batch is not None
    assert command.batch.last_entry_id == MAX_ID


def test_a_batch_of_many_entries_is_smaller_than_one_entry_may_be() -> None:
    """A batch has at most 1 MiB; a single entry may have 4 MiB."""
    half = BATCH_SIZE_BYTES_MAX // 2
    codec.parse_add_request(codec.encode_add_request(1, 3, batch_of([half, half])))
    with pytest.raises(BadRequestError, match="a batch of 2 entries has 1048577 bytes"):
        codec.parse_add_request(codec.encode_add_request(1, 3, batch_of([half, half + 1])))
    codec.parse_add_request(codec.encode_add_request(1, 3, batch_of([ENTRY_SIZE_BYTES_MAX])))
    with pytest.raises(BadRequestError, match="larger than"):
        codec.parse_add_request(
            codec.encode_add_request(1, 3, batch_of([ENTRY_SIZE_BYTES_MAX + 1]))
        )


def test_steps_of_one_are_a_contiguous_batch() -> None:
    """A sender may spell out steps of 1; the parsed batch does not keep them."""
    _, command = codec.parse_add_request(add_request(entry_id_steps=[1]))
    assert command.batch is not None
    assert command.batch.is_contiguous


def test_arrays_may_come_unpacked_or_in_pieces() -> None:
    """Elements written one by one, or in several packed runs, form one array."""
    sizes = b"\x35" + (40).to_bytes(4, "little") + b"\x32\x04" + (50).to_bytes(4, "little")
    steps = b"\x29" + (7).to_bytes(8, "little")
    data = b"\x10\x03" + sizes + steps + b"\x7a\x5a" + bytes(90)
    assert list(pb.AddRequest.FromString(data).entry_sizes) == [40, 50]
    _, command = codec.parse_add_request(data)
    assert command.batch is not None
    assert command.batch.sizes.tolist() == [40, 50]
    assert command.batch.entry_ids().tolist() == [0, 7]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x08", "ends inside a field"),
        (b"\x08\x80", "ends inside a field"),
        (b"\x7a\x05abc", "ends inside a field"),
        (b"\x3d\x01\x02", "ends inside a field"),
        (b"\x29\x01\x02", "ends inside a field"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than ten bytes"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x00\x01", "number 0"),
        (b"\x32\x05aaaaa", "whole elements of 4 bytes"),
        (b"\x2a\x09aaaaaaaaa\x32\x04\x20\x00\x00\x00", "whole elements of 8 bytes"),
        (b"\x08\x01" * (FIELDS_MAX + 1), "more than 64 fields"),
    ],
)
def test_malformed_messages_are_refused(data: bytes, sentence: str) -> None:
    """Whatever is wrong with the bytes, the answer is one sentence."""
    with pytest.raises(BadRequestError, match=sentence):
        codec.parse_add_request(data)


def test_the_request_id_is_found_only_where_it_can_be() -> None:
    """A message that does not begin with its id has the id 0 for its refusal."""
    assert codec.request_id_of(b"\x08\xac\x02\xff") == 300
    assert codec.request_id_of(b"\x08" + b"\xff" * 9 + b"\x01") == 2**64 - 1
    for data in (b"", b"\x08", b"\x08\x80", b"\x10\x01", b"\x08" + b"\xff" * 20):
        assert codec.request_id_of(data) == 0


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (ReadCommand(-1, 0, 0), "ledger id -1"),
        (ReadCommand(1, -2, 5), "entries -2 to 5"),
        (ReadCommand(1, 6, 5), "entries 6 to 5"),
        (ReadCommand(1, 0, -1), "entries 0 to -1"),
        (
            ReadCommand(1, 0, 5, stripe_modulus=3, stripe_first_residue=3, stripe_count=1),
            "modulo 3",
        ),
        (ReadCommand(1, 0, 5, stripe_modulus=3, stripe_count=4), "modulo 3"),
        (ReadCommand(1, 0, 5, stripe_modulus=3, stripe_count=0), "modulo 3"),
    ],
)
def test_a_read_request_out_of_bounds_is_refused(command: ReadCommand, sentence: str) -> None:
    """Ranges and stripes that mean nothing are refused before the node sees them."""
    with pytest.raises(BadRequestError, match=sentence):
        codec.parse_read_request(codec.encode_read_request(command))


def test_the_last_entry_may_be_asked_for_without_a_range() -> None:
    """First id -1 asks for the last stored entry, whatever the last id says."""
    command = ReadCommand(1, -1, -1)
    assert codec.parse_read_request(codec.encode_read_request(command)) == command


def test_an_unknown_status_is_refused() -> None:
    """A client does not guess what a status of a newer bookie means."""
    with pytest.raises(BadRequestError, match="unknown status 99"):
        codec.parse_add_response(b"\x10\x63")
    with pytest.raises(BadRequestError, match="unknown status 99"):
        codec.parse_read_response(b"\x38\x63", 1)


def test_an_empty_batch_is_no_batch() -> None:
    """An answer without entries leaves out the arrays."""
    empty = batch_of([40], first=5).clip(9, 10)
    data = codec.encode_read_response(ReadReply(Status.OK, batch=empty, next_entry_id=9))
    assert codec.parse_read_response(data, 3).batch is None


def test_long_sentences_are_cut() -> None:
    """An answer's sentence has a bound, in characters."""
    answer = codec.parse_add_response(codec.encode_add_response(1, Status.IO_ERROR, "ä" * 5000))
    assert answer.message == "ä" * codec.MESSAGE_TEXT_CHARACTERS_MAX


def test_an_answer_that_names_no_time_has_the_bytes_that_it_always_had() -> None:
    """And an older client skips the time: its number is one that it does not know."""
    assert codec.encode_add_response(5, Status.OK) == b"\x08\x05"
    refused = codec.encode_add_response(5, Status.TOO_MANY_REQUESTS, "", 300)
    assert refused == b"\x08\x05\x10\x07\x20\xac\x02"
    assert codec.parse_add_response(b"\x08\x05\x10\x07").retry_after_ms == 0
    reply = ReadReply(Status.TOO_MANY_REQUESTS, next_entry_id=0, max_lac=0)
    assert codec.encode_read_response(reply) == b"\x08\x07"
    later = codec.encode_read_response(reply._replace(retry_after_ms=300))
    assert later == b"\x08\x07\x50\xac\x02"

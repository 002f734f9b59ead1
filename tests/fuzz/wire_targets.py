"""Messages between clients and bookies, and the packets of entries inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bookie._pb import bookie_pb2 as pb
from bookie.entry.batch import EntryBatch, check_headers, headers_of
from bookie.entry.digest import Digester, DigestType, derive_key, digester_for_key
from bookie.entry.entry import (
    lac_packet_ids,
    pack_batch,
    pack_lac,
    parse_header,
    unpack_lac,
    unpack_packet,
    verify_batch,
)
from bookie.errors import BadRequestError, ChecksumError
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.wire import codec, unary_codec
from bookie.wire.coalesce import join_messages, split_message
from bookie.wire.commands import (
    AddCommand,
    Info,
    LacReply,
    LacState,
    LedgerRow,
    ReadCommand,
    ReadReply,
    Reply,
)
from tests.fuzz.target import Target, plain, vectors

KEY = derive_key(b"secret")
LEDGER = 7
DIGESTERS: Sequence[Digester] = [digester_for_key(kind, KEY) for kind in DigestType]
CRC32C = digester_for_key(DigestType.CRC32C, KEY)
REFUSED = (BadRequestError,)


def batch(first: int = 3, count: int = 4, *, size: int = 9, gap: bool = False) -> EntryBatch:
    """Entries as a writer sends them, or with a gap, as a repair does."""
    whole = pack_batch(LEDGER, first, first - 1, 100, [b"x" * size] * count, CRC32C)
    if not gap:
        return whole
    other = pack_batch(LEDGER, first + count + 5, first - 1, 900, [b"y" * 40], CRC32C)
    steps = np.array([1] * (count - 1) + [6], np.int64)
    sizes = np.concatenate([whole.sizes, other.sizes])
    return EntryBatch(LEDGER, first, steps, sizes, bytes(whole.payload) + bytes(other.payload))


LAC_PACKET = pack_lac(LEDGER, 9, CRC32C)


def add_of(value: tuple[int, AddCommand]) -> bytes:
    request_id, add = value
    return codec.encode_add_request(
        request_id,
        add.ledger_id,
        add.batch,
        master_key=add.master_key,
        payload_crc32c=add.payload_crc32c,
        recovery=add.recovery,
        deferred_sync=add.deferred_sync,
        lac_packet=add.lac_packet,
    )


ADDS = [
    add_of((1, AddCommand(batch(count=1), LEDGER, KEY, 0x12345678))),
    add_of((2**40, AddCommand(batch(count=1), LEDGER, KEY[:20], 5, True, True))),
    add_of((300, AddCommand(batch(), LEDGER, KEY, 7, False, True, LAC_PACKET))),
    add_of((4, AddCommand(batch(gap=True), LEDGER, KEY, 7, True))),
    add_of((5, AddCommand(None, LEDGER, KEY, 0, lac_packet=LAC_PACKET))),
    add_of((6, AddCommand(batch(count=300, size=0), LEDGER, b"", 7))),
]

READS = [
    codec.encode_streamed_read(9, ReadCommand(LEDGER, 0, 99, 10, 4096, True, KEY, 3, 1, 2), 5000),
    codec.encode_streamed_read(2**33, ReadCommand(LEDGER, 5, 5)),
    codec.encode_read_request(ReadCommand(LEDGER, NO_ENTRY, NO_ENTRY)),
    codec.encode_read_request(ReadCommand(MAX_ID, MAX_ID, MAX_ID, 1, 1, False, KEY)),
]

REPLIES = [
    codec.encode_read_response(ReadReply(Status.OK, "", batch(), 7, Status.OK, 9), 12),
    codec.encode_read_response(ReadReply(Status.OK, "", batch(gap=True), 20, Status(5), 9), 12),
    codec.encode_read_response(ReadReply(Status.OK, "", batch(count=1))),
    codec.encode_read_response(ReadReply(Status(2), "no such entry", None, 3), 2**40),
    codec.encode_read_response(ReadReply(Status(7), "come back", retry_after_ms=700), 5),
]

ANSWERS = [
    codec.encode_add_response(17, Status.OK),
    codec.encode_add_response(2**40, Status(4), "the ledger is fenced"),
    codec.encode_add_response(3, Status(7), "come back", 2**32 - 1),
]


def joined(parse: Callable[[bytes | memoryview], Any]) -> Callable[[bytes], Any]:
    return lambda data: [parse(one) for one in split_message(data)]


def checked_add(data: bytes) -> Any:
    """Do what a bookie does with the batch of an add."""
    _, add = codec.parse_add_request(data)
    if add.lac_packet:
        lac_packet_ids(add.lac_packet)
    if add.batch is None:
        return None
    check_headers(add.batch)
    middle = add.batch.first_entry_id + 1
    cut = add.batch.clip(middle, add.batch.last_entry_id)
    parts = list(add.batch.split(2, 100))
    assert sum(len(one.payload) for one in parts) == len(add.batch.payload)
    assert cut.count <= add.batch.count
    return headers_of(add.batch)


def read_twice(data: bytes) -> Any:
    """A stream scans an answer before it knows the ledger."""
    request_id, fields = codec.scan_read_response(data)
    reply = codec.read_reply_of(fields, LEDGER)
    return request_id, codec.parse_read_response(data, LEDGER) and reply


def verified(data: bytes) -> Any:
    """A reader checks the digests of an answer's entries."""
    reply = codec.parse_read_response(data, LEDGER)
    if reply.batch is None:
        return None
    return [list(verify_batch(reply.batch, digester)) for digester in DIGESTERS[-1:]]


def quick_ids(data: bytes) -> Any:
    """These must find an id in any bytes, and the same one as the whole parser."""
    add_id, read_id = codec.request_id_of(data), codec.read_id_of(data)
    assert 0 <= add_id < 2**64
    assert 0 <= read_id < 2**64
    return add_id, read_id


def packets(data: bytes) -> Any:
    """Verify one packet under each digest; the bytes that pass are a packet of ours."""
    parse_header(data)
    found = []
    for digester in DIGESTERS:
        try:
            payload = unpack_packet(LEDGER, 3, data, digester)
        except ChecksumError:
            continue
        found.append(payload)
    return found


def lac_packets(data: bytes) -> Any:
    lac_packet_ids(data)
    found = []
    for digester in DIGESTERS:
        try:
            found.append(unpack_lac(LEDGER, data, digester))
        except ChecksumError:
            continue
    return found


class _CutError(Exception):
    """The encoder would cut the sentence of an answer."""


def _has_long_text(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > codec.MESSAGE_TEXT_CHARACTERS_MAX
    return isinstance(value, tuple | list) and any(map(_has_long_text, value))


def message(name: str, parse: Callable[[bytes], Any], *seeds: Any, encode: Any = None) -> Target:
    def encode_whole(value: Any) -> bytes:
        if _has_long_text(plain(value)):
            raise _CutError
        encoded: bytes = encode(value)
        return encoded

    encoded = [one if isinstance(one, bytes) else one.SerializeToString() for one in seeds]
    again = None if encode is None else encode_whole
    return Target(f"wire.{name}", parse, encoded, REFUSED, again, (_CutError,))


OK, FAILED = Reply(Status.OK), Reply(Status(3), "not today")
RANGES = (np.array([0, 9, 30], np.int64), np.array([4, 20, 30], np.int64))
ROW = LedgerRow(LEDGER, True, False, 0, 99, 100, 12345, 98, b"12345678")
INFO = Info("b1", "3e0e", "0.5", False, 10**12, 10**11, 17, "aa", 1700000000000)

TARGETS: Sequence[Target] = (
    message("add_request", codec.parse_add_request, *ADDS, encode=add_of),
    message("add_requests_together", joined(codec.parse_add_request), join_messages(ADDS), *ADDS),
    message("add_request_checked", checked_add, *ADDS),
    message("request_ids", quick_ids, *ADDS, *READS),
    message(
        "add_response",
        codec.parse_add_response,
        *ANSWERS,
        encode=lambda one: codec.encode_add_response(*one),
    ),
    message(
        "add_responses_together",
        joined(codec.parse_add_response),
        join_messages(ANSWERS * 20),
        *ANSWERS,
    ),
    message(
        "streamed_read",
        codec.parse_streamed_read,
        *READS,
        encode=lambda one: codec.encode_streamed_read(one[0], one[2], one[1]),
    ),
    message("read_request", codec.parse_read_request, *READS, encode=codec.encode_read_request),
    message(
        "read_response",
        read_twice,
        *REPLIES,
        encode=lambda one: codec.encode_read_response(one[1], one[0]),
    ),
    Target("wire.read_response_verified", verified, REPLIES, (BadRequestError, ChecksumError)),
    Target("entry.packet", packets, vectors("entry_packets")),
    Target("entry.lac_packet", lac_packets, vectors("lac_packets"), REFUSED),
    message(
        "read_lac_request",
        unary_codec.parse_read_lac_request,
        pb.ReadLacRequest(ledger_id=LEDGER, master_key=KEY),
        encode=lambda one: pb.ReadLacRequest(
            ledger_id=one[0], master_key=one[1]
        ).SerializeToString(),
    ),
    message(
        "fence_request",
        unary_codec.parse_fence_request,
        pb.FenceRequest(ledger_id=LEDGER, master_key=KEY),
        encode=lambda one: pb.FenceRequest(ledger_id=one[0], master_key=one[1]).SerializeToString(),
    ),
    message(
        "force_request",
        unary_codec.parse_force_request,
        pb.ForceRequest(ledger_id=LEDGER),
        encode=lambda one: pb.ForceRequest(ledger_id=one).SerializeToString(),
    ),
    message(
        "write_lac_request",
        unary_codec.parse_write_lac_request,
        pb.WriteLacRequest(ledger_id=LEDGER, master_key=KEY, lac_packet=LAC_PACKET),
        encode=lambda one: pb.WriteLacRequest(
            ledger_id=one[0], master_key=one[1], lac_packet=one[2]
        ).SerializeToString(),
    ),
    message(
        "list_entries_request",
        unary_codec.parse_list_entries_request,
        pb.ListEntriesRequest(
            ledger_id=LEDGER, first_entry_id=4, last_entry_id=NO_ENTRY, master_key=KEY
        ),
        pb.ListEntriesRequest(ledger_id=LEDGER, first_entry_id=4, last_entry_id=90),
        encode=lambda one: pb.ListEntriesRequest(
            ledger_id=one[0], first_entry_id=one[1], last_entry_id=one[2], master_key=one[3]
        ).SerializeToString(),
    ),
    message(
        "list_ledgers_request",
        unary_codec.parse_list_ledgers_request,
        pb.ListLedgersRequest(after_ledger_id=LEDGER),
        pb.ListLedgersRequest(after_ledger_id=-1),
        encode=lambda one: pb.ListLedgersRequest(after_ledger_id=one).SerializeToString(),
    ),
    message("info_request", unary_codec.parse_info_request, pb.GetInfoRequest(), b"\x08\x01"),
    message(
        "watch_request",
        unary_codec.parse_watch_request,
        unary_codec.encode_watch_change(unary_codec.WatchChange([LEDGER, 2**62], [1])),
        unary_codec.encode_watch_change(unary_codec.WatchChange(range(2000), range(90))),
        encode=unary_codec.encode_watch_change,
    ),
    message(
        "lac_reply",
        unary_codec.parse_lac_reply,
        unary_codec.encode_lac_reply(
            LacReply(Status.OK, "", bytes(batch(count=1).payload), LAC_PACKET, 9, True)
        ),
        unary_codec.encode_lac_reply(LacReply(Status(3), "gone")),
        unary_codec.encode_lac_reply(LacReply(Status(7), "come back", retry_after_ms=700)),
        encode=unary_codec.encode_lac_reply,
    ),
    message(
        "reply",
        unary_codec.parse_reply,
        unary_codec.encode_reply(OK),
        unary_codec.encode_reply(FAILED),
        encode=unary_codec.encode_reply,
    ),
    message(
        "ranges",
        unary_codec.parse_ranges,
        unary_codec.encode_ranges(OK, RANGES),
        unary_codec.encode_ranges(FAILED, None),
        encode=lambda one: unary_codec.encode_ranges(*one),
    ),
    message(
        "ledger_rows",
        unary_codec.parse_ledger_rows,
        unary_codec.encode_ledger_rows(OK, [ROW, ROW]),
        encode=lambda one: unary_codec.encode_ledger_rows(*one),
    ),
    message(
        "info",
        unary_codec.parse_info,
        unary_codec.encode_info(OK, INFO),
        unary_codec.encode_info(FAILED, None),
        encode=lambda one: unary_codec.encode_info(*one),
    ),
    message(
        "lac_state",
        unary_codec.parse_lac_state,
        unary_codec.encode_lac_state(LacState(LEDGER, 9, True, Status.OK, LAC_PACKET, b"12345678")),
        encode=unary_codec.encode_lac_state,
    ),
)

"""The bytes of the carrier by frames, in whatever pieces they arrive."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from bookie.errors import BadRequestError
from bookie.wire.carrier import CallCode
from bookie.wire.frames.format import (
    HELLO_BYTES_MAX,
    MAGIC,
    SCRATCH_BYTES,
    UNITS_MAX,
    BookieHello,
    CallRequest,
    ClientHello,
    OversizeError,
    UnitBuffer,
    UnitKind,
    encode_answer,
    encode_bookie_hello,
    encode_cancelled,
    encode_client_hello,
    encode_end,
    encode_request,
    pack_size,
    parse_answer,
    parse_bookie_hello,
    parse_client_hello,
    parse_end,
    parse_request,
)

PAIRS = (("bookie-instance-id", "abc"), ("authorization", "Bearer ö"))
HELLO = encode_client_hello(ClientHello("AddStream", PAIRS))
FRAME_BYTES_MAX = 1 << 20

Units = list[tuple[UnitKind, bytes]]


def frame(body: bytes) -> bytes:
    return pack_size(len(body)) + body


class Peer:
    """Receives bytes as a connection does."""

    def __init__(self) -> None:
        self.buffer = UnitBuffer(memoryview(bytearray(SCRATCH_BYTES)))
        self.units: Units = []

    def receive(self, data: bytes) -> None:
        while data:
            space = self.buffer.space()
            count = min(len(space), len(data))
            space[:count] = data[:count]
            data = data[count:]
            self.take(count)

    def take(self, count: int) -> None:
        self.units += self.buffer.received(count)
        if not self.buffer.frame_bytes_max and self.units:
            self.buffer.frame_bytes_max = FRAME_BYTES_MAX
        while self.buffer.has_more:
            self.units += self.buffer.received(0)


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 64, 1000, 100_000, 1 << 30])
def test_units_arrive_in_pieces(piece_bytes: int) -> None:
    """The size of the pieces changes nothing, and nothing is kept behind a whole unit."""
    choose = random.Random(piece_bytes)
    most = 3000 if piece_bytes < 64 else FRAME_BYTES_MAX
    bodies = [choose.randbytes(size) for size in (0, 1, 5, most, 40, 0, most // 3, 2)]
    data = HELLO + b"".join(map(frame, bodies)) + encode_end(CallCode.OK, "bye")
    peer = Peer()
    for start in range(0, len(data), piece_bytes):
        peer.receive(data[start : start + piece_bytes])
    kinds = [kind for kind, _ in peer.units]
    assert kinds == [UnitKind.HELLO, *[UnitKind.MESSAGE] * len(bodies), UnitKind.END]
    assert parse_client_hello(peer.units[0][1]) == ClientHello("AddStream", PAIRS)
    assert [body for _, body in peer.units[1:-1]] == bodies
    assert parse_end(peer.units[-1][1]) == (CallCode.OK, "bye")
    assert peer.buffer.held_bytes == 0
    assert len(peer.buffer.space()) == SCRATCH_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x10",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01",
        b"\x89PNG",
        MAGIC + b"\x00\x02\x00\x00",
    ],
)
def test_other_first_bytes_are_refused_at_once(data: bytes) -> None:
    """BookKeeper's frames, HTTP/2, TLS and a later version of the hello are told apart."""
    peer = Peer()
    with pytest.raises(BadRequestError):
        peer.receive(data)


def test_a_frame_that_is_too_large_is_refused_by_its_size() -> None:
    """Its bytes are not waited for. The size of an end has a bound of its own."""
    peer = Peer()
    peer.receive(HELLO + frame(bytes(FRAME_BYTES_MAX)))
    with pytest.raises(OversizeError):
        peer.receive(pack_size(FRAME_BYTES_MAX + 1))
    other = Peer()
    with pytest.raises(OversizeError):
        other.receive(HELLO + b"\xff\xff\xff\xff")


def test_a_hello_that_is_too_large_for_the_receiver_is_refused() -> None:
    """A bookie permits less than the format."""
    buffer = UnitBuffer(memoryview(bytearray(SCRATCH_BYTES)), hello_bytes_max=10)
    buffer.space()[: len(HELLO)] = HELLO
    with pytest.raises(OversizeError):
        buffer.received(len(HELLO))


def test_an_announced_size_takes_no_memory() -> None:
    """Memory grows with the bytes that arrive."""
    peer = Peer()
    peer.receive(HELLO)
    peer.buffer.frame_bytes_max = 1 << 30
    tracemalloc.start()
    try:
        peer.receive(pack_size(1 << 30) + b"x" * 100)
        few = tracemalloc.get_traced_memory()[1]
        peer.receive(b"x" * 100_000)
        many = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert few < 10_000
    assert many < 1_500_000
    assert peer.buffer.held_bytes == 100_104


@pytest.mark.parametrize("whole", [[0], [200_000], [0] * 60_000, [1] * 300 + [200_000]])
@pytest.mark.parametrize("rest_bytes", [1, 3, 100, 10_000, 150_000])
def test_what_waits_takes_at_most_twice_its_bytes(whole: list[int], rest_bytes: int) -> None:
    """Also behind large frames and behind very many; and its space is never empty."""
    peer = Peer()
    peer.receive(HELLO)
    rest = frame(bytes(FRAME_BYTES_MAX))[:rest_bytes]
    peer.receive(b"".join(frame(bytes(size)) for size in whole) + rest)
    assert len(peer.units) == 1 + len(whole)
    assert peer.buffer.held_bytes == rest_bytes
    assert len(peer.buffer._view) <= max(512, 2 * rest_bytes)
    assert len(peer.buffer.space())


def test_units_are_split_off_a_few_at_a_time() -> None:
    """The rest waits, and the memory that it takes shrinks with it."""
    buffer = Peer().buffer
    count, end = 3 * UNITS_MAX, len(HELLO)
    buffer.space()[:end] = HELLO
    buffer.received(end)
    buffer.frame_bytes_max = FRAME_BYTES_MAX
    data = frame(bytes(200)) * count
    buffer.space()[: len(data)] = data
    found = [len(buffer.received(len(data)))]
    while buffer.has_more:
        assert len(buffer._view) <= 2 * buffer.held_bytes
        found.append(len(buffer.received(0)))
    assert found == [UNITS_MAX] * 3
    assert buffer.held_bytes == 0


def test_frames_before_one_that_is_too_large_count() -> None:
    """The error comes behind them."""
    peer = Peer()
    with pytest.raises(OversizeError):
        peer.receive(HELLO + frame(b"1") + frame(b"2") + pack_size(FRAME_BYTES_MAX + 1))
    assert [body for _, body in peer.units[1:]] == [b"1", b"2"]


def test_what_is_encoded_is_parsed() -> None:
    """All kinds of bodies."""
    hello = BookieHello(CallCode.UNAVAILABLE, "the bookie is starting", PAIRS)
    assert parse_bookie_hello(encode_bookie_hello(hello)[8:]) == hello
    call = CallRequest(7, "Fence", PAIRS, b"message")
    assert parse_request(encode_request(call)) == call
    assert parse_request(encode_cancelled(9)) == 9
    answer = (2**32 - 1, CallCode.UNIMPLEMENTED, b"no such call")
    assert parse_answer(encode_answer(*answer)) == answer


@pytest.mark.parametrize("cut", range(1, len(encode_request(CallRequest(7, "Fence", PAIRS, b"")))))
def test_a_request_that_is_cut_off_is_refused(cut: int) -> None:
    """Wherever it is cut; four bytes alone are the id of a cancelled call."""
    data = encode_request(CallRequest(7, "Fence", PAIRS, b""))[:cut]
    if cut == 4:
        assert parse_request(data) == 7
        return
    with pytest.raises(BadRequestError):
        parse_request(data)


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x00\x01", b"\x00\x01a\x00\x01b", b"\x00\x01\xff"]
)
def test_malformed_hellos_are_refused(body: bytes) -> None:
    """Cut off, a key without a value, no UTF-8."""
    with pytest.raises(BadRequestError):
        parse_client_hello(body)


def test_metadata_that_is_too_large_is_not_sent() -> None:
    """The sender learns it, not the peer."""
    large = (("authorization", "x" * HELLO_BYTES_MAX),)
    with pytest.raises(BadRequestError):
        encode_client_hello(ClientHello("AddStream", large))
    with pytest.raises(BadRequestError):
        encode_request(CallRequest(1, "Read", large, b""))


def test_a_code_of_a_later_version_counts_as_unknown() -> None:
    """Later bookies may have more reasons."""
    assert parse_end(b"\xfelater") == (CallCode.UNKNOWN, "later")

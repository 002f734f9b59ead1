"""The carrier by frames: its hellos, its calls, and the split of a connection into units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookie.errors import BadRequestError
from bookie.wire.carrier import CallCode
from bookie.wire.frames import format as frames
from tests.fuzz.target import Parse, Target

PAIRS = (("bookie-instance-id", "5c2b0c1e"), ("authorization", "Bearer abc"))
CLIENT = frames.encode_client_hello(frames.ClientHello("AddStream", PAIRS))
BOOKIE = frames.encode_bookie_hello(frames.BookieHello(CallCode.OK, "", PAIRS))
REFUSAL = frames.encode_bookie_hello(frames.BookieHello(CallCode.UNAVAILABLE, "starting"))
END = frames.encode_end(CallCode.OK, "done")
HEAD = 8
"""Bytes of a hello before its body."""

FRAME_BYTES_MAX = 4096


def units(data: bytes) -> list[tuple[int, bytes]]:
    """Split a connection, of which the first byte tells the size of the pieces that arrive."""
    piece, data = (data[0] or 1, data[1:]) if data else (1, b"")
    buffer = frames.UnitBuffer(memoryview(bytearray(frames.SCRATCH_BYTES)))
    found: list[tuple[int, bytes]] = []
    for start in range(0, len(data), piece):
        part = data[start : start + piece]
        while part:
            space = buffer.space()
            taken = min(len(space), len(part))
            space[:taken], part = part[:taken], part[taken:]
            found += buffer.received(taken)
            buffer.frame_bytes_max = FRAME_BYTES_MAX
            while buffer.has_more:
                found += buffer.received(0)
    return found


def bounded(parse: Parse, size: int) -> Parse:
    """Parse at most as many bytes as `UnitBuffer` lets through."""

    def parsed(data: bytes) -> Any:
        if len(data) > size:
            raise BadRequestError("too large")
        return parse(data)

    return parsed


def end(data: bytes) -> tuple[CallCode, str]:
    """Parse an end. A byte that is no UTF-8 becomes three, which may be more than an end holds."""
    code, details = frames.parse_end(data)
    if len(details.encode()) > frames.HELLO_BYTES_MAX:
        raise BadRequestError("too large")
    return code, details


def message(body: bytes) -> bytes:
    return frames.pack_size(len(body)) + body


def request_of(value: frames.CallRequest | int) -> bytes:
    if isinstance(value, int):
        return frames.encode_cancelled(value)
    return frames.encode_request(value)


def row(name: str, parse: Parse, encode: Callable[[Any], bytes] | None, *seeds: bytes) -> Target:
    return Target(f"frames_{name}", parse, seeds, (BadRequestError,), encode)


TARGETS = (
    row(
        "client_hello",
        bounded(frames.parse_client_hello, frames.HELLO_BYTES_MAX),
        lambda one: frames.encode_client_hello(one)[HEAD:],
        CLIENT[HEAD:],
        b"\x00\x05Calls",
    ),
    row(
        "bookie_hello",
        bounded(frames.parse_bookie_hello, frames.HELLO_BYTES_MAX),
        lambda one: frames.encode_bookie_hello(one)[HEAD:],
        BOOKIE[HEAD:],
        REFUSAL[HEAD:],
    ),
    row(
        "request",
        frames.parse_request,
        request_of,
        frames.encode_request(frames.CallRequest(7, "Fence", PAIRS, b"message")),
        frames.encode_cancelled(7),
    ),
    row(
        "request_head",
        frames.parse_request_head,
        None,
        frames.encode_request(frames.CallRequest(7, "Fence", PAIRS, b"message")),
        frames.encode_cancelled(7),
    ),
    row(
        "answer",
        frames.parse_answer,
        lambda one: frames.encode_answer(*one),
        frames.encode_answer(7, CallCode.OK, b"message"),
        frames.encode_answer(8, CallCode.UNIMPLEMENTED, b"no such call"),
    ),
    row(
        "end",
        end,
        lambda one: frames.encode_end(*one)[4:],
        END[4:],
    ),
    row(
        "units",
        units,
        None,
        bytes((200,)) + CLIENT + message(b"one") + message(b"") + END,
        bytes((3,)) + BOOKIE + message(b"x" * 900) + message(b"two") + END,
        bytes((1,)) + REFUSAL,
    ),
)

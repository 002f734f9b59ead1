"""A greedy client that costs little: a hand-made HTTP/2 connection with one call.

It sends requests that were encoded before, keeps a number of them unanswered, and counts answers.
A client of gRPC for Python would cost more than the bookie that it pushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, cast

from bookie.ids import INSTANCE_ID_METADATA_KEY
from bookie.wire.interfaces import SERVICE
from tests.unit.wire.fake_node import INSTANCE_ID

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS, END_STREAM = 1, 4, 1
FRAME_BYTES_MAX: Final = 16384
WINDOW_MAX: Final = 2**31 - 1
WINDOW_FIRST: Final = 65535
INITIAL_WINDOW_SIZE: Final = 4
"""The id of the setting."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return head + stream_id.to_bytes(4, "big") + payload


def headers_of(rpc: str) -> bytes:
    """The header block of a call, without compression; each text is shorter than 127 bytes."""
    pairs = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICE}/{rpc}"),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        (INSTANCE_ID_METADATA_KEY, INSTANCE_ID),
    )
    literal = (bytes((len(text),)) + text.encode() for pair in pairs for text in pair)
    return b"".join(b"\x00" + name + value for name, value in zip(literal, literal, strict=True))


class GreedyPeer(asyncio.Protocol):
    """One connection that keeps requests unanswered: on one stream, or as unary calls.

    Args:
        rpc: the method that it calls.
        requests: messages, without end.
        in_flight: requests to leave unanswered.
        answered: called for each answer.
        is_unary: True if each request is a call.
    """

    def __init__(
        self,
        rpc: str,
        requests: Iterator[bytes],
        in_flight: int,
        answered: Callable[[], None],
        *,
        is_unary: bool = False,
    ) -> None:
        self._headers, self._requests, self._answered = headers_of(rpc), requests, answered
        self._is_unary = is_unary
        self._owed = in_flight
        self._stream_id = -1 if is_unary else 1
        self._received = b""
        self._body = b""
        self._window = self._stream_window = self._first_window = WINDOW_FIRST
        self._unsent = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        send = self._transport.write
        window = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + WINDOW_MAX.to_bytes(4, "big")
        more = (WINDOW_MAX - WINDOW_FIRST).to_bytes(4, "big")
        send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, window))
        send(frame(WINDOW_UPDATE, 0, 0, more))
        if not self._is_unary:
            send(frame(HEADERS, END_HEADERS, 1, self._headers))

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        at = 0
        while len(received) - at >= 9:
            end = at + 9 + int.from_bytes(received[at : at + 3], "big")
            if len(received) < end:
                break
            stream_id = int.from_bytes(received[at + 5 : at + 9], "big")
            self._take(received[at + 3], received[at + 4], stream_id, received[at + 9 : end])
            at = end
        self._received = received[at:]
        self._push()

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == DATA and not self._is_unary:
            self._body += payload
            while len(self._body) >= 5:
                size = 5 + int.from_bytes(self._body[1:5], "big")
                if len(self._body) < size:
                    break
                self._body = self._body[size:]
                self._count()
        elif kind == HEADERS and flags & END_STREAM and self._is_unary:
            self._count()
        elif kind == WINDOW_UPDATE and stream_id == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._stream_window += int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == INITIAL_WINDOW_SIZE:
                    window = int.from_bytes(payload[at + 2 : at + 6], "big")
                    self._stream_window += window - self._first_window
                    self._first_window = window
            self._transport.write(frame(SETTINGS, ACK, 0, b""))

    def _count(self) -> None:
        self._owed += 1
        self._answered()

    def _push(self) -> None:
        """Send requests as far as windows and the number of unanswered ones permit."""
        while True:
            if not self._unsent:
                if not self._owed:
                    return
                self._owed -= 1
                request = next(self._requests)
                self._unsent = b"\x00" + len(request).to_bytes(4, "big") + request
                if self._is_unary:
                    self._stream_id += 2
                    opening = frame(HEADERS, END_HEADERS, self._stream_id, self._headers)
                    self._transport.write(opening)
            room = self._window
            if not self._is_unary:
                room = min(room, self._stream_window)
            part = self._unsent[: max(0, min(room, FRAME_BYTES_MAX))]
            if not part:
                return
            self._unsent = self._unsent[len(part) :]
            self._window -= len(part)
            self._stream_window -= len(part)
            last = END_STREAM if self._is_unary and not self._unsent else 0
            self._transport.write(frame(DATA, last, self._stream_id, part))

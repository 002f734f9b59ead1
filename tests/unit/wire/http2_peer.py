"""A hand-made HTTP/2 peer that can break every rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from bookie.ids import INSTANCE_ID_METADATA_KEY
from bookie.wire.interfaces import SERVICE
from tests.unit.wire.fake_node import INSTANCE_ID

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 1, 4


class Peer:
    """One connection. Unless introduced with a window, it takes at most 64 KiB."""

    instance_id = INSTANCE_ID
    """Of the cluster that its calls name."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._next_stream_id = 1

    def introduce(self, window: int = 0) -> None:
        """Begin the connection; with a `window`, each answer and all of them may be so long."""
        self.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.frame(SETTINGS, 0, 0, b"\x00\x04" + window.to_bytes(4, "big") if window else b"")
        if window:
            self.frame(WINDOW_UPDATE, 0, 0, window.to_bytes(4, "big"))

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Send one frame."""
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
        self.writer.write(head + stream_id.to_bytes(4, "big") + payload)

    def open(self, rpc: str, extra: tuple[tuple[str, str], ...] = ()) -> int:
        """Begin a call; its stream id."""
        stream_id, self._next_stream_id = self._next_stream_id, self._next_stream_id + 2
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{SERVICE}/{rpc}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            (INSTANCE_ID_METADATA_KEY, self.instance_id),
            *extra,
        ]
        self.frame(HEADERS, END_HEADERS, stream_id, header_block(headers))
        return stream_id

    def call(self, rpc: str, request: bytes) -> int:
        """Make a unary call; its stream id."""
        stream_id = self.open(rpc)
        message = b"\x00" + len(request).to_bytes(4, "big") + request
        self.frame(DATA, END_STREAM, stream_id, message)
        return stream_id

    async def flush(self) -> None:
        """Wait until all was sent, or the server has had enough."""
        with suppress(ConnectionError):
            await self.writer.drain()

    async def until_closed(self) -> None:
        """Wait until the server closes the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@asynccontextmanager
async def connected(
    port: int, *, introduced: bool = True, source: str = "127.0.0.1"
) -> AsyncIterator[Peer]:
    """A peer at the address `source` for the duration of the block; it hangs up at the end."""
    streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    peer = Peer(*streams)
    if introduced:
        peer.introduce()
    try:
        yield peer
    finally:
        peer.writer.close()
        with suppress(ConnectionError):
            await peer.writer.wait_closed()


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """The payload of a frame of headers, without compression."""
    return b"".join(_literal(*item) for item in headers)


def _literal(name: str, value: str) -> bytes:
    """A literal header without indexing, in plain bytes."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    octets = text.encode()
    length = len(octets)
    if length < 127:
        return bytes((length,)) + octets
    length -= 127
    out = bytearray(b"\x7f")
    while length >= 128:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + octets

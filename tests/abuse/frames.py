"""What a hostile peer sends and counts, one HTTP/2 frame at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.unit.wire.http2_peer import (
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Peer,
)

GOAWAY, WINDOW_UPDATE, CONTINUATION = 7, 8, 9
ACK = 1
INITIAL_WINDOW_SIZE = 4
WINDOW = 2**31 - 1 - 65535
"""As much as a peer may add to the window of a connection."""


@dataclass
class Answers:
    """What a bookie sent to a peer."""

    frames: Counter[int] = field(default_factory=Counter)
    """How many frames of each kind."""
    resets: Counter[int] = field(default_factory=Counter)
    """How many streams it reset, by the code of the error."""
    ended_calls: int = 0
    """How many calls it ended with a status."""
    data_bytes: int = 0
    window: int = 65535
    """Bytes that may be sent on the connection."""
    stream_window: int = 65535
    """Bytes that may be sent on each new stream."""
    stream_windows: Counter[int] = field(default_factory=Counter)
    """What was added to the windows of streams, less what was sent."""
    introduced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the bookie has told its settings."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the bookie has hung up."""
    goaway: bytes = b""
    """Why it sent the peer away; empty if it did not."""

    def room(self, stream_id: int) -> int:
        """How many bytes may be sent on a stream now."""
        return min(self.window, self.stream_window + self.stream_windows[stream_id])

    def sent(self, stream_id: int, size: int) -> None:
        """Take them from the windows."""
        self.window -= size
        self.stream_windows[stream_id] -= size

    def take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Note a frame of the bookie."""
        self.frames[kind] += 1
        number = int.from_bytes(payload[:4], "big")
        if kind == HEADERS:
            self.ended_calls += bool(flags & END_STREAM)
        elif kind == DATA:
            self.data_bytes += len(payload)
        elif kind == RST_STREAM:
            self.resets[number] += 1
        elif kind == GOAWAY:
            self.goaway = payload
        elif kind == WINDOW_UPDATE and stream_id:
            self.stream_windows[stream_id] += number
        elif kind == WINDOW_UPDATE:
            self.window += number
        elif kind == SETTINGS and not flags & ACK:
            for begin in range(0, len(payload), 6):
                name, value = payload[begin : begin + 2], payload[begin + 2 : begin + 6]
                if int.from_bytes(name, "big") == INITIAL_WINDOW_SIZE:
                    self.stream_window = int.from_bytes(value, "big")
            self.introduced.set()

    @property
    def is_ended(self) -> bool:
        """True once the bookie has hung up."""
        return self.ended.is_set()

    @property
    def sent_away(self) -> str:
        """The reason of the end, to print."""
        return self.goaway[8:].decode("ascii", "replace") or "no reason"


def message(size: int, payload: bytes = b"") -> bytes:
    """The head of a message that announces `size` bytes, and some of them."""
    return b"\0" + size.to_bytes(4, "big") + payload


def data_frames(stream_id: int, content: bytes) -> bytes:
    """Frames with the content, as large as they may be."""
    out = bytearray()
    for begin in range(0, len(content), 16384):
        part = content[begin : begin + 16384]
        out += len(part).to_bytes(3, "big") + bytes((DATA, 0)) + stream_id.to_bytes(4, "big") + part
    return bytes(out)


def open_windows(peer: Peer) -> None:
    """Let the bookie send as much as it likes."""
    peer.frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + WINDOW.to_bytes(4, "big"))
    peer.frame(WINDOW_UPDATE, 0, 0, WINDOW.to_bytes(4, "big"))


async def send_all(peer: Peer, answers: Answers, stream_id: int, content: bytes) -> None:
    """Send as much as the windows allow until all is sent, or the bookie hangs up."""
    begin = 0
    while begin < len(content) and not answers.is_ended:
        size = min(answers.room(stream_id), len(content) - begin, 64 * 1024)
        if size <= 0:
            await asyncio.sleep(0.002)
            continue
        peer.writer.write(data_frames(stream_id, content[begin : begin + size]))
        answers.sent(stream_id, size)
        begin += size
        await peer.flush()


async def listen(peer: Peer, answers: Answers) -> None:
    """Take what the bookie sends, and answer its settings and pings, until it hangs up."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await peer.reader.readexactly(9)
            payload = await peer.reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream_id = head[3], head[4], int.from_bytes(head[5:], "big")
            answers.take(kind, flags, stream_id, payload)
            if kind == DATA and payload:
                for window in (0, stream_id):
                    peer.frame(WINDOW_UPDATE, 0, window, len(payload).to_bytes(4, "big"))
            elif kind in (SETTINGS, PING) and not flags & ACK:
                peer.frame(kind, ACK, 0, payload if kind == PING else b"")
    answers.ended.set()

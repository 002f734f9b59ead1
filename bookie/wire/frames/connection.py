"""One TCP connection of the carrier by frames: messages in both directions, with flow control.

TCP itself is the flow control. While the owner does not take messages, the connection reads nothing
more from its socket, so the peer's writes wait. So one connection holds at most `INBOX_BYTES_MAX`,
one piece from the socket, and an incomplete frame. In one turn of the event loop, a connection
handles at most `UNITS_MAX` units, and reads nothing more until the others have had their turns.

While the peer does not read, `write` waits after it has passed its message on. So with one writer,
a connection holds at most one message beyond `OUTBOX_BYTES_MAX`. If several writers share it, or
its writers are cancelled, each of them waits in `until_writable` before it writes. TLS holds as
much once more, because it has a buffer of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from math import ceil
from typing import Any, Final

from bookie.config import RpcSettings
from bookie.errors import BadRequestError
from bookie.wire.frames.format import UnitBuffer, UnitKind, pack_size
from bookie.wire.interfaces import BrokenCallError

INBOX_BYTES_MAX: Final = 1024 * 1024
"""While more bytes of messages wait to be taken, nothing is read from the socket."""

OUTBOX_BYTES_MAX: Final = 256 * 1024
"""When more bytes wait to be sent, `write` waits until at most half as many do. A joined message of
64 entries has about 70 KB, of which the kernel may take a part at first."""

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The most bytes that wait in the kernel because nobody reads them, as with gRPC. More would let a
bookie that is held up seem to hold too many unread bytes (`bookie.daemon.unfinished`)."""

MESSAGE_OVERHEAD_BYTES: Final = 128
"""A message counts for so much more in the inbox, so that many small messages are bounded, too."""

_KEEPALIVE_SECONDS_MAX: Final = 32_767
_PATIENCE_MS_MAX: Final = 2**31 - 1
"""The largest times that Linux takes."""

_JOINED_BYTES_MAX: Final = 4096
"""The head of a larger message is sent beside it, because a copy would cost more. TLS would make a
record of its own of the head, and copies each message anyhow."""


def prepare_socket(
    connection: socket.socket, settings: RpcSettings, patience_seconds: float
) -> None:
    """Send small messages at once, and notice a peer that is gone in the times of gRPC's keepalive.

    After `keepalive_seconds` of silence the kernel probes the peer. The connection ends if the peer
    acknowledges nothing for `patience_seconds`, neither probes nor data. The kernel counts a peer
    that takes no data as silent, so the time is not shorter than two pings of gRPC take.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    silence, answer = settings.keepalive_seconds, settings.keepalive_timeout_seconds
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(tcp, socket.TCP_WINDOW_CLAMP, WINDOW_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, ceil(min(silence, _KEEPALIVE_SECONDS_MAX)))
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, ceil(min(answer, _KEEPALIVE_SECONDS_MAX)))
    patience_ms = 1000 * max(patience_seconds, silence + answer)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, ceil(min(patience_ms, _PATIENCE_MS_MAX)))


class FramedConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection; both ends derive from it.

    A subclass defines `_greet`, which handles the peer's hello, and may define the other hooks.

    Args:
        scratch: the receive buffer that the connections of the event loop share.
        hello_bytes_max: the largest permitted hello of the peer.
    """

    def __init__(self, scratch: memoryview, hello_bytes_max: int) -> None:
        self._units = UnitBuffer(scratch, hello_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        """The future on which `read` waits for a message or the end."""
        self._writers: dict[asyncio.Future[None], None] = {}
        """The futures on which writes wait until the peer has taken enough."""
        self._is_tls = False
        self._is_writable = True
        self._is_reading = True
        self._is_full = False
        """True if enough messages wait in the inbox."""
        self._is_due = False
        """True if `_go_on` is going to be called."""
        self._has_ended = False
        """True if the peer sends no more messages."""
        self._is_broken = False
        """True if the connection is over, or given up."""
        self._is_discarding = False
        """True if received bytes are of no use any more."""

    # --- hooks ---------------------------------------------------------------------------

    def _greet(self, body: bytes) -> None:
        """Handle the peer's hello; set `frame_bytes_max` of `_units`, or give the connection up."""
        raise NotImplementedError

    def _arrived(self, message: bytes) -> None:
        """Handle a message; here, queue it for `read`."""
        self._inbox.append(message)
        self._hold(message)
        self._wake()

    def _end_arrived(self, body: bytes | None) -> None:
        """Handle the peer's last frame; `body` is None if the peer only closed its side."""
        del body
        self._has_ended = True
        self._wake()

    def _malformed(self, error: BadRequestError) -> None:
        """Handle bytes that no peer of this carrier sends; here, give the connection up."""
        del error
        self.abort()

    def _lost(self, error: Exception | None) -> None:
        """Handle the end of the connection, which comes exactly once if it was ever made."""

    # --- for the owner -------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """Return the next message; None after the peer's last message.

        Raises:
            BrokenCallError: the connection has broken.
        """
        while not self._inbox:
            if self._has_ended:
                return None
            if self._is_broken:
                raise BrokenCallError("the connection is closed")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._inbox.popleft()
        self._took(message)
        return message

    async def write(self, message: bytes, /) -> None:
        """Send one message, and wait while the peer does not read.

        Raises:
            BrokenCallError: the connection has broken.
        """
        if self._is_broken:
            raise BrokenCallError("the connection is closed")
        self._send(message)
        if not self._is_writable:
            await self.until_writable()

    async def until_writable(self) -> None:
        """Wait while more than `OUTBOX_BYTES_MAX` wait to be sent.

        Raises:
            BrokenCallError: the connection has broken.
        """
        while not self._is_writable:
            if self._is_broken:
                raise BrokenCallError("the connection is closed")
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers[waiting] = None
            try:
                await waiting
            finally:
                self._writers.pop(waiting, None)  # it is there if the wait was cancelled

    def abort(self) -> None:
        """Close the connection at once; bytes that the kernel has are still sent."""
        self._is_broken = True
        if self._transport is not None:
            self._transport.abort()

    def _hold(self, message: bytes) -> None:
        """Count a message that waits until it is taken."""
        self._inbox_bytes += len(message) + MESSAGE_OVERHEAD_BYTES
        if self._inbox_bytes > INBOX_BYTES_MAX:
            self._pause()

    def idle_descriptor(self) -> int:
        """Return the descriptor of a connection from which nothing is read now; otherwise -1."""
        if self._is_reading or self._is_broken or self._transport is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def _took(self, message: bytes) -> None:
        self._inbox_bytes -= len(message) + MESSAGE_OVERHEAD_BYTES
        if self._is_full and self._inbox_bytes <= INBOX_BYTES_MAX // 2:
            self._resume()

    def _send(self, message: bytes) -> None:
        """Pass a message to the transport, which keeps it until the peer takes it."""
        assert self._transport is not None
        size = len(message)
        if size > _JOINED_BYTES_MAX and not self._is_tls:
            self._transport.writelines((pack_size(size), message))
        else:
            self._transport.write(pack_size(size) + message)

    def _pause(self) -> None:
        self._is_full = True
        self._steer()

    def _resume(self) -> None:
        self._is_full = False
        self._steer()

    def _steer(self) -> None:
        """Read from the socket while the inbox has room, and no received unit waits for it."""
        if self._transport is None or self._is_broken:
            return
        has_more = self._units.has_more
        if has_more and not (self._is_full or self._is_due):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._is_reading and (self._is_full or has_more):
            self._is_reading = False
            self._transport.pause_reading()
        elif not (self._is_reading or self._is_full or has_more):
            self._is_reading = True
            self._transport.resume_reading()

    def _wake(self) -> None:
        """Wake the reader, and all writers if they have reason to go on."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self._writers and (self._is_writable or self._is_broken):
            writers, self._writers = self._writers, {}
            for one in writers:
                if not one.done():
                    one.set_result(None)

    # --- for the transport ---------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTBOX_BYTES_MAX, low=OUTBOX_BYTES_MAX // 2)
        self._is_tls = transport.get_extra_info("sslcontext") is not None

    def connection_lost(self, error: Exception | None) -> None:
        self._is_broken = True
        self._units.drop()
        self._wake()
        self._lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._units.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_discarding or self._is_broken:
            return
        try:
            self._take_units(nbytes)
        except BadRequestError as error:
            self._malformed(error)
        self._steer()

    def _go_on(self) -> None:
        """Handle the units that waited for another turn of the event loop."""
        self._is_due = False
        if self._units.has_more and not self._is_full:
            self.buffer_updated(0)

    def _take_units(self, nbytes: int) -> None:
        if self._has_ended and nbytes:
            raise BadRequestError("bytes follow the end")
        units = self._units.received(nbytes)
        for kind, body in units:
            self._take(kind, body)
        if units and units[0][0] is UnitKind.HELLO and self._units.has_more:
            self._take_units(0)  # only the receiver of a hello knows the largest size of a frame
        elif self._has_ended and self._units.held_bytes:
            raise BadRequestError("bytes follow the end")

    def _take(self, kind: UnitKind, body: bytes) -> None:
        if self._is_broken or self._is_discarding:
            return
        if self._has_ended:
            raise BadRequestError("bytes follow the end")
        if kind is UnitKind.MESSAGE:
            self._arrived(body)
        elif kind is UnitKind.END:
            self._end_arrived(body)
        else:
            self._greet(body)

    def eof_received(self) -> bool:
        while self._units.has_more and not (self._is_broken or self._is_discarding):
            # TLS alone can end before they had their turn, and then waits for nothing.
            self.buffer_updated(0)
        if self._units.held_bytes and not (self._has_ended or self._is_discarding):
            self._malformed(BadRequestError("the connection ended within a message"))
        elif not self._has_ended:
            self._end_arrived(None)
        # TLS cannot close one side alone.
        assert self._transport is not None
        return not (self._is_tls or self._is_broken)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

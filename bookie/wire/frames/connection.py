"""One TCP connection of the carrier by frames: messages in both directions, with flow control.

TCP provides the flow control. While the owner does not take messages, the connection reads nothing
more from its socket, so the peer's writes wait. So one connection holds at most `INBOX_BYTES_MAX`,
plus the bytes of one read from the socket, plus an incomplete frame. In one turn of the event loop,
a connection handles at most `UNITS_MAX` units (hellos and frames). It reads nothing more until the
other connections have had their turns.

While the peer does not read, `write` passes its message to the transport, and then waits. So with
one writer, a connection holds at most one message beyond `OUTBOX_BYTES_MAX`. If several tasks write
to one connection, or if its writing tasks are cancelled, each task calls `until_writable` before it
writes. With TLS, a connection holds up to twice as many bytes, because TLS has a buffer of its own.
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
"""If more bytes than this wait in the inbox, the connection stops reading from its socket."""

OUTBOX_BYTES_MAX: Final = 256 * 1024
"""If more bytes than this wait to be sent, `write` waits until at most half of this number is left.
A joined message of 64 entries has about 70 KB, and the kernel may first take only a part of it."""

WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The largest number of received bytes that wait unread in the kernel, the same as gRPC's window.
With a larger window, a delayed bookie would seem to hold too many unread bytes
(`bookie.daemon.unfinished`)."""

MESSAGE_OVERHEAD_BYTES: Final = 128
"""Added to the size of each message in the inbox, so that the number of small messages is limited,
too."""

_KEEPALIVE_SECONDS_MAX: Final = 32_767
_PATIENCE_MS_MAX: Final = 2**31 - 1
"""The largest times that Linux accepts for these socket options."""

_JOINED_BYTES_MAX: Final = 4096
"""If a message is larger, its size field is written separately, because joining both would copy the
message. With TLS, both are always joined: TLS copies each message anyway, and would put the size
field into a record of its own."""


def prepare_socket(
    connection: socket.socket, settings: RpcSettings, patience_seconds: float
) -> None:
    """Make the socket send small messages at once, and detect a dead peer as fast as gRPC does.

    After `keepalive_seconds` of silence the kernel probes the peer. The connection ends if the peer
    acknowledges nothing for `patience_seconds`, neither probes nor data. The kernel also counts a
    peer that reads no data as silent. So this time is at least the sum of gRPC's two keepalive
    times.
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
    """The asyncio protocol of one connection; the classes of client and bookie derive from it.

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
        """The future on which `read` waits for a message or for the connection's end."""
        self._writers: dict[asyncio.Future[None], None] = {}
        """The futures on which writers wait until the transport accepts more bytes."""
        self._is_tls = False
        self._is_writable = True
        self._is_reading = True
        self._is_full = False
        """True if the inbox is full, so that nothing more is read from the socket."""
        self._is_due = False
        """True if `_go_on` is scheduled, but has not been called yet."""
        self._has_ended = False
        """True if the peer sends no more messages."""
        self._is_broken = False
        """True if the connection has ended or was aborted."""
        self._is_discarding = False
        """True if the connection ignores all bytes that it still receives."""

    # --- hooks ---------------------------------------------------------------------------

    def _greet(self, body: bytes) -> None:
        """Handle the peer's hello: set `frame_bytes_max` of `_units`, or end the connection."""
        raise NotImplementedError

    def _arrived(self, message: bytes) -> None:
        """Handle a message; this default puts it into the inbox for `read`."""
        self._inbox.append(message)
        self._hold(message)
        self._wake()

    def _end_arrived(self, body: bytes | None) -> None:
        """Handle the peer's last frame; `body` is None if the peer closed its side without one."""
        del body
        self._has_ended = True
        self._wake()

    def _malformed(self, error: BadRequestError) -> None:
        """Handle bytes that break the format; this default aborts the connection."""
        del error
        self.abort()

    def _lost(self, error: Exception | None) -> None:
        """Handle the connection's end; called exactly once for each established connection."""

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
        """Wait while too many bytes wait to be sent (`OUTBOX_BYTES_MAX`).

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
                self._writers.pop(waiting, None)  # it is still there after a cancelled wait

    def abort(self) -> None:
        """Close the connection at once; the kernel still sends the bytes that it has taken."""
        self._is_broken = True
        if self._transport is not None:
            self._transport.abort()

    def _hold(self, message: bytes) -> None:
        """Count the bytes of a message that waits to be taken; stop reading at the limit."""
        self._inbox_bytes += len(message) + MESSAGE_OVERHEAD_BYTES
        if self._inbox_bytes > INBOX_BYTES_MAX:
            self._pause()

    def idle_descriptor(self) -> int:
        """Return the socket's descriptor while nothing is read from the socket; otherwise -1."""
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
        """Read from the socket only while the inbox has room and all received units are handled."""
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
        """Wake the reader; wake the writers if they can write, or if the connection is broken."""
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
            self._take_units(0)  # the hello's handler has set the largest size of a frame
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
            # Only with TLS, the end can arrive before these units had their turn, and TLS does not
            # wait for them.
            self.buffer_updated(0)
        if self._units.held_bytes and not (self._has_ended or self._is_discarding):
            self._malformed(BadRequestError("the connection ended within a message"))
        elif not self._has_ended:
            self._end_arrived(None)
        # TLS cannot close only one direction of a connection.
        assert self._transport is not None
        return not (self._is_tls or self._is_broken)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

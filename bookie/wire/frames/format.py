"""The byte format of the carrier by frames: hellos, frames, and calls on a shared connection.

A connection begins with a hello of the client, which names the *conversation*: a stream, a listing,
or `CALLS`. The bookie answers with a hello of its own. Then both ends send frames. A frame carries
the bytes of one message of ``bookie.proto``. All numbers are big endian.

======== ===== =====================================================================
hello    bytes
======== ===== =====================================================================
magic    4     ``89 42 4B 46``. The first byte tells a hello from TLS, from HTTP/2, and from a
               frame of Apache BookKeeper, which begins with a length below 2**24.
version  2     `VERSION`; the head of a hello never changes
size     2     of the body, so at most 65 535
body           client: text of the conversation, then key, value, key, value …
               bookie: code (1), text of details, then key, value, key, value …
======== ===== =====================================================================

======== ===== =====================================================================
frame    bytes
======== ===== =====================================================================
size     4     the highest bit marks the *end*, the last frame of a direction
body           a message; of an end: code (1) and details in UTF-8
======== ===== =====================================================================

A text is its size in 2 bytes, and then UTF-8. On the conversation `CALLS` a body is one of these:

=========== =========================================================================
request     id (4), size of the head (2), head: text of the call, key, value …; message
cancelled   id (4)
answer      id (4), code (1), then the message; if the code is not OK, details in UTF-8
=========== =========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from bookie.errors import BadRequestError
from bookie.wire.call_metadata import Pairs
from bookie.wire.carrier import CallCode

MAGIC: Final = b"\x89BKF"
VERSION: Final = 1

HELLO_BYTES_MAX: Final = 2**16 - 1
"""The largest body of a hello, and the largest head of a request."""

CALLS: Final = "Calls"
"""The name of the conversation that carries many calls, each with one answer."""

END_BIT: Final = 1 << 31
HEAD_BYTES: Final = 4

SCRATCH_BYTES: Final = 256 * 1024
"""The largest number of bytes that one read takes from a socket."""

UNITS_MAX: Final = 128
"""The most units (hellos, frames) that `UnitBuffer.received` returns at a time; 256 KiB may contain
65 536 units."""

_PARTIAL_BYTES_MIN: Final = 512
_GROWTH: Final = 2
"""A buffer for bytes that wait is at most this many times as large as these bytes. So the buffers
take at most twice the memory that `bookie.daemon.unfinished` counts."""

_HELLO: Final = struct.Struct(">4sHH")
_SIZE: Final = struct.Struct(">I")
_REQUEST: Final = struct.Struct(">IH")
_ANSWER: Final = struct.Struct(">IB")
_TEXT: Final = struct.Struct(">H")

pack_size: Final = _SIZE.pack
_unpack_size: Final = _SIZE.unpack_from


class UnitKind(IntEnum):
    """The kinds of units in the byte stream of a connection."""

    MESSAGE = 0
    END = 1
    HELLO = 2


class OversizeError(BadRequestError):
    """A frame is larger than its receiver permits."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The first bytes of a connection: the conversation that the client wants."""

    conversation: str
    metadata: Pairs


@dataclass(frozen=True, slots=True)
class BookieHello:
    """The bookie's answer to a hello; after a `code` other than OK, it closes the connection."""

    code: CallCode
    details: str
    metadata: Pairs = ()


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call on the conversation `CALLS`."""

    request_id: int
    rpc: str
    metadata: Pairs
    message: bytes


def encode_client_hello(hello: ClientHello) -> bytes:
    """Encode the first bytes of a connection.

    Raises:
        BadRequestError: the metadata is too large.
    """
    return _hello(_texts(hello.conversation, hello.metadata))


def parse_client_hello(body: bytes) -> ClientHello:
    """Parse the body of a client's hello.

    Raises:
        BadRequestError: the body is malformed.
    """
    conversation, metadata = _split_texts(body, 0)
    return ClientHello(conversation, metadata)


def encode_bookie_hello(hello: BookieHello) -> bytes:
    """Encode the bookie's first bytes on a connection.

    Raises:
        BadRequestError: the metadata is too large.
    """
    return _hello(bytes((hello.code,)) + _texts(hello.details, hello.metadata))


def parse_bookie_hello(body: bytes) -> BookieHello:
    """Parse the body of a bookie's hello.

    Raises:
        BadRequestError: the body is malformed.
    """
    if not body:
        raise BadRequestError("the hello is empty")
    details, metadata = _split_texts(body, 1)
    return BookieHello(_code(body[0]), details, metadata)


def encode_end(code: CallCode, details: str = "") -> bytes:
    """Encode the last frame that one side sends, including the frame's size field."""
    body = bytes((code,)) + details.encode()[:HELLO_BYTES_MAX]
    return pack_size(END_BIT | len(body)) + body


def parse_end(body: bytes) -> tuple[CallCode, str]:
    """Parse the body of the last frame that the peer sends.

    Raises:
        BadRequestError: the body is malformed.
    """
    if not body:
        raise BadRequestError("the last frame is empty")
    return _code(body[0]), body[1:].decode("utf-8", "replace")


def encode_request(request: CallRequest) -> bytes:
    """Encode one call on `CALLS`, without the frame's size field.

    Raises:
        BadRequestError: the metadata is too large.
    """
    head = _texts(request.rpc, request.metadata)
    if len(head) > HELLO_BYTES_MAX:
        raise BadRequestError("the metadata of the call is too large")
    return b"".join((_REQUEST.pack(request.request_id, len(head)), head, request.message))


def encode_cancelled(request_id: int) -> bytes:
    """Encode the body that cancels a call, because nobody waits for its answer any more."""
    return pack_size(request_id)


def parse_request(body: bytes, head_bytes_max: int = HELLO_BYTES_MAX) -> CallRequest | int:
    """Parse a client's frame on `CALLS`: a call, or the id of a cancelled call.

    Raises:
        OversizeError: the head is larger than `head_bytes_max`.
        BadRequestError: the body is malformed.
    """
    if len(body) == _SIZE.size:
        cancelled: int = _unpack_size(body)[0]
        return cancelled
    if len(body) < _REQUEST.size:
        raise BadRequestError("the call is cut off")
    request_id, size = _REQUEST.unpack_from(body)
    if size > head_bytes_max:
        raise OversizeError(f"a head of {size} bytes is too large")
    start = _REQUEST.size + size
    if start > len(body):
        raise BadRequestError("the head of the call is cut off")
    rpc, metadata = _split_texts(body[:start], _REQUEST.size)
    return CallRequest(request_id, rpc, metadata, body[start:])


def parse_request_head(body: bytes) -> tuple[int, str | None, int]:
    """Return a call's id and name, and the position at which its message begins.

    The name is None if the frame cancels the call. The function does not parse the metadata.

    Raises:
        BadRequestError: the body is malformed; only `parse_request` finds malformed metadata.
    """
    if len(body) == _SIZE.size:
        return _unpack_size(body)[0], None, len(body)
    if len(body) < _REQUEST.size + _TEXT.size:
        raise BadRequestError("the call is cut off")
    request_id, size = _REQUEST.unpack_from(body)
    name = _REQUEST.size + _TEXT.size
    end = name + _TEXT.unpack_from(body, _REQUEST.size)[0]
    return request_id, body[name:end].decode("utf-8", "replace"), _REQUEST.size + size


def encode_answer(request_id: int, code: CallCode, content: bytes) -> bytes:
    """Encode the answer to a call: its message, or the details of its failure."""
    return _ANSWER.pack(request_id, code) + content


def parse_answer(body: bytes) -> tuple[int, CallCode, bytes]:
    """Parse a bookie's frame on `CALLS`: id of the call, code, and message or details.

    Raises:
        BadRequestError: the body is malformed.
    """
    if len(body) < _ANSWER.size:
        raise BadRequestError("the answer is cut off")
    request_id, code = _ANSWER.unpack_from(body)
    return request_id, _code(code), body[_ANSWER.size :]


class UnitBuffer:
    """Splits the bytes of one connection into units; the bytes may arrive in pieces of any size.

    The owner receives bytes into `space`, and then calls `received`. Connections of one event loop
    share `scratch`, so an idle connection has no buffer. Only the beginning of an incomplete unit
    is kept, in a buffer that grows with the bytes that have arrived, not with the announced size.

    Args:
        scratch: a buffer of `SCRATCH_BYTES`, which must not be used between `space` and `received`.
        hello_bytes_max: the largest permitted body of a hello.
    """

    __slots__ = ("_end", "_is_greeted", "_scratch", "_start", "_view", "frame_bytes_max",
                 "has_more", "hello_bytes_max")  # fmt: skip

    def __init__(self, scratch: memoryview, hello_bytes_max: int = HELLO_BYTES_MAX) -> None:
        self._scratch = self._view = scratch
        self._start = self._end = 0
        self._is_greeted = False
        self.hello_bytes_max = hello_bytes_max
        self.frame_bytes_max = 0
        """The largest permitted body of a frame; the owner sets it when a hello has come."""
        self.has_more = False
        """True if `received` must be called again, with a count of 0, before more bytes come."""

    @property
    def held_bytes(self) -> int:
        """The number of received bytes that are not part of a returned unit."""
        return self._end - self._start

    def drop(self) -> None:
        """Forget the bytes that are not part of a returned unit, and free their memory."""
        self._view, self._start, self._end = self._scratch, 0, 0
        self.has_more = False

    def space(self) -> memoryview:
        """Return the buffer for the next bytes; it is never empty."""
        return self._view[self._end :] if self._end else self._view

    def received(self, count: int) -> list[tuple[UnitKind, bytes]]:
        """Take `count` new bytes; return the units that are complete now, at most `UNITS_MAX`.

        A hello is returned alone, because its receiver must set `frame_bytes_max` before the frames
        behind it are split. If an error follows complete units, this call returns the units, and
        the next call raises the error.

        Raises:
            BadRequestError: the connection does not begin with a hello of this version.
            OversizeError: a unit is larger than permitted.
        """
        view, start, end = self._view, self._start, self._end + count
        units: list[tuple[UnitKind, bytes]] = []
        self.has_more = False
        if not self._is_greeted:
            needed = self._hello_size(view[start:end])
            if end - start >= needed:
                units.append((UnitKind.HELLO, bytes(view[start + _HELLO.size : start + needed])))
                start += needed
                self._is_greeted = self.has_more = True
                needed = HEAD_BYTES
            self._keep(view, start, end, needed)
            return units
        while True:
            needed = HEAD_BYTES
            if end - start < needed:
                break
            size = _unpack_size(view, start)[0]
            is_end = size >= END_BIT
            if is_end:
                size -= END_BIT
            if size > (HELLO_BYTES_MAX + 1 if is_end else self.frame_bytes_max):
                if not units:
                    raise OversizeError(f"a frame of {size} bytes is too large")
                self.has_more = True
                break
            needed += size
            if end - start < needed:
                break
            if len(units) == UNITS_MAX:
                self.has_more = True
                break
            body = bytes(view[start + HEAD_BYTES : start + needed])
            units.append((UnitKind.END if is_end else UnitKind.MESSAGE, body))
            start += needed
        self._keep(view, start, end, needed)
        return units

    def _hello_size(self, view: memoryview) -> int:
        if view[: len(MAGIC)] != MAGIC[: len(view)]:
            raise BadRequestError("the connection does not begin with a hello")
        if len(view) < _HELLO.size:
            return _HELLO.size
        _, version, size = _HELLO.unpack_from(view)
        if version != VERSION:
            raise BadRequestError(f"the hello has version {version}; version {VERSION} is known")
        if size > self.hello_bytes_max:
            raise OversizeError(f"a hello of {size} bytes is too large")
        whole: int = _HELLO.size + size
        return whole

    def _keep(self, view: memoryview, start: int, end: int, needed: int) -> None:
        """Keep the bytes after the returned units; `needed` is the first unit's size, if known."""
        left = end - start
        if not left:
            self._view, self._start, self._end = self._scratch, 0, 0
        elif (
            view is not self._scratch
            and len(view) - start >= needed
            and len(view) <= max(_PARTIAL_BYTES_MIN, _GROWTH * left)
        ):
            self._start, self._end = start, end
        else:
            size = max(_PARTIAL_BYTES_MIN, min(_GROWTH * left, max(needed, SCRATCH_BYTES)))
            kept = memoryview(bytearray(size))
            kept[:left] = view[start:end]
            self._view, self._start, self._end = kept, 0, left


def _hello(body: bytes) -> bytes:
    if len(body) > HELLO_BYTES_MAX:
        raise BadRequestError("the metadata is too large")
    return _HELLO.pack(MAGIC, VERSION, len(body)) + body


def _texts(first: str, pairs: Iterable[tuple[str, str | bytes]]) -> bytes:
    parts: list[bytes] = []
    for text in (first, *(each for pair in pairs for each in pair)):
        data = text if isinstance(text, bytes) else text.encode()
        if len(data) > HELLO_BYTES_MAX:
            raise BadRequestError("a text of the metadata is too large")
        parts += (_TEXT.pack(len(data)), data)
    return b"".join(parts)


def _split_texts(data: bytes, position: int) -> tuple[str, Pairs]:
    """Split `data`, from `position` on, into one text and pairs of texts."""
    texts: list[str] = []
    while position < len(data):
        start = position + _TEXT.size
        if start > len(data):
            raise BadRequestError("a text is cut off")
        position = start + _TEXT.unpack_from(data, start - _TEXT.size)[0]
        if position > len(data):
            raise BadRequestError("a text is cut off")
        try:
            texts.append(data[start:position].decode())
        except UnicodeDecodeError:
            raise BadRequestError("a text is not UTF-8") from None
    if len(texts) % 2 == 0:
        raise BadRequestError("a key has no value")
    return texts[0], tuple(zip(texts[1::2], texts[2::2], strict=True))


def _code(number: int) -> CallCode:
    try:
        return CallCode(number)
    except ValueError:
        return CallCode.UNKNOWN

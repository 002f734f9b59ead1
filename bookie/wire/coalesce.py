"""Joined messages: one message carries several AddRequests or AddResponses.

Sender and receiver each need about 100 µs for a message of any size. So adds that wait at the same
time are joined into one message, even adds of different ledgers. Answers that wait at the same time
are joined, too. No add or answer waits only to be joined with others. A joined message has only the
repeated field ``together``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from bookie.errors import BadRequestError
from bookie.wire.messages import varint, varint_value

COALESCED_MAX: Final = 64
"""The largest number of requests, or answers, in one message."""

COALESCED_BYTES_MAX: Final = 2 * 1024 * 1024
"""The largest size of joined requests or answers, such as seven batches of 256 entries of 1 KB."""

JOINED_BYTES_MAX: Final = 512 * 1024
"""A larger request is sent alone, because to copy it would cost as much as another message."""

_VIEW_SHARE_MIN: Final = 8
"""A part of a joined message becomes a view if it has at least one eighth of the message's bytes. A
view costs less than a copy. But a view keeps the whole joined message in memory, while a budget or
the cache counts only the bytes of the part."""

_VIEW_BYTES_MIN: Final = 16 * 1024
"""Smaller parts are copied, because such a copy costs no more than a view."""

_TOGETHER: Final = b"\x62"
_HEAD: Final = re.compile(_TOGETHER + rb"([\x80-\xff]{0,8}[\x00-\x7f])", re.DOTALL)
"""Matches the tag and the length before each part of a joined message."""


def fitting(queue: deque[bytes]) -> int:
    """Return how many of the oldest messages in `queue` fit into one joined message, at least 1."""
    count = size = 0
    for message in queue:
        size += len(message)
        if len(message) > JOINED_BYTES_MAX or size > COALESCED_BYTES_MAX or count == COALESCED_MAX:
            break
        count += 1
    return count or 1


def join_messages(messages: Sequence[bytes]) -> bytes:
    """Join AddRequests or AddResponses into one message; return a single message unchanged."""
    if len(messages) == 1:
        return messages[0]
    parts: list[bytes] = []
    for message in messages:
        parts += (_TOGETHER, varint(len(message)), message)
    return b"".join(parts)


def split_message(data: bytes) -> Sequence[bytes | memoryview]:
    """Split a message that `join_messages` joined; large parts are views.

    A view keeps all of `data` in memory, which is at most eight times as large as the view.

    Raises:
        BadRequestError: The joined message is cut off, too large, has too many parts, or has other
            fields.
    """
    if not data.startswith(_TOGETHER):
        return (data,)
    if len(data) > COALESCED_BYTES_MAX + 10 * COALESCED_MAX:
        raise BadRequestError("the messages in a message are too large")
    messages: list[bytes | memoryview] = []
    view = memoryview(data)
    view_bytes = max(_VIEW_BYTES_MIN, -(-len(data) // _VIEW_SHARE_MIN))
    position = 0
    while position < len(data):
        length = _HEAD.match(data, position)
        if length is None or len(messages) == COALESCED_MAX:
            raise BadRequestError("the messages in a message are malformed or too many")
        start = length.end()
        position = start + varint_value(length[1])
        if position > len(data):
            raise BadRequestError("the last of the messages in a message is cut off")
        whole = data if position - start < view_bytes else view
        messages.append(whole[start:position])
    return messages

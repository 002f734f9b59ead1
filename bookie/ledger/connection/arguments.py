"""Checks the arguments of callers before an operation begins.

Python accepts many wrong arguments without an error; for example, ``bytes(5)`` is five zero bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID

Payload = bytes | bytearray | memoryview


def checked_bytes(value: object, name: str) -> bytes:
    """Return `value` as bytes if it is bytes, a bytearray or a memoryview.

    Raises:
        BadRequestError: the value has another type; encode a string first.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadRequestError(f"{name} must be bytes, not {type(value).__name__}")


def checked_payloads(payloads: object) -> list[bytes]:
    """Return the payloads of several entries as a list of bytes.

    Raises:
        BadRequestError: a payload is not bytes, or the argument itself is one payload.
    """
    if not isinstance(payloads, Iterable) or isinstance(payloads, str | bytes | bytearray):
        raise BadRequestError(
            f"payloads must be many, such as a list of bytes, not {type(payloads).__name__}"
        )
    entries = list(payloads)
    if list(map(type, entries)).count(bytes) == len(entries):
        return entries
    return [checked_bytes(payload, "a payload") for payload in entries]


def checked_entry_id(value: object, name: str) -> int:
    """Return `value`, if it is an entry id or -1.

    Raises:
        BadRequestError: the value is neither an entry id nor -1.
    """
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= MAX_ID:
        return value
    raise BadRequestError(f"{name} must be an entry id, not {value!r}")

"""Keys of the metadata store: paths of segments, the same on every backend."""

from __future__ import annotations

import re
from typing import Final

from bookie.errors import InvalidKeyError

KEY_SIZE_BYTES_MAX = 480
"""The longest key, in bytes of UTF-8."""

ROOT = "/"
"""The parent of all keys; it has no record of its own."""

_PLAIN: Final = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[^/\0]+)+").fullmatch
"""Matches keys whose segments are good. Most are ASCII besides, and need no other look."""


def check_key(key: str) -> str:
    """Return `key` if it may name a record.

    Raises:
        InvalidKeyError: it does not start with "/", ends with "/", has an empty, "." or ".."
            segment or a NUL character, is longer than `KEY_SIZE_BYTES_MAX`, or is not valid
            Unicode.
    """
    if len(key) <= KEY_SIZE_BYTES_MAX and key.isascii() and _PLAIN(key):
        return key
    if not key.startswith("/") or key == ROOT:
        raise InvalidKeyError(f"the key {key!r} must start with a slash and name a record")
    if any(segment in ("", ".", "..") for segment in key[1:].split("/")):
        raise InvalidKeyError(f"the key {key!r} has an empty, '.' or '..' segment")
    if "\0" in key:
        raise InvalidKeyError(f"the key {key!r} contains a NUL character")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"the key {key!r} is not valid Unicode") from error
    if size > KEY_SIZE_BYTES_MAX:
        raise InvalidKeyError(f"a key of {size} bytes exceeds the limit of {KEY_SIZE_BYTES_MAX}")
    return key


def check_prefix(key: str) -> str:
    """Return `key` if it is the root or may name a record; else raise `InvalidKeyError`."""
    return key if key == ROOT else check_key(key)


def is_under(prefix: str, key: str) -> bool:
    """Whether `key` is `prefix` itself or lies below it. ``/a`` does not cover ``/ab``."""
    return prefix in (ROOT, key) or key.startswith(prefix + "/")


def parent_of(key: str) -> str:
    """The key one level up; `ROOT` for a top-level key."""
    return key.rpartition("/")[0] or ROOT


def ancestors(key: str) -> list[str]:
    """The keys above `key`, nearest first, without `ROOT`."""
    found = []
    key = key.rpartition("/")[0]
    while key:
        found.append(key)
        key = key.rpartition("/")[0]
    return found

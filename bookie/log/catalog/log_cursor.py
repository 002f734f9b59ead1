"""A cursor of a partition: how far its consumers have come.

Canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-log-cursor``, version 1. The
cursor belongs to the holder of its `epoch`. Taking it raises the epoch, so a former holder's
commit is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.ids import MAX_ID
from bookie.metadata import json_record

_FORMAT = "bookie-log-cursor"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogCursor:
    """Where the next consumer continues."""

    offset: int
    """The offset of the next entry to consume."""
    epoch: int = 0
    """Rises with each holder, and with each reset: the cursor's fencing token."""
    owner: str = ""
    """Who took it last; for people."""
    committed_ms: int = 0
    """When it was changed last."""
    is_protected: bool = True
    """Whether retention keeps what this cursor has not consumed."""


def encode_log_cursor(cursor: LogCursor) -> bytes:
    """The bytes of a cursor."""
    fields = {
        "offset": cursor.offset,
        "epoch": cursor.epoch,
        "owner": cursor.owner,
        "committed_ms": cursor.committed_ms,
        "is_protected": cursor.is_protected,
    }
    return json_record.encode(_FORMAT, _VERSION, fields)


def decode_log_cursor(data: bytes) -> LogCursor:
    """The cursor in `data`.

    Raises:
        FormatError: not a cursor, damaged, or of a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    return LogCursor(
        offset=fields.integer("offset", minimum=0, maximum=MAX_ID),
        epoch=fields.integer("epoch", minimum=0, maximum=MAX_ID),
        owner=fields.text("owner"),
        committed_ms=fields.integer("committed_ms"),
        is_protected=fields.boolean("is_protected"),
    )

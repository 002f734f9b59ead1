"""The record of a cursor: the progress of its consumers in one partition.

Canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-log-cursor``, version 1. The
cursor belongs to the holder of its `epoch`. Each new holder raises the epoch, so the commit of a
former holder is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.ids import MAX_ID
from bookie.metadata import json_record

_FORMAT = "bookie-log-cursor"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The state of a cursor."""

    offset: int
    """The offset of the next entry to consume."""
    epoch: int = 0
    """The cursor's fencing token, which rises with each holder and each reset."""
    owner: str = ""
    """The last process that took or reset it; for people."""
    committed_ms: int = 0
    """The time of its last change, in ms since 1970."""
    is_protected: bool = True
    """True if retention keeps the records that this cursor has not consumed."""


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

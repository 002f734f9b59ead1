"""The record of a cursor: the progress of its consumers in one partition.

The record is canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-log-cursor``,
version 1. The cursor belongs to its holder: the process that began the present `epoch`. Each new
holder and each reset raises the epoch, so a commit by a former holder is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bookie.ids import MAX_ID
from bookie.metadata import json_record

_FORMAT = "bookie-log-cursor"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The state of a cursor: the progress of consumers in one partition."""

    offset: int
    """The offset of the next entry to consume."""
    epoch: int = 0
    """The cursor's fencing token, which rises with each new holder and each reset."""
    owner: str = ""
    """The process that last took or reset the cursor, and a random text that is never repeated."""
    committed_ms: int = 0
    """The time of the cursor's last change, in ms since 1970."""
    is_protected: bool = True
    """True if retention keeps the records that this cursor has not consumed."""


def encode_log_cursor(cursor: LogCursor) -> bytes:
    """Encode a cursor as bytes."""
    return json_record.encode(_FORMAT, _VERSION, asdict(cursor))


def decode_log_cursor(data: bytes) -> LogCursor:
    """Decode the cursor in `data`.

    Raises:
        FormatError: `data` is not a cursor, is damaged, or has a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    return LogCursor(
        offset=fields.integer("offset", minimum=0, maximum=MAX_ID),
        epoch=fields.integer("epoch", minimum=0, maximum=MAX_ID),
        owner=fields.text("owner"),
        committed_ms=fields.integer("committed_ms"),
        is_protected=fields.boolean("is_protected"),
    )

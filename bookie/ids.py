"""Types that all layers share: ids, the bounds of ids, and the status of a request.

Ids are plain integers of 63 bits: every id that is stored or sent lies in ``0 … MAX_ID``.
``NO_ENTRY`` (-1) stands for "none yet" wherever an entry id or a last add confirmed (LAC) may be
absent.
"""

from __future__ import annotations

import enum
import re

MAX_ID = 2**63 - 1
"""The largest ledger or entry id (inclusive)."""

NO_ENTRY = -1
"""The value for a missing entry id, or for a missing last add confirmed (LAC)."""

DIGITS_MAX = 20
"""The most decimal digits of a 64-bit number. Python raises ValueError for a text with thousands of
digits."""

ENTRY_SIZE_BYTES_MAX = 4 * 1024 * 1024
"""The largest entry packet in bytes, header and digest included."""

BATCH_SIZE_BYTES_MAX = 1024 * 1024
"""The largest payload of a batch of several entries; a batch of one entry may be as large as the
largest entry."""

JOINED_MESSAGES_METADATA = ("bookie-joined-messages", "2")
"""By this initial metadata on an add stream, a bookie tells the client: one message may join
several requests, up to 2 MiB together."""

LOG_TAG = "bookie.log"
"""A key in the custom metadata of a log's ledgers; the value is the log's name, a space, and the
log's id."""

INSTANCE_ID_METADATA_KEY = "bookie-instance-id"
"""The call-metadata key that carries the cluster's instance id."""

BOOKIE_ID_METADATA_KEY = "bookie-id"
"""The call-metadata key for the id of the bookie that a call is for. On an add stream, the bookie
also sends its own id back under this key."""

INCARNATION_METADATA_KEY = "bookie-incarnation"
"""The call-metadata key for the incarnation that a client expects. On an add stream, the bookie
also sends its own incarnation back under this key."""

LIFE_METADATA_KEY = "bookie-life"
"""The call-metadata key for the random id of one run of a bookie's process. On an add stream, the
bookie sends the id of the process that receives the adds. With a force, the client sends the id of
the process that it means. A restart may lose adds that were acknowledged but not synced."""

_BOOKIE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_VACANT_PREFIX = "vacant."
_BOOKIE_IDS_RESERVED = frozenset({"readonly", "readwrite", ".", ".."})


class Status(enum.IntEnum):
    """The status in a bookie's answer; numbers are as in ``proto/bookie/v1/bookie.proto``."""

    OK = 0
    NO_SUCH_LEDGER = 1
    NO_SUCH_ENTRY = 2
    FENCED = 3
    CONFLICT = 4
    UNAUTHORIZED = 5
    READ_ONLY = 6
    TOO_MANY_REQUESTS = 7
    IO_ERROR = 8
    UNKNOWN_LEDGER_STATE = 9
    BAD_REQUEST = 10
    BAD_CHECKSUM = 11
    WRONG_CLUSTER = 12
    SHUTTING_DOWN = 13
    WRONG_INCARNATION = 14
    NOT_PERMITTED = 15

    @property
    def is_definite_negative(self) -> bool:
        """True if recovery may count the answer as "this bookie does not have the entry"."""
        return self in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


def is_valid_bookie_id(text: str) -> bool:
    """True if `text` is a bookie id: 1 to 128 letters, digits or ``. _ : -``, and not reserved."""
    return _BOOKIE_ID.fullmatch(text) is not None and text not in _BOOKIE_IDS_RESERVED


def vacancy(slot: int) -> str:
    """Return the id that an ensemble names in a slot that has no bookie yet."""
    return f"{_VACANT_PREFIX}{slot}"


def is_vacant(bookie_id: str) -> bool:
    """True if the id marks an ensemble's slot that has no bookie yet; no bookie may take the id."""
    return bookie_id.startswith(_VACANT_PREFIX)

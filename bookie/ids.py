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
"""The most digits of a 64-bit number. Python refuses to convert thousands, with a ValueError."""

ENTRY_SIZE_BYTES_MAX = 4 * 1024 * 1024
"""The largest entry packet in bytes, header and digest included."""

BATCH_SIZE_BYTES_MAX = 1024 * 1024
"""The largest payload of a batch of several entries; a batch of one may be as large as an entry."""

JOINED_MESSAGES_METADATA = ("bookie-joined-messages", "2")
"""A bookie's first metadata on an add stream: a message may join requests, up to 2 MiB together."""

LOG_TAG = "bookie.log"
"""Key in the custom metadata of a log's ledgers: the log's name, a space, and its id."""

INSTANCE_ID_METADATA_KEY = "bookie-instance-id"
"""The call-metadata key that carries the cluster's instance id."""

BOOKIE_ID_METADATA_KEY = "bookie-id"
"""The id of the bookie that a call is for; on an add stream also the answering bookie's own id."""

INCARNATION_METADATA_KEY = "bookie-incarnation"
"""The incarnation that a client expects; on an add stream also the answering bookie's own."""

LIFE_METADATA_KEY = "bookie-life"
"""A random id of one life of a bookie's process: on a stream of adds the one that takes them, with
a force the one that the client means. A restart may lose what was acknowledged and not synced."""

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
    """True if `text` may name a bookie: letters, digits, ``. _ : -``, at most 128, not reserved."""
    return _BOOKIE_ID.fullmatch(text) is not None and text not in _BOOKIE_IDS_RESERVED


def vacancy(slot: int) -> str:
    """Return the id that an ensemble names in a slot that has no bookie yet."""
    return f"{_VACANT_PREFIX}{slot}"


def is_vacant(bookie_id: str) -> bool:
    """True if the id marks an ensemble's slot that has no bookie yet; no bookie may take the id."""
    return bookie_id.startswith(_VACANT_PREFIX)

"""The nouns that travel between floors: ids, their bounds, and the status of a request.

Ids are plain integers at run time. They are 63-bit: every id that is stored or sent lies in
``0 … MAX_ID``; ``NO_ENTRY`` (-1) stands for "none yet" wherever an entry id or a last add confirmed
(LAC) may be absent.
"""

from __future__ import annotations

import enum
import re
from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)

MAX_ID = 2**63 - 1
"""The largest ledger or entry id (inclusive)."""

NO_ENTRY = -1
"""Stands for a missing entry id, or a missing last add confirmed."""

ENTRY_SIZE_BYTES_MAX = 4 * 1024 * 1024
"""The largest entry packet, header and digest included."""

BATCH_SIZE_BYTES_MAX = 1024 * 1024
"""The largest payload of a batch of two or more entries; a batch of one may fill an entry."""

JOINED_MESSAGES_METADATA = ("bookie-joined-messages", "2")
"""What a bookie says first on a stream of adds if it takes several requests in one message, of up
to 2 MiB together."""

INSTANCE_ID_METADATA_KEY = "bookie-instance-id"
"""The call-metadata key that carries the cluster's instance id."""

BOOKIE_ID_METADATA_KEY = "bookie-id"
"""With each call: the bookie that the client means. On a stream of adds also the one that it is."""

INCARNATION_METADATA_KEY = "bookie-incarnation"
"""The incarnation that a client means; on a stream of adds also the one that the bookie has."""

LIFE_METADATA_KEY = "bookie-life"
"""A random id of one life of a bookie's process: on a stream of adds the one that takes them, with
a force the one that the client means. A restart may lose what was acknowledged and not synced."""

_BOOKIE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_VACANT_PREFIX = "vacant."
_BOOKIE_IDS_RESERVED = frozenset({"readonly", "readwrite", ".", ".."})


class Status(enum.IntEnum):
    """What a bookie answers in band; the numbers are those of ``proto/bookie/v1/bookie.proto``."""

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

    @property
    def is_definite_negative(self) -> bool:
        """Whether recovery may count the answer as "this bookie does not have the entry"."""
        return self in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


def is_valid_bookie_id(text: str) -> bool:
    """Whether `text` may name a bookie: letters, digits, ``. _ : -``, at most 128, not reserved."""
    return _BOOKIE_ID.fullmatch(text) is not None and text not in _BOOKIE_IDS_RESERVED


def vacancy(slot: int) -> str:
    """What an ensemble names in a slot that has no bookie yet."""
    return f"{_VACANT_PREFIX}{slot}"


def is_vacant(bookie_id: str) -> bool:
    """Whether an ensemble names this where a slot has no bookie yet. No bookie may take the id."""
    return bookie_id.startswith(_VACANT_PREFIX)

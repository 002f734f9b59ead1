"""Records of repair in the metadata store: a ledger that lacks copies, and who repairs it.

The records are canonical JSON (:mod:`bookie.metadata.json_record`) in the formats
``bookie-underreplicated`` and ``bookie-repair-lock``, version 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.errors import FormatError
from bookie.ids import is_valid_bookie_id
from bookie.metadata import json_record

_MARK_FORMAT = "bookie-underreplicated"
_LOCK_FORMAT = "bookie-repair-lock"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A ledger whose copies on some bookies are missing or in doubt."""

    ledger_id: int
    replicas: tuple[str, ...]
    """The bookies whose copies are missing; sorted, each once."""

    marked_ms: int
    """Time of the first mark, in ms, by the clock of the process that made it."""


def encode_mark(ledger: UnderreplicatedLedger) -> bytes:
    """Encode a mark; the ledger's id is in the key of the record."""
    fields = {"replicas": list(ledger.replicas), "marked_ms": ledger.marked_ms}
    return json_record.encode(_MARK_FORMAT, _VERSION, fields)


def decode_mark(ledger_id: int, data: bytes) -> UnderreplicatedLedger:
    """Decode the mark of `ledger_id` in `data`.

    Raises:
        FormatError: not a mark, damaged, or of a newer version.
    """
    fields = json_record.decode(_MARK_FORMAT, _VERSION, data)
    replicas = fields.texts("replicas")
    if not replicas or not all(map(is_valid_bookie_id, replicas)):
        raise FormatError(f"{_MARK_FORMAT}: the replicas of ledger {ledger_id} are no bookies")
    return UnderreplicatedLedger(
        ledger_id, tuple(sorted(set(replicas))), fields.integer("marked_ms", minimum=0)
    )


def encode_lock(worker: str, token: str) -> bytes:
    """Encode a lock: the worker that repairs, and a token that no other lock has."""
    return json_record.encode(_LOCK_FORMAT, _VERSION, {"worker": worker, "token": token})


def decode_lock(data: bytes) -> tuple[str, str]:
    """Return the worker and the token of a lock.

    Raises:
        FormatError: not a lock, damaged, or of a newer version.
    """
    fields = json_record.decode(_LOCK_FORMAT, _VERSION, data)
    return fields.text("worker"), fields.text("token")

"""Formats of the repair records in the metadata store: ledgers that lack copies, departing bookies.

Each record is canonical JSON (:mod:`bookie.metadata.json_record`), version 1. The formats are
``bookie-underreplicated``, ``bookie-repair-lock``, ``bookie-repair-failure``, ``bookie-departure``
and ``bookie-repair-history``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from bookie.errors import FormatError
from bookie.ids import is_valid_bookie_id
from bookie.metadata import json_record

_MARK_FORMAT = "bookie-underreplicated"
_LOCK_FORMAT = "bookie-repair-lock"
_FAILURE_FORMAT = "bookie-repair-failure"
_DEPARTURE_FORMAT = "bookie-departure"
_HISTORY_FORMAT = "bookie-repair-history"
_VERSION = 1
_LAST_MS = 253402300799999
"""The end of the year 9999, in ms since 1970: the latest time that Python can format."""


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A ledger whose copies on some bookies are missing or in doubt."""

    ledger_id: int
    replicas: tuple[str, ...]
    """The bookies whose copies are missing, sorted; each bookie occurs once."""

    marked_ms: int
    """Time of the first mark, in ms, by the clock of the process that made the mark."""


def encode_mark(ledger: UnderreplicatedLedger) -> bytes:
    """Encode a mark; the ledger's id is in the key of the record."""
    fields = {"replicas": list(ledger.replicas), "marked_ms": ledger.marked_ms}
    return json_record.encode(_MARK_FORMAT, _VERSION, fields)


def decode_mark(ledger_id: int, data: bytes) -> UnderreplicatedLedger:
    """Decode the mark of `ledger_id` in `data`.

    Raises:
        FormatError: `data` is not a mark, is damaged, or was written by a newer version.
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
        FormatError: `data` is not a lock, is damaged, or was written by a newer version.
    """
    fields = json_record.decode(_LOCK_FORMAT, _VERSION, data)
    return fields.text("worker"), fields.text("token")


NOT_RECOVERED = "not-recovered"
"""The outcome for an open ledger that the auditor could not recover; the ledger needs no mark."""


@dataclass(frozen=True, slots=True)
class RepairFailure:
    """The reason why the last repair of a ledger failed."""

    ledger_id: int
    outcome: str
    """See `RepairOutcome`."""
    reason: str
    attempts: int
    """The number of consecutive repairs that failed."""
    failed_ms: int
    """Time of the last failure, in ms by the worker's clock."""


def encode_failure(failure: RepairFailure) -> bytes:
    """Encode a failure; the ledger's id is in the key of the record."""
    fields = {
        "outcome": failure.outcome,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "failed_ms": failure.failed_ms,
    }
    return json_record.encode(_FAILURE_FORMAT, _VERSION, fields)


def decode_failure(ledger_id: int, data: bytes) -> RepairFailure:
    """Decode the failure of `ledger_id` in `data`.

    Raises:
        FormatError: `data` is not a failure, is damaged, or was written by a newer version.
    """
    fields = json_record.decode(_FAILURE_FORMAT, _VERSION, data)
    return RepairFailure(
        ledger_id,
        fields.text("outcome"),
        fields.text("reason"),
        fields.integer("attempts", minimum=1),
        fields.integer("failed_ms", minimum=0),
    )


@dataclass(frozen=True, slots=True)
class Departure:
    """A bookie whose copies must move to other bookies."""

    bookie_id: str
    since_ms: int
    """Time when it was decided that the copies must move, in ms by the clock of the process that
    decided it."""


def encode_departure(departure: Departure) -> bytes:
    """Encode a departure; the bookie's id is in the key of the record."""
    return json_record.encode(_DEPARTURE_FORMAT, _VERSION, {"since_ms": departure.since_ms})


def decode_departure(bookie_id: str, data: bytes) -> Departure:
    """Decode the departure of `bookie_id` in `data`.

    Raises:
        FormatError: `data` is not a departure, is damaged, or was written by a newer version.
    """
    fields = json_record.decode(_DEPARTURE_FORMAT, _VERSION, data)
    return Departure(bookie_id, fields.integer("since_ms", minimum=0))


@dataclass(frozen=True, slots=True)
class EndedRepair:
    """A repair of one ledger that has ended."""

    ledger_id: int
    outcome: str
    """See `RepairOutcome`; if there were several outcomes, the first failure, or else the first
    change."""
    entries: int
    """The number of copied entries; `packet_bytes` is the size of their packets."""
    packet_bytes: int
    seconds: float
    detail: str
    ended_ms: int
    """Time when the repair ended, in ms by the worker's clock."""


def encode_history(repairs: Iterable[EndedRepair]) -> bytes:
    """Encode a worker's last repairs, oldest first; the worker's name is in the record's key."""
    return json_record.encode(_HISTORY_FORMAT, _VERSION, {"repairs": [*map(asdict, repairs)]})


def decode_history(data: bytes) -> list[EndedRepair]:
    """Decode a worker's last repairs in `data`, oldest first.

    Raises:
        FormatError: `data` is not a history, is damaged, or was written by a newer version.
    """
    fields = json_record.decode(_HISTORY_FORMAT, _VERSION, data)
    return [
        EndedRepair(
            row.integer("ledger_id", minimum=0),
            row.text("outcome"),
            row.integer("entries", minimum=0),
            row.integer("packet_bytes", minimum=0),
            row.number("seconds"),
            row.text("detail"),
            row.integer("ended_ms", minimum=0, maximum=_LAST_MS),
        )
        for row in fields.objects("repairs")
    ]

"""Values inside wire messages: the requests to a bookie, and the bookie's replies.

Clients create requests and interpret replies. `wire` transports both. The node executes requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bookie.entry.batch import EntryBatch
from bookie.ids import NO_ENTRY, Status


class Reply(NamedTuple):
    """The outcome of a request; `message` is a sentence about an error, or empty with status OK.

    With TOO_MANY_REQUESTS, `retry_after_ms` is the pause before the client should retry; 0 means
    that the bookie names no pause.
    """

    status: Status
    message: str = ""
    retry_after_ms: int = 0


class AddCommand(NamedTuple):
    """One add request: entries, an explicit LAC, or both.

    `batch` is None if the request carries only an explicit LAC. The parser has checked the batch's
    bounds (ids, sizes), but not its checksum and packet headers.
    """

    batch: EntryBatch | None
    ledger_id: int
    master_key: bytes
    payload_crc32c: int
    recovery: bool = False
    deferred_sync: bool = False
    lac_packet: bytes = b""


class ReadCommand(NamedTuple):
    """A request to read the wanted ids in ``first_entry_id … last_entry_id`` (inclusive).

    A `first_entry_id` of -1 asks for the last stored entry. An id is wanted if `stripe_modulus` is
    0 or ``(id - stripe_first_residue) % stripe_modulus < stripe_count``. A limit of 0 means the
    server's limit.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    max_entries: int = 0
    max_bytes: int = 0
    fence: bool = False
    master_key: bytes = b""
    stripe_modulus: int = 0
    stripe_first_residue: int = 0
    stripe_count: int = 0


class ReadReply(NamedTuple):
    """The answer to a read: consecutive wanted entries, which end before the first missing entry.

    `next_entry_id` is the first wanted id that is not in `batch`. `stopped_by` is the reason why
    the batch ends there; OK means that a limit or the end of the range was reached. If `status` is
    an error, `batch` is None and the status concerns the first wanted id. `max_lac` is an
    unverified hint.
    """

    status: Status
    message: str = ""
    batch: EntryBatch | None = None
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK
    max_lac: int = NO_ENTRY
    retry_after_ms: int = 0
    """As in `Reply`."""


def refused_read(refusal: Reply) -> ReadReply:
    """Return the answer to a read that was refused."""
    return ReadReply(refusal.status, refusal.message, retry_after_ms=refusal.retry_after_ms)


@dataclass(frozen=True, slots=True)
class LacReply:
    """A bookie's knowledge of a ledger's end; a packet that the bookie does not have is empty."""

    status: Status
    message: str = ""
    last_entry: bytes = b""
    lac_packet: bytes = b""
    max_lac: int = NO_ENTRY
    fenced: bool = False
    retry_after_ms: int = 0
    """As in `Reply`."""


@dataclass(frozen=True, slots=True)
class LacState:
    """One update to a watcher: a ledger's highest known LAC, and whether the ledger is fenced."""

    ledger_id: int
    max_lac: int
    fenced: bool
    status: Status = Status.OK
    lac_packet: bytes = b""
    """The explicit LAC packet if `max_lac` comes from it, otherwise empty."""
    key_tag: bytes = b""
    """The tag of the ledger's key, which distinguishes ledgers that had the same id one after the
    other (`digest.key_tag`)."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One ledger as this bookie stores it; the counts are those of the last checkpoint."""

    ledger_id: int
    fenced: bool
    limbo: bool
    first_entry_id: int
    last_entry_id: int
    entries: int
    payload_bytes: int
    max_lac: int
    key_tag: bytes = b""
    """The tag of the stored ledger's key, which distinguishes it from other ledgers that had the
    same id (`digest.key_tag`)."""


@dataclass(frozen=True, slots=True)
class Info:
    """A bookie's description of itself; sizes are those of the device that stores the ledgers.

    `ledgers` is the number of ledgers in the index at the last checkpoint.
    """

    bookie_id: str
    instance_id: str
    version: str
    read_only: bool
    total_bytes: int
    free_bytes: int
    ledgers: int
    incarnation: str = ""
    now_ms: int = 0
    """The bookie's wall clock, in ms since 1970; 0 if the bookie does not report it."""

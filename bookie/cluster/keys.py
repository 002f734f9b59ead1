"""Where everything stands in the metadata store, relative to the cluster's scope.

=============================== ==================================================================
key                             value
=============================== ==================================================================
``LAYOUT``                      format of the keys: ``bookie-layout``
``INSTANCEID``                  the cluster's id, a UUID as text
``IDGEN/<bucket>``              the next ledger id that nobody has reserved, as decimal text
``cookies/<bookie>``            the cookie of a bookie
``available/readwrite/<bookie>`` leased: the registration of a bookie that takes new entries
``available/readonly/<bookie>`` leased: the registration of one that does not
``ledgers/<id as 19 digits>``   ledger metadata
=============================== ==================================================================

Source: BookKeeper's BP-28.
"""

from __future__ import annotations

from bookie.errors import BadRequestError, FormatError
from bookie.ids import MAX_ID, is_valid_bookie_id

LAYOUT = "/LAYOUT"
INSTANCE_ID = "/INSTANCEID"
ID_BUCKETS = "/IDGEN"
COOKIES = "/cookies"
AVAILABLE = "/available"
WRITABLE = "/available/readwrite"
READ_ONLY = "/available/readonly"
LEDGERS = "/ledgers"

_LEDGER_DIGITS = 19


def cookie(bookie_id: str) -> str:
    """The key of a bookie's cookie."""
    return f"{COOKIES}/{_checked(bookie_id)}"


def registration(bookie_id: str, *, read_only: bool) -> str:
    """The key under which a bookie is registered, as writable or as read-only."""
    return f"{READ_ONLY if read_only else WRITABLE}/{_checked(bookie_id)}"


def is_writable(key: str) -> bool:
    """Whether `key` registers a bookie as writable."""
    return key.startswith(WRITABLE + "/")


def ledger_name(ledger_id: int) -> str:
    """The last segment of a ledger's key; names sort as ids do."""
    # A float would pass, and leave a key behind that no listing gets over.
    if not isinstance(ledger_id, int) or not 0 <= ledger_id <= MAX_ID:
        raise BadRequestError(f"{ledger_id!r} is not a ledger id")
    return f"{ledger_id:0{_LEDGER_DIGITS}}"


def ledger(ledger_id: int) -> str:
    """The key of a ledger's metadata."""
    return f"{LEDGERS}/{ledger_name(ledger_id)}"


def ledger_id_of(name: str) -> int:
    """The ledger id of a name below `LEDGERS`.

    Raises:
        FormatError: it is none. A listing that skipped it would not be complete.
    """
    if len(name) != _LEDGER_DIGITS or not (name.isascii() and name.isdigit()):
        raise FormatError(f"the metadata key {LEDGERS}/{name} is not a ledger")
    ledger_id = int(name)
    if ledger_id > MAX_ID:
        raise FormatError(f"the metadata key {LEDGERS}/{name} is not a ledger")
    return ledger_id


def id_bucket(bucket: int) -> str:
    """The key of a counter of ledger ids."""
    return f"{ID_BUCKETS}/{bucket:03}"


def _checked(bookie_id: str) -> str:
    if not is_valid_bookie_id(bookie_id):
        raise BadRequestError(f"{bookie_id!r} is not a bookie id")
    return bookie_id

"""Every key of a cluster in the metadata store, relative to the cluster's scope.

=============================== ==================================================================
key                             value
=============================== ==================================================================
``LAYOUT``                      the layout of the ledgers' keys (`layout`)
``INSTANCEID``                  the cluster's id, a UUID as text
``REMOVAL``                     exists during the removal of the cluster: the identity, and
                                whether a record was deleted
``IDGEN/<bucket>``              the lowest ledger id that is not reserved, as decimal text
``cookies/<bookie>``            the cookie of a bookie; the parent record ``cookies`` orders the
                                decisions that a bookie's data is lost
``available/readwrite/<bookie>`` leased: the registration of a bookie that accepts new entries
``available/readonly/<bookie>`` leased: the registration of a bookie that refuses new entries
``ledgers/…``                   ledger metadata (`layout`)
``deleted/<day>/…``             proof that a ledger was deleted (`deletion_proofs`)
``logs/<name>/<log>/…``          a log of a namespace (`logs`): ``definition``;
                                ``partitions/<number>/head``, ``…/chunks/<number>`` and
                                ``…/cursors/<name>``, leased ``…/holders/<cursor>/…``;
                                ``transactions/<application>``
``groups/<group>/…``             consumers that share logs (`groups`): ``assignment``, and leased
                                ``members/<member>`` and ``leader/…``
``writers/<writer>``            leased: the host and process of a client that writes ledgers
                                (`writer_record`)
``underreplication/…``          ledgers that lack copies, and the workers that repair them
``config/settings/<s>.<key>``    the value of a cluster setting, spelled as in a flag; the parent
                                record ``config/settings`` orders the changes
``config/labels/<bookie>``       labels that an operator gave a bookie: ``rack=r1,zone=a``
``config/namespaces/<name>``    a namespace: the policy of its logs
``config/logs/<name>/<log>``    the policy of one log, if the log has a policy of its own
``security/roles``              the grants of roles (`role_grants`); only admins may write them
=============================== ==================================================================

Source: BookKeeper's BP-28.
"""

from __future__ import annotations

from bookie.errors import BadRequestError
from bookie.ids import is_valid_bookie_id

LAYOUT = "/LAYOUT"
INSTANCE_ID = "/INSTANCEID"
REMOVAL = "/REMOVAL"
ID_BUCKETS = "/IDGEN"
COOKIES = "/cookies"
AVAILABLE = "/available"
WRITABLE = "/available/readwrite"
READ_ONLY = "/available/readonly"
LEDGERS = "/ledgers"
DELETED = "/deleted"
LOGS = "/logs"
GROUPS = "/groups"
WRITERS = "/writers"
UNDERREPLICATION = "/underreplication"
MARKED_LEDGERS = "/underreplication/ledgers"
REPAIR_LOCKS = "/underreplication/locks"
REPAIR_FAILURES = "/underreplication/failures"
REPAIR_HISTORY = "/underreplication/history"
REPAIR_DISABLED = "/underreplication/disabled"
LOST_BOOKIES = "/underreplication/lost"
LEAVING_BOOKIES = "/underreplication/leaving"
AUDITOR = "/underreplication/auditor"
LOST_BOOKIE_DELAY = "/underreplication/lost_bookie_recovery_delay"
CHECKS = "/underreplication/checks"
SETTINGS = "/config/settings"
LABELS = "/config/labels"
NAMESPACES = "/config/namespaces"
LOG_POLICIES = "/config/logs"
ROLES = "/security/roles"

DAY_DIGITS = 6
"""The number of digits of the day in the keys of deletion proofs, ``deleted/<day>/…``."""

OWN = frozenset(
    {
        "LAYOUT",
        "INSTANCEID",
        "REMOVAL",
        "IDGEN",
        "cookies",
        "available",
        "ledgers",
        "deleted",
        "logs",
        "groups",
        "underreplication",
        "writers",
        "config",
        "security",
    }
)
"""The first segments of a cluster's keys; other keys in the scope do not belong to the cluster."""


def cookie(bookie_id: str) -> str:
    """Return the key of a bookie's cookie."""
    return f"{COOKIES}/{_checked(bookie_id)}"


def registration(bookie_id: str, *, read_only: bool) -> str:
    """Return the key under which a bookie is registered, as writable or as read-only."""
    return f"{READ_ONLY if read_only else WRITABLE}/{_checked(bookie_id)}"


def writer(writer_id: str) -> str:
    """Return the key of the leased record of a client that writes ledgers."""
    return f"{WRITERS}/{writer_id}"


def essential(key: str) -> str | None:
    """Describe the record of `key` if a cluster cannot work without it; else return None."""
    match key.split("/")[1:]:
        case ["INSTANCEID"]:
            return "the cluster's id"
        case ["LAYOUT"]:
            return "how the cluster's ledgers lie in the store"
        case ["REMOVAL"]:
            return "the identity of a cluster that is being removed"
        case ["IDGEN", _]:
            return "the ledger ids that are not taken yet"
        case ["cookies", bookie]:
            return f"the cookie of bookie {bookie}"
        case ["ledgers", *_]:
            return "the metadata of a ledger"
        case _:
            return None


def is_writable(key: str) -> bool:
    """True if `key` registers a bookie as writable."""
    return key.startswith(WRITABLE + "/")


def setting(name: str) -> str:
    """Return the key of the cluster setting called ``section.key``."""
    return f"{SETTINGS}/{name}"


def labels(bookie_id: str) -> str:
    """Return the key of the labels that an operator gave a bookie."""
    return f"{LABELS}/{_checked(bookie_id)}"


def deletions_of(day: int) -> str:
    """Return the parent key of the deletion proofs of one day; day 0 is 1970-01-01."""
    return f"{DELETED}/{day:0{DAY_DIGITS}}"


def id_bucket(bucket: int) -> str:
    """Return the key of a counter of ledger ids."""
    return f"{ID_BUCKETS}/{bucket:03}"


def _checked(bookie_id: str) -> str:
    if not is_valid_bookie_id(bookie_id):
        raise BadRequestError(f"{bookie_id!r} is not a bookie id")
    return bookie_id

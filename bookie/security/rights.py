"""The right that each call needs, and the rights that each role gives.

======== ========== ==================================================================
right    bit        permitted calls
======== ========== ==================================================================
ASK      1          read the state of the bookie itself; every role has this right
READ     2          read entries and LACs, list the entries of a ledger
WRITE    4          add new entries, write explicit LACs, sync
RECOVER  8          fence ledgers, send recovery adds
LIST     16         list all ledgers of a bookie
CHANGE   32         control a bookie: read-only, garbage, compaction, check, scrub
======== ========== ==================================================================

A bookie refuses a call that is in neither `RPC_RIGHTS` nor `HTTP_RIGHTS`. A test compares both
tables with the services.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Right(enum.IntEnum):
    """One right; its value is one bit, and the sum of several bits is a set of rights."""

    ASK = 1
    READ = 2
    WRITE = 4
    RECOVER = 8
    LIST = 16
    CHANGE = 32


class Role(enum.Enum):
    """A role, which an operator grants to a principal; `ROLE_RIGHTS` maps roles to rights."""

    READER = "reader"
    WRITER = "writer"
    RECOVERER = "recoverer"
    REPAIRER = "repairer"
    ADMIN = "admin"


NO_RIGHTS: Final = 0
ALL_RIGHTS: Final = 63

ROLE_RIGHTS: Final[Mapping[Role, int]] = MappingProxyType(
    {
        Role.READER: Right.ASK | Right.READ,
        Role.WRITER: Right.ASK | Right.READ | Right.WRITE,
        Role.RECOVERER: Right.ASK | Right.READ | Right.RECOVER,
        Role.REPAIRER: Right.ASK | Right.READ | Right.RECOVER | Right.LIST,
        Role.ADMIN: ALL_RIGHTS,
    }
)
"""The rights of each role, weakest role first; a refusal names the first role with the right."""


class RpcRights(NamedTuple):
    """The right that an ordinary call needs, and the right that a call of a recovery needs."""

    plain: Right
    flagged: Right | None = None
    """The right for a recovery add, and for a read that first fences the ledger."""


RPC_RIGHTS: Final[Mapping[str, RpcRights]] = MappingProxyType(
    {
        "AddStream": RpcRights(Right.WRITE, Right.RECOVER),
        "Read": RpcRights(Right.READ, Right.RECOVER),
        "ReadStream": RpcRights(Right.READ, Right.RECOVER),
        "ReadLac": RpcRights(Right.READ),
        "Fence": RpcRights(Right.RECOVER),
        "WatchLac": RpcRights(Right.READ),
        "Force": RpcRights(Right.WRITE),
        "WriteLac": RpcRights(Right.WRITE),
        "ListEntries": RpcRights(Right.READ),
        "ListLedgers": RpcRights(Right.LIST),
        "GetInfo": RpcRights(Right.ASK),
    }
)
"""Every method of the service ``bookie.v1.Bookie``."""

HTTP_RIGHTS: Final[Mapping[tuple[str, str], Right]] = MappingProxyType(
    {
        ("GET", "/metrics"): Right.ASK,
        ("GET", "/healthz"): Right.ASK,
        ("GET", "/readyz"): Right.ASK,
        ("GET", "/bookie"): Right.ASK,
        ("GET", "/check"): Right.ASK,
        ("GET", "/scrub"): Right.ASK,
        ("PUT", "/read-only"): Right.CHANGE,
        ("PUT", "/garbage"): Right.CHANGE,
        ("PUT", "/compaction"): Right.CHANGE,
        ("PUT", "/check"): Right.CHANGE,
        ("PUT", "/scrub"): Right.CHANGE,
    }
)
"""Every method and path of a bookie's HTTP server. Paths in `http.open_paths` need no right."""


def least_role(right: Right) -> Role:
    """Return the weakest role that gives `right`."""
    return next(role for role, rights in ROLE_RIGHTS.items() if rights & right)

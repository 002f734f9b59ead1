"""Which right each call needs, and which rights each role gives.

======== ========== ==================================================================
right    bit        what it permits
======== ========== ==================================================================
ASK      1          what a bookie says of itself; every role gives it
READ     2          entries, LACs and lists of entries
WRITE    4          new entries, explicit LACs and syncs
RECOVER  8          fences, and recovery adds: they write a ledger as a recovery does
LIST     16         the list of all ledgers of a bookie
CHANGE   32         commands that change a bookie: read-only, garbage, compaction
======== ========== ==================================================================

`RPC_RIGHTS` and `HTTP_RIGHTS` are complete: a call without a row is refused, and a test compares
both tables with the services.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Right(enum.IntEnum):
    """One right; values are bits, so a set of rights is a number."""

    ASK = 1
    READ = 2
    WRITE = 4
    RECOVER = 8
    LIST = 16
    CHANGE = 32


class Role(enum.Enum):
    """What an operator gives to a name; `ROLE_RIGHTS` says what it permits."""

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
"""Roles by growing power; a refusal names the first one that would do."""


class RpcRights(NamedTuple):
    """The right that a call needs, and the one that it needs if it asks for more."""

    plain: Right
    flagged: Right | None = None
    """For an add of a recovery, and for a read that fences first."""


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

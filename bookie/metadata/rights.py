"""Rights in a cluster's metadata: who may write which keys. All kinds of processes read all keys.

There are four kinds of processes. One table says which kind writes which part of the scope. etcd's
roles and ZooKeeper's access control lists both come from this table:

====================== ==================================== ========================================
part                   writers, beside admins               what for
====================== ==================================== ========================================
``/IDGEN``             writers                              ids of new ledgers
``/ledgers``           writers, bookies                     new ledgers; recovery, repair, deletion
``/deleted``           writers, bookies                     proofs of deletions
``/writers``           writers, bookies                     records of living writers; the auditor
                                                            recovers no ledger of a living writer
``/logs``, ``/groups`` writers                              logs, cursors, groups of consumers
``/config/logs``       writers                              the policy of one log
``/available``         bookies                              registrations
``/cookies``           bookies                              the identity of a bookie
``/underreplication``  bookies                              marks and locks of repairs, the auditor
everything else        nobody                               identity, settings, namespaces, security
====================== ==================================== ========================================
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from bookie.metadata.model import ROOT, Acl, is_under


class Kind(enum.StrEnum):
    """A kind of process; each kind has its own rights."""

    READER = "reader"
    """Reads logs and ledgers."""
    WRITER = "writer"
    """Creates, writes and deletes logs and ledgers; consumes in groups."""
    BOOKIE = "bookie"
    """Runs a bookie, and repairs ledgers."""
    ADMIN = "admin"
    """May do everything; the commands of an operator run as this kind."""


_BOTH = frozenset({Kind.WRITER, Kind.BOOKIE})
_WRITER = frozenset({Kind.WRITER})
_BOOKIE = frozenset({Kind.BOOKIE})

PARTS: Mapping[str, frozenset[Kind]] = {
    "/IDGEN": _WRITER,
    "/available": _BOOKIE,
    "/config": frozenset(),
    "/config/logs": _WRITER,
    "/cookies": _BOOKIE,
    "/deleted": _BOTH,
    "/groups": _WRITER,
    "/ledgers": _BOTH,
    "/logs": _WRITER,
    "/security": frozenset(),
    "/underreplication": _BOOKIE,
    "/writers": _BOTH,
}
"""Part → the kinds that may write its keys, beside admins. Only admins write other keys."""

ELSEWHERE = ""
"""The name of the part that contains all keys outside of the other parts."""


_READ = frozenset({"read"})
_MARK = frozenset({"read", "write"})
_WRITE = frozenset({"read", "write", "create", "delete"})
_ALL = _WRITE | {"admin"}


def part_of(key: str) -> str:
    """Return the part of the table to which `key` belongs; `ELSEWHERE` if it belongs to none."""
    if key == ROOT:
        return ROOT
    return max((part for part in PARTS if is_under(part, key)), key=len, default=ELSEWHERE)


def permissions_of(kind: Kind, part: str) -> frozenset[str]:
    """Return the permissions of a kind of process for the nodes of a part.

    The part `ROOT` is the scope's own node. Every process that may write anything may also write
    this node, because it marks internal operations there
    (:mod:`bookie.metadata.zookeeper.changes`). But only admins create and delete nodes directly
    below the scope.
    """
    if kind is Kind.ADMIN:
        return _ALL
    if part == ROOT:
        return _READ if kind is Kind.READER else _MARK
    return _WRITE if kind in PARTS.get(part, ()) else _READ


# ---- etcd


class EtcdGrant(NamedTuple):
    """The right to read, or to read and write, all keys from `first` to `end` (exclusive)."""

    writes: bool
    first: str
    end: str


def etcd_grants(scope: str, kind: Kind) -> list[EtcdGrant]:
    """Return the rights that the etcd role of this kind needs, in a scope like ``/bookies``.

    For each write, the store also writes internal keys, which sort between ``/bookies/`` and
    ``/bookies/!``. So writers and bookies need the right to this range, too.
    """
    everything = EtcdGrant(kind is Kind.ADMIN, f"{scope}/", f"{scope}0")
    if kind in (Kind.ADMIN, Kind.READER):
        return [everything]
    own = [part for part, kinds in PARTS.items() if kind in kinds]
    return [
        everything,
        EtcdGrant(True, f"{scope}/", f"{scope}/!"),
        *(EtcdGrant(True, scope + part, f"{scope}{part}0") for part in own),
    ]


def etcd_role(scope: str, kind: Kind) -> str:
    """Return the name of the etcd role of a kind in a scope, such as ``bookies-reader``."""
    return f"{scope.strip('/').replace('/', '-')}-{kind}"


def etcd_commands(scope: str, kind: Kind) -> list[str]:
    """Return the shell commands that create the etcd role of a kind in a scope."""
    role = etcd_role(scope, kind)
    return [
        shlex.join(["etcdctl", "role", "add", role]),
        *(
            shlex.join(
                [
                    *("etcdctl", "role", "grant-permission", role),
                    "readwrite" if grant.writes else "read",
                    *(grant.first, grant.end),
                ]
            )
            for grant in etcd_grants(scope, kind)
        ),
    ]


# ---- ZooKeeper

Users: TypeAlias = Mapping[Kind, Sequence[str]]
"""The users of each kind, as ZooKeeper names them: ``sasl:ann``, ``x509:CN=b1``, ``world:anyone``.
"""


def zookeeper_acl(part: str, users: Users) -> list[Acl]:
    """Return the access control list of the nodes of a part; see `permissions_of`."""
    may: dict[tuple[str, str], frozenset[str]] = {}
    for kind in Kind:
        permissions = permissions_of(kind, part)
        for user in users.get(kind, ()):
            scheme, _, name = user.partition(":")
            may[scheme, name] = may.get((scheme, name), frozenset()) | permissions
    return [Acl(scheme, name, permissions) for (scheme, name), permissions in may.items()]


def rights_table(kinds: Sequence[Kind]) -> list[dict[str, str]]:
    """Return the permissions of each kind for each part, as initials: ``cdrwa``.

    The letters mean create, delete, read, write and admin.
    """
    names = {ROOT: "the scope itself", ELSEWHERE: "everything else"}
    return [
        {
            "part": names.get(part, part),
            **{
                str(kind): "".join(
                    letter[0]
                    for letter in ("create", "delete", "read", "write", "admin")
                    if letter in permissions_of(kind, part)
                )
                for kind in kinds
            },
        }
        for part in (ROOT, *PARTS, ELSEWHERE)
    ]

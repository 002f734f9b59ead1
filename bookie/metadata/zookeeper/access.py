"""Access control lists of records, to and from the form of ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable

from bookie.errors import BadRequestError
from bookie.metadata.model import Acl
from bookie.metadata.zookeeper.requests import ACL, Id

_PERMISSIONS = {"read": 1, "write": 2, "create": 4, "delete": 8, "admin": 16}


def to_node_acl(acl: Iterable[Acl]) -> list[ACL]:
    """Access control for ZooKeeper.

    Raises:
        BadRequestError: the list is empty.
    """
    found = [
        ACL(sum(_PERMISSIONS[name] for name in one.permissions), Id(one.scheme, one.id))
        for one in acl
    ]
    if not found:
        raise BadRequestError("an empty access control list locks everybody out; name a user")
    return found


def from_node_acl(acl: Iterable[ACL]) -> list[Acl]:
    """Access control from ZooKeeper."""
    return [
        Acl(
            one.id.scheme,
            one.id.id or "",
            frozenset(name for name, bit in _PERMISSIONS.items() if one.perms & bit),
        )
        for one in acl
    ]

"""The grants of a cluster: each grant gives one role to one principal.

A grant applies to all ledgers, to a range of ledger ids, or to the ledgers of some logs. A name
that ends in ``*`` matches all names with the same beginning. A principal has the union of the
rights of its grants. A principal without a grant has no rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.security.rights import NO_RIGHTS, ROLE_RIGHTS, Right, Role

ANONYMOUS: Final = "anonymous"
"""The principal of a caller without a token whose certificate is missing or matches no rule."""

NAME_LENGTH_MAX: Final = 256
"""The most characters of a principal's name."""

GRANTS_MAX: Final = 4096
"""The most grants of a cluster; a bookie reads all grants for each new caller."""


@dataclass(frozen=True, slots=True)
class GrantScope:
    """The ledgers to which a grant applies; by default all ledgers."""

    first_ledger_id: int = 0
    last_ledger_id: int = MAX_ID
    """The last ledger id of the range; the range includes this id."""
    log: str = ""
    """A log as ``<namespace>/<name>``, which may end in ``*``; if empty, only the ids decide."""

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    def holds_ids_of(self, ledger_id: int) -> bool:
        return self.first_ledger_id <= ledger_id <= self.last_ledger_id

    def holds_log(self, log: str) -> bool:
        """True if the grant applies to ledgers of `log`; `log` is empty for ledgers of no log."""
        return not self.log or (bool(log) and matches(self.log, log))

    def __str__(self) -> str:
        if self.log:
            return f"log {self.log}"
        if self.is_everything:
            return "everything"
        return f"ledgers {self.first_ledger_id}-{self.last_ledger_id}"


EVERYTHING: Final = GrantScope()


@dataclass(frozen=True, slots=True)
class Grant:
    """One role of one principal, for the ledgers of `scope`.

    Raises:
        BadRequestError: the principal's name, the range or the log is malformed.
    """

    principal: str
    role: Role
    scope: GrantScope = EVERYTHING

    def __post_init__(self) -> None:
        name, scope = self.principal, self.scope
        if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise BadRequestError(
                f"a principal's name has 1 to {NAME_LENGTH_MAX} printable characters"
            )
        if "*" in name[:-1] or "*" in scope.log[:-1]:
            raise BadRequestError("a * may only be the last character of a name")
        if not 0 <= scope.first_ledger_id <= scope.last_ledger_id <= MAX_ID:
            raise BadRequestError("a range of ledgers is FIRST-LAST, with FIRST not above LAST")
        if len(scope.log) > NAME_LENGTH_MAX or not scope.log.isprintable():
            raise BadRequestError(
                f"the name of a log has at most {NAME_LENGTH_MAX} printable characters"
            )
        if scope.log and "/" not in scope.log:
            raise BadRequestError(
                f"a log is <namespace>/<name>, and {scope.log!r} has no namespace"
            )

    @property
    def rights(self) -> int:
        return ROLE_RIGHTS[self.role]


class Grants:
    """A snapshot of all grants of a cluster."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.all = tuple(grants)

    def of(self, principal: str) -> tuple[Grant, ...]:
        """Return the grants whose name matches `principal`.

        A name that ends in ``*`` never matches the principal `ANONYMOUS`.
        """
        return tuple(
            one
            for one in self.all
            if one.principal == principal
            or (principal != ANONYMOUS and matches(one.principal, principal))
        )


UNLIMITED: Final = Grants((Grant("*", Role.ADMIN), Grant(ANONYMOUS, Role.ADMIN)))
"""The grants of a bookie that requires no roles: every principal has all rights."""


def everywhere(grants: Iterable[Grant]) -> int:
    """Return the rights that `grants` give for every ledger; any grant gives ASK."""
    rights = NO_RIGHTS
    for one in grants:
        rights |= one.rights if one.scope.is_everything else Right.ASK
    return rights


def matches(pattern: str, name: str) -> bool:
    """True if `name` equals `pattern`; if `pattern` ends in ``*``, a prefix of `name` suffices."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

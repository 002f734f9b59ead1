"""Who has which role, and where: the grants of a cluster.

A grant gives one role to a principal: everywhere, for a range of ledger ids, or for some logs. A
name that ends in ``*`` stands for all names with that beginning. A principal has the rights of all
its grants together. A principal without a grant has no rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.security.rights import NO_RIGHTS, ROLE_RIGHTS, Right, Role

ANONYMOUS: Final = "anonymous"
"""The principal that showed neither a certificate nor a token."""

NAME_LENGTH_MAX: Final = 256
"""The most characters of a principal's name."""

GRANTS_MAX: Final = 4096
"""The most grants of a cluster: bookies look through them for each new caller."""


@dataclass(frozen=True, slots=True)
class GrantScope:
    """The ledgers for which a grant holds; by default all."""

    first_ledger_id: int = 0
    last_ledger_id: int = MAX_ID
    """Inclusive."""
    log: str = ""
    """A log as ``<namespace>/<name>``; with ``*`` at its end, all that begin so. Empty: any."""

    @property
    def is_everything(self) -> bool:
        """True if the grant holds for every ledger."""
        return self == EVERYTHING

    def holds_ids_of(self, ledger_id: int) -> bool:
        """True if `ledger_id` is in the range."""
        return self.first_ledger_id <= ledger_id <= self.last_ledger_id

    def holds_log(self, log: str) -> bool:
        """True if the ledgers of `log` are meant; `log` is empty if a ledger is of no log."""
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
    """One role of one principal.

    Raises:
        BadRequestError: the name, the range or the log is not one; one sentence says why.
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
        """The rights that the role gives, as bits."""
        return ROLE_RIGHTS[self.role]


class Grants:
    """All grants of a cluster, at one moment."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.all = tuple(grants)

    def of(self, principal: str) -> tuple[Grant, ...]:
        """Return the grants that a principal has.

        A ``*`` alone stands for every principal but the anonymous one, which has to be named.
        """
        return tuple(
            one
            for one in self.all
            if one.principal == principal
            or (principal != ANONYMOUS and matches(one.principal, principal))
        )


UNLIMITED: Final = Grants((Grant("*", Role.ADMIN), Grant(ANONYMOUS, Role.ADMIN)))
"""Everybody may do everything: for a bookie that asks for no roles."""


def everywhere(grants: Iterable[Grant]) -> int:
    """Return the rights that do not depend on the ledger."""
    rights = NO_RIGHTS
    for one in grants:
        rights |= one.rights if one.scope.is_everything else Right.ASK
    return rights


def matches(pattern: str, name: str) -> bool:
    """True if `name` is `pattern`, or begins as a `pattern` that ends in ``*``."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

"""Determines the principal and the permissions of a caller, at the beginning of each call.

A caller shows a certificate, a token, both or neither. The name in the token or certificate is the
*principal*, to which an operator grants roles. If a caller shows both, the token's name is used,
because several processes may share a certificate. If the token is refused, the call is refused even
with a valid certificate, and the error gives the reason.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie.env import Clock
from bookie.errors import ConfigurationError, NotPermittedError
from bookie.security.audit import AuditLog
from bookie.security.grants import ANONYMOUS, NAME_LENGTH_MAX, UNLIMITED, Grants
from bookie.security.identity import PeerIdentity
from bookie.security.permissions import LedgerLogs, Permissions, refusal
from bookie.security.rights import Right
from bookie.security.tokens import TokenVerifier

PRINCIPALS_MAX: Final = 4096
"""The largest number of principals whose access decisions are remembered."""

_BEARER: Final = "bearer "


class PrincipalRules:
    """The rules that map a certificate to a principal's name; the first matching rule decides.

    Args:
        rules: ``cn:REGEX`` for the common name, ``san:REGEX`` for any alternative name. The
            expression must match the whole name. The principal is the text of the expression's
            first group; without a group, the principal is the whole name.

    Raises:
        ConfigurationError: a rule is malformed.
    """

    def __init__(self, rules: Iterable[str]) -> None:
        self._rules: list[tuple[str, re.Pattern[str]]] = []
        for rule in rules:
            kind, _, expression = rule.partition(":")
            try:
                if kind not in ("cn", "san"):
                    raise ValueError("it begins with cn: or san:")
                self._rules.append((kind, re.compile(expression)))
            except (re.error, ValueError) as error:
                raise ConfigurationError(f"{rule!r} is no rule for names: {error}") from error

    def principal(self, identity: PeerIdentity) -> str:
        """Return the name of the principal; `ANONYMOUS` if no rule matches."""
        for kind, expression in self._rules:
            for text in (identity.common_name,) if kind == "cn" else identity.names:
                found = expression.fullmatch(text)
                name = found and found[1 if expression.groups else 0]
                if name and len(name) <= NAME_LENGTH_MAX and name.isprintable():
                    return name
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: its permissions and its address."""

    permissions: Permissions
    address: str
    audit: AuditLog
    expires_seconds: float | None = None
    """The time at which the caller's token expires, in seconds since 1970; None without a token."""

    @property
    def principal(self) -> str:
        """The caller's name, to which an operator grants roles."""
        return self.permissions.principal

    def decide(self, right: Right, ledger_id: int) -> bool | None:
        return self.permissions.decide(right, ledger_id)

    def refuse(self, what: str, right: Right, ledger_id: int | None = None) -> NotPermittedError:
        """Write a refused call to the audit log, and return the error for the caller."""
        self.audit.refused(self.principal, self.address, what, ledger_id, right.name.lower())
        return refusal(self.principal, right, of_ledger=ledger_id is not None)

    async def require(self, what: str, right: Right, ledger_id: int) -> None:
        """Check that the caller has `right` for a ledger.

        Raises:
            NotPermittedError: the caller does not have the right.
            MetadataError: the metadata store did not return the log to which the ledger belongs.
        """
        if not await self.permissions.may(right, ledger_id):
            raise self.refuse(what, right, ledger_id)

    def require_everywhere(self, what: str, right: Right) -> None:
        """Check that the caller has `right` for every ledger; for ASK any grant is enough.

        Raises:
            NotPermittedError: the caller does not have the right.
        """
        if not self.permissions.decide_everywhere(right):
            raise self.refuse(what, right)

    def did(self, what: str, ledger_id: int | None = None, *, always: bool = False) -> None:
        """Write a destructive call to the audit log; with `always`, even above the log's limits."""
        self.audit.did(self.principal, self.address, what, ledger_id, always=always)


class Gatekeeper:
    """Determines the caller of each request; gRPC and HTTP share one gatekeeper.

    Args:
        rules: map certificates to principals.
        logs: gives the log to which a ledger belongs.
        clock: gives the time that decides if a token has expired.
        audit: records refused calls and destructive calls.
        is_required: False if every caller has all rights.
    """

    def __init__(
        self,
        rules: PrincipalRules,
        logs: LedgerLogs,
        clock: Clock,
        audit: AuditLog,
        *,
        is_required: bool = True,
    ) -> None:
        self._rules = rules
        self._logs = logs
        self._clock = clock
        self._audit = audit
        self._tokens: TokenVerifier | None = None
        self._is_required = is_required
        self._grants = Grants() if is_required else UNLIMITED
        self._permissions: OrderedDict[str, Permissions] = OrderedDict()

    @property
    def is_required(self) -> bool:
        return self._is_required

    @property
    def logs(self) -> LedgerLogs:
        """The directory that gives the log to which a ledger belongs."""
        return self._logs

    def take(self, grants: Grants) -> None:
        """Replace the grants; calls that have begun also use the new grants."""
        if self._is_required:
            self._grants = grants

    def take_tokens(self, tokens: TokenVerifier) -> None:
        """Accept tokens that `tokens` verifies; before this call, a bookie accepts no tokens."""
        self._tokens = tokens

    def caller(self, identity: PeerIdentity | None, authorization: str, address: str) -> Caller:
        """Return the caller, determined from its token or its certificate.

        Args:
            identity: the names in the peer's certificate; None without a certificate.
            authorization: the value of the header ``Authorization``; empty without the header.
            address: the caller's address, for the audit log.

        Raises:
            NotPermittedError: the token is invalid, or the bookie requires roles and accepts no
                tokens.
        """
        if authorization:
            if self._tokens is not None:
                return self._bearer(authorization, address)
            if self._is_required:
                self._audit.refused(ANONYMOUS, address, "token", None, "none are taken")
                raise NotPermittedError(
                    "this bookie takes no tokens: security.token_keys_file is not set"
                )
        principal = ANONYMOUS if identity is None else self._rules.principal(identity)
        return Caller(self._permissions_of(principal), address, self._audit)

    def _bearer(self, authorization: str, address: str) -> Caller:
        assert self._tokens is not None
        try:
            if not authorization[: len(_BEARER)].lower() == _BEARER:
                raise ValueError("the header Authorization is not Bearer TOKEN")
            token = self._tokens.verify(
                authorization[len(_BEARER) :].strip(), self._clock.now_ms() / 1000
            )
        except ValueError as error:
            self._audit.refused(ANONYMOUS, address, "token", None, str(error))
            raise NotPermittedError(str(error)) from None
        found = self._permissions_of(token.subject)
        return Caller(found, address, self._audit, token.expires_seconds)

    def _permissions_of(self, principal: str) -> Permissions:
        found = self._permissions.get(principal)
        if found is None:
            found = Permissions(principal, lambda: self._grants, self._logs)
            self._permissions[principal] = found
            if len(self._permissions) > PRINCIPALS_MAX:
                self._permissions.popitem(last=False)
        else:
            self._permissions.move_to_end(principal)
        return found

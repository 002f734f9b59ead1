"""Who a caller is, and with which permissions: decided at the beginning of each call.

A caller shows a certificate, a token, both or neither. A token counts more than a certificate,
because a process may share its certificate with others. The name in either is the *principal*, to
which an operator grants roles. If a token is refused, the certificate does not replace it, and the
caller learns why.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from bookie.env import Clock
from bookie.errors import ConfigurationError, NotPermittedError
from bookie.security.audit import AuditLog
from bookie.security.grants import ANONYMOUS, NAME_LENGTH_MAX, UNLIMITED, Grants
from bookie.security.identity import PeerIdentity
from bookie.security.permissions import LedgerLogs, Permissions, refusal
from bookie.security.rights import Right

PRINCIPALS_MAX: Final = 4096
"""The most principals whose decisions are remembered."""

_BEARER: Final = "bearer "


class VerifiedToken(Protocol):
    """What a token proves."""

    @property
    def subject(self) -> str:
        """The principal's name."""

    @property
    def expires_seconds(self) -> float:
        """The end of its life, in seconds since 1970."""


class TokenVerification(Protocol):
    """The check of tokens."""

    def verify(self, token: str, now_seconds: float, /) -> VerifiedToken:
        """Return what the token proves; raise ValueError with one sentence if it proves nothing."""


class PrincipalRules:
    """The rules by which a certificate becomes a name; the first that fits decides.

    Args:
        rules: ``cn:REGEX`` for the common name, ``san:REGEX`` for any alternative name. The
            expression must fit the whole text; its first group, if it has one, is the principal.

    Raises:
        ConfigurationError: one is not a rule.
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
        """Return the name; `ANONYMOUS` if no rule fits."""
        for kind, expression in self._rules:
            for text in (identity.common_name,) if kind == "cn" else identity.names:
                found = expression.fullmatch(text)
                name = found and found[1 if expression.groups else 0]
                if name and len(name) <= NAME_LENGTH_MAX and name.isprintable():
                    return name
        return ANONYMOUS


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, from where, and what he may do."""

    permissions: Permissions
    address: str
    audit: AuditLog
    expires_seconds: float | None = None
    """When his token ends, in seconds since 1970; None without a token."""

    @property
    def principal(self) -> str:
        """His name, to which roles are granted."""
        return self.permissions.principal

    def decide(self, right: Right, ledger_id: int) -> bool | None:
        """Return `Permissions.decide`."""
        return self.permissions.decide(right, ledger_id)

    def refuse(self, what: str, right: Right, ledger_id: int | None = None) -> NotPermittedError:
        """Note a refused call in the audit log, and return the error that answers it."""
        self.audit.refused(self.principal, self.address, what, ledger_id, right.name.lower())
        return refusal(self.principal, right, of_ledger=ledger_id is not None)

    async def require(self, what: str, right: Right, ledger_id: int) -> None:
        """Check that `right` is given for a ledger.

        Raises:
            NotPermittedError: it is not.
            MetadataError: the store does not tell of which log the ledger is.
        """
        if not await self.permissions.may(right, ledger_id):
            raise self.refuse(what, right, ledger_id)

    def require_everywhere(self, what: str, right: Right) -> None:
        """Check that `right` is given for every ledger; for ASK any grant is enough.

        Raises:
            NotPermittedError: it is not.
        """
        if not self.permissions.decide_everywhere(right):
            raise self.refuse(what, right)

    def did(self, what: str, ledger_id: int | None = None, *, always: bool = False) -> None:
        """Note something destructive in the audit log; with `always` also in a flood."""
        self.audit.did(self.principal, self.address, what, ledger_id, always=always)


class Gatekeeper:
    """Finds out who calls. One of them serves gRPC and HTTP.

    Args:
        rules: how a certificate becomes a name.
        logs: of which log each ledger is.
        clock: for the end of tokens.
        audit: notes what is refused and what is destructive.
        is_required: False if everybody may do everything.
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
        self._tokens: TokenVerification | None = None
        self._is_required = is_required
        self._grants = Grants() if is_required else UNLIMITED
        self._permissions: OrderedDict[str, Permissions] = OrderedDict()

    @property
    def is_required(self) -> bool:
        """True if callers need roles."""
        return self._is_required

    @property
    def logs(self) -> LedgerLogs:
        """Of which log each ledger is."""
        return self._logs

    def take(self, grants: Grants) -> None:
        """Use other grants from now on, also in calls that have begun."""
        if self._is_required:
            self._grants = grants

    def take_tokens(self, tokens: TokenVerification) -> None:
        """Take tokens from now on; without this call, a bookie takes none."""
        self._tokens = tokens

    def caller(self, identity: PeerIdentity | None, authorization: str, address: str) -> Caller:
        """Return who calls.

        Args:
            identity: what the peer's certificate says; None without one.
            authorization: the header ``Authorization``; empty without one.
            address: from where, for the audit log.

        Raises:
            NotPermittedError: the token proves nothing.
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

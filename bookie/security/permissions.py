"""What one principal may do, decided for each request from memory.

Most decisions need no more than the ledger's id. If a grant is limited to logs, the bookie first
has to know the log of the ledger. `Permissions.decide` then answers None, and `learn` looks it up
in the metadata store. Decisions are remembered until the grants change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from bookie.env import Clock
from bookie.errors import NotPermittedError
from bookie.security.grants import Grant, Grants, everywhere
from bookie.security.rights import Right, least_role

FindLog: TypeAlias = Callable[[int], Awaitable[str | None]]
"""Returns the log of a ledger as ``<namespace>/<name>``: empty if it is of no log, None if there is
no such ledger.
"""

KNOWN_LOGS_MAX: Final = 65536
"""The most ledgers whose log is remembered."""

KNOWN_LEDGERS_MAX: Final = 65536
"""The most decisions that are remembered for a principal."""

ABSENT_SECONDS: Final = 1.0
"""A ledger that the store did not have is looked up again after so long."""


class LedgerLogs:
    """Of which log each ledger is, as the metadata store says; remembered."""

    def __init__(self, find: FindLog, clock: Clock) -> None:
        self._find = find
        self._clock = clock
        self._known: OrderedDict[int, tuple[str | None, float]] = OrderedDict()

    def known(self, ledger_id: int) -> tuple[str | None] | None:
        """Return the log in a tuple, with None for an absent ledger; None if it must be learnt."""
        found = self._known.get(ledger_id)
        if found is None or found[1] < self._clock.monotonic():
            return None
        return (found[0],)

    async def learn(self, ledger_id: int) -> None:
        """Look a ledger up in the metadata store.

        Raises:
            MetadataError: the store does not answer, or its record is damaged.
        """
        log = await self._find(ledger_id)
        lasts = ABSENT_SECONDS if log is None else float("inf")
        self._known[ledger_id] = (log, self._clock.monotonic() + lasts)
        self._known.move_to_end(ledger_id)
        while len(self._known) > KNOWN_LOGS_MAX:
            self._known.popitem(last=False)


class Permissions:
    """The rights of one principal under the present grants.

    Args:
        principal: its name, for refusals.
        current: returns the grants as they are now.
        logs: of which log each ledger is.
    """

    def __init__(self, principal: str, current: Callable[[], Grants], logs: LedgerLogs) -> None:
        self.principal = principal
        self._current = current
        self._logs = logs
        self._grants = Grants()
        self._own: tuple[Grant, ...] = ()
        self._everywhere = 0
        self._known: dict[int, int] = {}
        """Ledger id → rights."""

    def decide(self, right: Right, ledger_id: int) -> bool | None:
        """Return True if `right` is given for this ledger; None if its log must be learnt first."""
        if self._current() is not self._grants:
            self._renew()
        if self._everywhere & right:
            return True
        rights = self._known.get(ledger_id)
        if rights is None:
            rights = self._rights_for(ledger_id)
            if rights is None:
                return None
        return bool(rights & right)

    def decide_everywhere(self, right: Right) -> bool:
        """True if `right` is given without a limit; for ASK every grant is enough."""
        if self._current() is not self._grants:
            self._renew()
        return bool(self._everywhere & right)

    async def learn(self, ledger_id: int) -> None:
        """Look up what `decide` lacks.

        Raises:
            MetadataError: the store does not answer, or its record is damaged.
        """
        await self._logs.learn(ledger_id)

    async def may(self, right: Right, ledger_id: int) -> bool:
        """Return the decision, after a look into the store if it is needed; see `decide`."""
        decided = self.decide(right, ledger_id)
        if decided is None:
            await self._logs.learn(ledger_id)
            decided = self.decide(right, ledger_id)
        return bool(decided)

    def _renew(self) -> None:
        self._grants = self._current()
        self._own = self._grants.of(self.principal)
        self._everywhere = everywhere(self._own)
        self._known.clear()

    def _rights_for(self, ledger_id: int) -> int | None:
        rights, is_known = self._everywhere, True
        log: str | None = None
        of_logs = [one for one in self._own if one.scope.log]
        if any(one.scope.holds_ids_of(ledger_id) for one in of_logs):
            known = self._logs.known(ledger_id)
            if known is None:
                return None
            log = known[0]
            is_known = log is not None
        for one in self._own:
            if one.scope.holds_ids_of(ledger_id) and one.scope.holds_log(log or ""):
                rights |= one.rights
        if is_known:
            if len(self._known) >= KNOWN_LEDGERS_MAX:
                self._known.clear()
            self._known[ledger_id] = rights
        return rights


def refusal(principal: str, right: Right, *, of_ledger: bool) -> NotPermittedError:
    """Return the error for a request that `principal` may not make.

    The sentence names what is missing, and never what exists.
    """
    role = least_role(right).value
    where = " for this ledger" if of_ledger else ""
    return NotPermittedError(f"{principal} lacks the role {role}{where}")

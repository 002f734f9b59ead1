"""What one principal may do, decided for each request from memory.

Most decisions need no more than the ledger's id. If a grant is limited to logs, the bookie first
has to know the log of the ledger. `Permissions.decide` then answers None, and `may` looks it up in
the metadata store. Decisions are remembered until the grants change.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from bookie.errors import BookieError, MetadataUnavailableError, NotPermittedError
from bookie.security.grants import Grant, Grants, everywhere
from bookie.security.rates import LogDirectory
from bookie.security.rights import Right, least_role

FindLog: TypeAlias = Callable[[int], Awaitable[str | None]]
"""Returns the log of a ledger as ``<namespace>/<name>``: empty if it is of no log, None if there is
no such ledger.
"""

KNOWN_LOGS_MAX: Final = 65536
"""The most ledgers whose log is remembered."""

KNOWN_LEDGERS_MAX: Final = 4096
"""The most decisions that are remembered for a principal: 130 bytes and 2 µs or more each."""

LOOK_UPS_LATER_MAX: Final = 256
"""The most look-ups in the background, with those that wait for a place."""

LOOK_UPS_MAX: Final = 16
"""The most look-ups at a time, so that nobody floods the store by asking for many ledgers."""

LOOK_UPS_EACH_MAX: Final = 4
"""The most look-ups of one principal at a time, so that others need not wait for all of his."""

LOOK_UP_SECONDS_MAX: Final = 2.0
"""The longest wait of a request for a look-up, in which its stream's adds wait, too. It is shorter
than the time that clients wait for an answer (5 s).
"""


@dataclass(slots=True)
class _LookUp:
    """A look-up under way, and how many wait for it."""

    task: asyncio.Task[str | None]
    waiting: int = 0


class LedgerLogs(LogDirectory):
    """Of which log each ledger is, as the metadata store says; remembered.

    A ledger that the store does not have is never remembered: it may be made in the next moment.
    """

    def __init__(self, find: FindLog) -> None:
        self._find = find
        self._known: OrderedDict[int, str] = OrderedDict()
        self._asked: dict[int, _LookUp] = {}
        """Look-ups under way. All who want the same wait for the same."""
        self._places = asyncio.Semaphore(LOOK_UPS_MAX)
        self._later: dict[int, asyncio.Task[None]] = {}
        """Look-ups in the background, for which nobody waits."""
        self._places_later = asyncio.Semaphore(LOOK_UPS_EACH_MAX)

    def known(self, ledger_id: int) -> str | None:
        """Return the log of a ledger, empty if it is of none; None if it is not known here."""
        return self._known.get(ledger_id)

    async def learn(self, ledger_id: int) -> str | None:
        """Look a ledger up in the metadata store; return None if there is no such ledger.

        Raises:
            MetadataError: the store does not answer, or its record is damaged.
        """
        asked = self._asked.get(ledger_id)
        if asked is None:
            # It goes on if the first who asked goes away, and ends with the last one.
            task = asyncio.get_running_loop().create_task(self._look_up(ledger_id))
            asked = self._asked[ledger_id] = _LookUp(task)
        asked.waiting += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                asked.task.cancel()
                del self._asked[ledger_id]

    def learn_later(self, ledger_id: int) -> None:
        """Look a ledger up in the background, unless many such look-ups are under way.

        They take no more places than one principal does. A look-up that fails is forgotten.
        """
        if ledger_id not in self._later and len(self._later) < LOOK_UPS_LATER_MAX:
            work = self._learn_in_background(ledger_id)
            self._later[ledger_id] = asyncio.get_running_loop().create_task(work)

    async def _learn_in_background(self, ledger_id: int) -> None:
        try:
            async with self._places_later, asyncio.timeout(LOOK_UP_SECONDS_MAX):
                await self.learn(ledger_id)
        except (BookieError, TimeoutError):
            pass
        finally:
            del self._later[ledger_id]

    async def _look_up(self, ledger_id: int) -> str | None:
        async with self._places:
            log = await self._find(ledger_id)
        if log is not None:
            self._known[ledger_id] = log
            while len(self._known) > KNOWN_LOGS_MAX:
                self._known.popitem(last=False)
        return log


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
        self._limited: tuple[Grant, ...] = ()
        """The grants that do not hold for everything."""
        self._places = asyncio.Semaphore(LOOK_UPS_EACH_MAX)
        self._known: dict[int, tuple[int, int]] = {}
        """Ledger id → the rights that it gives whatever its log is, and those that it may give."""

    def decide(self, right: Right, ledger_id: int) -> bool | None:
        """Return True if `right` is given for this ledger; None if its log must be learnt first."""
        if self._current() is not self._grants:
            self._renew()
        if self._everywhere & right:
            return True
        if not self._limited:
            return False
        known = self._known.get(ledger_id)
        if known is None or known[0] != known[1]:
            known = self._learn_without_store(ledger_id, known)
        certain, possible = known
        if certain & right:
            return True
        return None if possible & right else False

    def decide_everywhere(self, right: Right) -> bool:
        """True if `right` is given without a limit; for ASK every grant is enough."""
        if self._current() is not self._grants:
            self._renew()
        return bool(self._everywhere & right)

    async def may(self, right: Right, ledger_id: int) -> bool:
        """Return the decision, after a look into the store if it is needed; see `decide`."""
        decided = self.decide(right, ledger_id)
        if decided is not None:
            return decided
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX), self._places:
                decided = self.decide(right, ledger_id)
                if decided is not None:
                    return decided  # it was learnt meanwhile
                log = await self._logs.learn(ledger_id)
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"the metadata store did not say within {LOOK_UP_SECONDS_MAX:g} s of which log the "
                "ledger is, which decides what the caller may do"
            ) from error
        if self._current() is not self._grants:
            self._renew()
        # A ledger that does not exist is of no log. The look-up need not be remembered.
        return bool(self._rights_for(ledger_id, log or "") & right)

    def _renew(self) -> None:
        self._grants = self._current()
        self._own = self._grants.of(self.principal)
        self._everywhere = everywhere(self._own)
        self._limited = tuple(one for one in self._own if not one.scope.is_everything)
        self._known.clear()

    def _learn_without_store(
        self, ledger_id: int, known: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Return what is certain and what is possible, and remember it."""
        log = self._logs.known(ledger_id)
        if log is not None:
            rights = self._rights_for(ledger_id, log)
            known = rights, rights
        elif known is not None:
            return known
        else:
            possible = self._everywhere
            for one in self._limited:
                if one.scope.holds_ids_of(ledger_id):
                    possible |= one.rights
            known = self._rights_for(ledger_id, ""), possible
        if len(self._known) >= KNOWN_LEDGERS_MAX:
            self._known.clear()
        self._known[ledger_id] = known
        return known

    def _rights_for(self, ledger_id: int, log: str) -> int:
        rights = self._everywhere
        for one in self._limited:
            if one.scope.holds_ids_of(ledger_id) and one.scope.holds_log(log):
                rights |= one.rights
        return rights


def refusal(principal: str, right: Right, *, of_ledger: bool) -> NotPermittedError:
    """Return the error for a request that `principal` may not make.

    The sentence names what is missing, and never what exists.
    """
    role = least_role(right).value
    where = " for this ledger" if of_ledger else ""
    return NotPermittedError(f"{principal} lacks the role {role}{where}")

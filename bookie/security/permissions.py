"""Decides for each request if its principal has the needed right, usually from memory.

Most decisions need only the ledger's id. If a grant is limited to logs, the decision also needs the
ledger's log. If the log is not in memory, `Permissions.decide` returns None, and `Permissions.may`
looks the log up in the metadata store. Decisions are remembered until the grants change.
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
"""Returns the log of a ledger as ``<namespace>/<name>``: empty for a ledger of no log, None for a
missing ledger.
"""

KNOWN_LOGS_MAX: Final = 65536
"""The greatest number of ledgers whose log is remembered."""

KNOWN_LEDGERS_MAX: Final = 4096
"""The largest number of remembered decisions of a principal. A decision takes 130 bytes of memory;
to make it takes 2 µs or more."""

LOOK_UPS_LATER_MAX: Final = 256
"""The greatest number of background look-ups, including look-ups that wait for a place."""

LOOK_UPS_MAX: Final = 16
"""The greatest number of concurrent look-ups, so that requests cannot overload the store."""

LOOK_UPS_EACH_MAX: Final = 4
"""The most concurrent look-ups of one principal, so that look-ups of other principals can run."""

LOOK_UP_SECONDS_MAX: Final = 2.0
"""The longest time, in seconds, that a request waits for a look-up; the later adds of the request's
stream wait, too. Clients wait longer for an answer: 5 s.
"""


@dataclass(slots=True)
class _LookUp:
    """A running look-up, and the number of callers that wait for its result."""

    task: asyncio.Task[str | None]
    waiting: int = 0


class LedgerLogs(LogDirectory):
    """Looks up the log of each ledger in the metadata store, and remembers the newest results.

    A missing ledger is not remembered, because it may be created at any moment.
    """

    def __init__(self, find: FindLog) -> None:
        self._find = find
        self._known: OrderedDict[int, str] = OrderedDict()
        self._asked: dict[int, _LookUp] = {}
        """Running look-ups by ledger id; all callers for one ledger share a look-up."""
        self._places = asyncio.Semaphore(LOOK_UPS_MAX)
        self._later: dict[int, asyncio.Task[None]] = {}
        """Background tasks by ledger id; no caller waits for these tasks."""
        self._places_later = asyncio.Semaphore(LOOK_UPS_EACH_MAX)

    def known(self, ledger_id: int) -> str | None:
        """Return the log of a ledger, empty for a ledger of no log; None if not in memory."""
        return self._known.get(ledger_id)

    async def learn(self, ledger_id: int) -> str | None:
        """Look up the ledger in the metadata store; return its log, or None for a missing ledger.

        Raises:
            MetadataError: the store does not answer, or the ledger's record is damaged.
        """
        asked = self._asked.get(ledger_id)
        if asked is None:
            # If its first caller is cancelled, the look-up continues for the other callers; it is
            # cancelled when no caller is left.
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
        """Look up the ledger in the background, unless `LOOK_UPS_LATER_MAX` look-ups wait or run.

        All background look-ups together may run as many at a time as the look-ups of one principal
        (`LOOK_UPS_EACH_MAX`). The error of a failed look-up is ignored.
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
        principal: the principal's name.
        current: returns the present grants.
        logs: looks up the log of a ledger.
    """

    def __init__(self, principal: str, current: Callable[[], Grants], logs: LedgerLogs) -> None:
        self.principal = principal
        self._current = current
        self._logs = logs
        self._grants = Grants()
        self._own: tuple[Grant, ...] = ()
        self._everywhere = 0
        self._limited: tuple[Grant, ...] = ()
        """The grants that do not apply to all ledgers."""
        self._places = asyncio.Semaphore(LOOK_UPS_EACH_MAX)
        self._known: dict[int, tuple[int, int]] = {}
        """Ledger id → the rights that are certain, and the rights that are possible, depending on
        the ledger's log."""

    def decide(self, right: Right, ledger_id: int) -> bool | None:
        """True if the principal has `right` for the ledger; None if its log must be looked up."""
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
        """True if the principal has `right` for all ledgers; for ASK any grant is enough."""
        if self._current() is not self._grants:
            self._renew()
        return bool(self._everywhere & right)

    async def may(self, right: Right, ledger_id: int) -> bool:
        """True if the principal has `right` for the ledger; look up the ledger's log if necessary.

        Raises:
            MetadataError: the metadata store did not return the ledger's log in time.
        """
        decided = self.decide(right, ledger_id)
        if decided is not None:
            return decided
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX), self._places:
                decided = self.decide(right, ledger_id)
                if decided is not None:
                    return decided  # another request has looked up the log
                log = await self._logs.learn(ledger_id)
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"the metadata store did not say within {LOOK_UP_SECONDS_MAX:g} s of which log the "
                "ledger is, which decides what the caller may do"
            ) from error
        if self._current() is not self._grants:
            self._renew()
        # A missing ledger counts as a ledger of no log. Only `decide` remembers rights.
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
        """Return and remember the certain rights and the possible rights for the ledger."""
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
    """Return the error for a request for which `principal` lacks `right`.

    The error text names only the missing role, so it does not show if the ledger exists.
    """
    role = least_role(right).value
    where = " for this ledger" if of_ledger else ""
    return NotPermittedError(f"{principal} lacks the role {role}{where}")

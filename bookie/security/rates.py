"""How much one caller, and one namespace, may ask of a bookie in a second.

A rate keeps a neighbour from using up a bookie. It bounds what is asked for, not what is under way.
An **identity** is a principal, or the address of a caller who has no name. A **namespace** is that
of the log to which a ledger belongs; a ledger of no log has none. Each of them has three buckets:
for the bytes that it adds, for those that it reads, and for its requests. A bucket holds the worth
of one second.

A request is admitted while none of its buckets is empty, whatever its size, and is then charged in
full. So a bucket may owe something, and a message larger than a bucket passes, too. The answer to a
request that is not admitted says when the bucket owes nothing any more.

Recovery, repair and admins are never limited: a ledger that nobody can recover or copy is in
danger, and an operator must be able to act on a busy bookie.

Time comes from the caller, so nothing here waits.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bookie.config import NodeSettings
from bookie.errors import TooManyRequestsError
from bookie.security.grants import ANONYMOUS

ACCOUNTS_MAX: Final = 65536
"""The most identities, and the most namespaces, that are remembered at a time."""

ASKED_MAX: Final = 4096
"""The most ledgers of which it is remembered when their logs were last looked for."""

ASK_AGAIN_SECONDS: Final = 5.0
"""The log of a ledger is looked for again after this time, if it was not found."""

RETRY_SECONDS_MIN: Final = 0.01
"""The shortest time after which a caller is asked to come back."""


class TokenBucket:
    """An allowance that grows by `rate` a second, up to the worth of one second.

    Args:
        rate: what is allowed in a second, at least 1.
        now: the present time, in seconds. At first the bucket is full.
    """

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._level = rate
        self._at = now

    def wait_seconds(self, now: float) -> float:
        """Return 0 if a request may go on now, else the time until one may."""
        self._fill(now)
        if self._level >= 1:
            return 0.0
        return max((1 - self._level) / self.rate, RETRY_SECONDS_MIN)

    def charge(self, amount: float, now: float) -> None:
        """Take `amount`, even if that is more than there is."""
        self._fill(now)
        self._level -= amount

    def is_full(self, now: float) -> bool:
        """True if the bucket is as it was at first, so that it need not be kept."""
        self._fill(now)
        return self._level >= self.rate

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.rate, self._level + (now - self._at) * self.rate)
            self._at = now


class Traffic(enum.IntEnum):
    """What the bytes of a request are; each has a bucket of its own."""

    ADD = 0
    READ = 1


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one identity, or one namespace, may ask for in a second; 0 sets no limit."""

    bytes_per_second: int = 0
    requests_per_second: int = 0

    @property
    def is_set(self) -> bool:
        """True if anything is limited."""
        return bool(self.bytes_per_second or self.requests_per_second)


class RateAccounts:
    """The buckets of all identities, or of all namespaces. Full buckets are forgotten.

    Args:
        limits: the same for each of them.
        accounts_max: the most that are remembered; beyond it, whoever asked longest ago is
            forgotten, with what he owes.
    """

    def __init__(self, limits: RateLimits, accounts_max: int = ACCOUNTS_MAX) -> None:
        self.limits = limits
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[str, tuple[TokenBucket | None, ...]] = OrderedDict()
        """By name, in the order of their last use: buckets by `Traffic`, then that of requests."""

    def __len__(self) -> int:
        return len(self._accounts)

    def wait_seconds(self, name: str, traffic: Traffic, now: float) -> float:
        """Return 0 if `name` may ask now, else the time until it may."""
        buckets = self._buckets(name, now)
        bytes_of, requests = buckets[traffic], buckets[-1]
        return max(
            bytes_of.wait_seconds(now) if bytes_of is not None else 0.0,
            requests.wait_seconds(now) if requests is not None else 0.0,
        )

    def charge(self, name: str, traffic: Traffic, size: int, requests: int, now: float) -> None:
        """Charge `name` for requests, and for the bytes that are known of them."""
        buckets = self._buckets(name, now)
        for bucket, amount in ((buckets[traffic], size), (buckets[-1], requests)):
            if bucket is not None and amount:
                bucket.charge(amount, now)

    def _buckets(self, name: str, now: float) -> tuple[TokenBucket | None, ...]:
        found = self._accounts.get(name)
        if found is not None:
            self._accounts.move_to_end(name)
            return found
        # Two looks for each newcomer: so buckets are forgotten faster than they are made.
        for _ in range(2):
            if not self._forget_oldest(now):
                break
        bytes_rate, requests_rate = self.limits.bytes_per_second, self.limits.requests_per_second
        rates = (*(bytes_rate for _ in Traffic), requests_rate)
        made = tuple(TokenBucket(rate, now) if rate else None for rate in rates)
        self._accounts[name] = made
        return made

    def _forget_oldest(self, now: float) -> bool:
        """Forget whoever asked longest ago, if he owes nothing or there are too many."""
        oldest = next(iter(self._accounts), None)
        if oldest is None:
            return False
        is_full = all(one is None or one.is_full(now) for one in self._accounts[oldest])
        if not is_full and len(self._accounts) < self._accounts_max:
            return False
        del self._accounts[oldest]
        return True


class LogDirectory:
    """Which log each ledger belongs to; this one knows none.

    A bookie that knows its cluster's metadata has another one (`permissions.LedgerLogs`).
    """

    def known(self, ledger_id: int) -> str | None:
        """Return the log as ``<namespace>/<name>``, empty if it is of none; None if unknown."""
        del ledger_id
        return None

    def learn_later(self, ledger_id: int) -> None:
        """Begin to look the log up in the background, unless too many look-ups are under way."""
        del ledger_id


class Rates:
    """Decides whether a request may go on now. Without limits, nothing is counted.

    Args:
        current: returns the settings as they are now. Changed rates begin with full buckets.
        monotonic: the time in seconds.
        limited: counts one request that was not admitted, by ``identity`` or ``namespace``.
        logs: of which log each ledger is. As long as that is not known, only the rate of the
            identity counts.
    """

    def __init__(
        self,
        current: Callable[[], NodeSettings],
        monotonic: Callable[[], float],
        limited: Callable[[str], None],
        logs: LogDirectory,
    ) -> None:
        self._current = current
        self._monotonic = monotonic
        self._limited = limited
        self._logs = logs
        self._settings: NodeSettings | None = None
        self._is_on = False
        self._identities = RateAccounts(RateLimits())
        self._namespaces = RateAccounts(RateLimits())
        self._asked: OrderedDict[int, float] = OrderedDict()
        """By ledger: when its log was last looked for in the background."""

    @property
    def is_on(self) -> bool:
        """True if anything is limited now."""
        settings = self._current()
        if settings is not self._settings:
            self._renew(settings)
        return self._is_on

    def admit(self, identity: str, ledger_id: int, traffic: Traffic, size: int = 0) -> None:
        """Admit one request and charge it.

        Args:
            identity: of `account_name`.
            ledger_id: the ledger, for its namespace.
            traffic: whether `size` are bytes to add or to read.
            size: the bytes that are known before the request is served.

        Raises:
            TooManyRequestsError: a rate is used up; nothing was charged. It says when to come back.
        """
        now = self._monotonic()
        namespace = self._namespace_of(ledger_id, now)
        wait, spent = 0.0, ""
        for kind, accounts, name in self._accounts_of(identity, namespace):
            seconds = accounts.wait_seconds(name, traffic, now)
            if seconds > wait:
                wait, spent = seconds, kind
        if spent:
            self._limited(spent)
            who = f"the namespace {namespace}" if spent == "namespace" else "this caller"
            raise TooManyRequestsError(
                f"{who} has used up its rate at this bookie (limits.{spent}_bytes_per_second, "
                f"limits.{spent}_requests_per_second); come back in {wait:.2f} s",
                retry_after_seconds=wait,
            )
        for _, accounts, name in self._accounts_of(identity, namespace):
            accounts.charge(name, traffic, size, 1, now)

    def charge(self, identity: str, ledger_id: int, traffic: Traffic, size: int) -> None:
        """Charge bytes that became known only when the request was served."""
        now = self._monotonic()
        for _, accounts, name in self._accounts_of(identity, self._namespace_of(ledger_id, now)):
            accounts.charge(name, traffic, size, 0, now)

    def _accounts_of(self, identity: str, namespace: str) -> list[tuple[str, RateAccounts, str]]:
        found = []
        if self._identities.limits.is_set:
            found.append(("identity", self._identities, identity))
        if namespace:
            found.append(("namespace", self._namespaces, namespace))
        return found

    def _namespace_of(self, ledger_id: int, now: float) -> str:
        """Return the namespace of a ledger; empty if it has none, or if it is not known yet."""
        if not self._namespaces.limits.is_set:
            return ""
        log = self._logs.known(ledger_id)
        if log is None:
            self._learn(ledger_id, now)
            return ""
        return log.partition("/")[0]

    def _learn(self, ledger_id: int, now: float) -> None:
        asked = self._asked.get(ledger_id)
        if asked is not None and now < asked + ASK_AGAIN_SECONDS:
            return
        self._asked[ledger_id] = now
        self._asked.move_to_end(ledger_id)
        if len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)
        self._logs.learn_later(ledger_id)

    def _renew(self, settings: NodeSettings) -> None:
        """Use other settings; rates that did not change keep their buckets."""
        self._settings = settings
        identity = RateLimits(
            settings.identity_bytes_per_second, settings.identity_requests_per_second
        )
        namespace = RateLimits(
            settings.namespace_bytes_per_second, settings.namespace_requests_per_second
        )
        if identity != self._identities.limits:
            self._identities = RateAccounts(identity)
        if namespace != self._namespaces.limits:
            self._namespaces = RateAccounts(namespace)
        self._is_on = identity.is_set or namespace.is_set


def account_name(principal: str, address: str) -> str:
    """Return the name under which a caller is counted.

    Args:
        principal: his name.
        address: of his connection, as ``ipv4:HOST:PORT``; without a name, all connections from
            one host count together.
    """
    if principal != ANONYMOUS:
        return f"principal {principal}"
    scheme, _, rest = address.partition(":")
    host = rest.rpartition(":")[0] if scheme in ("ipv4", "ipv6") else ""
    return f"address {scheme}:{host}" if host else f"address {address}"

"""Limits the rates of requests and bytes of each caller, and of each namespace, at a bookie.

Rates keep one caller from using all resources of a bookie. They limit requests and bytes per
second, not concurrent requests. An **identity** is a principal, or the address of an anonymous
caller. The **namespace** of a ledger is the namespace of its log; a ledger of no log has no
namespace. Each identity and each namespace has three token buckets: for added bytes, for read
bytes, and for requests. A full bucket holds the tokens of one second.

A request of any size is admitted if none of its buckets is empty. An admitted request is charged
to its buckets as a whole, so the level of a bucket may become negative. So a message may be larger
than a full bucket. The error for a refused request contains the time until its buckets are no
longer empty.

Requests of a recovery are not limited. If the bookie requires roles, requests of repair and of
admins are not limited either; without roles, a bookie cannot recognize such requests. The reasons:
a ledger that cannot be recovered or copied is in danger, and an operator must be able to act on a
busy bookie.

Callers pass the present time, and no function of this module waits.
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
"""The greatest number of identities, and of namespaces, whose buckets are remembered."""

ASKED_MAX: Final = 4096
"""The greatest number of ledgers for which the time of the last look-up is remembered."""

ASK_AGAIN_SECONDS: Final = 5.0
"""If a look-up of a ledger's log gives no result, the log is looked up again after this time."""

RETRY_SECONDS_MIN: Final = 0.01
"""The shortest waiting time in the error for a refused request."""


class TokenBucket:
    """A token bucket, which gains `rate` tokens per second and holds at most `rate` tokens.

    A new bucket is full.

    Args:
        rate: the number of tokens per second, at least 1.
        now: the present time, in seconds.
    """

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._level = rate
        self._at = now

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the bucket holds a token; 0 if it holds a token now."""
        self._fill(now)
        if self._level >= 1:
            return 0.0
        return max((1 - self._level) / self.rate, RETRY_SECONDS_MIN)

    def charge(self, amount: float, now: float) -> None:
        """Take `amount` tokens; if the bucket holds fewer, its level becomes negative."""
        self._fill(now)
        self._level -= amount

    def is_full(self, now: float) -> bool:
        """True if the bucket is full, like a new bucket."""
        self._fill(now)
        return self._level >= self.rate

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.rate, self._level + (now - self._at) * self.rate)
            self._at = now


class Traffic(enum.IntEnum):
    """The kind of a request's bytes, added or read; each kind has its own bucket."""

    ADD = 0
    READ = 1


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The rates that one identity, or one namespace, may use; 0 means no limit."""

    bytes_per_second: int = 0
    requests_per_second: int = 0

    @property
    def is_set(self) -> bool:
        return bool(self.bytes_per_second or self.requests_per_second)


class RateAccounts:
    """The accounts of all identities, or of all namespaces; an account is a group of buckets.

    Before a new account is made, up to two old accounts are dropped if all their buckets are full.

    Args:
        limits: the rates of every account.
        accounts_max: the greatest number of accounts. At this number, a new account replaces the
            least recently used account, even if the level of a bucket is negative.
    """

    def __init__(self, limits: RateLimits, accounts_max: int = ACCOUNTS_MAX) -> None:
        self.limits = limits
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[str, tuple[TokenBucket | None, ...]] = OrderedDict()
        """Name → a bucket for each `Traffic`, and one for requests; least recently used first."""

    def __len__(self) -> int:
        return len(self._accounts)

    def wait_seconds(self, name: str, traffic: Traffic, now: float) -> float:
        """Return the seconds until a request of account `name` is admitted; 0 means now."""
        buckets = self._buckets(name, now)
        bytes_of, requests = buckets[traffic], buckets[-1]
        return max(
            bytes_of.wait_seconds(now) if bytes_of is not None else 0.0,
            requests.wait_seconds(now) if requests is not None else 0.0,
        )

    def charge(self, name: str, traffic: Traffic, size: int, requests: int, now: float) -> None:
        """Charge `requests` requests and `size` bytes to the account `name`."""
        buckets = self._buckets(name, now)
        for bucket, amount in ((buckets[traffic], size), (buckets[-1], requests)):
            if bucket is not None and amount:
                bucket.charge(amount, now)

    def _buckets(self, name: str, now: float) -> tuple[TokenBucket | None, ...]:
        found = self._accounts.get(name)
        if found is not None:
            self._accounts.move_to_end(name)
            return found
        # For each new account, two old accounts are checked, so accounts with full buckets do not
        # accumulate.
        for _ in range(2):
            if not self._forget_oldest(now):
                break
        bytes_rate, requests_rate = self.limits.bytes_per_second, self.limits.requests_per_second
        rates = (*(bytes_rate for _ in Traffic), requests_rate)
        made = tuple(TokenBucket(rate, now) if rate else None for rate in rates)
        self._accounts[name] = made
        return made

    def _forget_oldest(self, now: float) -> bool:
        """Drop the least recently used account, if its buckets are full or the accounts too many.

        Returns:
            True if the account was dropped.
        """
        oldest = next(iter(self._accounts), None)
        if oldest is None:
            return False
        is_full = all(one is None or one.is_full(now) for one in self._accounts[oldest])
        if not is_full and len(self._accounts) < self._accounts_max:
            return False
        del self._accounts[oldest]
        return True


class LogDirectory:
    """Gives the log to which a ledger belongs; this base class knows no log.

    A bookie with access to its cluster's metadata uses the subclass `permissions.LedgerLogs`.
    """

    def known(self, ledger_id: int) -> str | None:
        """Return the log as ``<namespace>/<name>``, empty if there is no log; None if unknown."""
        del ledger_id
        return None

    def learn_later(self, ledger_id: int) -> None:
        """Look up the log of the ledger in the background, unless too many look-ups run."""
        del ledger_id


class Rates:
    """Admits or refuses requests by the rates of their identity and namespace.

    Args:
        current: returns the present settings. If a rate of the identities changes, all identities
            get full buckets; the same is true for namespaces.
        monotonic: returns a monotonic time in seconds.
        limited: counts one refused request; its argument is the kind of the exhausted account:
            ``identity`` or ``namespace``.
        logs: gives the log of a ledger. While the log is unknown, only the rates of the identity
            limit requests for the ledger.
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
        """Ledger id → the time of the last background look-up of its log."""

    @property
    def is_on(self) -> bool:
        settings = self._current()
        if settings is not self._settings:
            self._renew(settings)
        return self._is_on

    def admit(self, identity: str, ledger_id: int, traffic: Traffic, size: int = 0) -> None:
        """Admit one request, and charge it to the buckets of its identity and namespace.

        Args:
            identity: the result of `account_name` for the caller.
            ledger_id: the ledger of the request, which determines the namespace.
            traffic: the kind of the request's bytes.
            size: the number of bytes that is known before the request is served.

        Raises:
            TooManyRequestsError: a bucket is empty, so the request is refused and nothing is
                charged; the error contains the time to wait.
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
        """Charge bytes whose number became known only while an admitted request was served."""
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
        """Return the namespace of a ledger.

        The result is empty if the ledger has no namespace, if its log is unknown, or if namespaces
        have no limits.
        """
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
        """Use new settings; if no rate of identities changed, the identities keep their buckets.

        The same is true for the buckets of namespaces.
        """
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
    """Return the name of a caller's account; all anonymous callers at one host share an account.

    Args:
        principal: the caller's principal.
        address: the address of the caller's connection, as ``ipv4:HOST:PORT``.
    """
    if principal != ANONYMOUS:
        return f"principal {principal}"
    scheme, _, rest = address.partition(":")
    host = rest.rpartition(":")[0] if scheme in ("ipv4", "ipv6") else ""
    return f"address {scheme}:{host}" if host else f"address {address}"

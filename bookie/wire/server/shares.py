"""Shares: limits on the resources of a bookie that each connection and each identity may use.

An identity is a principal, or the address of a caller without a name. All connections of an
identity share one limit. So a peer with many connections gets no more than a peer with few. By
default, an identity gets at most half of the bytes in flight, and a faulty job or proxy leaves the
other half to other identities.

A call takes bytes, streams and watches from two shares: its connection's and its identity's
(`Visit`). A share is deleted when nothing is charged to it any more.

An add that exceeds a share waits, so flow control slows down its client. Any other request that
exceeds a share is refused, and may be repeated soon. Requests of a recovery may exceed the limits
on bytes and calls by a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from bookie.config import NodeSettings
from bookie.env.budget import ByteBudget
from bookie.errors import TooManyRequestsError
from bookie.security.grants import ANONYMOUS
from bookie.telemetry import Metrics
from bookie.telemetry.metrics import SHARES

Key: TypeAlias = str | tuple[str]
"""The name of a connection or principal, or the address of a caller without a name."""

ADD_OVERHEAD_BYTES: Final = 2048
"""Charged for each add in addition to its bytes, so that the number of small adds is limited,
too."""

CONNECTION, IDENTITY = "connection", "identity"
"""The two kinds of holders of a share, under the names in metrics and error texts."""

ADDS, READS, CALLS, STREAMS, WATCHES = "adds", "reads", "calls", "streams", "watches"
"""The kinds of resources that shares limit, as the metric `share_exceeded_total` names them."""

RETRY_SECONDS: Final = 0.2
"""The pause after which a refused peer may try again; much of a share becomes free in this time."""


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """The limits of one share, equal for all connections or for all identities.

    For `calls` and `streams`, 0 means no limit.
    """

    holder: str
    add_bytes: int
    read_bytes: int
    calls: int
    streams: int
    watches: int


class Share:
    """The resources that one connection or one identity uses now."""

    __slots__ = ("adds", "bounds", "calls", "key", "read_bytes", "streams", "watches")

    def __init__(self, key: Key, bounds: ShareBounds) -> None:
        self.key = key
        self.bounds = bounds
        self.adds = ByteBudget(bounds.add_bytes)
        self.read_bytes = 0
        self.calls = 0
        self.streams = 0
        self.watches = 0

    @property
    def is_empty(self) -> bool:
        return not (self.calls or self.adds.used or self.read_bytes or self.watches)


class Shares:
    """The shares of all peers of one bookie.

    Args:
        limits: the budgets of the bookie, and the part of them that a peer may use.
        metrics: counts how often a share was exceeded, and exports the largest share.
    """

    def __init__(self, limits: NodeSettings, metrics: Metrics) -> None:
        self._connections: dict[Key, Share] = {}
        self._identities: dict[Key, Share] = {}
        adds, reads = limits.in_flight_add_bytes_max, limits.in_flight_read_bytes_max
        part = limits.connection_share_max
        self._of_connection = ShareBounds(
            holder=CONNECTION,
            add_bytes=int(adds * part),
            read_bytes=int(reads * part),
            calls=0,
            streams=limits.connection_streams_max,
            watches=limits.connection_watches_max,
        )
        part = limits.identity_share_max
        self._of_identity = ShareBounds(
            holder=IDENTITY,
            add_bytes=int(adds * part),
            read_bytes=int(reads * part),
            calls=limits.identity_calls_max,
            streams=0,
            watches=limits.identity_watches_max,
        )
        self._totals = adds, reads
        exceeded = metrics.share_exceeded_total
        self._exceeded = {pair: exceeded.labels(*pair).inc for pair in SHARES}
        metrics.identity_share.set_function(self._largest)

    def __len__(self) -> int:
        return len(self._connections) + len(self._identities)

    def enter(
        self, peer: str, principal: str, *, is_stream: bool = False, is_urgent: bool = False
    ) -> tuple[Share, ...]:
        """Begin a call; return the shares of its connection and of its identity.

        Args:
            peer: the connection, as gRPC names it.
            principal: the name of the caller.
            is_stream: True if the call is a stream.
            is_urgent: True if recovery waits for the call.

        Raises:
            TooManyRequestsError: a share has no room for another call or stream.
        """
        # The tuple marks an address, so that no principal's name can equal an address.
        identity = (peer.rpartition(":")[0],) if principal == ANONYMOUS else principal
        both = (
            _share(self._connections, peer, self._of_connection),
            _share(self._identities, identity, self._of_identity),
        )
        for share in both:
            bounds = share.bounds
            most = bounds.calls + (bounds.calls // 4 if is_urgent else 0)
            of = STREAMS if is_stream and 0 < bounds.streams <= share.streams else ""
            if of or 0 < most <= share.calls:
                self.forget_if_empty(both)
                raise self.exceeded(share, of or CALLS)
        for share in both:
            share.calls += 1
            share.streams += is_stream
        return both

    def leave(self, both: tuple[Share, ...], *, is_stream: bool) -> None:
        """End a call that `enter` began."""
        for share in both:
            share.calls -= 1
            share.streams -= is_stream
        self.forget_if_empty(both)

    def exceeded(self, share: Share, of: str) -> TooManyRequestsError:
        """Count a request that exceeds a share, and return the error for it."""
        holder = share.bounds.holder
        self._exceeded[holder, of]()
        return TooManyRequestsError(
            f"this {holder} has as many {of} at this bookie as it may",
            retry_after_seconds=RETRY_SECONDS,
        )

    def forget_if_empty(self, both: tuple[Share, ...]) -> None:
        """Delete those of a call's two shares to which nothing is charged."""
        for shares, share in zip((self._connections, self._identities), both, strict=False):
            if share.is_empty and shares.get(share.key) is share:
                del shares[share.key]

    def _largest(self) -> float:
        """Return the largest part of a budget that one identity uses, from 0 to 1."""
        adds, reads = self._totals
        held = self._identities.values()
        return max((max(one.adds.used / adds, one.read_bytes / reads) for one in held), default=0.0)


def _share(shares: dict[Key, Share], key: Key, bounds: ShareBounds) -> Share:
    share = shares.get(key)
    if share is None:
        share = shares[key] = Share(key, bounds)
    return share

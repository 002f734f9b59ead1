"""What one peer may hold of a bookie: a share for each connection, and one for each identity.

An identity is a principal, or the address of a caller without a name. Its connections, streams and
calls share what it may hold. So many connections give a peer no more than few, and whoever reaches
the bookie by one broken proxy or job leaves the other half of the budgets to everybody else.

A call takes bytes, streams and watches from both of its shares (`Visit`). Shares that hold nothing
are forgotten.

Adds over a share wait, so flow control slows their client down; everything else over a share is
refused, and may come back soon. What recovery needs may take a quarter more.
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
"""The charge of an add besides its bytes, so that the number of small adds is bounded, too."""

CONNECTION, IDENTITY = "connection", "identity"
"""Holders of shares, as metrics and refusals name them."""

ADDS, READS, CALLS, STREAMS, WATCHES = "adds", "reads", "calls", "streams", "watches"
"""What shares bound, as the metric `share_exceeded_total` names it."""

RETRY_SECONDS: Final = 0.2
"""When a refused peer is to come back; much of a share is free again within this time."""


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """The most that each holder of one kind may hold; 0 calls or streams are not bounded."""

    holder: str
    add_bytes: int
    read_bytes: int
    calls: int
    streams: int
    watches: int


class Share:
    """What one connection or one identity holds."""

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
        """True if nothing is held."""
        return not (self.calls or self.adds.used or self.read_bytes or self.watches)


class Shares:
    """The shares of all peers of one bookie.

    Args:
        limits: what the whole has, and which part of it a peer may hold.
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
            principal: who calls.
            is_stream: True if the call is a stream.
            is_urgent: True if recovery waits for the call.

        Raises:
            TooManyRequestsError: the peer has as many calls or streams as it may.
        """
        # An address is in a tuple, so that no name can pose as one.
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
        """Count that a share was exceeded; return the error that says so."""
        holder = share.bounds.holder
        self._exceeded[holder, of]()
        return TooManyRequestsError(
            f"this {holder} has as many {of} at this bookie as it may",
            retry_after_seconds=RETRY_SECONDS,
        )

    def forget_if_empty(self, both: tuple[Share, ...]) -> None:
        """Forget those shares of a call that hold nothing."""
        for shares, share in zip((self._connections, self._identities), both, strict=False):
            if share.is_empty and shares.get(share.key) is share:
                del shares[share.key]

    def _largest(self) -> float:
        """Return which part of a budget of bytes the greediest identity holds."""
        adds, reads = self._totals
        held = self._identities.values()
        return max((max(one.adds.used / adds, one.read_bytes / reads) for one in held), default=0.0)


def _share(shares: dict[Key, Share], key: Key, bounds: ShareBounds) -> Share:
    share = shares.get(key)
    if share is None:
        share = shares[key] = Share(key, bounds)
    return share

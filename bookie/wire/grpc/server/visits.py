"""One call at the bookie: what it holds, how long it may last, and when it has its turn.

A `Visit` takes from the shares of its peer and returns all of it, however the call ends: with an
answer, by an error, cancelled, or broken.

Two waits of a call are bounded. A client that takes no answers loses its connection. A call that
waits for the bookie itself, such as a read of a device that hangs, is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from bookie.config import NodeSettings, RpcSettings
from bookie.env.turns import Turns
from bookie.security.gatekeeper import Caller
from bookie.security.grants import ANONYMOUS
from bookie.telemetry import Metrics, event_log
from bookie.wire.deadlines import Deadlines
from bookie.wire.grpc.server.hang_up import hang_up
from bookie.wire.grpc.server.shares import ADDS, READS, WATCHES, Share, Shares

HANG_UP_SECONDS: Final = 0.5
"""The time between two looks for the connections of clients that take no answers."""

_log = event_log(__name__)


class Reception:
    """Begins each call at one bookie.

    Args:
        limits: the shares of peers.
        rpc: how long calls may last.
        metrics: counts what was refused or ended.
        end: shuts down the connections of peers; returns how many it found.
    """

    def __init__(
        self,
        limits: NodeSettings,
        rpc: RpcSettings,
        metrics: Metrics,
        end: Callable[[set[str]], int] = hang_up,
    ) -> None:
        self.shares = Shares(limits, metrics)
        self.turns = Turns()
        self.call_seconds_max = rpc.call_seconds_max
        self._slow_reader_seconds = rpc.slow_reader_seconds
        self._ended, self._given_up = metrics.slow_readers_ended_total, metrics.calls_given_up_total
        self._end = end
        self._to_end: set[str] = set()
        self._deadlines: Deadlines[Visit] = Deadlines(self._expire)

    def enter(
        self,
        peer: str,
        caller: Caller | None = None,
        *,
        is_stream: bool = False,
        is_urgent: bool = False,
    ) -> Visit:
        """Begin a call, which `Visit.leave` ends.

        Args:
            peer: the connection, as gRPC names it.
            caller: who calls; None without a gatekeeper.
            is_stream: True if the call is a stream.
            is_urgent: True if recovery waits for the call.

        Raises:
            TooManyRequestsError: the peer has as many calls or streams as it may.
        """
        self.turns.hurry()
        principal = ANONYMOUS if caller is None else caller.principal
        both = self.shares.enter(peer, principal, is_stream=is_stream, is_urgent=is_urgent)
        return Visit(self, peer, both, is_stream=is_stream)

    def turn_away(self, peer: str) -> Visit:
        """Begin a stream that is only told that it is refused; it holds nothing."""
        return Visit(self, peer, (), is_stream=True)

    def close(self) -> None:
        """End no more calls; the bookie stops."""
        self._deadlines.abandon()

    def work(self, visit: Visit) -> None:
        """Give a call up if it still waits for the bookie after `rpc.call_seconds_max`."""
        visit.is_sending = False
        self._deadlines.start(visit, self.call_seconds_max)

    def send(self, visit: Visit) -> None:
        """End a call whose client has not taken an answer after `rpc.slow_reader_seconds`."""
        visit.is_sending = True
        self._deadlines.start(visit, self._slow_reader_seconds)

    def rest(self, visit: Visit) -> None:
        """Bound no wait of a call: it waits for its client's next request, or is over."""
        self._deadlines.stop(visit)

    def _expire(self, visit: Visit) -> None:
        if visit.is_sending:
            self._ended.inc()
            _log.warning("slow_reader_ended", peer=visit.peer)
            if not self._to_end:
                asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up)
            self._to_end.add(visit.peer)
        else:
            self._given_up.inc()
            visit.is_late = True
        if visit.task is not None:
            visit.task.cancel()

    def _hang_up(self) -> None:
        peers, self._to_end = self._to_end, set()
        self._end(peers)


class Visit:
    """One call, from its acceptance to its end."""

    __slots__ = (
        "_has_left",
        "_is_stream",
        "_reception",
        "is_late",
        "is_sending",
        "peer",
        "shares",
        "task",
    )

    def __init__(
        self, reception: Reception, peer: str, shares: tuple[Share, ...], *, is_stream: bool
    ) -> None:
        self._reception = reception
        self._is_stream = is_stream
        self._has_left = False
        self.peer = peer
        self.shares = shares
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        """The task that serves the call."""
        self.is_sending = False
        self.is_late = False
        """True if the call is cancelled because it lasted too long."""

    def leave(self, _context: object = None) -> None:
        """End the call; further calls do nothing. What it still holds is returned later."""
        if not self._has_left:
            self._has_left = True
            self._reception.rest(self)
            self._reception.shares.leave(self.shares, is_stream=self._is_stream)

    # --- time ----------------------------------------------------------------------------

    @property
    def seconds_max(self) -> float:
        """The longest time for which a request may wait for the bookie."""
        return self._reception.call_seconds_max

    def works(self) -> None:
        """The call waits for the bookie from now on."""
        self._reception.work(self)

    def sends(self) -> None:
        """The call waits from now on for its client to take an answer."""
        self._reception.send(self)

    def rests(self) -> None:
        """The call may now wait for ever, for its client's next request."""
        self._reception.rest(self)

    def try_turn(self, units: int) -> bool:
        """Take units of this turn of the event loop, if it has some left; see `Turns`."""
        return self._reception.turns.try_take(units)

    async def turn(self, units: int) -> None:
        """Wait for units of a turn of the event loop, in the line of the identity."""
        await self._reception.turns.take(units, self.shares[-1] if self.shares else None)

    # --- bytes and watches ---------------------------------------------------------------

    def try_add(self, size: int, *, is_urgent: bool = False) -> bool:
        """Take `size` bytes for adds, if there is room now and nobody waits."""
        for number, share in enumerate(self.shares):
            beyond = share.bounds.add_bytes // 4 if is_urgent else 0
            if not share.adds.try_take(size, beyond):
                self._reception.shares.exceeded(share, ADDS)
                for other in self.shares[:number]:
                    other.adds.give_back(size)
                return False
        return True

    async def add(self, size: int) -> None:
        """Wait for room for `size` bytes of adds, and take them."""
        taken = []
        try:
            for share in self.shares:
                await share.adds.take(size)
                taken.append(share)
        except BaseException:
            for share in taken:
                share.adds.give_back(size)
            raise

    def end_add(self, size: int) -> None:
        """Return bytes of adds."""
        for share in self.shares:
            share.adds.give_back(size)
        self._forget()

    def read(self, size: int, *, is_urgent: bool = False) -> None:
        """Take `size` bytes for a read; a first read is always admitted.

        Raises:
            TooManyRequestsError: the peer has as many reads as it may; nothing was taken.
        """
        for share in self.shares:
            most = share.bounds.read_bytes
            if is_urgent:
                most += most // 4
            if share.read_bytes and share.read_bytes + size > most:
                raise self._reception.shares.exceeded(share, READS)
        for share in self.shares:
            share.read_bytes += size

    def end_read(self, size: int) -> None:
        """Return bytes of a read; a negative size takes bytes without a check."""
        for share in self.shares:
            share.read_bytes -= size
        self._forget()

    def watch(self) -> None:
        """Take one watch of a ledger.

        Raises:
            TooManyRequestsError: the peer watches as many ledgers as it may.
        """
        for share in self.shares:
            if share.watches >= share.bounds.watches:
                raise self._reception.shares.exceeded(share, WATCHES)
        for share in self.shares:
            share.watches += 1

    def end_watches(self, count: int = 1) -> None:
        """Return watches of ledgers."""
        for share in self.shares:
            share.watches -= count
        self._forget()

    def _forget(self) -> None:
        if self._has_left:
            self._reception.shares.forget_if_empty(self.shares)

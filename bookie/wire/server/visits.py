"""One call at the bookie: its charges to the shares, its time limits, and its turns.

A `Visit` charges the shares of its peer, and ends all charges however the call ends: with an
answer, with an error, by cancellation, or by a broken connection.

Two waits of a call have time limits. If a client does not receive an answer in time, its connection
is closed. A client on a slow link receives some bytes all the time, and keeps its connection. If a
call waits too long for the bookie itself, such as for a device that hangs, the call is cancelled
and refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from bookie.config import NodeSettings, RpcSettings
from bookie.env.turns import Turns
from bookie.security.gatekeeper import Caller
from bookie.security.grants import ANONYMOUS
from bookie.telemetry import Metrics, event_log
from bookie.wire.deadlines import Deadlines
from bookie.wire.server.hang_up import hang_up, taken_bytes
from bookie.wire.server.shares import ADDS, READS, WATCHES, Share, Shares

HANG_UP_SECONDS: Final = 0.5
"""The pause before one look at all slow clients together; a look for each client would cost
more."""

LEAST_BYTES_PER_SECOND: Final = 8 * 1024
"""A client that receives at least this many bytes per second is only slow, and keeps its
connection."""

_log = event_log(__name__)


class Reception:
    """Begins each call at one bookie.

    Args:
        limits: the sizes of the shares.
        rpc: the time limits of calls.
        metrics: counts refused requests and ended calls.
        end: shuts down the connections of the given peers; returns how many it found.
        taken: returns how many bytes each of the given peers has received so far.
    """

    def __init__(
        self,
        limits: NodeSettings,
        rpc: RpcSettings,
        metrics: Metrics,
        end: Callable[[set[str]], int] = hang_up,
        taken: Callable[[set[str]], Mapping[str, int]] = taken_bytes,
    ) -> None:
        self.shares = Shares(limits, metrics)
        self.turns = Turns()
        self.call_seconds_max = rpc.call_seconds_max
        # The first look at a call comes after half of the time, the second look after all of it.
        self._look_seconds = rpc.slow_reader_seconds / 2
        self._least = rpc.slow_reader_seconds / 2 * LEAST_BYTES_PER_SECOND
        self._ended, self._given_up = metrics.slow_readers_ended_total, metrics.calls_given_up_total
        self._end = end
        self._taken = taken
        self._slow: dict[Visit, None] = {}
        """Calls whose client has not taken an answer in time; the next look checks these
        clients."""
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
            caller: the caller; None without a gatekeeper.
            is_stream: True if the call is a stream.
            is_urgent: True if recovery waits for the call.

        Raises:
            TooManyRequestsError: a share has no room for another call or stream.
        """
        # Shorten the turn even before a refusal, because a fence may wait behind hundreds of
        # refused calls.
        self.turns.hurry()
        principal = ANONYMOUS if caller is None else caller.principal
        both = self.shares.enter(peer, principal, is_stream=is_stream, is_urgent=is_urgent)
        return Visit(self, peer, both, is_stream=is_stream)

    def turn_away(self, peer: str) -> Visit:
        """Begin a stream that will only be refused; return a visit without charges."""
        return Visit(self, peer, (), is_stream=True)

    def close(self) -> None:
        """Stop all timers of calls, because the bookie stops."""
        self._deadlines.abandon()

    def work(self, visit: Visit) -> None:
        """Cancel a call if it still waits for the bookie after `rpc.call_seconds_max`."""
        visit.is_sending = False
        self._forget_look(visit)
        self._deadlines.start(visit, self.call_seconds_max)

    def send(self, visit: Visit) -> None:
        """Cancel a call if its client receives too little within `rpc.slow_reader_seconds`."""
        visit.is_sending = True
        self._forget_look(visit)
        self._deadlines.start(visit, self._look_seconds)

    def rest(self, visit: Visit) -> None:
        """Stop the timer of a call that has ended, or that waits for its client's next request."""
        self._forget_look(visit)
        self._deadlines.stop(visit)

    def _forget_look(self, visit: Visit) -> None:
        visit.looks = 0
        if self._slow:
            self._slow.pop(visit, None)

    def _expire(self, visit: Visit) -> None:
        if visit.is_sending:
            if not self._slow:
                asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._look)
            self._slow[visit] = None
            return
        self._given_up.inc()
        visit.is_late = True
        if visit.task is not None:
            visit.task.cancel()

    def _look(self) -> None:
        """End the connections of clients that received too few bytes since the previous look."""
        slow, self._slow = self._slow, {}
        if not slow:
            return
        taken = self._taken({visit.peer for visit in slow})
        ended: set[str] = set()
        for visit in slow:
            has_taken = taken.get(visit.peer, 0)
            if self._is_patient_with(visit, has_taken):
                visit.looks, visit.taken = visit.looks + 1, has_taken
                self._deadlines.start(visit, self._look_seconds)
                continue
            self._ended.inc()
            _log.warning("slow_reader_ended", peer=visit.peer)
            ended.add(visit.peer)
            if visit.task is not None:
                visit.task.cancel()
        if ended:
            self._end(ended)

    def _is_patient_with(self, visit: Visit, taken: int) -> bool:
        """True if the client took enough since the last look, and other answers may delay this one.

        All other bytes that the client's connection holds may be sent before this answer. Without
        this limit, a peer could read one answer, and leave all other answers unread for ever.
        """
        held = visit.shares[0].read_bytes if visit.shares else 0
        if not visit.looks:
            visit.held = held
            return True
        visit.held = max(visit.held, held)
        is_fast_enough = taken - visit.taken >= self._least
        return is_fast_enough and (visit.looks - 1) * self._least < visit.held


class Visit:
    """One call, from its acceptance to its end."""

    __slots__ = (
        "_has_left",
        "_is_stream",
        "_reception",
        "held",
        "is_late",
        "is_sending",
        "looks",
        "peer",
        "shares",
        "taken",
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
        self.is_sending = False
        self.looks = self.taken = self.held = 0
        """While an answer waits for the client: the number of looks at the client, the bytes that
        the client had taken at the last look, and the most bytes that its connection held."""
        self.is_late = False
        """True if the call is cancelled because it lasted too long."""

    def leave(self, _context: object = None) -> None:
        """End the visit; further calls of `leave` do nothing.

        Bytes and watches that are still charged are returned later by `end_add`, `end_read` and
        `end_watches`.
        """
        if not self._has_left:
            self._has_left = True
            self._reception.rest(self)
            self._reception.shares.leave(self.shares, is_stream=self._is_stream)

    # --- time ----------------------------------------------------------------------------

    @property
    def seconds_max(self) -> float:
        """The longest time, in seconds, that a request may wait for the bookie."""
        return self._reception.call_seconds_max

    def works(self) -> None:
        """Start the timer that limits how long the call waits for the bookie."""
        self._reception.work(self)

    def sends(self) -> None:
        """Start the timer that limits how long the client takes to receive an answer."""
        self._reception.send(self)

    def rests(self) -> None:
        """Stop the timer: the call may wait without limit for its client's next request."""
        self._reception.rest(self)

    def try_turn(self, units: int) -> bool:
        """Take `units` of the current turn of the event loop if some are left; see `Turns`."""
        return self._reception.turns.try_take(units)

    async def turn(self, units: int) -> None:
        """Wait for `units` of a turn of the event loop; calls of one identity wait in order."""
        await self._reception.turns.take(units, self.shares[-1] if self.shares else None)

    # --- bytes and watches ---------------------------------------------------------------

    def try_add(self, size: int, *, is_urgent: bool = False) -> bool:
        """Charge `size` bytes of adds and return True, if the shares have room and no add waits.

        An urgent add may exceed the shares by a quarter, and overtakes adds that wait.
        """
        for number, share in enumerate(self.shares):
            beyond = share.bounds.add_bytes // 4 if is_urgent else 0
            if not share.adds.try_take(size, beyond):
                self._reception.shares.exceeded(share, ADDS)
                for other in self.shares[:number]:
                    other.adds.give_back(size)
                return False
        return True

    async def add(self, size: int) -> None:
        """Wait until both shares have room for `size` bytes of adds, and charge them."""
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
        for share in self.shares:
            share.adds.give_back(size)
        self._forget()

    def read(self, size: int, *, is_urgent: bool = False) -> None:
        """Charge `size` bytes of a read; a share always has room for a single read.

        Raises:
            TooManyRequestsError: a share has no room for the read; nothing was charged.
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
        """Subtract `size` bytes of reads from the shares; a negative size adds without a check."""
        for share in self.shares:
            share.read_bytes -= size
        self._forget()

    def watch(self) -> None:
        """Charge one watch of a ledger.

        Raises:
            TooManyRequestsError: a share has no room for another watch.
        """
        for share in self.shares:
            if share.watches >= share.bounds.watches:
                raise self._reception.shares.exceeded(share, WATCHES)
        for share in self.shares:
            share.watches += 1

    def end_watches(self, count: int = 1) -> None:
        for share in self.shares:
            share.watches -= count
        self._forget()

    def _forget(self) -> None:
        if self._has_left:
            self._reception.shares.forget_if_empty(self.shares)

"""Chooses the carrier to one bookie, gRPC or frames, and keeps the channel to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from bookie.cluster.endpoints import FRAMES, speaks_tls
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.errors import BookieError, NotPermittedError
from bookie.wire.client.channel import BookieChannel

if TYPE_CHECKING:
    from bookie.ledger.connection.pool import BookiePool

PROBE_AGAIN_SECONDS: Final = 300.0
"""After this time, frames that did not reach a bookie are tried again."""

DOUBT_SECONDS: Final = 5.0
"""The shortest time between two attempts to choose a carrier because the present one fails."""

NOBODY_SECONDS: Final = 0.5
"""The shortest time until the next attempt if the bookie answered by no carrier, for example
because it restarts."""

RETIRE_SECONDS: Final = 30.0
"""The time in which calls end on a channel that another one has replaced."""


class MovableLane(Protocol):
    """A stream to the bookie, which its owner opens again when it breaks."""

    def drop(self) -> None:
        """Drop the stream, because its channel is closed."""

    def move(self, channel: BookieChannel) -> None:
        """Go over to `channel`; the former channel stays open until `leave_channel`."""

    def leave_channel(self, channel: BookieChannel) -> None:
        """Drop the stream if it is on this channel, which is closed now."""


class ChosenChannel:
    """The channel to one bookie.

    If the client may choose the carrier, it goes by gRPC at once. Meanwhile it asks the bookie over
    frames, and goes by frames from the answer on. Nothing breaks by the change: lanes and calls
    stay on the former channel until they have ended or moved. When frames fail later, it asks over
    frames again and then over gRPC, and goes by the first that is answered.

    Args:
        bookie_id: the bookie.
        pool: knows the bookie's addresses, and opens channels.
        lanes: returns the present lanes to the bookie.
    """

    def __init__(
        self, bookie_id: str, pool: BookiePool, lanes: Callable[[], Iterable[MovableLane]]
    ) -> None:
        self._bookie_id = bookie_id
        self._pool = pool
        self._lanes = lanes
        self._channel: BookieChannel | None = None
        self._registration: Registration | None = None
        """The registration from which the address of the channel was taken."""
        self._offered: tuple[Endpoint, ...] = ()
        """The addresses of this registration that the client may use, the best one last."""
        self._chosen_for: tuple[int, tuple[Endpoint, ...]] | None = None
        """The arrival and the addresses of the bookie for which a carrier was chosen last."""
        self._is_choosing = False
        self._doubt_at = 0.0
        """Event-loop time from which a failing carrier is a reason to choose again."""
        self._timer: asyncio.TimerHandle | None = None
        """Tries again whether frames reach the bookie."""
        self._retiring: dict[BookieChannel, asyncio.TimerHandle] = {}
        """The former channels, and the timers that close them."""

    async def close(self) -> None:
        """End all calls, also those on former channels."""
        self._stop_timer()
        for timer in self._retiring.values():
            timer.cancel()
        for channel in (self._channel, *self._retiring):
            if channel is not None:
                await channel.close()

    def hurry(self) -> None:
        """Choose anew at once, because the bookie has just registered."""
        if len(self._offered) > 1:
            self._look()

    def channel(self) -> BookieChannel:
        """Return the channel to the bookie's current address.

        Raises:
            BookieUnreachableError: the bookie's address is unknown.
            TlsError: the client's settings forbid the bookie's address.
        """
        registration, channel = self._pool.directory.last_known(self._bookie_id), self._channel
        if channel is None or registration is not self._registration or self._is_outdated(channel):
            channel = self._follow(registration)
        if len(self._offered) > 1:
            self._doubt(channel)
        return channel

    def _follow(self, registration: Registration | None) -> BookieChannel:
        """Return a channel to an address that the bookie offers now, if possible the present one.

        Raises:
            BookieUnreachableError: the bookie's address is unknown.
            TlsError: the client's settings forbid the bookie's address.
        """
        offered, before = self._pool.offered(self._bookie_id), self._channel
        if before is not None and not self._is_outdated(before) and _leads_to(before, *offered):
            self._registration, self._offered = registration, offered
            return before
        channel = self._channel = self._pool.open_channel(offered[0], self._bookie_id)
        self._registration, self._offered = registration, offered
        if before is not None:
            self._pool.close_channel(before)
            for lane in self._lanes():
                lane.drop()
        return channel

    # --- the choice of a carrier ---------------------------------------------------------

    def _doubt(self, channel: BookieChannel) -> None:
        """Begin to choose a carrier if the bookie has registered anew, or if the present one fails.

        Args:
            channel: the present channel.
        """
        now = asyncio.get_running_loop().time()
        arrival = self._pool.directory.arrivals(self._bookie_id), self._offered
        is_due = arrival != self._chosen_for or (channel.is_failing and now >= self._doubt_at)
        if not is_due or self._is_choosing or self._pool.is_closed:
            return
        self._chosen_for, self._is_choosing = arrival, True
        self._pool.spawn(self._choose(self._offered), name=f"choose a carrier to {self._bookie_id}")

    async def _choose(self, offered: tuple[Endpoint, ...]) -> None:
        """Go by the last address of `offered` at which the bookie answers; else change nothing."""
        self._stop_timer()
        pause = NOBODY_SECONDS
        try:
            for endpoint in reversed(offered):
                # Without frames, gRPC is as good as it gets.
                is_first = endpoint is offered[0] and _leads_to(self._channel, endpoint)
                if is_first or await self._try(endpoint) or self._offered != offered:
                    pause = DOUBT_SECONDS
                    break
        finally:
            self._is_choosing = False
        loop = asyncio.get_running_loop()
        self._doubt_at = loop.time() + pause
        if not _leads_to(self._channel, self._offered[-1]):
            self._timer = loop.call_later(PROBE_AGAIN_SECONDS, self._probe_again)
        self._look()  # the bookie may have registered anew meanwhile

    async def _try(self, endpoint: Endpoint) -> bool:
        """Go by an address of the bookie if the bookie answers there; return False otherwise."""
        probe, is_taken = self._pool.open_channel(endpoint, self._bookie_id), False
        try:
            try:
                await probe.info(timeout=self._pool.settings.connect_timeout_seconds)
            except NotPermittedError:
                pass  # the bookie answers, to a client without a role
            except BookieError:
                return False
            if endpoint in self._offered and not _leads_to(self._channel, endpoint):
                self._replace(probe)
                is_taken = True
        finally:
            if not is_taken:
                await probe.close()
        return True

    def _replace(self, channel: BookieChannel) -> None:
        """Use `channel` from now on; close the former one when its calls have had their time."""
        former, self._channel = self._channel, channel
        if former is not None:
            loop = asyncio.get_running_loop()
            self._retiring[former] = loop.call_later(RETIRE_SECONDS, self._retire, former)
        for lane in self._lanes():
            lane.move(channel)

    def _retire(self, former: BookieChannel) -> None:
        del self._retiring[former]
        for lane in self._lanes():
            lane.leave_channel(former)
        self._pool.close_channel(former)

    def _probe_again(self) -> None:
        self._chosen_for = None
        self._look()

    def _look(self) -> None:
        """Follow the registration, if the bookie was ever called."""
        if self._channel is not None:
            with suppress(BookieError):  # whoever calls the bookie next gets the error
                self.channel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_outdated(self, channel: BookieChannel) -> bool:
        """True if the channel is not connected, and the credential files changed since it opened.

        A connected channel stays in use, so that its streams continue. By frames each connection
        takes the files of its moment.
        """
        if channel.credentials is None or channel.is_framed:
            return False
        is_changed = channel.credentials is not self._pool.security.credentials()
        return is_changed and not channel.is_connected


def _leads_to(channel: BookieChannel | None, *endpoints: Endpoint) -> bool:
    """True if the channel leads to one of these addresses, in the same way."""
    return channel is not None and any(
        (channel.address, channel.is_framed, channel.credentials is not None)
        == (one.address, one.name == FRAMES, speaks_tls(one))
        for one in endpoints
    )

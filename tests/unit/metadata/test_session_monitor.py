"""The session's watch in virtual time: probes, renewals, pauses, and an end without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from bookie.errors import (
    BookieError,
    MetadataUnavailableError,
    SessionLostError,
    UnauthorizedError,
)
from bookie.metadata.session import (
    EXPIRY_EVENTS,
    Connected,
    Disconnected,
    Expired,
    SessionEvent,
    SessionState,
)
from bookie.metadata.session_monitor import SessionMonitor
from bookie.testing.simulation.loop import Mode, simulated_loop

T = TypeVar("T")
TIMEOUT = 6.0
CONNECTION_LOST, SESSION_LOST, RECONNECTED, REESTABLISHED = EXPIRY_EVENTS


class Server:
    """One end of a session, which the test takes away and gives back."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: type[BookieError] | None = None
        self.swallows = False
        self.paused_seconds = 0.0
        self.heard: list[SessionEvent] = []
        self.asked: list[str] = []
        self.monitor = SessionMonitor(
            TIMEOUT,
            probe=self._answer("probe"),
            renew=self._answer("renew"),
            announce=self.heard.append,
            clock=lambda: self.loop.time() + self.paused_seconds,
            jitter=lambda: 0.5,
        )

    def _answer(self, what: str) -> Callable[[], Awaitable[None]]:
        async def answer() -> None:
            self.asked.append(what)
            if self.swallows:
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
            if self.error is not None:
                raise self.error("as the test wants it")

        return answer


def simulate(test: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
    """Run a test against a server and its monitor, in several orders of turns."""

    async def main() -> None:
        server = Server()
        async with server.monitor:
            await test(server)
        told = list(server.heard)
        await asyncio.sleep(10 * TIMEOUT)
        assert server.heard == told

    for seed, mode in enumerate(Mode):
        loop = simulated_loop(seed, mode)
        loop.run(main())
        assert not loop.unfinished()


@pytest.mark.parametrize("error", [MetadataUnavailableError, None])
def test_a_long_outage_is_four_events(error: type[BookieError] | None) -> None:
    """Case 64, with a server that refuses and with one that swallows everything."""

    async def test(server: Server) -> None:
        await asyncio.sleep(100.0)
        assert server.heard == []
        server.error, server.swallows = error, error is None
        await asyncio.sleep(TIMEOUT * 5 / 6)
        assert server.heard == [CONNECTION_LOST, SESSION_LOST]
        assert server.monitor.state is SessionState.LOST
        await asyncio.sleep(10 * TIMEOUT)
        assert "probe" not in server.asked[server.asked.index("renew") :]
        server.error, server.swallows = None, False
        await asyncio.sleep(TIMEOUT * 2 / 3)
        assert server.heard == list(EXPIRY_EVENTS)

    simulate(test)


def test_a_short_outage_is_two_events() -> None:
    """Case 63."""

    async def test(server: Server) -> None:
        server.error = MetadataUnavailableError
        await asyncio.sleep(TIMEOUT / 2)
        server.error = None
        await asyncio.sleep(TIMEOUT)
        assert server.heard == [CONNECTION_LOST, RECONNECTED]

    simulate(test)


@pytest.mark.parametrize("error", [SessionLostError, UnauthorizedError])
def test_the_answer_to_a_probe_may_end_the_session(error: type[BookieError]) -> None:
    """Cases 65, 68."""

    async def test(server: Server) -> None:
        server.error = error
        await asyncio.sleep(TIMEOUT)
        assert server.heard == [CONNECTION_LOST, SESSION_LOST]
        server.error = None
        await asyncio.sleep(TIMEOUT)
        assert server.heard == list(EXPIRY_EVENTS)

    simulate(test)


def test_what_the_connection_reports_is_announced_at_once() -> None:
    """Before anybody else gets a turn of the loop."""

    async def test(server: Server) -> None:
        server.monitor.tell(Disconnected())
        assert server.heard == [CONNECTION_LOST]
        server.monitor.tell(Expired())
        assert server.heard == [CONNECTION_LOST, SESSION_LOST]
        server.monitor.tell(Connected())
        await asyncio.sleep(TIMEOUT / 15)
        assert server.heard == list(EXPIRY_EVENTS)
        assert server.asked == ["renew"]

    simulate(test)


def test_whoever_asks_after_a_pause_hears_of_it() -> None:
    """The clock runs on while the machine is suspended, the loop's does not."""

    async def test(server: Server) -> None:
        server.paused_seconds = TIMEOUT
        assert server.monitor.state is SessionState.LOST
        assert server.heard == [CONNECTION_LOST, SESSION_LOST]

    simulate(test)


def test_a_mistake_of_the_backend_is_no_silence() -> None:
    """An error that is none of ours ends the context, as in every group of tasks."""

    async def main() -> None:
        async def broken() -> None:
            raise ZeroDivisionError

        async with SessionMonitor(
            TIMEOUT,
            probe=broken,
            renew=broken,
            announce=lambda _: None,
            clock=asyncio.get_running_loop().time,
        ):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        simulated_loop().run(main())
    assert caught.group_contains(ZeroDivisionError)


def test_clients_come_back_at_different_times() -> None:
    """After an outage of a server its two hundred clients do not all ask in the same moment."""
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        outage = True

        async def renew() -> None:
            if outage:
                raise MetadataUnavailableError("as the test wants it")
            times.append(loop.time())

        async with asyncio.TaskGroup() as group:

            async def live(number: int) -> None:
                monitor = SessionMonitor(
                    TIMEOUT,
                    probe=renew,
                    renew=renew,
                    announce=lambda _: None,
                    clock=loop.time,
                    jitter=lambda: (number * 0.618) % 1.0,
                )
                async with monitor:
                    await asyncio.sleep(4 * TIMEOUT)

            for number in range(200):
                group.create_task(live(number))
            await asyncio.sleep(2 * TIMEOUT)
            outage = False

    simulated_loop().run(main())
    first = sorted(times)[:200]
    assert first[-1] - first[0] >= TIMEOUT / 10
    busiest = max(sum(at <= other < at + TIMEOUT / 60 for other in first) for at in first)
    assert busiest <= 40

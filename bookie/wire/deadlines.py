"""When calls have to be over: one timer of the event loop for all of a channel's.

A timer for each call would be a fifth of the client's own cost of reading one entry. Nearly every
timer would be cancelled.

A program may block its event loop, or the process may be stopped. Afterwards the timer fires before
the loop handles answers that arrived meanwhile. So calls that are due then get a moment more, once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

LATE_SECONDS: Final = 0.1
"""A timer that fires later than this fires in a loop that was held up."""

GRACE_SECONDS: Final = 0.5
"""For answers to come from their sockets after that."""


def is_being_cancelled() -> bool:
    """True if the current task itself was cancelled, not only what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Deadlines:
    """Cancels each call that is not taken out in time. One event loop uses it."""

    def __init__(self) -> None:
        self._due: dict[Any, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._is_grace = False
        """True if those who are due were spared when the timer fired last."""

    def start(self, call: Any, seconds: float) -> None:
        """Cancel `call` after that time, unless `stop` comes first."""
        loop = asyncio.get_running_loop()
        due = self._due[call] = loop.time() + seconds
        if self._timer is None or due < self._wake_at:
            self._arm(loop, due)

    def stop(self, call: Any) -> bool:
        """Forget a call; whether its time was not over yet."""
        return self._due.pop(call, None) is not None

    def close(self) -> None:
        """Cancel nothing any more. Closing the channel ends the calls that still run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = due
        self._timer = loop.call_at(due, self._fire)

    def _fire(self) -> None:
        """Cancel what is due, and wait for what is due next."""
        self._timer = None
        loop = asyncio.get_running_loop()
        # Some loops wake up a moment early, by the resolution of their clock.
        now = max(loop.time(), self._wake_at)
        is_late = bool(self._due) and now - self._wake_at > LATE_SECONDS
        self._is_grace = is_late and not self._is_grace
        if self._is_grace:
            self._arm(loop, now + GRACE_SECONDS)
            return
        for call in [call for call, due in self._due.items() if due <= now]:
            del self._due[call]
            call.cancel()
        if self._due:
            self._arm(loop, min(self._due.values()))

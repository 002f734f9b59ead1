"""Many deadlines with one event-loop timer, for calls and for state machines.

With a separate event-loop timer for each call, timers would take a fifth of a client's time to read
one entry. And nearly every timer would be cancelled.

Deadlines count only the time in which the event loop ran. A program may block its event loop, or
the process may be stopped. After such a pause, the loop first finds passed deadlines, and only then
reads the answers that arrived during the pause. The calls of these answers must not time out. So
the timer fires at least every half second. If the timer fires late, all deadlines are moved by the
length of the pause. A deadline that has passed in spite of this move gets half a second more, but
only once. So calls can time out even if an event loop is always late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")

LATE_SECONDS: Final = 0.1
"""If a timer fires more than this number of seconds late, the event loop counts as blocked."""

PART_SECONDS: Final = 0.5
"""The longest time between two checks of the clock; also the extra time of a passed deadline."""


def is_being_cancelled() -> bool:
    """True if the current task was cancelled, and not only the call for which the task waits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _cancel(call: Any) -> None:
    call.cancel()


class Deadlines(Generic[K]):
    """Expires each key that is not stopped in time; only one event loop may use the object.

    Args:
        expire: called with each expired key; the default calls ``key.cancel()``.
    """

    def __init__(self, expire: Callable[[K], object] = _cancel) -> None:
        self._expire = expire
        self._due: dict[K, float] = {}
        self._spared: set[K] = set()
        """Keys that were due after a pause and got more time."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._was_held_up = False
        self._is_abandoned = False

    def start(self, key: K, seconds: float) -> None:
        """Expire `key` after `seconds`, unless it is stopped; a second call restarts the time."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is not None and now - self._wake_at > LATE_SECONDS:
            self._skip_pause(now)
        if self._spared:
            self._spared.discard(key)
        due = self._due[key] = now + seconds
        if self._timer is None or due < self._wake_at:
            self._arm(loop, min(due, now + PART_SECONDS))

    def stop(self, key: K) -> bool:
        """Forget a key; return True if the key was started and has not expired."""
        return self._due.pop(key, None) is not None

    def abandon(self) -> None:
        """Expire no more keys; for a key that has not expired, `stop` still returns True."""
        self._is_abandoned = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, wake_at: float) -> None:
        if self._is_abandoned:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = wake_at
        self._timer = loop.call_at(wake_at, self._fire)

    def _skip_pause(self, now: float) -> None:
        """Move all deadlines by the time for which the loop was blocked."""
        pause = now - self._wake_at
        for key in self._due:
            self._due[key] += pause
        self._wake_at, self._was_held_up = now, True

    def _fire(self) -> None:
        """Expire the due keys in the order of their deadlines; set the timer for the others."""
        self._timer = None
        loop = asyncio.get_running_loop()
        # Some loops wake up slightly early, by the resolution of their clock.
        now = max(loop.time(), self._wake_at)
        if now - self._wake_at > LATE_SECONDS:
            self._skip_pause(now)
        is_late, self._was_held_up = self._was_held_up, False
        passed = [(due, key) for key, due in self._due.items() if due <= now]
        try:
            for due, key in sorted(passed, key=lambda one: one[0]):
                if self._due.get(key) != due:
                    continue  # stopped or restarted by a key that expired before
                if is_late and key not in self._spared:
                    self._spared.add(key)
                    self._due[key] = now + PART_SECONDS
                else:
                    del self._due[key]
                    self._spared.discard(key)
                    self._expire(key)
        finally:
            if self._due:
                self._spared &= self._due.keys()
                self._arm(loop, min(now + PART_SECONDS, *self._due.values()))
